"""Totals and prompt retry on the real control plane: what is freed is used within a second, whatever freed it."""

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import pytest

from contract.inventory import Gpu, Inventory
from contract.names import RETRY
from tests.e2e.controlplane.api import MERGE
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.relay import Relay
from tests.e2e.scene import (
    EXTENDER,
    GPUNODES,
    add_nodes,
    control_plane,
    create,
    extender,
    pod,
    scheduler_configuration,
    totals,
)
from tests.e2e.test_packing import message_of, metric, node_of

pytestmark = pytest.mark.e2e

PODS: Final = "/api/v1/namespaces/default/pods"
WITHIN: Final = 3.0  # seconds; the aim is one
CARD: Final = ("NVIDIA A10", 23028, 478)
WHOLE: Final = {"memory": "22Gi"}
NAMES: Final = ("nvidia.com/gpu-memory", "nvidia.com/gpu-utilization", "tessera.gpu/share")


@dataclass
class Stage:
    """The control plane with the extender running, and the way from it to the API server."""

    plane: ControlPlane
    extender: Process
    relay: Relay

    def gpu_node(self, name: str, *cards: Gpu) -> None:
        """Report a node's cards, as its agent does."""
        path = f"{GPUNODES}/{name}/status"
        body = {"status": {"gpus": [card_of(card) for card in cards]}}
        self.plane.request("PATCH", path, body, content_type=MERGE)

    def node(self, name: str) -> dict[str, Any]:
        """Return a Node."""
        found: dict[str, Any] = json.loads(self.plane.request("GET", f"/api/v1/nodes/{name}"))
        return found

    def delete(self, *names: str) -> None:
        """Delete pods at once: no kubelet would ever confirm."""
        for name in names:
            self.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")

    def pending(self, name: str, **more: Any) -> None:
        """Create a pod for a whole card, and wait until it is turned away and quiet."""
        create(self.plane, [pod(name, {"main": WHOLE}, **more)])
        wait_until(lambda: message_of(self.plane, name), f"{name} is turned away")
        time.sleep(0.5)

    def bound_within(self, name: str, cause: str, free: Callable[[], object]) -> None:
        """Free something, and measure until the pod is bound."""
        start = time.monotonic()
        free()
        wait_until(lambda: self.spec(name).get("nodeName"), f"{name} is bound after: {cause}", WITHIN)
        woken = "woken" if RETRY in (self.notes(name)) else "by kube-scheduler itself"
        print(f"{cause}: bound after {time.monotonic() - start:.2f} s, {woken}")

    def spec(self, name: str) -> dict[str, Any]:
        """Return a pod's spec."""
        found: dict[str, Any] = json.loads(self.plane.request("GET", f"{PODS}/{name}"))["spec"]
        return found

    def notes(self, name: str) -> dict[str, str]:
        """Return a pod's annotations."""
        found: dict[str, str] = json.loads(self.plane.request("GET", f"{PODS}/{name}"))["metadata"]["annotations"]
        return found


def inventory(name: str, cards: int = 1) -> Inventory:
    """Return A10 cards."""
    model, mib, reserved = CARD
    return Inventory(name, tuple(Gpu(f"GPU-{name}-{i}", i, model, mib, reserved) for i in range(cards)), "570.86")


def card_of(card: Gpu) -> dict[str, Any]:
    """Return a card as a GPUNode lists it."""
    return {
        "uuid": card.uuid,
        "index": card.index,
        "model": card.model,
        "memoryMiB": card.memory_mib,
        "reservedMiB": card.reserved_mib,
        "healthy": card.healthy,
        "reason": card.reason,
    }


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """One node of one card, the extender behind a relay, and kube-scheduler with the shipped configuration."""
    with control_plane() as plane, HeldPort() as port, Relay(lambda: int(plane.server.rpartition(":")[2])) as relay:
        add_nodes(plane, [("n1", inventory("n1"), 64, 256)])
        through = plane.folder / "relay.kubeconfig"
        direct = plane.kubeconfig(EXTENDER.name).read_text()
        through.write_text(direct.replace(plane.server, f"https://{relay}"))
        service = extender(plane, port, "--kubeconfig", str(through))
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        yield Stage(plane, service, relay)


