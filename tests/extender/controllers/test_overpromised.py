"""Which pods are told that their card cannot give what is held of it, and how often."""

import pytest

from extender.cluster import NotDone
from extender.controllers import overpromised
from extender.controllers.overpromised import Overpromised
from tests.extender.test_preempt import held, on, state_of
from tests.fakes import ScriptedCluster

pytestmark = pytest.mark.anyio


class Bench:
    """A controller over a scripted cluster, with two pods that together exceed one of two cards."""

    def __init__(self) -> None:
        self.leads = True
        self.state = state_of(held("a", on(0, 16)), held("b", on(0, 16)), held("c", on(1, 16)))
        self.cluster = ScriptedCluster()
        self.controller = Overpromised(self.state, self.cluster, lambda: self.leads)

    async def step(self) -> list[str]:
        """Step, and return the names of the pods that were told."""
        before = len(self.cluster.events)
        await self.controller.step()
        return sorted(name for name, _ in self.cluster.events[before:])


async def test_each_pod_of_the_card_is_told_once() -> None:
    """One that joins is told alone; when it is over and comes again, it is told again."""
    bench = Bench()
    assert [await bench.step(), await bench.step()] == [["a", "b"], []]
    assert {text for _, text in bench.cluster.events} == {
        "The pods on card GPU-n1-0 of n1 hold more of it than it can give; it takes no others."
    }
    bench.state.saw_pod(held("d", on(0, 1)))
    assert await bench.step() == ["d"]
    bench.state.lost_pod(held("a", on(0, 16)))
    assert await bench.step() == []
    bench.state.saw_pod(held("e", on(0, 16)))
    assert await bench.step() == ["b", "d", "e"]


async def test_a_replica_that_does_not_lead_tells_nobody() -> None:
    """Until it leads."""
    bench = Bench()
    bench.leads = False
    assert await bench.step() == []
    bench.leads = True
    assert await bench.step() == ["a", "b"]


async def test_an_event_that_is_not_taken_is_written_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """And nothing else is tried before."""
    bench, tried = Bench(), list[str]()

    async def refuse(*args: object, **_: object) -> None:
        tried.append(str(args))
        raise NotDone("403")

    with monkeypatch.context() as patched:
        patched.setattr(bench.cluster, "event", refuse)
        await bench.step()
    assert len(tried) == 1
    assert await bench.step() == ["a", "b"]


async def test_many_are_told_in_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """A factor that is lowered concerns every pod; the API server has other work."""
    monkeypatch.setattr(overpromised, "MOST", 1)
    bench = Bench()
    told = [await bench.step() for _ in range(3)]
    assert sorted(told) == [[], ["a"], ["b"]]
