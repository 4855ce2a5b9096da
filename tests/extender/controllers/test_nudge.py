"""Who is woken, when, and who is not."""

from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from contract.names import RETRY, Resources
from extender.cluster import NotDone
from extender.controllers import Pace, nudge
from extender.controllers.nudge import ASKS, GRACE_SECONDS, PATIENCE_SECONDS, SEARCHES, STATES, Nudge, _Woken
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from extender.wire import Condition, Pod, PodStatus
from scoring.containers import MOST_STATES, Budget
from scoring.fit import fits
from tests.builders import bound, container, gpu, gpu_node, node, pod
from tests.fakes import ScriptedCluster

pytestmark = pytest.mark.anyio

UNSCHEDULABLE = PodStatus("Pending", conditions=[Condition("PodScheduled", "False", "Unschedulable")])
FULL = ("GPU-n1-0", 24576, 0)


def whole(name: str, **more: Any) -> Pod:
    """Return a pod that asks for all memory of a card."""
    return pod(name, memory="24Gi", **more)


def important(asking: Pod, priority: int, created: str = "") -> Pod:
    """Return a pod with a priority and a time of creation."""
    meta = replace(asking.metadata, creation_timestamp=created)
    return replace(asking, metadata=meta, spec=replace(asking.spec, priority=priority))


class Bench:
    """A controller over a scripted cluster, with a clock that a test turns, and one node whose card is full."""

    def __init__(self, pace: Pace | None = None) -> None:
        self.now, self.leads = 0.0, True
        self.state, self.cluster = ClusterState(Rules()), ScriptedCluster()
        self.nudge = Nudge(self.state, self.cluster, lambda: self.leads, lambda: self.now, pace or Pace(1000, 1000))
        self.state.saw_node(node())
        self.state.saw_inventory(gpu_node())
        self.tenant = bound(whole("tenant"), "n1", [FULL])
        self.state.saw_pod(self.tenant)

    def turn_away(self, *pods: Pod) -> None:
        """Let kube-scheduler ask about pods in vain."""
        for asking in pods:
            self.state.saw_pod(asking)
            self.state.asked(asking.metadata.uid)

    async def step(self, seconds: float = GRACE_SECONDS) -> list[str]:
        """Step, let time pass, step again, and return the pods woken."""
        before = len(self.cluster.patches)
        await self.nudge.step()
        self.now += seconds
        await self.nudge.step()
        return [name.removeprefix("default/") for name, _ in self.cluster.patches[before:]]


async def test_a_pod_turned_away_is_woken_when_it_fits() -> None:
    """After the grace, once, with a number that grows and its UID as precondition."""
    bench = Bench()
    bench.turn_away(whole("a", annotations={RETRY: "7"}))
    assert await bench.step(60) == []
    bench.state.lost_pod(bench.tenant)
    assert await bench.step(GRACE_SECONDS / 2) == []
    assert await bench.step(GRACE_SECONDS / 2) == ["a"]
    assert bench.cluster.patches[0][1] == {"metadata": {"uid": "uid-a", "annotations": {RETRY: "8"}}}
    assert await bench.step() == []


async def test_a_pod_whose_room_is_kept_is_woken_once_its_victims_are_gone() -> None:
    """Its own room does not stand in its way, and it stands in the way of others."""
    bench = Bench()
    high = important(whole("high"), 10)
    high = replace(high, status=PodStatus("Pending", nominated_node_name="n1"))
    leaving = replace(
        bench.tenant, metadata=replace(bench.tenant.metadata, deletion_timestamp="2026-11-30T23:00:00Z")
    )
    bench.state.saw_pod(leaving)
    bench.turn_away(whole("low"), high)
    assert await bench.step(60) == []
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["high"]
    bench.state.asked("uid-high")
    assert await bench.step(60) == []


@pytest.mark.parametrize("said", ["", "soon", "-3", "9" * 40, "²"])
async def test_a_number_that_is_none_begins_anew(said: str) -> None:
    """Whatever somebody wrote there."""
    bench = Bench()
    bench.turn_away(whole("a", annotations={RETRY: said}))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["a"]
    assert bench.cluster.patches[0][1]["metadata"]["annotations"] == {RETRY: "1"}