def test_the_extender_writes_totals_and_a_reset_is_repaired(stage: Stage) -> None:
    """Capacity and allocatable are the hardware's; a kubelet that registers anew resets them for seconds."""
    full = totals(inventory("n1"))

    def said(part: str) -> dict[str, str]:
        return {key: value for key, value in stage.node("n1")["status"][part].items() if key in full}

    def right() -> bool:
        return all(_plain(said(part)) == _plain(full) for part in ("capacity", "allocatable"))

    assert right()
    for zeroed in ({"allocatable": dict.fromkeys(full, "0")}, {"capacity": dict.fromkeys(full, "0")}):
        stage.plane.request("PATCH", "/api/v1/nodes/n1/status", {"status": zeroed}, content_type=MERGE)
        start = time.monotonic()
        wait_until(right, "the totals are back", 5)
        print(f"totals reset in {list(zeroed)}: repaired after {time.monotonic() - start:.2f} s")


def test_a_pod_that_goes_or_ends_makes_room_within_a_second(stage: Stage) -> None:
    """Deletion and completion are events that kube-scheduler sees; it may have asked before we knew, or not."""
    create(stage.plane, [pod("a", {"main": WHOLE})])
    wait_until(lambda: node_of(stage.plane, "a"), "a is bound")
    stage.pending("b")
    stage.bound_within("b", "pod deleted", lambda: stage.delete("a"))
    stage.pending("c")
    done = {"status": {"phase": "Succeeded"}}
    stage.bound_within(
        "c",
        "pod completed",
        lambda: stage.plane.request("PATCH", f"{PODS}/b/status", done, content_type=MERGE),
    )
    stage.delete("b", "c")


def test_asked_before_our_watch_knew(stage: Stage) -> None:
    """A deletion reaches us after kube-scheduler has asked again; it learns that there is room after all."""
    asked = 'tessera_extender_requests_total{code="200",verb="filter"}'
    create(stage.plane, [pod("a", {"main": WHOLE})])
    wait_until(lambda: node_of(stage.plane, "a"), "a is bound")
    stage.pending("b")
    before = metric(stage.extender, asked)
    stage.relay.lets.clear()
    try:
        stage.delete("a")
        wait_until(lambda: metric(stage.extender, asked) > before, "kube-scheduler asks again")
        time.sleep(0.5)  # as often as it would by itself
        assert not stage.spec("b").get("nodeName")
        stage.bound_within("b", "pod deleted, of which we hear after the question", stage.relay.lets.set)
    finally:
        stage.relay.lets.set()
    assert RETRY in stage.notes("b"), "kube-scheduler would not have asked a second time"
    stage.delete("b")


def test_what_no_event_of_kubernetes_announces(stage: Stage) -> None:
    """A card recovers, and kube-scheduler does not hear of it. Of a crowd that waits for it few are woken."""
    (card,) = inventory("n1").gpus
    sick = Gpu(card.uuid, card.index, card.model, card.memory_mib, card.reserved_mib, healthy=False, reason="XID 79")
    stage.gpu_node("n1", sick)
    time.sleep(0.5)
    stage.pending("d")
    stage.bound_within("d", "card recovered", lambda: stage.gpu_node("n1", card))
    assert RETRY in stage.notes("d"), "an annotation of its own wakes a pod"
    stage.delete("d")

    stage.gpu_node("n1", sick)
    time.sleep(0.5)
    create(stage.plane, [pod(f"crowd-{i:02d}", {"main": WHOLE}) for i in range(60)])
    wait_until(lambda: all(message_of(stage.plane, f"crowd-{i:02d}") for i in range(60)), "the crowd is turned away")
    time.sleep(2)
    start = time.monotonic()
    stage.gpu_node("n1", card)
    wait_until(lambda: woken_or_bound(stage)[1], "one of the crowd is bound", WITHIN)
    took = time.monotonic() - start
    time.sleep(2)
    woken, bound = woken_or_bound(stage)
    print(f"one card for a crowd of 60: {len(bound)} bound after {took:.2f} s, {len(woken)} woken in all")
    assert len(bound) == 1
    assert len(woken) <= 3
    stage.delete(*(f"crowd-{i:02d}" for i in range(60)))


