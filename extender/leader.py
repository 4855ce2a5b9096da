"""Who leads: of several replicas one answers the verbs and acts, and the next one only when that one cannot any more.

A Lease is a note with a holder that the API server changes for one writer at a time. Times are each replica's own,
from a clock that never steps; what a Lease says of time is for people. With L = lease_seconds, R = 2/3 L and
B = bind_seconds, from the moment S at which the leader sent its last renewal that succeeded:

    S + R          it stops to answer, whatever it hears, and its process ends
    S + R + B      the last bind it took up has found its pod ...
    S + R + 2B     ... and given up waiting for the API server,
    S + R + 3B     which itself gives up a write after B: nothing lands any more
    S + L          at the earliest another replica, which saw the renewal after S and then nothing, takes the Lease
    + max(0, R + 3B - L)   and waits so long before it answers

Two do not lead at once unless a clock runs 3/2 as fast as another. A leader that is told to stop gives the Lease
away once no bind of its own is under way, and the next one waits for nothing. Before it answers, the next one's
watch has shown it something that was written after that wait, so every bind of the one before.

Beside a kube-scheduler the Lease is its, and the same arithmetic holds of the pair, but that it gives the Lease away
whatever its extender has under way. So from the moment at which the Lease was first seen to be ours

    + 3B           nothing of another extender, nor of an earlier life of this one, lands any more
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

from contract.names import LEADER
from extender.cluster import Lease, NotDone, PerhapsDone, Source, Unreachable
from extender.watch import Watcher
from extender.wire import AgentLease, GpuNode, Node, Pod

RENEW: Final = 2 / 3  # of the Lease's time, for as long as a renewal lets a replica lead
LOOKS: Final = 7.5  # how often a replica looks at the Lease in its time, as client-go does
RELEASE_SECONDS: Final = 1.0

NOT_LEADING: Final = "This replica of Tessera does not lead, or not yet."

log = logging.getLogger(__name__)

Clock = Callable[[], float]


class Lock(Protocol):
    """One Lease. Both calls end in bounded time."""

    async def read(self) -> Lease | None:
        """Return the Lease, or None if there is none.

        Raises
        ------
        Unreachable
        """

    async def write(self, holder: str, seconds: int, over: Lease | None) -> Lease | None:
        """Write the Lease over the version that was read; return None if another has been written since.

        Raises
        ------
        Unreachable
            It may have been written.
        """


@dataclass(slots=True)
class Sight:
    """One Lease as we have seen it: what it says, and since when, by our clock, it has said so at the latest."""

    lock: Lock
    clock: Clock
    lease: Lease | None = None
    since: float = float("inf")  # after the answer that first showed it; never looked at first
    before: float = float("-inf")  # when the last question before that was sent: it was not so yet
    asked: float = float("-inf")

    async def look(self) -> None:
        """Read the Lease. Raises Unreachable."""
        asked = self.clock()
        found = await self.lock.read()
        if found != self.lease or self.asked == float("-inf"):
            self.note(found, self.asked)
        self.asked = asked

    def note(self, lease: Lease | None, before: float) -> None:
        """Take in what the Lease says now, which it did not say `before`."""
        self.lease, self.since, self.before = lease, self.clock(), before


@dataclass(slots=True)
class Candidate:
    """One replica's part in the election. `identity` is of this life of the process alone, and leads once."""

    identity: str
    sight: Sight
    seconds: int
    bind_seconds: float
    previous: str = ""  # whom it took the Lease from
    serves_from: float = float("inf")
    until: float = float("-inf")

    def leads(self) -> bool:
        """Say whether this replica may answer and act at this moment."""
        return self.landed() and self.sight.clock() < self.until

    def elected(self) -> bool:
        """Say whether the Lease was ever taken."""
        return self.serves_from != float("inf")

    def landed(self) -> bool:
        """Say whether no bind of the leader before can land any more."""
        return self.serves_from <= self.sight.clock()

    def lost(self) -> bool:
        """Say whether this replica led, or was about to, and does not any more."""
        return self.left() <= 0

    def left(self) -> float:
        """Return the seconds for which the last renewal lets it lead; without end if it was never elected."""
        return self.until - self.sight.clock() if self.elected() else float("inf")

    async def step(self) -> None:
        """Look at the Lease, and take or renew it if that is allowed. Raises Unreachable."""
        await self.sight.look()
        found = self.sight.lease
        if self.lost() or (found and not self.elected() and not self._free(found)):
            return
        if found and self.elected() and found.holder != self.identity:
            self.until = float("-inf")  # somebody else wrote: whoever it was, we do not lead
            return
        sent = self.sight.clock()
        taken = await self.sight.lock.write(self.identity, self.seconds, found)
        if taken is None:
            return
        self.sight.note(taken, sent)
        if not self.elected():
            if found is None:
                return  # it may have been deleted under a leader: the new one has to stand still for its time, too
            self.previous = found.holder
            self.serves_from = self.sight.clock() + self._until_landed(found)
        self.until = sent + RENEW * self.seconds

    def _free(self, found: Lease) -> bool:
        """Say whether the Lease was given away, or has stood still for its whole time."""
        still = self.sight.clock() - self.sight.since
        return not found.holder or still >= max(self.seconds, found.seconds)

    def _until_landed(self, found: Lease) -> float:
        """Return the seconds after which no bind of the leader before can land any more."""
        held = max(self.seconds, found.seconds)
        return max(0.0, RENEW * held + 3 * self.bind_seconds - held) if found.holder else 0.0

    async def release(self) -> None:
        """Stop to lead, and give the Lease away. Raises Unreachable."""
        held, self.until = self.leads(), float("-inf")
        found = self.sight.lease
        if held and found is not None:
            await self.sight.lock.write("", self.seconds, found)