async def free_by_deletion(bench: Bench) -> None:
    bench.state.lost_pod(bench.tenant)


async def free_by_completion(bench: Bench) -> None:
    bench.state.saw_pod(bound(whole("tenant"), "n1", [FULL], phase="Succeeded"))


async def free_by_inventory(bench: Bench) -> None:
    bench.state.saw_node(node("n2"))
    bench.state.saw_inventory(gpu_node("n2"))


async def free_by_opening(bench: Bench) -> None:
    bench.state.saw_node(node(overcommit="nonsense"))
    bench.state.lost_pod(bench.tenant)
    bench.turn_away(*bench.state.waiting.values())
    bench.state.saw_node(node())


async def free_by_recovery(bench: Bench) -> None:
    bench.state.saw_inventory(gpu_node(gpus=[gpu("GPU-n1-0", healthy=False)]))
    bench.state.lost_pod(bench.tenant)
    bench.turn_away(*bench.state.waiting.values())
    bench.state.saw_inventory(gpu_node())


async def free_by_expiry(bench: Bench) -> None:
    other = whole("other")
    request = request_of(other, Resources())
    assert request is not None
    bench.state.lost_pod(bench.tenant)
    bench.state.expect(other, request, "n1", 1.0)
    bench.turn_away(*bench.state.waiting.values())
    bench.now = 2.1


async def free_by_forgetting(bench: Bench) -> None:
    other = whole("other")
    request = request_of(other, Resources())
    assert request is not None
    bench.state.lost_pod(bench.tenant)
    assert bench.state.reserve(other, request, "n1") is not None
    bench.turn_away(*bench.state.waiting.values())
    bench.state.forget("uid-other")


@pytest.mark.parametrize(
    "free",
    [
        free_by_deletion,
        free_by_completion,
        free_by_inventory,
        free_by_opening,
        free_by_recovery,
        free_by_expiry,
        free_by_forgetting,
    ],
    ids=lambda free: free.__name__,
)
async def test_every_way_of_freeing_wakes(free: Any) -> None:
    """Whatever the cause, the pod that was turned away before it is woken."""
    bench = Bench()
    bench.turn_away(whole("a"))
    await bench.step()
    await free(bench)
    assert await bench.step() == ["a"]


async def test_who_was_asked_about_since_is_not_woken() -> None:
    """kube-scheduler knows already; and whoever is being bound, going, or was never asked about needs nothing."""
    bench = Bench()
    leaving = whole("leaving")
    leaving.metadata.deletion_timestamp = "2030-01-01T00:00:00Z"
    bench.turn_away(whole("a"), leaving)
    bench.state.saw_pod(whole("new"))
    bench.state.lost_pod(bench.tenant)
    bench.state.asked("uid-a")
    assert await bench.step(10) == []


async def test_after_a_restart_the_pods_condition_tells() -> None:
    """What kube-scheduler found unschedulable before our time is woken if it fits."""
    bench = Bench()
    bench.state.saw_pod(replace(whole("a"), status=UNSCHEDULABLE))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["a"]


async def test_one_card_wakes_one_pod_the_most_important_and_oldest() -> None:
    """A thousand pods wait for one card: one is woken; if it does not come, the next one has its turn."""
    bench = Bench()
    crowd = [important(whole(f"p{i:03d}"), 0, "2030") for i in range(1000)]
    bench.turn_away(*crowd, important(whole("young"), 5, "2031"), important(whole("old"), 5, "2029"))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["old"]
    assert await bench.step(PATIENCE_SECONDS / 2) == []
    assert await bench.step(PATIENCE_SECONDS / 2) == ["young"]
    assert await bench.step(PATIENCE_SECONDS) == ["old"], "its pause is over, and it is first again"


