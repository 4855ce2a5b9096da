"""Two candidates never lead at once, whatever is late, lost or repeated."""

import random
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from types import coroutine
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.cluster import Lease, Unreachable
from extender.leader import RENEW, Candidate, Sight
from tests.extender.leases import BIND, SECONDS, Clock, Lock, Server, candidate

# --- a Lease whose every message may be late or lost ------------------------------------------------------


@dataclass
class Message:
    """A request on its way: it may arrive, or not; then its answer may, or not."""

    write: tuple[str, int, Lease | None] | None = None
    arrived: bool = False
    answer: Lease | None = None

    def arrive(self, server: Server) -> None:
        """Let it reach the server, once."""
        if not self.arrived:
            self.arrived = True
            self.answer = server.write(*self.write) if self.write else server.lease


@coroutine
def sent(message: Message) -> Generator[Message, bool, Lease | None]:
    """Wait until the test lets the answer come, or not."""
    if not (yield message):
        raise Unreachable("no answer")
    return message.answer


class SlowLock:
    """A lock over messages that a test moves."""

    async def read(self) -> Lease | None:
        """Ask for the Lease."""
        return await sent(Message())

    async def write(self, holder: str, seconds: int, over: Lease | None) -> Lease | None:
        """Ask to write it."""
        return await sent(Message((holder, seconds, over)))


@dataclass
class Life:
    """One life of a candidate's process, with a clock of its own."""

    candidate: Candidate
    step: Coroutine[Any, Any, None] | None = None
    message: Message | None = None
    lands: float = float("-inf")  # when its last bind may land at the latest

    def begin(self, step: Coroutine[Any, Any, None]) -> None:
        """Run a step until a message is out, or it ends."""
        self.step = step
        self.go_on(None)

    def go_on(self, answered: bool | None) -> None:
        """Go on with an answer, or none, until the next message is out, or the step ends."""
        assert self.step
        try:
            self.message = self.step.send(answered)
        except (StopIteration, Unreachable):
            self.step = self.message = None


