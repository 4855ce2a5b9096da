"""`kubectl tessera` on the real control plane: every command, the extender asked through the API server's proxy."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from contract.inventory import Gpu, Inventory
from tests.e2e.controlplane.api import MERGE
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import LOOPBACK, HeldPort
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY, GPUNODES, add_nodes, control_plane, create, extender, pod, scheduler_configuration
from tests.e2e.test_packing import message_of, node_of

pytestmark = pytest.mark.e2e

SYSTEM: Final = "/api/v1/namespaces/tessera-system"
NO_POD_HAS: Final = ("", LOOPBACK)


@dataclass
class Stage:
    """A control plane with two GPU nodes, the extender and the scheduler, and kubectl with the plugin on its PATH."""

    plane: ControlPlane
    probes: HeldPort

    def tessera(self, *words: str, kubeconfig: Path | None = None, status: int = 0) -> str:
        """Run `kubectl tessera`, and return what it printed."""
        kubectl = self.plane.programs.kubectl
        path = os.pathsep.join([str(kubectl.parent), str(Path(sys.executable).parent), os.environ["PATH"]])
        environ = os.environ | {"PATH": path, "KUBECONFIG": str(kubeconfig or self.plane.kubeconfig())}
        environ["KUBECTL"] = str(kubectl)
        done = subprocess.run(
            [str(kubectl), "tessera", *words], env=environ, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout + done.stderr

    def items(self, *words: str) -> list[dict[str, Any]]:
        """Run a command with `-o json`, and return its rows."""
        found: list[dict[str, Any]] = json.loads(self.tessera(*words, "-o", "json"))["items"]
        return found

    @property
    def url(self) -> str:
        """Where the extender's port for probes is, for a test that does not go through the API server."""
        return f"http://{self.probes}"


def own_address() -> str:
    """Return an address of this machine that is not loopback, which no Service may name; "" if there is none."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # of the documentation's range; a datagram socket sends nothing here
        except OSError:
            return ""
        return str(probe.getsockname()[0])


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One A10 and two T4s; a pod that runs, and one that asks for more than any card has free."""
    with control_plane() as plane, HeldPort() as port, HeldPort() as probes:
        cards = (Gpu("GPU-a", 0, "NVIDIA A10", 23028, 478, used_mib=9000, utilization=40),)
        small = tuple(Gpu(f"GPU-t{i}", i, "Tesla T4", 15360, 434) for i in range(2))
        add_nodes(plane, [("big", Inventory("big", cards, "570.86"), 16, 64)])
        add_nodes(plane, [("small", Inventory("small", small, "570.86"), 16, 64)])
        extender(plane, port, "--probe-port", str(probes.number))
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        create(plane, [pod("runs", {"main": {"memory": "16Gi", "utilization": "60%"}})])
        wait_until(lambda: node_of(plane, "runs") == "big", "the first pod is bound")
        create(plane, [pod("waits", {"main": {"memory": "18Gi"}})])
        wait_until(lambda: message_of(plane, "waits"), "the second pod is turned away")
        if own_address() not in NO_POD_HAS:
            serve(plane, probes)
        promised = f"{GPUNODES}/big"
        wait_until(lambda: '"promisedMiB":16384' in plane.request("GET", promised), "the promise is written")
        yield Stage(plane, probes)


def serve(plane: ControlPlane, probes: HeldPort) -> None:
    """Make the Service of the port for probes, with a pod of this machine's address behind it.

    The API server calls pods alone: the endpoint has to name a pod, and the pod has to have the address.
    """
    address, name = own_address(), "tessera-extender"
    main = {"name": "extender", "image": "none"}
    made = {"metadata": {"name": name}, "spec": {"containers": [main], "nodeName": "big"}}
    plane.request("POST", f"{SYSTEM}/pods", made)
    status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}
    plane.request("PATCH", f"{SYSTEM}/pods/{name}/status", {"status": status}, content_type=MERGE)
    port = {"name": "probes", "port": 8581}
    plane.request("POST", f"{SYSTEM}/services", {"metadata": {"name": name}, "spec": {"ports": [port]}})
    behind = {"ip": address, "targetRef": {"kind": "Pod", "name": name, "namespace": "tessera-system"}}
    subset = {"addresses": [behind], "ports": [{"name": "probes", "port": probes.number}]}
    plane.request("POST", f"{SYSTEM}/endpoints", {"metadata": {"name": name}, "subsets": [subset]})


