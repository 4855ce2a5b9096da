"""The webhooks' listener: what it serves, over TLS, and how it is set up."""

import json
import ssl
import time
from http.client import HTTPConnection, HTTPSConnection
from pathlib import Path

import pytest
import trustme

from extender.admission import build_admission
from extender.metrics import Metrics
from extender.settings import read
from extender.webhook import Admission
from tests.e2e.controlplane.ports import HeldPort
from tests.extender.served import client
from tests.extender.test_main import HOST, get, process
from tests.extender.test_webhook import pod, review


@pytest.mark.anyio
async def test_what_is_served() -> None:
    """Both webhooks by POST, one sentence for everything else, and each request is counted."""
    metrics = Metrics()
    async with client(build_admission(Admission(), metrics)) as http:
        reply = await http.post("/mutate", content=review(pod(memory="4Gi")), params={"timeout": "5s"})
        assert (reply.status_code, reply.json()["response"]["allowed"]) == (200, True)
        reply = await http.post("/validate", content=review(pod(memory="4Gi")))
        assert (reply.status_code, reply.json()["response"]["allowed"]) == (200, False)
        for method, path, status in (("GET", "/mutate", 404), ("POST", "/filter", 404), ("GET", "/metrics", 404)):
            reply = await http.request(method, path)
            assert (reply.status_code, list(reply.json())) == (status, ["Error"])
        assert (await http.post("/mutate", content=b"{")).status_code == 400
        assert (await http.post("/mutate", content=bytes((7 << 20) + 1))).status_code == 413
    for name, code in (("mutate", 200), ("mutate", 400), ("mutate", 413), ("validate", 200)):
        assert metrics.requests.labels(name, code)._value.get() == 1


@pytest.mark.anyio
async def test_the_largest_review_is_taken() -> None:
    """A debugger for a pod of the 3 MiB that an API server takes at most comes with that pod twice."""
    large = pod({"name": "main", "env": [{"name": "X", "value": "x" * (3 << 20)}]}, memory="4Gi")
    body = review(large, "UPDATE", oldObject=large, subResource="ephemeralcontainers")
    async with client(build_admission(Admission(), Metrics())) as http:
        reply = await http.post("/mutate", content=body)
    assert (reply.status_code, reply.json()["response"]["allowed"]) == (200, True)


def test_the_process_serves_them_with_given_files(tmp_path: Path) -> None:
    """On a port of their own, and nothing else there."""
    ca = trustme.CA()
    cert = ca.issue_cert(HOST)
    cert.private_key_pem.write_to_path(tmp_path / "key")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    flags = ["--delivery", "none", "--webhook-certificates", "files"]
    flags += ["--webhook-cert", str(tmp_path / "cert"), "--webhook-key", str(tmp_path / "key"), "--webhook-port"]
    with HeldPort() as port, HeldPort() as door, process(port.number, *flags, str(door.number)) as running:
        url = f"https://{door}"
        status, text = get(f"{url}/mutate", json.loads(review(pod(memory="4Gi"))), context)
        assert (status, json.loads(text)["response"]["patchType"]) == (200, "JSONPatch")
        assert get(f"{url}/livez", None, context)[0] == 404
        kept = [HTTPSConnection(str(door), context=context), HTTPConnection(str(port))]
        for pause in (6, 0):  # the API server keeps an idle connection for 90 s: none may be closed under its request
            for connection in kept:
                connection.request("GET", "/readyz")
                connection.getresponse().read()
            time.sleep(pause)
        for connection in kept:
            connection.close()
        begin = time.monotonic()
        running.terminate()
        assert running.wait(20) == 0
        assert time.monotonic() - begin < 5


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--webhook-certificates", "files"], "webhook_certificates files needs webhook_cert and webhook_key."),
        ([], "webhook_certificates self-signed needs an API server and pod_namespace."),
    ],
)
def test_a_certificate_is_needed(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    """One sentence, and the process ends."""
    with pytest.raises(SystemExit):
        read(["--webhook-port", "9443", *flags], {})
    assert capsys.readouterr().err == f"tessera-extender: {says}\n"


def test_the_names_are_the_services_if_not_said() -> None:
    """In the pod's own namespace."""
    assert read(["--pod-namespace", "ns"], {}).dns_names == ("tessera-webhook.ns.svc",)
    assert read(["--webhook-names", "a.svc, 127.0.0.1"], {}).dns_names == ("a.svc", "127.0.0.1")
