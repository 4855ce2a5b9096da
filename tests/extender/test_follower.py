"""An extender beside a kube-scheduler leads while that one holds its Lease, once earlier binds are known."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from extender.cluster import Event, Lease, Watched
from extender.leader import RENEW, Follower, Sight, catching_up
from extender.node import Rules
from extender.state import ClusterState
from tests.builders import bound, plain, pod
from tests.extender.leases import BIND, SECONDS, Clock, Lock, Server


@dataclass
class Shown:
    """Whether the watch has caught up, and how often that was asked."""

    says: bool = True
    asked: int = 0

    async def __call__(self) -> bool:
        self.asked += 1
        return self.says


def follower(lock: Lock, clock: Clock, name: str = "node-1", shown: Shown | None = None) -> Follower:
    """Return the follower on a host of that name."""
    return Follower(name, Sight(lock, clock), SECONDS, BIND, shown or Shown())


async def renewed(one: Follower, clock: Clock, seconds: float, holder: str = "node-1_b7") -> None:
    """Let time pass in which a scheduler renews its Lease every two seconds and the follower looks."""
    lock = one.sight.lock
    assert isinstance(lock, Lock)
    end = clock.now + seconds
    while clock.now < end:
        clock.now = min(end, clock.now + 2)
        lock.server.write(holder, 15, lock.server.lease)
        await one.step()


@pytest.mark.anyio
async def test_a_follower_leads_while_its_own_scheduler_renews() -> None:
    """Not before a renewal was seen, not for a namesake's longer name, and no longer than the renewal lasts."""
    clock, lock = Clock(), Lock(Server(Lease("node-1_b7", 15, "7"), 7))
    ours, other = follower(lock, clock), follower(lock, clock, "node")
    for one in (ours, other):
        await one.step()
    clock.now += 3 * BIND
    for one in (ours, other):
        await one.step()
        assert not one.leads(), "it may be a Lease of yesterday"
    asked = clock.now
    clock.now += 2
    lock.server.write("node-1_b7", 15, lock.server.lease)
    await ours.step()
    await other.step()
    assert (ours.leads(), other.leads()) == (True, False)
    clock.now = asked + RENEW * SECONDS - 0.01
    assert ours.leads()
    clock.now += 0.02
    await ours.step()
    assert not ours.leads()
    lock.server.write("node-2_c8", 15, lock.server.lease)
    await ours.step()
    assert not ours.leads()


@pytest.mark.anyio
@pytest.mark.parametrize("before", [None, "", "node-2_c8", "node-1_a6"])
async def test_a_follower_waits_for_the_binds_before(before: str | None) -> None:
    """Whoever held the Lease, and though it was given away: kube-scheduler does not ask us whether we bind."""
    found = None if before is None else Lease(before, 15, "7")
    clock, lock = Clock(), Lock(Server(found, 7))
    one = follower(lock, clock)
    await one.step()
    clock.now += 3 * BIND
    await one.step()
    await renewed(one, clock, 2)
    await renewed(one, clock, 3 * BIND - 0.01)
    assert not one.leads()
    await renewed(one, clock, 0.01)
    assert one.leads()
    await renewed(one, clock, 2, "node-2_d9")
    assert not one.leads()
    await renewed(one, clock, 2)
    assert not one.leads(), "another may have bound meanwhile"
    await renewed(one, clock, 3 * BIND)
    assert one.leads()


@pytest.mark.anyio
async def test_a_follower_waits_for_its_watch() -> None:
    """What it knows is compared with the API server's once nothing lands any more, until nothing is missing."""
    clock, shown = Clock(), Shown(says=False)
    one = follower(Lock(Server(Lease("node-2_c8", 15, "7"), 7)), clock, shown=shown)
    await one.step()
    await renewed(one, clock, 2 + 3 * BIND - 0.01)
    assert shown.asked == 0
    await renewed(one, clock, 4)
    assert shown.asked == 2
    assert not one.leads()
    shown.says = True
    await renewed(one, clock, 2)
    assert one.leads()
    await renewed(one, clock, 20)
    assert one.leads()
    assert shown.asked == 3


@dataclass
class Pages:
    """A list of pods as the API server has it."""

    pods: list[Watched]
    kind: str = "pods"

    def list(self) -> tuple[list[Watched], str]:
        """Return them."""
        return self.pods, "1"

    def watch(self, version: str) -> Iterator[Event]:
        """Nobody watches here."""
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is open."""


@pytest.mark.anyio
async def test_caught_up_is_to_know_of_every_card_that_is_held() -> None:
    """The bind that the pair before us sent last, and our watch has not shown yet, is what we wait for."""
    state = ClusterState(Rules())
    asking, card = pod("a", memory="20Gi"), [("GPU-n1-0", 20480, 0)]
    late = bound(asking, "n1", card)
    others = [bound(plain("other"), "n2"), bound(pod("done"), "n1", card, phase="Succeeded"), pod("waits")]
    caught_up = catching_up(Pages([*others, late]), state.knows)
    state.saw_pod(asking)
    assert not await caught_up()
    state.saw_pod(late)
    assert await caught_up()
    state.lost_pod(late)
    assert await caught_up(), "a list that is older than what the watch told"
