"""The node agent on the real control plane: the extender places pods by what an agent reports of its driver."""

import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.controlplane.api import answers
from tests.e2e.controlplane.cluster import ControlPlane, KubectlError
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY, GPUNODES, control_plane, create, extender, pod, scheduler_configuration
from tests.e2e.test_packing import message_of, node_of
from tests.nodeagent.fakenvml import Node, card, uuid

pytestmark = pytest.mark.e2e

SILENT_SECONDS = 40  # a beat comes every 24 to 30 s
COLUMNS = ["NAME", "CARDS", "MODEL", "MEMORY", "UTILIZATION", "HEALTHY", "READY", "TROUBLE", "AGE"]
UNWELL = {"field.230": 2}  # the driver says that a reboot is needed


@dataclass
class Stage:
    """A control plane with one GPU node, its agent, the extender and the scheduler."""

    plane: ControlPlane
    driver: Node
    agent: Process
    port: HeldPort
    proc: Path

    def gpus(self) -> list[dict[str, Any]]:
        """Return the cards as the API server has them, none while there is no GPUNode."""
        return list(self.status().get("gpus", []))

    def promises(self) -> list[dict[str, Any]]:
        """Return what the extender told of the cards."""
        return list(self.status().get("promises", []))

    def status(self) -> dict[str, Any]:
        """Return the GPUNode's status."""
        items = json.loads(self.plane.request("GET", GPUNODES))["items"]
        found = [item.get("status", {}) for item in items if item["metadata"]["name"] == "n1"]
        return dict(found[0]) if found else {}

    def cards(self, *changes: dict[str, Any]) -> None:
        """Describe the node's cards anew; two idle ones by default."""
        first, second = (*changes, {}, {})[:2]
        self.driver.write(card(0) | first, card(1) | second)

    def takes(self, **asks: str) -> bool:
        """Say whether the extender lets a pod go to n1, by what it has heard of the node until now."""
        body = {"Pod": pod("asked", {"main": asks}), "NodeNames": ["n1"]}
        request = urllib.request.Request(f"http://{self.port}/filter", json.dumps(body).encode())
        with urllib.request.urlopen(request) as reply:
            return json.loads(reply.read())["NodeNames"] == ["n1"]

    def ask(self, name: str, memory: str) -> None:
        """Create a pod that asks for memory on one card."""
        create(self.plane, [pod(name, {"main": {"memory": memory}})])

    def gone(self, *names: str) -> None:
        """Delete pods at once."""
        self.plane.kubectl("delete", "pod", *names, "--grace-period=0", "--force")

    def record(self, name: str) -> dict[str, Any]:
        """Return a pod's record."""
        found = json.loads(self.plane.request("GET", f"/api/v1/namespaces/default/pods/{name}"))
        made: dict[str, Any] = json.loads(found["metadata"]["annotations"]["tessera.gpu/assignment"])
        return made


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Two cards of 80 GiB on one node; all rights and policies are those that are shipped."""
    folder = tmp_path_factory.mktemp("agent")
    (folder / "driver").mkdir()
    (folder / "proc").mkdir()
    driver = Node(folder / "driver")
    driver.write(card(0), card(1))
    with control_plane() as plane, HeldPort() as port, HeldPort() as own:
        for path in ("rbac/agent.yaml", "rbac/evict.yaml", "policy/agent.yaml"):
            plane.kubectl("apply", "-f", str(DEPLOY / path))
        binding = ("--clusterrole=tessera-agent-evict", "--serviceaccount=tessera-agents:tessera-agent")
        plane.kubectl("create", "clusterrolebinding", "tessera-agent-evict", *binding)
        amounts = {"cpu": "64", "memory": "512Gi", "pods": "250"}
        for name in ("n1", "n2"):
            node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
            plane.request("POST", "/api/v1/nodes", node | {"status": {"capacity": amounts, "allocatable": amounts}})
        (folder / "token").write_text(token(plane, "n1"))
        agent = start_agent(plane, driver, folder, own)
        service = extender(plane, port, "--silent-seconds", str(SILENT_SECONDS))
        assert service.alive
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        yield Stage(plane, driver, agent, port, folder / "proc")


def token(plane: ControlPlane, node: str) -> str:
    """Return a token of the agents' account that the API server ties to a node, as it does for a pod there."""
    bound = ("--bound-object-kind=Node", f"--bound-object-name={node}")
    uid = plane.kubectl("get", "node", node, "-o", "jsonpath={.metadata.uid}")
    return plane.kubectl(
        "create", "token", "tessera-agent", "-n", "tessera-agents", *bound, f"--bound-object-uid={uid}"
    ).strip()


