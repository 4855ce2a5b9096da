"""Whose agent is silent, by the receiver's clock."""

from datetime import UTC, datetime

import pytest

from extender.controllers.silence import Silence
from extender.node import SILENT, Rules
from extender.state import ClusterState
from extender.wire import AgentLease, LeaseMeta, LeaseSpec, ManagedField
from scoring.model import ABSENT
from tests.builders import bound, gpu_node, node, pod

pytestmark = pytest.mark.anyio

EPOCH = 1_700_000_000.0


class Ear:
    """A listener with clocks that a test turns, and a node whose agent beats when told to."""

    def __init__(self, *, at: float = 0.0) -> None:
        self.now, self.out, self.listed = at, 0.0, True
        self.state = ClusterState(Rules())
        self.state.saw_node(node())
        self.state.saw_inventory(gpu_node())
        self.silence = Silence(
            self.state, lambda: self.listed, lambda: self.out, 90.0, lambda: self.now, lambda: EPOCH + self.now
        )

    def beat(self, said: str = "", *, taken: float | None = None, name: str = "n1") -> None:
        """Let the API server show a lease; it took it at `taken` seconds, now if not said."""
        time = datetime.fromtimestamp(EPOCH + (self.now if taken is None else taken), UTC).isoformat()
        meta = LeaseMeta(name, managed_fields=[ManagedField("tessera-agent", time)])
        self.state.saw_lease(AgentLease(meta, LeaseSpec(said or time)))

    async def closed(self, seconds: float = 0.0) -> str:
        """Let time pass and return why the node is closed."""
        self.now += seconds
        await self.silence.step()
        return self.state.closed.get("n1", "")


async def test_an_agent_that_falls_silent_is_not_offered_and_comes_back() -> None:
    """After 90 s the cards have nothing free, and what runs there counts as before; one beat opens the node."""
    ear = Ear()
    ear.state.saw_pod(bound(pod("a"), "n1", [("GPU-n1-0", 4096, 0)]))
    ear.beat()
    assert await ear.closed() == ""
    assert await ear.closed(90.0) == ""
    assert await ear.closed(0.1) == SILENT
    row = ear.state.fleet.index["n1"]
    assert ear.state.fleet.free.mib[row, 0] == ABSENT
    assert ear.state.holdings["uid-a"].cards["GPU-n1-0"].mib == 4096
    ear.beat()
    assert await ear.closed() == ""
    assert ear.state.fleet.free.mib[row, 0] == 24576 - 4096


async def test_the_agents_own_clock_does_not_matter() -> None:
    """A renewal an hour ahead or behind is a sign of life all the same, and the same one again is none."""
    ear = Ear()
    for said in ("2099-01-01T00:00:00.000000Z", "1999-01-01T00:00:00.000000Z"):
        ear.beat(said)
        assert await ear.closed(80.0) == ""
    ear.beat("1999-01-01T00:00:00.000000Z")
    assert await ear.closed(95.0) == SILENT


async def test_after_a_restart_the_api_servers_time_counts() -> None:
    """A lease that was there before us is as old as the API server says; a new one is as old as our sight of it."""
    ear = Ear(at=1000.0)
    ear.beat("x", taken=920.0)
    assert await ear.closed() == ""
    assert await ear.closed(11.0) == SILENT
    old = Ear(at=1000.0)
    old.beat("x", taken=0.0)
    assert await old.closed() == SILENT


async def test_it_says_when_it_has_judged() -> None:
    """Until then the nodes of silent agents are still offered, so nothing should be."""
    ear = Ear(at=1000.0)
    ear.beat("x", taken=0.0)
    ear.listed = False
    await ear.closed()
    assert not ear.silence.judged
    ear.listed = True
    await ear.closed()
    assert ear.silence.judged


async def test_nobody_is_called_silent_while_we_are_deaf() -> None:
    """An outage of the API server counts for nobody; after it everybody has the whole time again."""
    ear = Ear()
    ear.beat()
    assert await ear.closed() == ""
    ear.out = 60.0
    assert await ear.closed(300.0) == ""
    ear.out = 0.0
    assert await ear.closed(89.0) == ""
    assert await ear.closed(2.0) == SILENT


async def test_without_a_lease_an_inventory_is_taken_as_it_stands() -> None:
    """Nothing is judged before the leases are listed; a lease that is deleted leaves its agent to be silent."""
    ear = Ear()
    assert await ear.closed(1000.0) == ""
    ear.beat()
    assert await ear.closed() == ""
    ear.state.lost_lease("n1")
    assert await ear.closed(91.0) == SILENT
    ear.listed = False
    ear.beat()
    assert await ear.closed() == SILENT


async def test_what_is_gone_is_forgotten() -> None:
    """A node without lease and inventory is no longer listened to."""
    ear = Ear()
    ear.beat()
    await ear.closed()
    assert await ear.closed(91.0) == SILENT
    ear.state.lost_lease("n1")
    ear.state.lost_inventory("n1")
    await ear.closed(1.0)
    assert ear.state.silent == set()