@dataclass(slots=True)
class Follower:
    """Leads while the kube-scheduler of the same pod does: the holder's name begins with our hostname.

    A Lease that was not seen to change may be one of yesterday; one that changed was renewed after the question
    before, and kube-scheduler ends 2/3 of the Lease's time after its last renewal. `caught_up`: whether our watch
    knows of every bind that the API server knows of now.
    """

    hostname: str
    sight: Sight
    seconds: int
    bind_seconds: float
    caught_up: Callable[[], Awaitable[bool]]
    serves_from: float = float("inf")
    _holder: str = ""  # ours: kube-scheduler takes another name with each life, and holds the Lease once in each
    _knows: bool = False

    def leads(self) -> bool:
        """Say whether our kube-scheduler holds the Lease at this moment, and we know of all binds before."""
        lease = self.sight.lease
        if not self._knows or lease is None or lease.holder != self._holder:
            return False
        return self.sight.clock() < self.sight.before + RENEW * lease.seconds

    async def step(self) -> None:
        """Look at the Lease, and catch up with those before us when they can bind no more. Raises Unreachable."""
        await self.sight.look()
        holder = self.sight.lease.holder if self.sight.lease else ""
        if holder.rpartition("_")[0] != self.hostname:
            holder = ""
        if holder != self._holder:
            self._holder, self._knows = holder, False
            self.serves_from = self.sight.clock() + 3 * self.bind_seconds
        if holder and not self._knows and self.sight.clock() >= self.serves_from:
            self._knows = await self.caught_up()

    async def run(self) -> None:
        """Follow for ever: a kube-scheduler that loses the Lease ends, and asks nothing more."""
        while True:
            await _tried(self.step)
            await asyncio.sleep(_pause(self.seconds, self.serves_from - self.sight.clock()))


def _pause(seconds: float, until: float) -> float:
    """Return the seconds until the next look at a Lease, or until something is due that is due before."""
    return min(seconds / LOOKS, until) if until > 0 else seconds / LOOKS


def catching_up(pods: Source, knows: Callable[[Pod], bool]) -> Callable[[], Awaitable[bool]]:
    """Return a question: are all pods known, as the API server has them from now on? It raises Unreachable."""

    async def caught_up() -> bool:
        found, _ = await asyncio.to_thread(pods.list)
        return all(knows(pod) for pod in found if isinstance(pod, Pod))

    return caught_up


async def _tried(work: Callable[[], Awaitable[None]], seconds: float | None = None) -> None:
    """Do what is done again soon: a failure is told, and no more."""
    try:
        async with asyncio.timeout(seconds):
            await work()
    except (TimeoutError, Unreachable, NotDone, PerhapsDone) as error:
        log.warning("%s", error or "There was no answer in time.")


def _pod_of(identity: str) -> str:
    """Return the pod in an identity of ours, which is its name, an underscore and something random."""
    return identity.rpartition("_")[0]