async def test_a_pass_asks_so_often_and_the_next_one_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pods that differ and fit nowhere do not hold up answers, and the one behind them that fits has its turn."""
    bench, asked = Bench(), 0

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return fits(*args)

    monkeypatch.setattr(nudge, "fits", counted)
    crowd = [important(pod(f"p{i}", memory=f"{30_000 + i}Mi"), 5) for i in range(2 * ASKS + 1)]
    bench.turn_away(*crowd, whole("small"))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == []
    assert asked == ASKS
    assert await bench.step() == ["small"]
    assert asked == 2 * ASKS + 2


async def test_pods_that_never_come_do_not_stop_those_behind() -> None:
    """They fit, and wait for something else; whoever comes after them is looked at all the same."""
    bench = Bench()
    idle = [important(pod(f"p{i}", memory=f"{1000 + i}Mi"), 5) for i in range(ASKS + 50)]
    bench.turn_away(*idle)
    for asking in idle:
        bench.nudge._woken[asking.metadata.uid] = _Woken(6, -5.0)
    bench.turn_away(whole("last"))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() + await bench.step() == ["last"]


async def test_cpu_and_memory_make_no_two_pods_different(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those kube-scheduler knows; what asks the same of the cards is asked once."""
    bench, asked = Bench(), 0

    def counted(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        return fits(*args)

    monkeypatch.setattr(nudge, "fits", counted)
    bench.turn_away(*(pod(f"p{i}", memory="30Gi", requests={"cpu": f"{i + 1}m"}) for i in range(50)))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == []
    assert asked == 1


async def test_what_fits_together_is_woken_together() -> None:
    """Room for three wakes three."""
    bench = Bench()
    bench.turn_away(*(pod(f"p{i}", memory="8Gi") for i in range(9)))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["p0", "p1", "p2"]
    assert await bench.step(0.1) == []


async def test_a_pod_that_waits_for_something_else_is_woken_ever_more_rarely() -> None:
    """Its node may have a taint that only kube-scheduler sees. Once cards alone keep it out, it is forgiven."""
    bench = Bench()
    bench.state.lost_pod(bench.tenant)
    woken = []
    for _ in range(200):
        bench.state.saw_inventory(gpu_node(gpus=[gpu("GPU-n1-0", foreignMiB=1)]))
        bench.turn_away(pod("a"))
        bench.state.saw_inventory(gpu_node())
        if await bench.step(0.5):
            woken.append(bench.now)
    assert np.diff(woken).tolist() == [2, 4, 8, 16, 32]
    again = bound(whole("again"), "n1", [FULL])
    bench.state.saw_pod(again)
    bench.turn_away(pod("a"))
    await bench.step()
    bench.state.lost_pod(again)
    assert await bench.step() == ["a"]


async def test_writes_are_paced_and_none_is_lost() -> None:
    """Sixty pods for sixty cards are woken at ten a second."""
    bench = Bench(Pace(10, 10))
    bench.turn_away(*(whole(f"p{i:02d}") for i in range(60)))
    bench.state.saw_node(node("n2"))
    bench.state.saw_inventory(gpu_node("n2", 60))
    assert len(await bench.step()) == 10
    woken: set[str] = {name.removeprefix("default/") for name, _ in bench.cluster.patches}
    for _ in range(7):
        for name in woken:
            bench.state.asked(f"uid-{name}")  # as kube-scheduler does, which then binds it
            bench.state.saw_pod(bound(whole(name), "n2", [(f"GPU-n2-{int(name[1:])}", 24576, 0)]))
        woken |= set(await bench.step(1.0))
    assert len(woken) == 60


async def test_a_refused_patch_is_tried_again() -> None:
    """A restarting API server knows no roles yet and answers 403."""
    bench = Bench()
    bench.cluster.patch_errors = [NotDone("403")]
    bench.turn_away(whole("a"))
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == ["a"]
    assert await bench.step(2.0) == ["a"]


async def test_who_does_not_lead_wakes_nobody_and_forgets_nothing() -> None:
    """What was freed meanwhile counts once this replica leads."""
    bench = Bench()
    bench.turn_away(whole("a"))
    bench.leads = False
    bench.state.lost_pod(bench.tenant)
    assert await bench.step() == []
    bench.leads = True
    assert await bench.step() == ["a"]


SIZES = st.lists(st.integers(1, 24), min_size=1, max_size=12)


@given(asks=SIZES, taken=st.lists(st.integers(0, 24), min_size=1, max_size=4), burst=st.integers(1, 12))
@settings(max_examples=150, deadline=None)
def test_whom_it_wakes_fits_together_and_nothing_moves(asks: list[int], taken: list[int], burst: int) -> None:
    """The cards hold all who are woken, who are the first that fit; the Fleet is afterwards as it was."""
    bench = Bench(Pace(0, burst))
    bench.state.lost_pod(bench.tenant)
    bench.state.lost_inventory("n1")
    pods = [pod(f"p{i:02d}", memory=f"{ask}Gi") for i, ask in enumerate(asks)]
    bench.turn_away(*pods)
    bench.state.saw_inventory(
        gpu_node(gpus=[gpu(f"GPU-{i}", index=i, foreignMiB=t * 1024) for i, t in enumerate(taken)])
    )
    before = [array.copy() for array in (*bench.state.fleet.free, bench.state.fleet.hosted)]
    bench.nudge.due(0.0)
    woken = [p.metadata.name for p in bench.nudge.due(GRACE_SECONDS)]
    assert all(
        np.array_equal(a, b) for a, b in zip(before, (*bench.state.fleet.free, bench.state.fleet.hosted), strict=True)
    )
    assert len(woken) <= burst
    request = {p.metadata.name: request_of(p, Resources()) for p in pods}
    for p in pods:
        asked = request[p.metadata.name]
        assert asked is not None
        if p.metadata.name in woken:
            assert bench.state.reserve(p, asked, "n1") is not None
        elif len(woken) < burst:
            assert bench.state.reserve(p, asked, "n1") is None


def crowded() -> Bench:
    """Return a bench on which pods of eight containers missed the room of forty nodes."""
    bench, draw = Bench(), Random(3)
    mib = dict(zip("abcdefgh", (13900, 13000, 12500, 11900, 10800, 9700, 8600, 7500), strict=True))
    many = [container(name) for name in mib]
    for number in range(6):
        asks = {f"tessera.gpu/memory.{name}": f"{amount - number}Mi" for name, amount in mib.items()}
        bench.turn_away(pod(f"several-{number}", memory=None, annotations=asks, containers=many))
    for name in (f"m{i}" for i in range(40)):
        bench.state.saw_node(node(name))
        bench.state.saw_inventory(gpu_node(name, 8))
        shares = [(f"GPU-{name}-{card}", draw.randrange(10000, 13500), draw.randrange(100, 400)) for card in range(8)]
        bench.state.saw_pod(bound(pod(f"held-{name}"), name, shares))
    bench.nudge.due(bench.now)
    return bench


async def test_pods_of_many_containers_hold_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """A step searches so far and no farther, and the next ones go on: in the end every pod had its look."""
    budgets: list[Budget] = []

    def made(left: int) -> Budget:
        budgets.append(Budget(left))
        return budgets[-1]

    monkeypatch.setattr(nudge, "Budget", made)
    monkeypatch.setattr("scoring.containers._known", {})
    bench = crowded()
    for _ in range(200):
        bench.now += GRACE_SECONDS
        bench.nudge.due(bench.now)
        if bench.nudge._round is None:
            break
    assert bench.nudge._round is None
    assert sum(budget.left < STATES for budget in budgets) > 2, "it took several steps"
    assert min(budget.left for budget in budgets) > -MOST_STATES


async def test_searches_that_do_not_end_hold_up_no_other_pod_and_no_other_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where nothing that was searched is remembered: the small pod is woken at once, and the round ends."""
    monkeypatch.setattr("scoring.containers.MOST_KNOWN", 0)
    bench = crowded()
    bench.state.saw_pod(replace(important(pod("small", memory="8Gi"), -1), status=UNSCHEDULABLE))
    bench.now += GRACE_SECONDS
    assert "small" in [woken.metadata.name for woken in bench.nudge.due(bench.now)]
    for _ in range(SEARCHES):
        bench.now += 0.01
        bench.nudge.due(bench.now)
        if bench.nudge._round is None:
            break
    assert bench.nudge._round is None
    assert {f"m{i}" for i in range(40)} <= bench.nudge._rooms.keys(), "whoever was left out may still want them"
