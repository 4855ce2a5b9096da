"""What only the leader does, in the background: each controller brings something in the cluster up to what we know.

A controller is one object whose `step` does what is due now; `run` repeats it. The clock is an argument.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

log: Final = logging.getLogger(__name__)

Clock = Callable[[], float]


class Controller(Protocol):
    """What the application starts and cancels."""

    async def run(self) -> None:
        """Work until cancelled."""


@dataclass(slots=True)
class Pace:
    """At most `per_second` writes on average, `burst` at once."""

    per_second: float
    burst: float
    _left: float = field(init=False)
    _at: float = float("-inf")

    def __post_init__(self) -> None:
        self._left = self.burst

    def take(self, now: float) -> bool:
        """Say whether one more write may go out now, and count it if so."""
        passed = max(0.0, now - self._at)
        self._left = min(self.burst, self._left + passed * self.per_second)
        self._at = now
        if self._left < 1:
            return False
        self._left -= 1
        return True


async def repeat(step: Callable[[], Awaitable[None]], pause: float) -> None:
    """Repeat a step for ever; one that fails is logged, and does not end the rest."""
    while True:
        await asyncio.sleep(pause)
        try:
            await step()
        except Exception:  # the only hand that does this work must not drop
            log.exception("%s failed.", getattr(step, "__qualname__", step))
