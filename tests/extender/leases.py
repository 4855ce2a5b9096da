"""Leases for tests: a server's part, a lock that answers at once or not at all, and a clock that a test turns."""

from dataclasses import dataclass, field

from extender.cluster import Lease, Unreachable
from extender.leader import Candidate, Sight

SECONDS = 15
BIND = 3.5


@dataclass
class Server:
    """The Lease as the API server has it."""

    lease: Lease | None = None
    version: int = 0

    def write(self, holder: str, seconds: int, over: Lease | None) -> Lease | None:
        """Take a write, if it is over what is there."""
        if (over and over.version) != (self.lease and self.lease.version):
            return None
        self.version += 1
        self.lease = Lease(holder, seconds, str(self.version))
        return self.lease


@dataclass
class Clock:
    """A clock that a test turns."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Lock:
    """A lock that answers at once, or not at all."""

    server: Server = field(default_factory=Server)
    away: bool = False

    async def read(self) -> Lease | None:
        """Return the Lease."""
        if self.away:
            raise Unreachable("connection refused")
        return self.server.lease

    async def write(self, holder: str, seconds: int, over: Lease | None) -> Lease | None:
        """Write it."""
        if self.away:
            raise Unreachable("connection refused")
        return self.server.write(holder, seconds, over)


def candidate(lock: Lock, clock: Clock, name: str = "a", seconds: int = SECONDS) -> Candidate:
    """Return a candidate in the pod of that name."""
    return Candidate(f"{name}_1", Sight(lock, clock), seconds, BIND)