def test_kubectl_finds_the_plugin(stage: Stage) -> None:
    """It is on the list of plugins under its own name."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    kubectl = str(stage.plane.programs.kubectl)
    environ = os.environ | {"PATH": path}
    done = subprocess.run([kubectl, "plugin", "list"], env=environ, capture_output=True, text=True, check=False)
    assert "/kubectl-tessera" in done.stdout


def test_top_shows_promised_beside_measured(stage: Stage) -> None:
    """By node, card, pod and namespace, as the extender promised and the agent measured."""
    big, small = stage.items("top")
    assert (big["node"], big["promisedMiB"], big["promisedPercent"], big["usedMiB"]) == ("big", 16384, 60, 9000)
    assert (small["node"], small["cards"], small["promisedMiB"]) == ("small", 2, 0)
    assert [card["uuid"] for card in stage.items("top", "cards")] == ["GPU-a", "GPU-t0", "GPU-t1"]
    (held,) = stage.items("top", "pods", "-A")
    assert (held["pod"], held["uuids"], held["promisedMilli"]) == ("runs", ["GPU-a"], 600)
    assert stage.items("top", "namespaces") == [
        {"namespace": "default", "pods": 1, "cards": 1, "promisedMiB": 16384, "promisedMilli": 600}
    ]
    assert "\x1b" not in stage.tessera("top")


def test_pods_of_a_namespace(stage: Stage) -> None:
    """The context's namespace without a flag, and nothing from another one."""
    assert "GPU-MEMORY" in stage.tessera("pods")
    assert stage.tessera("pods", "-n", "kube-system").strip() == "No pod holds a share of a card."


@pytest.mark.skipif(own_address() in NO_POD_HAS, reason="this machine has no address that a pod may have")
def test_explain_asks_the_extender_through_the_api_server(stage: Stage) -> None:
    """It says what the pod asks, what kube-scheduler said, each reason, and the card that comes nearest."""
    said = stage.tessera("explain", "waits")
    assert "It asks for main: 18Gi of memory on 1 card." in said
    assert "kube-scheduler says: 0/2 nodes are available" in said
    assert "no card with enough free GPU memory" in said
    assert "cannot hold the request even when empty" in said
    assert "GPU-a on big comes nearest" in said
    by_node = {item["node"]: item["reason"] for item in stage.items("explain", "waits")}
    assert by_node.keys() == {"big", "small"}


def test_explain_at_a_url(stage: Stage) -> None:
    """As after `kubectl port-forward`."""
    assert "GPU-a on big comes nearest" in stage.tessera("explain", "waits", "--extender", stage.url)


def test_explain_without_the_extender(stage: Stage) -> None:
    """What the pod and its events tell is shown, and it says what is missing."""
    said = stage.tessera("explain", "waits", "--extender", "tessera-system/http:nobody:probes")
    assert "kube-scheduler says: 0/2 nodes are available" in said
    assert "The extender tells nothing more: " in said
    assert "Event FailedScheduling" in said


def test_explain_a_pod_that_runs(stage: Stage) -> None:
    """It tells the cards, and needs nobody's help for it."""
    assert "GPU-a: 16Gi and 60%" in stage.tessera("explain", "default/runs", "--extender", "nowhere/nobody")


def test_explain_a_pod_that_is_not_there(stage: Stage) -> None:
    """One sentence, and status 1."""
    said = stage.tessera("explain", "nobody", status=1)
    assert said == 'kubectl tessera: (NotFound): pods "nobody" not found\n'


