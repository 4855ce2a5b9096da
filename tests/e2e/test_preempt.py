"""Room for the more important pod on the real control plane: by kube-scheduler's preemption, and by our eviction."""

import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.inventory import Gpu, Inventory
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY, add_nodes, control_plane, create, extender, pod, scheduler_configuration
from tests.e2e.test_packing import counted, node_of

pytestmark = pytest.mark.e2e

NODES = ("least", "equal", "safe", "never", "dry-run", "enforce", "guarded", "kept")
QUIET_SECONDS = 12.0  # in which an eviction that must not come would come: two seconds of grace, five of pace


@dataclass
class Stage:
    """The control plane and the scheduler; an extender in the mode that a test asks for."""

    plane: ControlPlane
    port: HeldPort
    service: Process | None = None
    made: list[str] = field(default_factory=list)

    def serve(self, mode: str) -> None:
        """Let the extender run in one mode of eviction."""
        if self.service is not None:
            self.service.stop()
        self.service = extender(self.plane, self.port, "--evict", mode)

    def holding(self, node: str, *pods: tuple[str, int, int], **more: Any) -> None:
        """Create pods (name, card, GiB) on the cards of a node, and wait until each sits where it should."""
        create(self.plane, [asking(name, node, gib, card=card, **more) for name, card, gib in pods])
        wanted = {name for name, _, _ in pods}
        wait_until(lambda: wanted <= self.names(node), f"{wanted} are bound")

    def names(self, node: str) -> set[str]:
        """Return the pods that are bound to a node."""
        items = json.loads(self.plane.kubectl("get", "pods", "-o", "json"))["items"]
        return {p["metadata"]["name"] for p in items if p["spec"].get("nodeName") == node}

    def events(self, name: str) -> list[str]:
        """Return what our Events say about a pod."""
        said = self.plane.kubectl("get", "events", f"--field-selector=involvedObject.name={name}", "-o", "json")
        return [e["message"] for e in json.loads(said)["items"] if e["source"].get("component") == "tessera-extender"]


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Nodes of two cards of 24 GiB, priorities, kube-scheduler, and the controller of disruption budgets."""
    with control_plane() as plane, HeldPort() as port:
        plane.kubectl("apply", "-f", str(DEPLOY / "rbac/evict.yaml"))
        for name, value in (("low", 0), ("middle", 500), ("high", 1000)):
            plane.kubectl("create", "priorityclass", name, f"--value={value}")
        cards = {n: tuple(Gpu(f"GPU-{n}-{i}", i, "NVIDIA A10", 24576) for i in range(2)) for n in NODES}
        add_nodes(plane, [(n, Inventory(n, cards[n], "570.86"), 16, 64) for n in NODES])
        here = Stage(plane, port)
        here.serve("never")
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        plane.start_controllers("disruption-controller")
        yield here


def asking(
    name: str, node: str, gib: int, priority: str = "low", card: int | None = None, seconds: int = 0
) -> dict[str, Any]:
    """Return a pod that asks for memory on one card of one node."""
    made = pod(name, {"main": {"memory": f"{gib}Gi"}})
    made["metadata"]["labels"] = {"app": name}
    if card is not None:
        made["metadata"]["annotations"]["tessera.gpu/uuid"] = f"GPU-{node}-{card}"
    field_ = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = {"nodeSelectorTerms": [{"matchFields": [field_]}]}
    made["spec"] |= {
        "priorityClassName": priority,
        "terminationGracePeriodSeconds": seconds,
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}},
    }
    return made


def protect(plane: ControlPlane, name: str) -> None:
    """Let a pod run, and forbid by a budget that it is disrupted."""
    ready = {"type": "Ready", "status": "True"}
    status = {"status": {"phase": "Running", "startTime": "2026-11-30T12:00:00Z", "conditions": [ready]}}
    plane.kubectl("patch", "pod", name, "--subresource=status", "--type=merge", "-p", json.dumps(status))
    plane.kubectl("create", "poddisruptionbudget", name, f"--selector=app={name}", "--min-available=1")
    path = "jsonpath={.status.currentHealthy}"
    wait_until(lambda: plane.kubectl("get", "pdb", name, "-o", path) == "1", f"the budget of {name} is counted")


def stays(stage: Stage, node: str, pods: Iterable[str]) -> None:
    """Check that for a while the same pods are bound to a node."""
    time.sleep(QUIET_SECONDS)
    assert stage.names(node) == set(pods)


def test_least_victims_on_one_card_go(stage: Stage) -> None:
    """By the node's sum a pod of 9 GiB would do; the one of 12 GiB goes, which frees a card, and nobody else."""
    stage.holding("least", ("a12", 0, 12), ("b9", 1, 9), ("c9", 1, 9))
    create(stage.plane, [asking("high-least", "least", 20, "high")])
    wait_until(lambda: node_of(stage.plane, "high-least"), "the high pod is bound")
    assert stage.names("least") == {"b9", "c9", "high-least"}
    assert counted(stage.plane).breaches == []


