"""Who may call: kube-scheduler with a client's certificate, files that are swapped under load, and nobody else."""

import json
import os
import socket
import ssl
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml

from tests.e2e.controlplane.api import answers
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import LOOPBACK, HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.recount import recount
from tests.e2e.relay import Relay
from tests.e2e.scene import DEPLOY, EXTENDER, ROOT, add_nodes, advertised, control_plane, create, machines, pod

pytestmark = pytest.mark.e2e

SERVER: Final = "tessera-extender.tessera-system.svc"
CLIENT: Final = "system:kube-scheduler"


@dataclass
class Secret:
    """Files as a kubelet mounts them: links through `..data`, which is swapped at once."""

    folder: Path
    ca: trustme.CA
    count: int = 0

    def write(self, name: str, common_name: str) -> None:
        """Put a new certificate, its key and the CA in place."""
        cert = self.ca.issue_cert(name, common_name=common_name)
        self.count += 1
        version = self.folder / f"..{self.count}"
        version.mkdir(parents=True)
        (version / "tls.crt").write_bytes(b"".join(pem.bytes() for pem in cert.cert_chain_pems))
        (version / "tls.key").write_bytes(cert.private_key_pem.bytes())
        (version / "ca.crt").write_bytes(self.ca.cert_pem.bytes())
        for file in ("tls.crt", "tls.key", "ca.crt"):
            if not (self.folder / file).is_symlink():
                (self.folder / file).symlink_to(f"..data/{file}")
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")

    def path(self, file: str) -> str:
        """Return the path that settings name."""
        return str(self.folder / file)


@dataclass
class Stage:
    """The control plane, the extender over mTLS, and the secrets of both sides."""

    plane: ControlPlane
    extender: Process
    port: HeldPort
    server: Secret
    client: Secret

    def context(self, common_name: str | None) -> ssl.SSLContext:
        """Return a caller's side, with a certificate of that name, or none."""
        context = ssl.create_default_context()
        self.server.ca.configure_trust(context)
        context.check_hostname = False
        if common_name:
            self.server.ca.issue_cert("caller.example", common_name=common_name).configure_cert(context)
        return context

    def call(self, context: ssl.SSLContext | None, scheme: str = "https") -> tuple[int, Any]:
        """Ask filter; return the status and the body."""
        body = {"Pod": pod("asked", {"main": {"memory": "1Gi"}}), "NodeNames": ["node-000"]}
        request = urllib.request.Request(f"{scheme}://{self.port}/filter", json.dumps(body).encode())
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.loads(error.read())

    def bound(self) -> int:
        """Return how many pods are bound."""
        items = json.loads(self.plane.request("GET", "/api/v1/namespaces/default/pods"))["items"]
        return sum("nodeName" in item["spec"] for item in items)


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Forty nodes, the extender with mTLS and plain probes, and kube-scheduler with the shipped configuration."""
    ca, folder = trustme.CA(), tmp_path_factory.mktemp("secrets")
    server, client = Secret(folder / "server", ca), Secret(folder / "client", ca)
    server.write(SERVER, SERVER)
    client.write("scheduler.example", CLIENT)
    with control_plane() as plane, HeldPort() as port, HeldPort() as probes:
        add_nodes(plane, machines(40))
        os.environ.setdefault("PYTHONPATH", str(ROOT))
        files = {name: server.path(file) for name, file in (("cert", "tls.crt"), ("key", "tls.key"))}
        command = [sys.executable, "-m", "extender", "--kubeconfig", str(plane.kubeconfig(EXTENDER.name))]
        command += ["--port", str(port.number), "--probe-port", str(probes.number), "--tls-client-names", CLIENT]
        command += ["--tls-cert", files["cert"], "--tls-key", files["key"], "--tls-client-ca", server.path("ca.crt")]
        url = f"http://{probes}"
        process = plane.start("extender", command, url, lambda: answers(f"{url}/readyz"))
        wait_until(lambda: advertised(plane), "totals are written")
        plane.start_scheduler(scheduler(plane, port, client))
        yield Stage(plane, process, port, server, client)


def scheduler(plane: ControlPlane, port: HeldPort | Relay, client: Secret) -> Path:
    """Return the shipped configuration, with this test's address and files put in."""
    shipped = yaml.safe_load((DEPLOY / "scheduler/config-tls.yaml").read_text())
    del shipped["clientConnection"]
    (extender,) = shipped["extenders"]
    assert extender["tlsConfig"]["serverName"] == SERVER
    extender["urlPrefix"] = f"https://{port}"
    files = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    extender["tlsConfig"] |= {key: client.path(file) for key, file in files.items()}
    path = plane.folder / "shipped-config-tls.yaml"
    path.write_text(yaml.safe_dump(shipped))
    return path


def test_pods_are_bound_while_both_sides_files_are_swapped(stage: Stage) -> None:
    """Not one call fails: kube-scheduler would have told of it in an event."""
    made = [pod(f"pod-{i:03d}", {"main": {"memory": "1Gi", "utilization": "10%"}}) for i in range(150)]
    before = stage.server.count
    for i in range(0, len(made), 10):
        # kube-scheduler reads its two files one after the other, so they change while it connects to nobody.
        stage.client.write("scheduler.example", CLIENT)
        create(stage.plane, made[i : i + 10])
        stage.server.write(SERVER, SERVER)
        time.sleep(1.2)
    wait_until(lambda: stage.bound() == len(made), "every pod is bound")
    events = json.loads(stage.plane.kubectl("get", "events", "-o", "json"))["items"]
    assert [e["message"] for e in events if "/filter" in e["message"] or "/bind" in e["message"]] == []
    loaded = stage.extender.log.read_text().count("New certificates are in force.")
    print(f"{stage.server.count - before} swaps of which {loaded} were seen; 150 pods bound, no call failed")
    assert loaded >= 10
    gpunodes, pods = (stage.plane.kubectl("get", kind, "-o", "json") for kind in ("gpunodes", "pods"))
    assert recount(gpunodes, pods).breaches == []


def test_nobody_else_may_call(stage: Stage) -> None:
    """Not without a certificate, nor with another name in it, nor in plain text; the probes' port has no verbs."""
    assert stage.call(stage.context(CLIENT))[0] == 200
    status, body = stage.call(stage.context("someone"))
    assert (status, list(body)) == (403, ["Error"])
    with pytest.raises(OSError, match=r"certificate required|closed|reset|EOF|[Bb]roken pipe"):
        stage.call(stage.context(None))
    with pytest.raises(OSError):
        stage.call(None, "http")
    with pytest.raises(urllib.error.HTTPError, match="404") as error:
        urllib.request.urlopen(f"{stage.extender.url}/filter", b"{}")
    error.value.close()
    assert answers(f"{stage.extender.url}/metrics")


def test_it_stops_within_five_seconds(stage: Stage) -> None:
    """Though a client keeps a TLS connection open that says nothing and reads nothing."""
    raw = socket.create_connection((LOOPBACK, stage.port.number))
    with stage.context(CLIENT).wrap_socket(raw):
        begin = time.monotonic()
        stage.extender.stop()
        took = time.monotonic() - begin
    print(f"stopped in {took:.1f} s")
    assert stage.extender.exit_code == 0
    assert took < 5