def start_agent(plane: ControlPlane, driver: Node, folder: Path, port: HeldPort) -> Process:
    """Start the agent of n1 on the fake driver, and wait until it has reported."""
    command = ["env", f"LD_LIBRARY_PATH={driver.directory}", sys.executable, "-m", "nodeagent", "--node", "n1"]
    command += ["--server", plane.server, "--ca-file", str(plane.folder / "apiserver" / "apiserver.crt")]
    command += ["--token-file", str(folder / "token"), "--host", "127.0.0.1", "--port", str(port.number)]
    command += ["--proc", str(folder / "proc"), "--cgroup-root", str(folder), "--over-seconds", "2", "--evict"]
    url = f"http://{port}"
    return plane.start("tessera-agent", command, url, lambda: answers(f"{url}/readyz"))


@pytest.fixture(autouse=True)
def well(stage: Stage) -> None:
    """Begin each test with two idle, healthy cards and no pod."""
    stage.cards()
    names = stage.plane.kubectl("get", "pods", "-o", "name").split()
    if names:
        stage.plane.kubectl("delete", *names, "--grace-period=0", "--force")
    wait_until(lambda: [g.get("foreignMiB", 0) for g in stage.gpus()] == [0, 0], "nothing foreign is told")
    wait_until(lambda: all(g["healthy"] for g in stage.gpus()), "both cards are well")


def test_the_extender_places_by_what_the_agent_reports(stage: Stage) -> None:
    """The agent made the GPUNode, owned by its Node; a pod gets a card of it, and its promise is shown there."""
    found = json.loads(stage.plane.request("GET", f"{GPUNODES}/n1"))
    assert found["metadata"]["ownerReferences"][0]["kind"] == "Node"
    assert [gpu["memoryMiB"] for gpu in found["status"]["gpus"]] == [81559, 81559]
    stage.ask("first", "20Gi")
    wait_until(lambda: node_of(stage.plane, "first") == "n1", "the pod is bound")
    chosen = stage.record("first")["containers"]["main"][0]["gpu"]
    assert chosen in (uuid(0), uuid(1))

    def promised() -> dict[str, Any]:
        return {gpu["uuid"]: gpu["promisedMiB"] for gpu in stage.promises()}

    wait_until(lambda: promised().get(chosen) == 20480, "the promise is written")
    assert sorted(promised().values()) == [0, 20480]
    text = stage.plane.kubectl("describe", "gpunode", "n1")
    assert re.search(r"Promised Mi B:\s+20480", text)
    table = stage.plane.kubectl("get", "gpunodes").splitlines()
    print("\n".join(table))
    assert table[0].split() == COLUMNS
    assert re.match(r"n1\s+2\s+NVIDIA H100 80GB HBM3\s+0/159 GiB\s+0%\s+2/2\s+True", table[1])


def test_use_by_a_foreign_process_narrows_what_is_offered(stage: Stage) -> None:
    """While a process of nobody has 50 GiB on each card, 40 GiB are not to be had; once it is gone they are."""
    busy = {"mem_used": "51200Mi", "proc": ("4242 51200 C 0 0",)}
    stage.cards(busy, busy)
    wait_until(lambda: not stage.takes(memory="40Gi"), "the extender has heard of it")
    assert [g.get("foreignMiB") for g in stage.gpus()] == [51200, 51200]
    stage.ask("wide", "40Gi")
    stage.ask("narrow", "20Gi")
    wait_until(lambda: node_of(stage.plane, "narrow"), "what fits is bound")
    wait_until(lambda: message_of(stage.plane, "wide"), "the wide pod waits")
    assert node_of(stage.plane, "wide") == ""
    stage.cards()
    wait_until(lambda: node_of(stage.plane, "wide"), "the wide pod is bound once there is room")