class Election:
    """Two replicas over one Lease, and what may happen to them; a new life begins when a process is killed."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.now, self.server = draw, 0.0, Server()
        self.seconds = draw.choice([3, SECONDS, 60])
        self.drifts, self.busy = draw.random() < 0.5, draw.random() < 0.5
        self.rates = [draw.uniform(0.85, 1.15) if self.drifts else 1.0 for _ in range(2)]
        self.offsets = [draw.uniform(0, 1e6) for _ in range(2)]
        self.lives: list[Life] = []  # all that ever were
        self.late: list[Message] = []  # requests that nobody waits for any more
        self.running = [self.born(0), self.born(1)]

    def born(self, i: int) -> Life:
        """Return a new life of a replica."""
        sight = Sight(SlowLock(), lambda: self.offsets[i] + self.now * self.rates[i])
        life = Life(Candidate(f"pod-{i}_{len(self.lives)}", sight, self.seconds, BIND))
        self.lives.append(life)
        return life

    def go_on(self, happens: str, i: int) -> None:
        """Let one thing happen, to a replica if it is about one."""
        life, draw = self.running[i], self.draw
        match happens:
            case "time passes":
                most = 1.1 if draw.random() < 0.02 else 0.08
                self.now += self.seconds * draw.uniform(0, most)
            case "a message moves" if life.message is None and not life.candidate.lost():
                life.begin(life.candidate.step())
            case "a message moves" if life.message and not life.message.arrived:
                life.message.arrive(self.server)
            case "a message moves" if life.message:
                life.go_on(answered=True)
            case "an answer is lost" if life.message:
                self.late.append(life.message)  # it may still arrive
                life.go_on(answered=False)
            case "a lost request arrives" if self.late:
                self.late.pop(draw.randrange(len(self.late))).arrive(self.server)
            case "a bind is taken up" if life.candidate.leads():
                life.lands = self.now + 3 * BIND  # by then it has landed, or never does
            case "a process is restarted" if draw.random() < 0.2 or life.candidate.lost():
                self.restart(i)
            case "a leader resigns" if not life.message and life.lands <= self.now and life.candidate.leads():
                life.begin(life.candidate.release())
            case "the Lease is deleted" if draw.random() < 0.2:
                self.server.lease = None

    def restart(self, i: int) -> None:
        """Kill a process and start it again; what it sent is on its way."""
        old = self.running[i]
        if old.message:
            self.late.append(old.message)
        if old.step:
            old.step.close()
        old.candidate.until = float("-inf")
        self.running[i] = self.born(i)

    def check(self) -> None:
        """At most one life leads, and while it does no bind of another can land."""
        leading = [life for life in self.lives if life.candidate.leads()]
        if self.busy:
            for life in leading:
                life.lands = self.now + 3 * BIND
        assert len(leading) <= 1
        if leading and not self.drifts:
            assert all(life.lands <= self.now for life in self.lives if life is not leading[0])


HAPPENS = {
    "time passes": 20,
    "a message moves": 60,
    "an answer is lost": 4,
    "a lost request arrives": 4,
    "a bind is taken up": 8,
    "a process is restarted": 2,
    "a leader resigns": 1,
    "the Lease is deleted": 1,
}


@given(seed=st.integers(0, 2**32))
@settings(max_examples=300, deadline=None)
def test_never_two_lead_at_once(seed: int) -> None:
    """Whatever is late, lost, repeated or deleted, in whatever order, and with clocks that do not run alike."""
    election = Election(random.Random(seed))
    for happens in election.draw.choices(list(HAPPENS), list(HAPPENS.values()), k=1500):
        election.go_on(happens, election.draw.randrange(2))
        election.check()


def test_somebody_leads_most_of_the_time() -> None:
    """The test above is not of candidates that never lead: somebody does at a fourth of all looks at least."""
    election, led = Election(random.Random(1)), 0
    for happens in election.draw.choices(["time passes", "a message moves"], [1, 20], k=20_000):
        election.go_on(happens, election.draw.randrange(2))
        election.check()
        led += any(life.candidate.leads() for life in election.running)
        for i in range(2):
            if election.running[i].candidate.lost():
                election.restart(i)
    assert led > 5_000


# --- the arithmetic ---------------------------------------------------------------------------------------


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("found", "stands", "waits"),
    [
        pytest.param(None, 15, 5.5, id="no Lease: it may just have been deleted"),
        pytest.param(Lease("b_1", 15, "7"), 15, 5.5, id="another's, which is silent"),
        pytest.param(Lease("b_1", 60, "7"), 60, 0, id="another's of longer time: its binds land meanwhile"),
        pytest.param(Lease("", 15, "7"), 0, 0, id="given away"),
    ],
)
async def test_when_a_candidate_serves(found: Lease | None, stands: float, waits: float) -> None:
    """It takes a Lease that stood still for its time, and serves when no bind of the one before can land."""
    clock, lock = Clock(), Lock(Server(found, 7))
    one = candidate(lock, clock)
    await one.step()
    assert one.elected() == (stands == 0)
    clock.now += max(0.0, stands - 0.01)
    await one.step()
    assert one.elected() == (stands == 0)
    clock.now += min(stands, 0.01)
    await one.step()
    assert one.elected()
    assert one.serves_from == pytest.approx(clock.now + waits)
    clock.now += waits
    await one.step()
    assert one.leads()
    assert lock.server.lease is not None
    assert (lock.server.lease.holder, lock.server.lease.seconds) == ("a_1", SECONDS)


@pytest.mark.anyio
async def test_a_leader_without_an_answer_stops_by_itself() -> None:
    """Two thirds of the Lease's time after its last renewal it does not lead, and its part is over."""
    clock, lock = Clock(), Lock(Server(Lease("", 15, "7"), 7))
    one = candidate(lock, clock)
    await one.step()
    lock.away = True
    clock.now += RENEW * SECONDS - 0.01
    with pytest.raises(Unreachable):
        await one.step()
    assert one.leads()
    clock.now += 0.02
    assert not one.leads()
    assert one.lost()
    lock.away = False
    await one.step()
    assert not one.leads(), "it does not come back: its process ends"


@pytest.mark.anyio
async def test_a_leader_whose_lease_another_took_stops_at_once() -> None:
    """However long its renewal would have lasted."""
    clock, lock = Clock(), Lock(Server(Lease("", 15, "7"), 7))
    one = candidate(lock, clock)
    await one.step()
    lock.server.write("kubectl", 15, lock.server.lease)
    await one.step()
    assert one.lost()


@pytest.mark.anyio
async def test_a_leader_writes_a_lease_again_that_was_deleted() -> None:
    """Nobody else may take it before its time has passed, so nothing happens."""
    clock, lock = Clock(), Lock(Server(Lease("", 15, "7"), 7))
    one = candidate(lock, clock)
    await one.step()
    lock.server.lease = None
    await one.step()
    assert one.leads()
    assert lock.server.lease is not None
