"""What a node advertises of its cards, and when that is written."""

from typing import Any

import pytest

from contract.names import Resources
from extender.cluster import NotDone, PerhapsDone
from extender.controllers import Pace
from extender.controllers.totals import ECHO_SECONDS, SWEEP_SECONDS, Totals, wanted
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from tests.builders import bound, gpu, gpu_node, node, pod
from tests.fakes import ScriptedCluster

GIB = 1 << 30
MEMORY, COMPUTE, PLACES = "nvidia.com/gpu-memory", "nvidia.com/gpu-utilization", "tessera.gpu/share"
ONE_CARD = {MEMORY: str(24 * GIB), COMPUTE: "100", PLACES: "48"}


def advertising(amounts: dict[str, Any] | None = None, **more: Any) -> Any:
    """Return a node whose capacity and allocatable have these amounts."""
    made = node(more=amounts or {}, **more)
    made.status.capacity = dict(amounts or {})
    return made


def state_of(*gpus: dict[str, Any], rules: Rules | None = None, **of_node: Any) -> ClusterState:
    """Return a state with one node that advertises nothing yet."""
    state = ClusterState(rules or Rules())
    state.saw_node(advertising(**of_node))
    state.saw_inventory(gpu_node(gpus=gpus or 1))
    return state


# --- what is wanted ------------------------------------------------------------------------------------------


def test_totals_are_what_the_hardware_can_give() -> None:
    """Memory is NVML's total less reserved and headroom, over all cards; compute has its factor."""
    cards = [
        gpu("a", reservedMiB=576),
        gpu("b", index=1, healthy=False, reason="XID 79"),
        gpu("c", index=2, mig=True),
    ]
    state = state_of(*cards, rules=Rules(headroom_mib=1000, overcommit=1300, sharers=10))
    mib = (24576 - 576 - 1000) + 2 * (24576 - 1000)
    assert wanted(state, "n1") == {MEMORY: str(mib << 20), COMPUTE: "390", PLACES: "30"}


def test_a_nodes_own_factor_and_other_names_count() -> None:
    """The node's annotation overrides the factor, and the settings rename the resources."""
    rules = Rules(resources=Resources("a.b/m", "a.b/u", "a.b/s"))
    assert wanted(state_of(rules=rules, overcommit="1.5"), "n1") == {
        "a.b/m": str(24 * GIB),
        "a.b/u": "150",
        "a.b/s": "48",
    }


def test_a_node_that_says_so_already_is_left_alone() -> None:
    """The same amounts in any spelling need no write; a zeroed allocatable beside a right capacity does."""
    state = state_of(amounts={MEMORY: "24Gi", COMPUTE: 100, PLACES: "48"})
    assert wanted(state, "n1") is None
    zeroed = advertising({MEMORY: "24Gi", COMPUTE: "100", PLACES: "48"})
    zeroed.status.allocatable |= {MEMORY: "0"}
    state.saw_node(zeroed)
    assert wanted(state, "n1") == ONE_CARD


def test_totals_are_not_lowered_below_what_is_promised() -> None:
    """With a smaller factor and half of the cards, what runs there stays covered, and no more than that."""
    state = state_of(amounts={MEMORY: "48Gi", COMPUTE: "260", PLACES: "96"})
    heavy = pod("a", memory="10Gi", utilization="100%")
    state.saw_pod(bound(heavy, "n1", [("GPU-n1-0", 10240, 1000)]))
    state.saw_pod(bound(pod("b"), "n1", [("GPU-n1-1", 20480, 105)]))
    assert wanted(state, "n1") == {MEMORY: str(30 * GIB), COMPUTE: "111", PLACES: "48"}
    request = request_of(pod("c", memory="1Gi"), Resources())
    assert request is not None
    state.saw_inventory(gpu_node(gpus=2))
    assert state.reserve(pod("c", memory="1Gi"), request, "n1") is not None
    state.saw_inventory(gpu_node(gpus=1))
    assert wanted(state, "n1") == {MEMORY: str(31 * GIB), COMPUTE: "111", PLACES: "48"}


@pytest.mark.parametrize("how", [{}, {"text": "{"}], ids=["no record", "an unreadable one"])
def test_nothing_is_lowered_while_a_pod_of_ours_has_no_record(how: dict[str, str]) -> None:
    """What such a pod asked for is not known here, so what is advertised stays."""
    state = state_of(amounts={MEMORY: "48Gi", COMPUTE: "50", PLACES: "96"})
    state.saw_pod(bound(pod("a"), "n1", **how))  # type: ignore[arg-type]
    assert wanted(state, "n1") == {MEMORY: str(48 * GIB), COMPUTE: "100", PLACES: "96"}


