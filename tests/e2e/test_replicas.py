"""Two replicas and a fail-over under load: nothing over capacity, nothing left behind, one leader at a time."""

import json
import os
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from tests.e2e.controlplane.api import answers
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.relay import Relay
from tests.e2e.scene import (
    DEPLOY,
    EXTENDER,
    ROOT,
    add_nodes,
    advertised,
    batch,
    control_plane,
    create,
    leaders,
    machines,
    pod,
    scheduler_configuration,
)
from tests.e2e.test_packing import counted, fitting

pytestmark = pytest.mark.e2e

NAMESPACE: Final = "tessera-system"
PODS: Final = f"/api/v1/namespaces/{NAMESPACE}/pods"
SCHEDULERS_LEASE: Final = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
FIRST_SECONDS: Final = 40.0  # a Lease that is new has to stand still for its 15 s, and then 5.5
FAILOVER_SECONDS: Final = 60.0


def start(plane: ControlPlane, name: str, port: HeldPort, *flags: str) -> Process:
    """Start an extender of that name, and wait until it is ready."""
    command = [sys.executable, "-m", "extender", "--kubeconfig", str(plane.kubeconfig(EXTENDER.name))]
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    url = f"http://{port}"
    return plane.start(name, [*command, "--port", str(port.number), *flags], url, lambda: answers(f"{url}/readyz"))


@dataclass
class Stage:
    """The control plane, two replicas in their pods, and the scheduler, which calls the one that leads."""

    plane: ControlPlane
    replicas: dict[str, Process]
    scheduler: Process

    def leader(self) -> str:
        """Return who answers the verbs, "" if nobody does."""
        told = [name for name, replica in self.replicas.items() if replica.alive and leads(replica)]
        assert len(told) <= 1
        return told[0] if told else ""


