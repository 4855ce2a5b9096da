"""The main job on the real control plane: kube-scheduler packs a burst of pods onto fractions of GPUs."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.recount import Recount, could_go, recount
from tests.e2e.scene import add_nodes, batch, control_plane, create, extender, machines, pod, scheduler_configuration

pytestmark = pytest.mark.e2e

RACED = 0.01  # share of binds that may find their cards taken by a bind that filter did not know of


@dataclass
class Stage:
    """The control plane with nodes, the extender and the scheduler running."""

    plane: ControlPlane
    extender: Process
    scheduler: Process


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """A hundred nodes of mixed cards, the extender, and kube-scheduler with the shipped configuration."""
    with control_plane() as plane, HeldPort() as port:
        add_nodes(plane, machines())
        service = extender(plane, port)
        scheduler = plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        yield Stage(plane, service, scheduler)


def pods(plane: ControlPlane) -> list[dict[str, Any]]:
    """Return all pods as kubectl reads them."""
    items: list[dict[str, Any]] = json.loads(plane.kubectl("get", "pods", "-o", "json"))["items"]
    return items


def decided(found: dict[str, Any]) -> bool:
    """Say whether kube-scheduler has bound a pod, or found that it fits nowhere now."""
    conditions = found.get("status", {}).get("conditions") or []
    return "nodeName" in found["spec"] or any(
        c["type"] == "PodScheduled" and c.get("reason") == "Unschedulable" for c in conditions
    )


def settle(plane: ControlPlane, seconds: float = 300) -> None:
    """Wait until every pod is decided and nothing has changed for five seconds."""
    quiet_since, last = time.monotonic(), ""

    def quiet() -> bool:
        nonlocal quiet_since, last
        now = pods(plane)
        seen = ",".join(sorted(f"{p['metadata']['name']}:{p['spec'].get('nodeName')}" for p in now))
        if seen != last or not all(decided(p) for p in now):
            quiet_since, last = time.monotonic(), seen
        return time.monotonic() - quiet_since > 5

    wait_until(quiet, "every pod is decided", seconds)


def metric(service: Process, name: str) -> float:
    """Return one of the extender's own figures."""
    with urllib.request.urlopen(f"{service.url}/metrics") as reply:
        text = reply.read().decode()
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


def message_of(plane: ControlPlane, name: str) -> str:
    """Return what the pod's PodScheduled condition says."""
    path = '{.status.conditions[?(@.type=="PodScheduled")].message}'
    return plane.kubectl("get", "pod", name, "-o", f"jsonpath={path}")


def events_of(plane: ControlPlane, name: str) -> str:
    """Return the messages of a pod's events; they are written some time after its condition."""
    selector = f"--field-selector=involvedObject.name={name}"
    return plane.kubectl("get", "events", selector, "-o", "jsonpath={.items[*].message}")


def counted(plane: ControlPlane) -> Recount:
    """Recount what kubectl reads now."""
    return recount(plane.kubectl("get", "gpunodes", "-o", "json"), plane.kubectl("get", "pods", "-o", "json"))


def fitting(plane: ControlPlane) -> dict[str, list[str]]:
    """Return the pods that wait although there is room for them now, and where."""
    result = counted(plane)
    return {p["metadata"]["name"]: nodes for p in result.pending if (nodes := could_go(result, p))}


def test_a_burst_of_mixed_pods_is_packed_without_a_breach(stage: Stage) -> None:
    """At least 600 pods, 140 % of the compute there is: bound with right records, or pending for lack of room."""
    made = machines()
    made_pods = batch(sum(len(inventory.gpus) for _, inventory, _, _ in made), load=1.4)
    assert len(made_pods) >= 600
    create(stage.plane, made_pods)
    settle(stage.plane)
    wait_until(lambda: not fitting(stage.plane), "nothing that fits is pending")
    result = counted(stage.plane)
    raced = metric(stage.extender, 'tessera_bind_total{result="raced"}')
    asked = sum(metric(stage.extender, f'tessera_bind_total{{result="{r}"}}') for r in ("bound", "raced", "refused"))
    print(
        f"{len(made_pods)} pods: {len(result.bound)} bound, {len(result.pending)} pending;"
        f" {raced:g} of {asked:g} binds raced"
    )
    assert result.breaches == []
    assert len(result.bound) + len(result.pending) == len(made_pods)
    assert len(result.pending) >= len(made_pods) / 5
    assert raced <= RACED * asked
    assert metric(stage.extender, 'tessera_bind_total{result="bound"}') == len(result.bound)


def test_a_pod_that_can_never_fit_says_why_in_stable_words(stage: Stage) -> None:
    """A pod larger than any card stays pending, and its event gives a reason that does not change."""
    create(stage.plane, [pod("giant", {"main": {"memory": "200Gi"}})])
    said = wait_until(lambda: message_of(stage.plane, "giant"), "the giant has a message")
    why = "the node's cards cannot hold the request even when empty"
    assert why in said
    wait_until(lambda: why in events_of(stage.plane, "giant"), "its event says so")
    stage.plane.kubectl("annotate", "pod", "giant", "example.com/look-again=1")
    time.sleep(3)
    assert message_of(stage.plane, "giant") == said


def test_a_bad_request_is_refused_with_its_sentence(stage: Stage) -> None:
    """The author reads which key is wrong and what is allowed."""
    bad = pod("bad", {"main": {"memory": "1Gi"}})
    bad["metadata"]["annotations"] = {"tessera.gpu/memory": "4Gx"}
    create(stage.plane, [bad])
    said = wait_until(lambda: message_of(stage.plane, "bad"), "the bad pod has a message")
    assert "tessera.gpu/memory is '4Gx'" in said


def test_pods_without_gpu_demand_do_not_depend_on_the_extender(stage: Stage) -> None:
    """They are scheduled as ever with the extender up, and with it down, when GPU pods wait."""
    create(stage.plane, [pod("plain-up", {"main": {}})])
    wait_until(lambda: node_of(stage.plane, "plain-up"), "a plain pod is bound")
    stage.extender.kill()
    create(stage.plane, [pod("plain-down", {"main": {}}), pod("gpu-down", {"main": {"memory": "1Gi"}})])
    wait_until(lambda: node_of(stage.plane, "plain-down"), "a plain pod is bound without the extender")
    assert node_of(stage.plane, "gpu-down") == ""
    stage.extender.start()
    wait_until(lambda: node_of(stage.plane, "gpu-down"), "the GPU pod is bound once the extender is back")
    assert counted(stage.plane).breaches == []


def node_of(plane: ControlPlane, name: str) -> str:
    """Return where the pod is bound, "" while it is not."""
    return plane.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")
