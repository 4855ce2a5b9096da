"""What a replica does in its pod when it leads, when it loses, and when it ends."""

import asyncio
from dataclasses import dataclass, field
from typing import Any

import pytest

from contract.names import LEADER
from extender.cluster import Away, Lease, NotDone
from extender.leader import LOOKS, Replica, Telling
from extender.node import Rules
from extender.state import ClusterState
from extender.wire import Meta, Pod
from tests.extender.leases import SECONDS, Clock, Lock, Server, candidate


@dataclass
class Pods:
    """Notes what is written on pods, and refuses what it is told to."""

    patches: list[tuple[str, Any, Any]] = field(default_factory=list)
    errors: list[Exception | None] = field(default_factory=list)

    async def patch(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Note a patch."""
        if self.errors and (error := self.errors.pop(0)):
            raise error
        assert namespace == "here"
        self.patches.append((name, body["metadata"]["labels"][LEADER], body["metadata"]["annotations"][LEADER]))


def replica(lock: Lock, clock: Clock, pods: Pods, seconds: float = SECONDS) -> Replica:
    """Return a replica in pod a."""
    return Replica(candidate(lock, clock), "here", "a", pods.patch, seconds)


def shown(identity: str | None) -> Pod:
    """Return our pod as the watch tells of it."""
    return Pod(Meta("a", "here", "u", annotations=identity and {LEADER: identity}))  # type: ignore[arg-type]


@pytest.mark.anyio
async def test_a_new_leader_answers_when_its_watch_has_shown_its_own_label() -> None:
    """By then the watch has told of every bind of the leader before; a label of an earlier life does not count."""
    clock, pods = Clock(), Pods()
    lock = Lock(Server(Lease("b_9", 15, "7"), 7))
    one = replica(lock, clock, pods)
    seen = Telling(ClusterState(Rules()), one.saw_pod)
    await one.turn()
    assert pods.patches == [("a", None, None)], "a restarted container takes the label of its earlier life off"
    seen.saw_pod(shown(None))
    clock.now += SECONDS
    await one.turn()
    clock.now += 5.4
    await one.turn()
    assert pods.patches[1:] == [], "a bind of the leader before may land after what is written now"
    clock.now += 0.1
    await one.turn()
    assert pods.patches[1:] == [("b", None, None), ("a", "true", "a_1")]
    assert one.candidate.leads()
    assert not one.leads()
    seen.saw_pod(shown("a_0"))
    assert not one.leads()
    seen.saw_pod(shown("a_1"))
    assert one.leads()


@pytest.mark.anyio
async def test_a_mark_in_a_list_counts_once_the_list_is_told() -> None:
    """A bind of the leader before may come after it in the list, which is in the order of names."""
    whole = False
    clock, lock = Clock(), Lock(Server(Lease("", 15, "7"), 7))
    one = replica(lock, clock, Pods())
    one.whole = lambda: whole
    await one.turn()
    one.saw_pod(shown("a_1"))
    assert not one.leads()
    whole = True
    assert one.leads()
    whole = False
    assert one.leads(), "of later lists all binds are its own"


@pytest.mark.anyio
async def test_a_label_that_could_not_be_written_is_written_later() -> None:
    """A pod of the leader before that is gone is nothing to wait for."""
    clock = Clock()
    pods = Pods(errors=[Away("no connection"), None, NotDone("not found"), Away("no connection")])
    one = replica(Lock(Server(Lease("b_9", 15, "7"), 7)), clock, pods)
    await one.turn()
    assert pods.patches == []
    await one.turn()
    clock.now += SECONDS
    await one.turn()
    clock.now += 5.5
    await one.turn()
    assert pods.patches == [("a", None, None)]
    await one.turn()
    assert pods.patches[1:] == [("b", None, None), ("a", "true", "a_1")]


@pytest.mark.anyio
@pytest.mark.parametrize("idle", [True, False])
async def test_a_leader_that_ends_gives_the_lease_away_if_it_has_no_bind(idle: bool) -> None:
    """With a bind under way the Lease runs out instead; the label comes off in any case."""
    clock, pods, lock = Clock(), Pods(), Lock(Server(Lease("", 15, "7"), 7))
    one = replica(lock, clock, pods)
    await one.turn()
    await one.resign(idle=idle)
    assert lock.server.lease is not None
    assert lock.server.lease.holder == ("" if idle else "a_1")
    assert pods.patches[-1] == ("a", None, None)
    assert not one.leads()


@pytest.mark.anyio
async def test_a_replica_that_never_led_ends_without_a_word() -> None:
    """It has nothing to give away."""
    pods, lock = Pods(), Lock(Server(Lease("b_9", 15, "7"), 7))
    await replica(lock, Clock(), pods).resign(idle=True)
    assert pods.patches == []
    assert lock.server.lease == Lease("b_9", 15, "7")


@pytest.mark.anyio
async def test_run_ends_when_leadership_is_lost() -> None:
    """The process ends with it; until it was elected a replica waits for ever."""
    clock, lock = Clock(), Lock(Server(Lease("", 15, "7"), 7))
    one = replica(lock, clock, Pods(), seconds=0.01 * LOOKS)
    running = asyncio.ensure_future(one.run())
    while not one.candidate.elected():  # noqa: ASYNC110  # nobody sets an event for a test
        await asyncio.sleep(0)
    lock.away = True
    await asyncio.sleep(0.03)
    assert not running.done()
    clock.now += SECONDS
    await asyncio.wait_for(running, 5)
