"""The Secret and the webhooks' configurations over the wire."""

from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cluster import Kept, Unreachable
from extender.cluster.vault import KubeVault
from tests.fakes_apiserver import ApiServer, refusal, reply, reset

ALL = "/api/v1/namespaces/ns/secrets"
ONE = f"{ALL}/s"
GROUP = "/apis/admissionregistration.k8s.io/v1"
MUTATING, VALIDATING = (f"{GROUP}/{kind}webhookconfigurations/0-tessera" for kind in ("mutating", "validating"))
pytestmark = pytest.mark.anyio


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A scripted API server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ApiServer()
    yield server
    server.close()


def vault(api: ApiServer, folder: Path) -> KubeVault:
    """Return a client of it."""
    return KubeVault(api.kubeconfig(folder), None, "ns", "s")


def text(data: bytes) -> str:
    return b64encode(data).decode()


async def test_read(api: ApiServer, tmp_path: Path) -> None:
    """A Secret, one that says nothing, and none."""
    data = {"tls.crt": text(b"c"), "tls.key": text(b"k"), "ca.crt": text(b"b"), "other": text(b"o")}
    full = reply(200, {"metadata": {"resourceVersion": "7"}, "data": data})
    api.script("GET", ONE, full, reply(200, {"metadata": {"resourceVersion": "8"}}), refusal(404, "not found"))
    one = vault(api, tmp_path)
    assert [await one.read() for _ in range(3)] == [
        Kept(b"c", b"k", b"b", version="7"),
        Kept(b"", b"", b"", version="8"),
        None,
    ]


async def test_write(api: ApiServer, tmp_path: Path) -> None:
    """A new Secret, one over what was read, and two that somebody else was faster with."""
    api.script("POST", ALL, reply(201, {}), refusal(409, "exists"))
    api.script("PUT", ONE, reply(200, {}), refusal(409, "changed"))
    one = vault(api, tmp_path)
    new, old = Kept(b"c", b"k", b"b", b"n", b"m"), Kept(b"c", b"k", b"b", version="7")
    assert [await one.write(kept) for kept in (new, new, old, old)] == [True, False, True, False]
    posted, _, put, _ = (request.body for request in api.requests)
    assert posted["metadata"] == {"namespace": "ns", "name": "s"}
    assert (posted["type"], posted["data"]["next.crt"]) == ("kubernetes.io/tls", text(b"n"))
    assert put["metadata"]["resourceVersion"] == "7"


async def test_trust(api: ApiServer, tmp_path: Path) -> None:
    """Only webhooks that do not trust it yet are changed, and a configuration that is not there is no error."""
    stale, fresh = (
        {"name": n, "clientConfig": {"caBundle": text(bundle)}} for n, bundle in (("a", b"x"), ("b", b"new"))
    )
    api.script("GET", MUTATING, reply(200, {"webhooks": [stale, fresh, {"name": "c", "clientConfig": {}}]}))
    api.script("PATCH", MUTATING, reply(200, {}))
    api.script("GET", VALIDATING, refusal(404, "not found"))
    await vault(api, tmp_path).trust(b"new")
    (patch,) = (request.body for request in api.requests if request.method == "PATCH")
    assert patch == {"webhooks": [{"name": n, "clientConfig": {"caBundle": text(b"new")}} for n in "ac"]}


async def test_no_answer_is_unreachable(api: ApiServer, tmp_path: Path) -> None:
    """A refusal, nonsense and a broken connection."""
    api.script("GET", ONE, refusal(403, "no right"), reply(200, []), reset)
    one = vault(api, tmp_path)
    for says in ("403", "Secret ns/s", ONE):
        with pytest.raises(Unreachable, match=says):
            await one.read()