def leads(replica: Process) -> bool:
    """Say whether a replica says that it leads."""
    with suppress(OSError), urllib.request.urlopen(f"{replica.url}/metrics", timeout=5) as reply:
        return b"\ntessera_leader 1.0\n" in reply.read()
    return False


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A hundred nodes of mixed cards, two replicas of which a leads, and kube-scheduler."""
    with control_plane() as plane, HeldPort() as port_a, HeldPort() as port_b:
        plane.kubectl("apply", "-f", str(DEPLOY / "rbac/lead-lease.yaml"))
        add_nodes(plane, machines())
        ports = {"a": port_a, "b": port_b}
        with Relay(lambda: ports[leaders(plane)[0]].number) as service:
            replicas = {}
            for name, port in ports.items():
                spec = {"nodeName": "elsewhere", "containers": [{"name": "extender", "image": "none"}]}
                body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
                plane.request("POST", PODS, body)
                flags = ("--lead", "lease", "--pod-name", name, "--pod-namespace", NAMESPACE)
                replicas[name] = start(plane, f"extender-{name}", port, *flags)
                wait_until(lambda: leads(replicas["a"]), "a leads", FIRST_SECONDS)
            wait_until(lambda: advertised(plane), "the leader advertises totals")
            scheduler = plane.start_scheduler(scheduler_configuration(plane, "config.yaml", service))
            yield Stage(plane, replicas, scheduler)


def bound(plane: ControlPlane) -> int:
    """Return how many pods of the default namespace are bound."""
    items = json.loads(plane.request("GET", "/api/v1/namespaces/default/pods"))["items"]
    return sum("nodeName" in item["spec"] for item in items)


def ask(replica: Process) -> tuple[int, Any]:
    """Ask a replica to filter; return the status and the body."""
    body = {"Pod": pod("asked", {"main": {"memory": "1Gi"}}), "NodeNames": ["node-000"]}
    request = urllib.request.Request(f"{replica.url}/filter", json.dumps(body).encode())
    try:
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.status, json.loads(reply.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.loads(error.read())


def check(plane: ControlPlane) -> None:
    """Recount what there is: no breach, and no pod that fits is pending."""
    wait_until(lambda: not fitting(plane), "nothing that fits is pending")
    assert counted(plane).breaches == []


def test_the_one_that_does_not_lead_refuses_and_is_ready(stage: Stage) -> None:
    """Its answer is 503 with a sentence, and the Service does not select it."""
    assert stage.leader() == "a"
    assert leaders(stage.plane) == ["a"]
    assert answers(f"{stage.replicas['b'].url}/readyz")
    status, body = ask(stage.replicas["b"])
    assert (status, list(body)) == (503, ["Error"])
    assert "does not lead" in body["Error"]
    assert ask(stage.replicas["a"])[0] == 200


def test_a_leader_killed_in_the_middle_of_binds(stage: Stage) -> None:
    """The other takes over, and a minute later all that fits is bound and nothing is over capacity."""
    made = batch(300)[:200]
    with ThreadPoolExecutor(1) as beside:
        creating = beside.submit(create, stage.plane, made)
        wait_until(lambda: bound(stage.plane) >= 60, "a third is bound")
        stage.replicas["a"].kill()
        killed, before = time.monotonic(), bound(stage.plane)
    creating.result()
    assert before < 180, "the kill came too late to test anything"
    wait_until(lambda: stage.leader() == "b", "b leads", FAILOVER_SECONDS)
    led = time.monotonic() - killed
    wait_until(lambda: bound(stage.plane) == 200, "every pod is bound", FAILOVER_SECONDS - led)
    all_bound = time.monotonic() - killed
    print(f"{before} of 200 bound at the kill; the other led after {led:.1f} s, all bound after {all_bound:.1f} s")
    check(stage.plane)
    assert leaders(stage.plane) == ["b"]


def test_a_replica_that_comes_back_does_not_lead(stage: Stage) -> None:
    """Its pod carries no label any more, and it is ready."""
    stage.replicas["a"].start()
    time.sleep(3)
    assert stage.leader() == "b"
    assert leaders(stage.plane) == ["b"]
    assert ask(stage.replicas["a"])[0] == 503


def test_a_leader_that_is_told_to_stop_hands_over(stage: Stage) -> None:
    """It ends well within 5 s, and the other leads at its next look at the Lease."""
    begin = time.monotonic()
    stage.replicas["b"].stop()
    stopped = time.monotonic() - begin
    assert stage.replicas["b"].exit_code == 0
    assert stopped < 5
    wait_until(lambda: stage.leader() == "a", "a leads", 6)
    print(f"stopped in {stopped:.1f} s; the other led {time.monotonic() - begin - stopped:.1f} s later")
    create(stage.plane, [pod("after-the-handover", {"main": {"memory": "1Gi"}})])
    wait_until(lambda: bound(stage.plane) == 201, "a pod is bound by the new leader")
    assert leaders(stage.plane) == ["a"]
    stage.replicas["b"].start()


def test_a_leader_that_loses_the_api_server_ends(stage: Stage) -> None:
    """Two thirds of the Lease's time after its last renewal it answers 503, and its process fails."""
    old = stage.leader()
    stage.plane.apiserver.pause()
    try:
        wait_until(lambda: not stage.replicas[old].alive, "the leader ends", 25)
    finally:
        stage.plane.apiserver.resume()
    assert stage.replicas[old].exit_code == 1
    wait_until(stage.leader, "another leads", FAILOVER_SECONDS)
    for process in (stage.replicas[old], stage.scheduler):  # which has lost its own Lease in the same way
        if not process.alive:
            process.start()
    create(stage.plane, [pod("after-the-silence", {"main": {"memory": "1Gi"}})])
    wait_until(lambda: bound(stage.plane) == 202, "a pod is bound")
    check(stage.plane)


def test_beside_a_scheduler_the_extender_follows_its_lease() -> None:
    """Verbs are answered and totals written once the scheduler of the same host has held its Lease for 3B."""
    with control_plane() as plane, HeldPort() as port:
        plane.kubectl("apply", "-f", str(DEPLOY / "rbac/lead-follow.yaml"))
        add_nodes(plane, machines(10))
        follower = start(plane, "extender", port, "--lead", "follow")
        time.sleep(5)
        assert ask(follower)[0] == 503
        assert not advertised(plane)
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        wait_until(lambda: leads(follower), "the extender leads")
        lease = json.loads(plane.request("GET", SCHEDULERS_LEASE))["spec"]
        held = datetime.now(UTC) - datetime.fromisoformat(lease["acquireTime"])
        assert held.total_seconds() > 3 * 3.5, "a bind of another extender might still land"
        assert ask(follower)[0] == 200
        wait_until(lambda: advertised(plane), "totals are written")
        create(plane, [pod("one", {"main": {"memory": "1Gi"}})])
        wait_until(lambda: bound(plane) == 1, "a pod is bound")