def test_quota(stage: Stage) -> None:
    """What is taken is shown beside what is allowed; a key that counts nothing is told."""
    hard = {"requests.nvidia.com/gpu-memory": "128Gi", "requests.nvidia.com/gpumemory": "1"}
    made = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    stage.plane.request("POST", "/api/v1/namespaces/default/resourcequotas", made)
    stage.plane.start_controllers("resourcequota-controller", name="quotas")
    wait_until(lambda: stage.items("quota")[0]["usedMiB"] == 34 * 1024, "the quota is counted")
    right, wrong = stage.items("quota")
    assert (right["hardMiB"], right["leftMiB"], right["note"]) == (128 * 1024, 94 * 1024, "")
    assert wrong["note"].startswith("not a resource of Tessera's")


def test_doctor(stage: Stage) -> None:
    """What is in order is ok, what this stage lacks is told, and a failed check is an exit status."""
    text = (DEPLOY / "scheduler" / "config.yaml").read_text()
    shipped = {"metadata": {"name": "scheduler"}, "data": {"config.yaml": text}}
    stage.plane.request("POST", f"{SYSTEM}/configmaps", shipped)
    rows = stage.items("doctor", "--extender", stage.url)
    found = {row["check"]: row for row in rows}
    for check in ("kubernetes", "extender", "versions", "crd", "inventory", "totals", "records", "scheduler"):
        assert found[check]["state"] == "ok", found[check]
    assert found["policies"] == {
        "check": "policies",
        "state": "warn",
        "found": "missing: tessera-agent; records are not protected from others",
    }
    broken = yaml.safe_load(text) | {"percentageOfNodesToScore": 0}
    stage.plane.request(
        "POST",
        f"{SYSTEM}/configmaps",
        {"metadata": {"name": "wrong"}, "data": {"config.yaml": yaml.safe_dump(broken)}},
    )
    assert "percentageOfNodesToScore is not 100" in stage.tessera("doctor", "--extender", stage.url, status=1)


def test_completion_through_kubectl(stage: Stage) -> None:
    """kubectl itself asks for words and gets them: commands, and pods by name."""
    kubectl = stage.plane.programs.kubectl
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    environ = os.environ | {"PATH": path, "KUBECONFIG": str(stage.plane.kubeconfig()), "KUBECTL": str(kubectl)}

    def completed(*words: str) -> list[str]:
        asked = [str(kubectl), "__complete", "tessera", *words]
        done = subprocess.run(asked, env=environ, capture_output=True, text=True, timeout=60, check=True)
        return done.stdout.splitlines()

    assert {"top", "explain", "doctor"} <= set(completed(""))
    assert "waits" in completed("explain", "w")


def test_a_thousand_nodes(stage: Stage) -> None:
    """top and explain answer while a person waits; how fast they are is printed."""
    names = [f"m{n:04d}" for n in range(998)]
    cards = {name: tuple(Gpu(f"GPU-{name}-{i}", i, "NVIDIA A10", 23028, 478) for i in range(8)) for name in names}
    add_nodes(stage.plane, [(name, Inventory(name, cards[name]), 16, 64) for name in names])
    wait_until(lambda: len(stage.items("top")) == 1000, "a thousand nodes are there")
    create(stage.plane, [pod("large", {"main": {"memory": "40Gi"}})])
    wait_until(lambda: message_of(stage.plane, "large"), "a pod is turned away by a thousand nodes")
    assert "None of 1000 nodes" in stage.tessera("explain", "large", "--extender", stage.url)
    for words in (("top",), ("explain", "large", "--extender", stage.url)):
        times = []
        for _ in range(10):
            started = time.perf_counter()
            stage.tessera(*words)
            times.append(time.perf_counter() - started)
        print(f"kubectl tessera {words[0]} at 1,000 nodes: {min(times):.2f} s, median {sorted(times)[5]:.2f} s")
        assert min(times) < 10.0