def test_a_pod_beyond_its_grant_is_told_so_and_evicted(stage: Stage) -> None:
    """It was granted 20 GiB and uses 40: an event on it says that, and it goes, as the setting asks."""
    stage.ask("greedy", "20Gi")
    wait_until(lambda: node_of(stage.plane, "greedy"), "the pod is bound")
    found = json.loads(stage.plane.request("GET", "/api/v1/namespaces/default/pods/greedy"))
    (stage.proc / "5151").mkdir()
    (stage.proc / "5151/cgroup").write_text(f"0::/kubepods/burstable/pod{found['metadata']['uid']}/{'a' * 64}\n")
    busy = {"mem_used": "40960Mi", "proc": ("5151 40960 C 0 0",)}
    held = stage.record("greedy")["containers"]["main"][0]["gpu"]
    stage.cards(*(busy if uuid(i) == held else {} for i in range(2)))

    def events() -> str:
        return stage.plane.kubectl("get", "events", "-o", "wide")

    wait_until(lambda: "GPUMemoryOverGrant" in events(), "it is told")
    path = "/api/v1/namespaces/default/pods/greedy"
    wait_until(lambda: "deletionTimestamp" in stage.plane.request("GET", path), "it is evicted")


def test_xid_79_takes_a_card_out_and_recovery_brings_it_back(stage: Stage) -> None:
    """Within two seconds of the event it is not offered; when the driver says that all is well, it is again."""
    stage.cards(UNWELL | {}, {})
    began = time.monotonic()
    stage.driver.event(0, "xid", 79)
    wait_until(lambda: not stage.takes(memory="50Gi", count="2"), "it is not offered", 5)
    print(f"not offered {time.monotonic() - began:.2f} s after the event")
    assert time.monotonic() - began < 2
    assert not stage.gpus()[0]["healthy"]
    for name in ("a", "b"):
        stage.ask(name, "50Gi")
    wait_until(lambda: {node_of(stage.plane, n) for n in ("a", "b")} == {"n1", ""}, "one of two is bound")
    bound = next(n for n in ("a", "b") if node_of(stage.plane, n))
    assert stage.record(bound)["containers"]["main"][0]["gpu"] == uuid(1)
    wait_until(lambda: stage.plane.kubectl("get", "gpunode", "n1").count("XID 79") == 1, "the table says why")
    stage.cards()
    wait_until(lambda: all(node_of(stage.plane, n) for n in ("a", "b")), "both are bound after recovery")


def test_xid_31_takes_nothing_out(stage: Stage) -> None:
    """It is the application's fault: counted, and the card stays in service."""
    stage.driver.event(0, "xid", 31)
    wait_until(lambda: 'xid="31"' in metrics(stage), "it is counted")
    assert [gpu["healthy"] for gpu in stage.gpus()] == [True, True]


def metrics(stage: Stage) -> str:
    """Return the agent's metrics."""
    return subprocess.check_output(["curl", "-s", f"{stage.agent.url}/metrics"], text=True)


def test_a_silent_agents_cards_are_not_offered_and_its_pods_still_count(stage: Stage) -> None:
    """Frozen, it is silent; a pod waits and says why; the first beat after it opens the node, less what runs."""
    stage.ask("runs", "50Gi")
    wait_until(lambda: node_of(stage.plane, "runs"), "the pod is bound")
    stage.agent.pause()
    try:
        wait_until(lambda: not stage.takes(memory="1Gi"), "the agent is silent")
        for name in ("waits", "too"):
            stage.ask(name, "50Gi")
        said = wait_until(lambda: message_of(stage.plane, "waits"), "the pod waits")
        assert "the node's agent is silent" in said
        assert node_of(stage.plane, "waits") == ""
    finally:
        stage.agent.resume()
    wait_until(lambda: sum(bool(node_of(stage.plane, n)) for n in ("waits", "too")) == 1, "one is bound")
    time.sleep(2)
    assert sum(bool(node_of(stage.plane, n)) for n in ("waits", "too")) == 1, "the other card is the first pod's"


