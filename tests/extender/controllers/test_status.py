"""What is promised of each card, and when it is written into the GPUNode."""

from typing import Any

import pytest

from extender.cluster import NotDone, PerhapsDone
from extender.controllers import Pace, status
from extender.controllers.status import LOOKS, NODE_SECONDS, SWEEP_SECONDS, Status, promised
from extender.node import Rules
from extender.state import ClusterState
from tests.builders import bound, gpu, gpu_node, node, pod

pytestmark = pytest.mark.anyio


class Paper:
    """Takes what is written, and fails as scripted."""

    def __init__(self) -> None:
        self.written: list[tuple[str, list[dict[str, Any]]]] = []
        self.errors: list[Exception] = []

    async def apply_gpu_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Note it."""
        self.written.append((name, status["promises"]))
        if self.errors:
            raise self.errors.pop(0)


class Bench:
    """A controller with a clock that a test turns."""

    def __init__(self, nodes: int = 1) -> None:
        self.now, self.leads = 0.0, True
        self.state, self.paper = ClusterState(Rules()), Paper()
        self.status = Status(self.state, self.paper, lambda: self.leads, lambda: self.now, Pace(5, 5))
        for name in (f"n{i}" for i in range(1, nodes + 1)):
            self.state.saw_node(node(name))
            self.state.saw_inventory(gpu_node(name))

    async def step(self, seconds: float = 0.0) -> list[str]:
        """Let time pass, step, and return the nodes written."""
        self.now += seconds
        before = len(self.paper.written)
        await self.status.step()
        return [name for name, _ in self.paper.written[before:]]


def test_promised_is_what_pods_hold_of_each_card() -> None:
    """Shares add up by card, in MiB, thousandths and containers; an idle card is promised to nobody."""
    state = ClusterState(Rules())
    state.saw_node(node())
    state.saw_inventory(gpu_node(gpus=2))
    state.saw_pod(bound(pod("a"), "n1", [("GPU-n1-0", 4096, 200)]))
    state.saw_pod(bound(pod("b"), "n1", [("GPU-n1-0", 1024, 300)]))
    assert promised(state, "n1") == [
        {"uuid": "GPU-n1-0", "promisedMiB": 5120, "promisedMilli": 500, "sharers": 2},
        {"uuid": "GPU-n1-1", "promisedMiB": 0, "promisedMilli": 0, "sharers": 0},
    ]
    assert promised(state, "n2") is None


async def test_a_node_is_written_at_most_once_in_ten_seconds() -> None:
    """Many binds in between are one write, with what is true then."""
    bench = Bench()
    assert await bench.step() == ["n1"]
    for second in range(9):
        bench.state.saw_pod(bound(pod(f"p{second}"), "n1", [("GPU-n1-0", 512, 0)]))
        assert await bench.step(1.0) == []
    assert await bench.step(1.0) == ["n1"]
    assert bench.paper.written[-1][1][0]["promisedMiB"] == 9 * 512
    assert await bench.step(NODE_SECONDS) == []


async def test_what_is_there_already_is_not_written_again() -> None:
    """After a change of leader, a GPUNode that says the same is left alone."""
    bench = Bench()
    card = gpu("GPU-n1-0", promisedMiB=0, promisedMilli=0, sharers=0)
    bench.state.saw_inventory(gpu_node(gpus=[card]))
    assert await bench.step() == []
    bench.state.saw_pod(bound(pod("a"), "n1", [("GPU-n1-0", 512, 0)]))
    assert await bench.step(1.0) == ["n1"]


async def test_a_step_looks_only_at_nodes_of_which_something_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at all of them would hold up answers; once a minute it does, so many in a step."""
    bench, looked = Bench(2 * LOOKS), list[str]()
    bench.status.pace = Pace(1e6, 1e6)
    assert [len(await bench.step()) for _ in range(3)] == [LOOKS, LOOKS, 0]

    def seen(state: ClusterState, name: str) -> Any:
        looked.append(name)
        return promised(state, name)

    monkeypatch.setattr(status, "promised", seen)
    await bench.step(NODE_SECONDS)
    assert looked == []
    bench.state.saw_pod(bound(pod("a"), "n7", [("GPU-n7-0", 512, 0)]))
    assert await bench.step() == ["n7"]
    assert looked == ["n7"]
    for _ in range(2):
        looked.clear()
        await bench.step(SWEEP_SECONDS / 2)
    assert len(looked) == LOOKS


async def test_failures_wait_and_others_do_not() -> None:
    """A refused write is tried again after ten and twenty seconds."""
    bench = Bench()
    bench.paper.errors = [NotDone("409"), PerhapsDone("silence")]
    assert await bench.step() == ["n1"]
    assert [await bench.step(s) for s in (9.9, 0.1, 19.9, 0.1)] == [[], ["n1"], [], ["n1"]]


async def test_many_nodes_are_written_at_a_bounded_pace_and_only_by_the_leader() -> None:
    """Twenty nodes take four seconds at five a second."""
    bench = Bench(20)
    bench.leads = False
    assert await bench.step() == []
    bench.leads = True
    assert [len(await bench.step(1.0)) for _ in range(5)] == [5, 5, 5, 5, 0]
