"""The circuit: while nobody answers, a request is refused at once, and now and then one finds out.

    closed --- FAILURES in a row ---> open for a pause ---> one request is let through --- answered ---> closed
                                       ^                                      |
                                       +---- not answered: twice as long -----+

Pure: the clock is an argument, in any clock's seconds.
"""

from dataclasses import dataclass
from typing import Final

FAILURES: Final = 3
SHORTEST: Final = 0.5
LONGEST: Final = 5.0  # also how long one request may take to find out, before another may


@dataclass(slots=True)
class Circuit:
    """Asked before each request, and told of each one's end."""

    _failures: int = 0
    _pause: float = SHORTEST
    _since: float = float("-inf")
    _next: float = float("-inf")

    @property
    def is_open(self) -> bool:
        """Say whether requests are refused."""
        return self._failures >= FAILURES

    def admits(self, now: float) -> bool:
        """Say whether a request may go out now; while open, the one that may is to find out."""
        if not self.is_open:
            return True
        if now < self._next:
            return False
        self._next = now + LONGEST
        return True

    def answered(self) -> None:
        """Take in that some request had an answer, whatever it said."""
        self._failures, self._pause = 0, SHORTEST

    def failed(self, sent: float, now: float) -> None:
        """Take in that a request had no answer; `sent`: when it was admitted."""
        if self.is_open and sent < self._since:
            return  # it went out before the circuit opened, and tells nothing new
        pause = min(LONGEST, 2 * self._pause) if self.is_open else SHORTEST
        self._failures += 1
        if self.is_open:
            self._pause, self._since, self._next = pause, now, now + pause
