"""Silence: the cards of a node whose agent has given no sign of life for too long are not offered.

Every replica listens, leading or not: this writes nothing. The clock that decides is the receiver's, from when it
saw a lease renewed; for a lease that was there before this process, the time at which the API server took it. While
the leases themselves cannot be watched nobody is called silent. A GPUNode without a lease is written by hand, and
taken as it stands.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from extender.controllers import Clock, repeat
from extender.state import ClusterState
from extender.wire import AgentLease

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
DEAF_SECONDS: Final = 10.0  # a watch that is begun anew misses nothing; an outage does


@dataclass(slots=True)
class Silence:
    """Listens to the agents. `synced`: the leases were listed. `outage`: seconds without an open watch."""

    state: ClusterState
    synced: Callable[[], bool]
    outage: Callable[[], float]
    seconds: float = 90.0
    clock: Clock = time.monotonic
    wall: Clock = time.time
    judged: bool = False  # it was said at least once who is silent: before, nobody's cards should be offered
    _heard: dict[str, tuple[str, float]] = field(default_factory=dict)  # by node: what the lease said, and when
    _deaf: float = float("-inf")

    async def run(self) -> None:
        """Listen until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Say who is silent now."""
        if not self.synced():
            return
        now, first = self.clock(), not self._heard
        if self.outage() > DEAF_SECONDS:
            self._deaf = now
        for name, lease in self.state.leases.items():
            heard = self._heard.get(name)
            if heard is None or heard[0] != lease.spec.renew_time:
                age = max(0.0, self.wall() - _taken(lease)) if first else 0.0
                self._heard[name] = (lease.spec.renew_time, now - age)
        for name, (_, at) in self._heard.items():
            silent = now - max(at, self._deaf) > self.seconds
            if silent != (name in self.state.silent):
                log.warning("The agent of node %s is %s.", name, "silent" if silent else "back")
                self.state.hush(name, silent=silent)
        self._forget()
        self.judged = True

    def _forget(self) -> None:
        """Drop nodes that are gone, with their leases and inventories."""
        known = self.state.leases.keys() | self.state.inventories.keys()
        for name in [name for name in self._heard if name not in known]:
            del self._heard[name]
            self.state.hush(name, silent=False)


def _taken(lease: AgentLease) -> float:
    """Return when the API server last took a change of a lease, in seconds; long ago if it does not tell."""
    times = [field.time for field in lease.metadata.managed_fields or () if field.time]
    try:
        return max(datetime.fromisoformat(time).timestamp() for time in times)
    except ValueError:
        return 0.0