def test_after_a_reboot_with_indices_swapped_holdings_follow_the_uuids(stage: Stage) -> None:
    """The card that was first is second now; what is promised on it went with it."""
    stage.ask("holds", "60Gi")
    wait_until(lambda: node_of(stage.plane, "holds"), "the pod is bound")
    held = stage.record("holds")["containers"]["main"][0]["gpu"]
    stage.agent.stop()
    stage.driver.write(card(1), card(0))
    stage.agent.start()
    wait_until(lambda: [g["index"] for g in sorted(stage.gpus(), key=lambda g: str(g["uuid"]))] == [1, 0], "swapped")
    stage.ask("next", "60Gi")
    wait_until(lambda: node_of(stage.plane, "next"), "the next pod is bound")
    assert {held, stage.record("next")["containers"]["main"][0]["gpu"]} == {uuid(0), uuid(1)}
    wait_until(
        lambda: {g["uuid"]: g["promisedMiB"] for g in stage.promises()} == dict.fromkeys((uuid(0), uuid(1)), 61440),
        "both promises are shown",
    )


def test_a_mig_reconfiguration_is_seen_at_the_next_report(stage: Stage) -> None:
    """A card in MIG mode is told with its instances, within seconds, and is not offered."""
    mig = ("MIG-1 1 0 2 4 4 3 60 40448 0", "MIG-2 7 0 0 0 1 1 16 9984 0")
    stage.cards({"mig_mode": 1, "mig": mig}, {})
    wait_until(lambda: stage.gpus()[0].get("mig"), "MIG mode is told", 5)
    assert [i["uuid"] for i in stage.gpus()[0]["migInstances"]] == ["MIG-1", "MIG-2"]
    stage.cards({"mig_mode": 1, "mig": mig[:1]}, {})
    wait_until(lambda: len(stage.gpus()[0].get("migInstances", ())) == 1, "it is cut anew", 5)
    for name in ("a", "b"):
        stage.ask(name, "50Gi")
    wait_until(lambda: {node_of(stage.plane, n) for n in ("a", "b")} == {"n1", ""}, "one of two is bound")


def test_an_api_server_that_is_away_costs_nothing(stage: Stage) -> None:
    """Frozen for ten seconds, it hears afterwards what is true then; the agent has not grown."""
    before = resident(stage)
    stage.plane.apiserver.pause()
    try:
        for step in range(10):
            stage.cards({"mem_used": f"{1000 * (step + 1)}Mi"}, {})
            time.sleep(1)
    finally:
        stage.plane.apiserver.resume()
    wait_until(lambda: stage.gpus()[0].get("foreignMiB") == 10000, "the newest is told")
    assert resident(stage) - before < 4


def resident(stage: Stage) -> float:
    """Return the agent's resident memory in MiB."""
    pid = stage.agent._required().pid
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) / 1024


def test_an_agent_may_not_write_for_another_node(stage: Stage) -> None:
    """Its token says which node it is on: neither cards nor heartbeats of n2 are taken from it."""
    stage.plane.write_kubeconfig("agent-of-n1", token(stage.plane, "n1"))
    config = str(stage.plane.folder / "agent-of-n1.kubeconfig")
    for kind, more in (("tessera.gpu/v1alpha1", "GPUNode"), ("coordination.k8s.io/v1", "Lease")):
        namespace = {"namespace": "tessera-agents"} if more == "Lease" else {}
        made = {"apiVersion": kind, "kind": more, "metadata": {"name": "n2"} | namespace}
        with pytest.raises(KubectlError, match="may not write n2"):
            stage.plane.kubectl("--kubeconfig", config, "create", "-f", "-", stdin=json.dumps(made))


def test_what_an_object_of_eight_cards_weighs(stage: Stage) -> None:
    """What is told stays below 4 kB; the API server's own notes on who told it come on top, and are printed."""
    links = [f"{link} switch 4" for link in range(4)]
    stage.agent.stop()
    stage.driver.write(*(card(n, nvlink=links, mem_used="1000Mi", util_gpu=50) for n in range(8)))
    stage.agent.start()
    wait_until(lambda: len(stage.gpus()) == 8, "eight cards are told")
    wait_until(lambda: len(stage.promises()) == 8, "the promises are written")
    found = json.loads(stage.plane.request("GET", f"{GPUNODES}/n1"))
    lease = stage.plane.request("GET", "/apis/coordination.k8s.io/v1/namespaces/tessera-agents/leases/n1")
    status, fields = (
        len(json.dumps(part, separators=(",", ":"))) for part in (found["status"], found["metadata"]["managedFields"])
    )
    print(f"8 cards: status {status} bytes, managed fields {fields} bytes; lease {len(lease)} bytes")
    assert status < 4096
    assert all(gpu["nvlink"] == ["*"] for gpu in stage.gpus())