def test_equal_priority_never_goes(stage: Stage) -> None:
    """A pod of the same priority waits, and a higher one takes only from the lower."""
    stage.holding("equal", ("m20", 0, 20), priority="middle")
    stage.holding("equal", ("l10", 1, 10), ("k10", 1, 10))
    create(stage.plane, [asking("middle-2", "equal", 22, "middle")])
    wait_until(lambda: node_of(stage.plane, "middle-2"), "it takes the card of the lower pods")
    create(stage.plane, [asking("middle-3", "equal", 22, "middle")])
    stays(stage, "equal", {"m20", "middle-2"})
    assert counted(stage.plane).breaches == []


def test_budgets_are_respected(stage: Stage) -> None:
    """Two pods go where one protected pod would have been enough."""
    stage.holding("safe", ("s12", 0, 12), ("d9", 1, 9), ("e9", 1, 9))
    protect(stage.plane, "s12")
    create(stage.plane, [asking("high-safe", "safe", 20, "high")])
    wait_until(lambda: node_of(stage.plane, "high-safe"), "the high pod is bound")
    assert stage.names("safe") == {"s12", "high-safe"}
    assert counted(stage.plane).breaches == []


def fragment(stage: Stage, mode: str, node: str, **more: Any) -> str:
    """Let a high pod of 20 GiB ask for a node with 12 GiB free on each of two cards; return its name."""
    stage.serve(mode)
    stage.holding(node, (f"{node}-0", 0, 12), priority="middle")
    stage.holding(node, (f"{node}-1", 1, 12), **more)
    create(stage.plane, [asking(f"high-{node}", node, 20, "high")])
    return f"high-{node}"


def test_fragmentation_keeps_out_while_eviction_is_never(stage: Stage) -> None:
    """Nobody goes and nothing is said."""
    high = fragment(stage, "never", "never")
    stays(stage, "never", {"never-0", "never-1"})
    assert stage.events(high) == stage.events("never-1") == []


def test_a_dry_run_writes_events_and_evicts_nobody(stage: Stage) -> None:
    """Preemptor and victim say what would happen, and it does not."""
    high = fragment(stage, "dry-run", "dry-run")
    wait_until(lambda: stage.events(high), "the high pod says who would go")
    assert stage.events(high) == ["Would evict default/dry-run-1 from dry-run."]
    assert "Would be evicted" in stage.events("dry-run-1")[0]
    assert stage.events("dry-run-0") == []
    stays(stage, "dry-run", {"dry-run-0", "dry-run-1"})


def test_eviction_ends_fragmentation(stage: Stage) -> None:
    """The lower of two pods goes, the high one is bound to the card that this frees, and both say why."""
    high = fragment(stage, "enforce", "enforce")
    wait_until(lambda: node_of(stage.plane, high), "the high pod is bound")
    assert stage.names("enforce") == {"enforce-0", high}
    assert stage.events(high) == ["Evicting default/enforce-1 from enforce."]
    assert "Evicted" in wait_until(lambda: stage.events("enforce-1"), "the victim says why")[0]
    assert counted(stage.plane).breaches == []


def test_eviction_breaks_no_budget(stage: Stage) -> None:
    """The lower pod is protected, so the one of middle priority goes."""
    stage.serve("enforce")
    stage.holding("guarded", ("guarded-0", 0, 12), priority="middle")
    stage.holding("guarded", ("guarded-1", 1, 12))
    protect(stage.plane, "guarded-1")
    create(stage.plane, [asking("high-guarded", "guarded", 20, "high")])
    wait_until(lambda: node_of(stage.plane, "high-guarded"), "the high pod is bound")
    assert stage.names("guarded") == {"guarded-1", "high-guarded"}


def test_room_is_kept_while_victims_end(stage: Stage) -> None:
    """Lower pods take what is free elsewhere, and not what is being freed; the room goes to whom it is kept for."""
    high = fragment(stage, "enforce", "kept", seconds=600)
    wait_until(lambda: stage.events(high), "the high pod says who goes")
    create(stage.plane, [asking(f"thief-{i}", "kept", 12) for i in range(2)])
    wait_until(lambda: any(node_of(stage.plane, f"thief-{i}") for i in range(2)), "one finds room beside")
    time.sleep(3)
    assert len(stage.names("kept")) == 3
    stage.plane.kubectl("delete", "pod", "kept-1", "--grace-period=0", "--force")
    wait_until(lambda: node_of(stage.plane, high), "the high pod is bound")
    assert len(stage.names("kept")) == 3
    assert counted(stage.plane).breaches == []
