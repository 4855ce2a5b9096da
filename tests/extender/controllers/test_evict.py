"""For whom room is made by eviction, on which node, and what holds it back."""

from functools import partial
from typing import Any

import pytest

from extender.cluster import Later, NotDone
from extender.controllers import Pace, evict
from extender.controllers.evict import AGAIN_SECONDS, GRACE_SECONDS, KEPT_SECONDS, LATER_SECONDS, NONE_SECONDS, Evict
from extender.pod import Request, request_of
from extender.preempt import Clearing
from extender.state import ClusterState
from extender.wire import Condition, Pod
from scoring.preempt import Looks
from tests.builders import bound, container
from tests.extender.test_preempt import asking, budget, held, on, state_of
from tests.fakes import ScriptedCluster

pytestmark = pytest.mark.anyio

FRAGMENTED = (held("a", on(0, 12), 3), held("b", on(1, 12), 2))


class Bench:
    """A controller over a scripted cluster, with a clock that a test turns; `high` was just turned away."""

    def __init__(self, *pods: Pod, high: Pod | None = None, dry_run: bool = False, **scene: Any) -> None:
        self.now, self.leads = 0.0, True
        self.state: ClusterState = state_of(*pods, **scene)
        self.cluster, self.nodes = ScriptedCluster(), [*self.state.nodes]
        self.evict = Evict(
            self.state, self.cluster, lambda: self.leads, dry_run=dry_run, clock=lambda: self.now, pace=Pace(100, 100)
        )
        self.high = high or asking()
        self.turned_away(self.high)

    def turned_away(self, pod: Pod) -> None:
        """Let filter be asked about a pod."""
        self.state.saw_pod(pod)
        self.evict.asked(pod, lambda: self.nodes)

    async def step(self, seconds: float = GRACE_SECONDS) -> list[str]:
        """Let time pass, step, and return the names of the pods evicted."""
        self.now += seconds
        before = len(self.cluster.evictions)
        await self.evict.step()
        return [name.removeprefix("default/") for name, _ in self.cluster.evictions[before:]]


async def test_the_least_victim_goes_by_its_uid_and_both_pods_say_why() -> None:
    """Of two nodes and four cards the one with the lowest pod is cleared, and the room is kept."""
    more = held("c", on(0, 12, name="n2"), 1, "n2"), held("d", on(1, 12, name="n2"), 5, "n2")
    bench = Bench(*FRAGMENTED, *more, nodes=2)
    assert await bench.step() == ["c"]
    assert bench.cluster.evictions == [("default/c", "uid-c")]
    assert bench.cluster.events == [
        ("high", "Evicting default/c from n2."),
        ("c", "Evicted from n2 to make room on its cards for default/high of priority 10."),
    ]
    bench.state.saw_pod(held("c", on(0, 12, name="n2"), 1, "n2", leaving=True))
    with bench.state.seen_by(low := asking(0, memory="13Gi")):
        assert not (bench.state.board().node_scores(_request(bench.state, low).demand) > float("-inf")).any()


def _request(state: ClusterState, pod: Pod) -> Request:
    request = request_of(pod, state.rules.resources)
    assert request is not None
    return request


async def test_a_dry_run_says_it_and_does_nothing() -> None:
    """Events on both, no eviction, no room kept, and not again before long."""
    bench = Bench(*FRAGMENTED, dry_run=True)
    assert await bench.step() == []
    assert [name for name, _ in bench.cluster.events] == ["b", "high"]
    assert all("ould " in message for _, message in bench.cluster.events)
    assert not bench.state.nominated.lift(asking(11))
    await bench.step()
    assert len(bench.cluster.events) == 2
    await bench.step(AGAIN_SECONDS)
    assert len(bench.cluster.events) == 4


@pytest.mark.parametrize(
    "why",
    [
        "equal priority",
        "totals do not suffice",
        "room already",
        "never preempts",
        "nominated",
        "deleted",
        "no CPU",
        "protected",
        "not the leader",
        "budgets unknown",
        "another node was asked about",
        "too large",
    ],
)
async def test_nobody_goes(why: str) -> None:
    """Whatever else than fragmentation keeps a pod out, or whatever forbids to help it."""
    low, high = [held("a", on(0, 12), 3, labels={"app": "a"}), held("b", on(1, 12), 2, labels={"app": "a"})], asking()
    match why:
        case "equal priority":
            high = asking(2)
        case "totals do not suffice":
            low.append(held("c", on(1, 6), 2))
        case "room already":
            low.pop()
        case "never preempts":
            high.spec.preemption_policy = "Never"
        case "nominated":
            high.status.nominated_node_name = "n1"
        case "deleted":
            high.metadata.deletion_timestamp = "2026-11-30T23:00:00Z"
        case "no CPU":
            high = asking(requests={"cpu": "65"})
        case "too large":
            high = asking(memory="25Gi")
    bench = Bench(*low, high=high, nodes=1)
    bench.cluster.protecting = [budget(0, {"app": "a"})] if why == "protected" else []
    bench.leads, bench.cluster.reachable = why != "not the leader", why != "budgets unknown"
    if why == "another node was asked about":
        bench.nodes = ["n2", "n9"]
    for _ in range(3):
        assert await bench.step(NONE_SECONDS + GRACE_SECONDS) == []
    assert bench.cluster.events == []