def test_totals_go_with_the_inventory_once_no_pod_of_ours_is_left() -> None:
    """A lost inventory changes nothing while a pod of ours runs there; then the resources are removed."""
    state = state_of(amounts=ONE_CARD)
    ours = bound(pod("a"), "n1", [("GPU-n1-0", 4096, 0)])
    state.saw_pod(ours)
    state.lost_inventory("n1")
    assert wanted(state, "n1") is None
    state.lost_pod(ours)
    assert wanted(state, "n1") == dict.fromkeys(ONE_CARD)
    state.saw_node(advertising())
    assert wanted(state, "n1") is None


def test_an_inventory_that_tells_nothing_changes_nothing() -> None:
    """One that cannot be read, one without cards, and one without a Node are no reason to write."""
    state = state_of(amounts=ONE_CARD)
    for inventory in (gpu_node(gpus=[]), gpu_node(api_version="tessera.gpu/v9"), gpu_node("n2")):
        state.saw_inventory(inventory)
    assert [wanted(state, name) for name in ("n1", "n2", "n3")] == [None, None, None]


# --- when it is written --------------------------------------------------------------------------------------


class Bench:
    """A controller over a scripted cluster, with a clock that a test turns."""

    def __init__(self, nodes: int = 1, pace: Pace | None = None) -> None:
        self.now, self.leads = 0.0, True
        self.state, self.cluster = ClusterState(Rules()), ScriptedCluster()
        self.totals = Totals(self.state, self.cluster, lambda: self.leads, lambda: self.now, pace or Pace(100, 100))
        for name in (f"n{i}" for i in range(1, nodes + 1)):
            self.state.saw_node(advertising(name=name))
            self.state.saw_inventory(gpu_node(name))

    async def step(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, step, and return the nodes written."""
        self.now += seconds
        before = len(self.cluster.patches)
        await self.totals.step()
        return [name for name, _ in self.cluster.patches[before:]]


pytestmark = pytest.mark.anyio


async def test_capacity_and_allocatable_are_written_once() -> None:
    """One patch carries both, and the watch's echo of it asks for no other."""
    bench = Bench()
    assert await bench.step() == ["n1"]
    assert bench.cluster.patches == [("n1", {"status": {"capacity": ONE_CARD, "allocatable": ONE_CARD}})]
    assert await bench.step(0.2) == []
    bench.state.saw_node(advertising(ONE_CARD))
    assert await bench.step(0.2) + await bench.step(2 * SWEEP_SECONDS) == []


async def test_a_kubelet_that_resets_them_is_answered_at_once() -> None:
    """After the echo, zeros are overwritten at the next step."""
    bench = Bench()
    await bench.step()
    bench.state.saw_node(advertising(ONE_CARD))
    await bench.step(0.2)
    bench.state.saw_node(advertising(dict.fromkeys(ONE_CARD, "0")))
    assert await bench.step(0.2) == ["n1"]


async def test_a_write_without_an_echo_is_repeated() -> None:
    """A write that the watch never shows is made again, and by the sweep even if nothing is told."""
    bench = Bench()
    await bench.step()
    assert await bench.step(ECHO_SECONDS - 0.1) == []
    assert await bench.step(0.2) == ["n1"]


async def test_failures_wait_longer_each_time() -> None:
    """A refused or unanswered write is tried again after one, two and four seconds."""
    bench = Bench()
    bench.cluster.patch_errors = [NotDone("409"), PerhapsDone("silence"), NotDone("409")]
    assert await bench.step() == ["n1"]
    assert [await bench.step(s) for s in (0.9, 0.1, 1.9, 0.1, 3.9, 0.1)] == [[], ["n1"], [], ["n1"], [], ["n1"]]
    assert await bench.step(1.0) == []


async def test_many_nodes_are_written_at_a_bounded_pace() -> None:
    """A hundred new nodes get twenty writes at once and then twenty a second, each one once."""
    bench = Bench(100, Pace(20, 20))
    written = [await bench.step()]
    written += [await bench.step(0.5) for _ in range(8)]
    assert [len(names) for names in written] == [20] + [10] * 8
    assert len({name for names in written for name in names}) == 100


async def test_who_does_not_lead_writes_nothing_and_forgets_nothing() -> None:
    """What changed meanwhile is written once this replica leads."""
    bench = Bench()
    bench.leads = False
    assert await bench.step(1) == []
    bench.leads = True
    assert await bench.step(1) == ["n1"]