def _mark(identity: str | None) -> dict[str, Any]:
    """Return the patch of a leader's pod: the label that a Service selects, and a note that tells this life of it."""
    return {"metadata": {"labels": {LEADER: identity and "true"}, "annotations": {LEADER: identity}}}


# What a replica writes on a pod: its namespace, its name, a merge patch.
Patch = Callable[[str, str, dict[str, Any]], Awaitable[None]]


@dataclass(slots=True)
class Replica:
    """A candidate in its pod: it labels the pod while it leads, so that the verbs' Service selects it."""

    candidate: Candidate
    namespace: str
    pod: str
    patch: Patch
    seconds: float
    whole: Callable[[], bool] = lambda: True  # no list of pods is told in part
    _told: bool | None = None
    _marked: bool = False
    _knows: bool = False

    def leads(self) -> bool:
        """Say whether this replica leads, and its watch knows of all that was written before."""
        # Of the list that shows our mark, binds of before may come after it.
        self._knows = self._knows or (self._marked and self.whole())
        return self._knows and self.candidate.leads()

    def saw_pod(self, pod: Pod) -> None:
        """Take in a pod that the watch tells of: our own, as we marked it, was written after we took the Lease."""
        notes = pod.metadata.annotations
        if notes and notes.get(LEADER) == self.candidate.identity:
            self._marked = True

    async def run(self) -> None:
        """Stand for election, lead, and return when leadership is lost."""
        while not self.candidate.lost():
            await self.turn()
            due = self.candidate.serves_from - self.candidate.sight.clock()
            await asyncio.sleep(min(_pause(self.seconds, due), self.candidate.left()))
        log.error("This replica has lost the Lease, and ends.")

    async def turn(self) -> None:
        """Look at the Lease, and tell of what has changed; failures are tried again next time."""
        await _tried(self.candidate.step)
        await _tried(self._tell, self.seconds / LOOKS)

    async def _tell(self) -> None:
        elected = self.candidate.elected()
        if self._told == elected or (elected and not self.candidate.landed()):
            return
        before = _pod_of(self.candidate.previous)
        if elected and before not in ("", self.pod):
            try:
                await self.patch(self.namespace, before, _mark(None))
            except NotDone as error:  # it is gone, most likely
                log.info("The pod %s keeps its label: %s", before, error)
        await self.patch(self.namespace, self.pod, _mark(self.candidate.identity if elected else None))
        self._told = elected
        if elected:
            log.info("This replica leads.")

    async def resign(self, idle: bool) -> None:
        """Take the label off, and give the Lease away if none of our binds is under way."""
        if not self.candidate.elected():
            return
        try:
            async with asyncio.timeout(RELEASE_SECONDS):
                # In this order: who takes a Lease that ran out takes our label off, who takes a free one does not.
                await self.patch(self.namespace, self.pod, _mark(None))
                if idle:
                    await self.candidate.release()
        except (TimeoutError, Unreachable, NotDone, PerhapsDone) as error:
            log.warning("The Lease was not given away, and runs out: %s", error)


@dataclass(frozen=True, slots=True)
class Telling:
    """A watcher that passes on what it is told, and tells of each pod somebody else too."""

    watcher: Watcher
    of_pod: Callable[[Pod], None]

    def saw_node(self, node: Node) -> None:
        """Pass it on."""
        self.watcher.saw_node(node)

    def lost_node(self, name: str) -> None:
        """Pass it on."""
        self.watcher.lost_node(name)

    def saw_inventory(self, gpu_node: GpuNode) -> None:
        """Pass it on."""
        self.watcher.saw_inventory(gpu_node)

    def lost_inventory(self, name: str) -> None:
        """Pass it on."""
        self.watcher.lost_inventory(name)

    def saw_pod(self, pod: Pod) -> None:
        """Pass it on, and tell of it then: by now the watcher knows."""
        self.watcher.saw_pod(pod)
        self.of_pod(pod)

    def lost_pod(self, pod: Pod) -> None:
        """Pass it on."""
        self.watcher.lost_pod(pod)

    def saw_lease(self, lease: AgentLease) -> None:
        """Pass it on."""
        self.watcher.saw_lease(lease)

    def lost_lease(self, name: str) -> None:
        """Pass it on."""
        self.watcher.lost_lease(name)