async def test_a_pod_is_given_time_to_fit_by_itself() -> None:
    """Nobody goes in the first moments, nor for a pod that was bound meanwhile."""
    bench = Bench(*FRAGMENTED)
    assert await bench.step(GRACE_SECONDS / 2) == []
    bench.state.lost_pod(bench.high)
    assert await bench.step() == []


async def test_one_pod_at_a_time_the_most_important_first() -> None:
    """The second begins when the first is bound; while the room of the first is kept, the second waits."""
    more = [held("c", on(0, 12, name="n2"), 9, "n2"), held("d", on(1, 12, name="n2"), 8, "n2")]
    bench = Bench(*FRAGMENTED, *more, nodes=2)
    second = asking(20)
    second.metadata.name, second.metadata.uid = "second", "uid-second"
    bench.turned_away(second)
    assert await bench.step() == ["b"]
    assert bench.cluster.events[0][0] == "second"
    bench.state.lost_pod(FRAGMENTED[1])
    assert await bench.step() == []
    second.spec.node_name = "n1"
    bench.state.saw_pod(bound(second, "n1", on(1, 20)))
    assert await bench.step() == [], "this step notes that the first is bound"
    assert await bench.step() == ["d"]


async def test_an_eviction_that_a_budget_refuses_is_tried_again_later() -> None:
    """429: not again before some time, and then the same pod; those that a budget counts go first."""
    counted = held("s", on(1, 6), 2, labels={"app": "s"})
    bench = Bench(held("a", on(0, 12), 10), held("b", on(1, 6), 2), counted)
    bench.cluster.protecting = [budget(1, {"app": "s"})]
    bench.cluster.eviction_errors = [Later("Cannot evict pod as it would violate the pod's disruption budget.")]
    assert await bench.step() == ["s"]
    assert await bench.step() == []
    assert await bench.step(LATER_SECONDS) == ["s", "b"]


async def test_an_eviction_that_fails_for_good_ends_nothing_else() -> None:
    """The victim is gone already: the pod's room is kept until its patience ends, and then let go."""
    bench = Bench(*FRAGMENTED)
    bench.cluster.eviction_errors = [NotDone('pods "b" not found')]
    assert await bench.step() == ["b"]
    assert await bench.step(KEPT_SECONDS) == []
    assert not bench.state.nominated.lift(asking(11))


async def test_preemptors_are_paced() -> None:
    """With nothing left of the pace the next pod waits."""
    bench = Bench(*FRAGMENTED)
    bench.evict.pace = Pace(0.1, 0.5)
    assert await bench.step() == []
    assert await bench.step(0.0) == []


async def test_a_pod_that_was_unschedulable_for_long_is_known_by_its_questions() -> None:
    """Only so many pods are remembered, the last that were asked about."""
    bench = Bench(*FRAGMENTED)
    for i in range(100):
        other = asking(0)
        other.metadata.name, other.metadata.uid = f"o{i}", f"uid-o{i}"
        other.status.conditions = [Condition("PodScheduled", "False", "Unschedulable")]
        bench.turned_away(other)
    assert len(bench.evict._asked) == 64
    assert await bench.step() == []


async def test_the_node_that_was_found_is_cleared_though_the_looks_are_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a pod of two containers nodes are left out once all looks are over, but not the one that is the best."""
    two = {"tessera.gpu/memory.a": "16Gi", "tessera.gpu/memory.b": "8Gi"}
    high = asking(memory=None, annotations=two, containers=[container("a"), container("b")])
    more = held("c", on(0, 12, name="n2"), 4, "n2"), held("d", on(1, 12, name="n2"), 5, "n2")
    bench = Bench(*FRAGMENTED, *more, high=high, nodes=2)
    tried = Clearing(bench.state, high, _request(bench.state, high), [], Looks(1000))
    assert (found := tried.here("n1"))
    assert found.uids == ("uid-b",)
    monkeypatch.setattr(evict, "Clearing", partial(Clearing, looks=Looks(1001 - tried.looks.left)))
    assert await bench.step() == ["b"]