def woken_or_bound(stage: Stage) -> tuple[list[str], list[str]]:
    """Return the pods of the crowd that were woken, and those that are bound."""
    pods = json.loads(stage.plane.request("GET", PODS))["items"]
    crowd = [p for p in pods if p["metadata"]["name"].startswith("crowd-")]
    woken = [p["metadata"]["name"] for p in crowd if RETRY in p["metadata"]["annotations"]]
    return woken, [p["metadata"]["name"] for p in crowd if "nodeName" in p["spec"]]


def test_new_cards_make_room_within_a_second(stage: Stage) -> None:
    """An inventory that comes, and a node that opens."""
    create(stage.plane, [pod("a", {"main": WHOLE})])
    wait_until(lambda: node_of(stage.plane, "a"), "a is bound")
    stage.pending("e")
    stage.bound_within("e", "new inventory", lambda: add_nodes(stage.plane, [("n2", inventory("n2"), 64, 256)]))
    stage.delete("e")
    other = {"nvidia.com/gpu": "1"}
    stage.plane.request(
        "PATCH", "/api/v1/nodes/n2/status", {"status": {"allocatable": other, "capacity": other}}, content_type=MERGE
    )
    time.sleep(0.5)
    stage.pending("f")
    gone = {"nvidia.com/gpu": None}
    body = {"status": {"allocatable": gone, "capacity": gone}}
    stage.bound_within(
        "f",
        "node opened",
        lambda: stage.plane.request("PATCH", "/api/v1/nodes/n2/status", body, content_type=MERGE),
    )
    stage.delete("a")


def test_a_restart_forgets_nobody(stage: Stage) -> None:
    """What was freed while the extender was down is used when it is back: the pods' conditions tell who waits."""
    node = node_of(stage.plane, "f")
    (card,) = inventory(node).gpus
    sick = Gpu(card.uuid, card.index, card.model, card.memory_mib, card.reserved_mib, healthy=False, reason="XID 79")
    other = "n1" if node == "n2" else "n2"
    stage.plane.request("DELETE", f"{GPUNODES}/{other}")
    stage.delete("f")
    stage.gpu_node(node, sick)
    time.sleep(0.5)
    stage.pending("g")
    stage.extender.stop()
    stage.gpu_node(node, card)
    stage.extender.start()
    stage.bound_within("g", "card recovered while the extender was down, since it is ready", lambda: None)


def test_totals_go_with_the_last_pod(stage: Stage) -> None:
    """An inventory that is gone changes nothing while a pod of ours runs there; then they are removed."""
    node = node_of(stage.plane, "g")
    stage.plane.request("DELETE", f"{GPUNODES}/{node}")
    time.sleep(2)
    assert set(NAMES) <= set(stage.node(node)["status"]["allocatable"])
    stage.delete("g")

    def gone() -> bool:
        status = stage.node(node)["status"]
        return not set(NAMES) & (set(status["allocatable"]) | set(status["capacity"]))

    wait_until(gone, "the totals are removed", 5)


def _plain(amounts: dict[str, str]) -> dict[str, int]:
    """Return quantities as numbers; the API server writes large ones with a suffix."""
    suffixes = {"Ki": 10, "Mi": 20, "Gi": 30}
    return {key: int(value.rstrip("KMGi")) << suffixes.get(value[-2:], 0) for key, value in amounts.items()}
