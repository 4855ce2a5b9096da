"""The circuit: it opens after failures in a row, lets one request at a time find out, and closes at any answer."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from extender.cluster.circuit import FAILURES, LONGEST, SHORTEST, Circuit


def opened(at: float = 0.0) -> Circuit:
    """Return a circuit that has just opened."""
    circuit = Circuit()
    for _ in range(FAILURES):
        assert circuit.admits(at)
        circuit.failed(at, at)
    return circuit


def test_it_opens_after_failures_in_a_row_only() -> None:
    """An answer in between begins the count anew."""
    circuit = Circuit()
    for _ in range(5):
        for _ in range(FAILURES - 1):
            circuit.failed(0.0, 0.0)
        circuit.answered()
    assert circuit.admits(0.0)
    assert not opened().admits(SHORTEST - 0.01)


def test_one_request_finds_out_after_a_growing_pause() -> None:
    """The pauses double up to the longest, and each lets one request through."""
    circuit, now, pauses = opened(), 0.0, []
    for _ in range(6):
        since = now
        while not circuit.admits(now):
            now += 0.125
        assert not circuit.admits(now)
        pauses.append(now - since)
        circuit.failed(now, now)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]


def test_requests_that_went_out_before_do_not_lengthen_the_pause() -> None:
    """Thirty binds under way when the server went away are one failure."""
    circuit = opened(at=1.0)
    for _ in range(30):
        circuit.failed(sent=0.5, now=1.2)
    assert circuit.admits(1.0 + SHORTEST)


def test_a_late_answer_closes_it() -> None:
    """Whatever the request was, somebody answered."""
    circuit = opened()
    circuit.answered()
    assert circuit.admits(0.0)
    assert circuit.admits(0.0)
    for _ in range(FAILURES):
        circuit.failed(0.0, 0.0)
    assert circuit.admits(SHORTEST), "the pause begins anew"


class Requests(RuleBasedStateMachine):
    """Requests that begin and end at any time, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.circuit, self.now = Circuit(), 0.0
        self.under_way: list[float] = []
        self.row = 0  # failures since the last answer
        self.let_through: list[float] = []  # admitted while open, since nothing has ended

    @rule(seconds=st.floats(0.01, 20.0))
    def wait(self, seconds: float) -> None:
        """Time passes."""
        self.now += seconds

    @rule()
    def ask(self) -> None:
        """A request would like to go out."""
        was_open = self.circuit.is_open
        if self.circuit.admits(self.now):
            self.under_way.append(self.now)
            if was_open:
                assert all(self.now - at >= LONGEST for at in self.let_through), "one at a time finds out"
                self.let_through.append(self.now)
        else:
            assert was_open

    @precondition(lambda self: self.under_way)
    @rule(data=st.data(), answered=st.booleans())
    def end(self, data: st.DataObject, answered: bool) -> None:
        """A request under way ends."""
        sent = self.under_way.pop(data.draw(st.integers(0, len(self.under_way) - 1)))
        self.let_through.clear()
        if answered:
            self.circuit.answered()
            self.row = 0
            assert not self.circuit.is_open
        else:
            self.circuit.failed(sent, self.now)
            self.row += 1

    @invariant()
    def opens_for_a_reason(self) -> None:
        """Open means that so many failed in a row; a few failures leave it closed."""
        assert self.circuit.is_open == (self.row >= FAILURES)

    @invariant()
    def never_waits_longer_than_the_longest(self) -> None:
        """Whatever has happened, somebody may find out within the longest pause."""
        later = Circuit(*(getattr(self.circuit, name) for name in ("_failures", "_pause", "_since", "_next")))
        assert later.admits(self.now + LONGEST)


TestRequests = Requests.TestCase
TestRequests.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
