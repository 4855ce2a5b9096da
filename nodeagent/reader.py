"""What the agent asks of a node's driver, and the words it is answered in.

No driver library is imported here: `nvml.py` is the real reader, tests may bring their own. What a driver does not
tell is None, never a zero. Memory is in MiB, utilization in percent, time in seconds.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Protocol

from contract.inventory import Gpu, MigProfile


class LimitRefused(RuntimeError):
    """A memory limit was certainly not set; the message is one sentence for an administrator."""


class Recovery(IntEnum):
    """What the driver says a card needs to be well again."""

    NONE = 0
    RESET = 1
    REBOOT = 2
    DRAIN_P2P = 3
    DRAIN_AND_RESET = 4
    IMEX = 5
    BUS_RESET = 6
    SYSTEM_REBOOT = 7


class EventKind(IntEnum):
    """What happened to a card; the numbers are NVML's event types."""

    DOUBLE_BIT_ECC = 0x2
    XID = 0x8
    UNAVAILABLE = 0x4000
    RECOVERY_ACTION = 0x8000


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions as people read them, such as 580.126.09 and 13.0; empty: not told."""

    version: str = ""
    cuda: str = ""


@dataclass(frozen=True, slots=True)
class Process:
    """A process on a card, by its process id on the host."""

    pid: int
    used_mib: int | None = None  # None: the driver does not tell
    utilization: int | None = None  # of the whole card; None: not told, as always in MIG mode
    mig: str = ""  # UUID of the MIG instance it runs in


@dataclass(frozen=True, slots=True)
class Card:
    """One card as it was read. `gpu` is what goes into the inventory; its promised and foreign parts are not filled.

    `gpu.healthy` says whether this reading could be made at all; `health.py` judges the rest. A card that is lost or
    that did not answer in time is told by its last reading.
    """

    gpu: Gpu
    processes: tuple[Process, ...] | None = ()  # None: the driver does not tell
    failed: tuple[str, ...] = ()  # calls that failed although the driver has them, each with its error
    lost: bool = False
    age_s: float = 0.0  # above 0: the card did not answer in time, and this was read so long ago
    recovery: Recovery | None = None
    ecc_uncorrected: int | None = None  # since the driver was loaded
    repair_pending: bool | None = None  # bad memory rows or pages wait for a reset, or could not be replaced
    limits: bool = False  # memory can be limited by cgroup


@dataclass(frozen=True, slots=True)
class Reading:
    """The node at one moment. Cards that were seen stay in it, lost or not, in the order of their index."""

    driver: Driver = Driver()
    cards: tuple[Card, ...] = ()
    profiles: tuple[MigProfile, ...] = ()  # of the models that are in MIG mode
    faults: tuple[str, ...] = ()  # no library, no driver, a card without a name: one sentence each
    must_restart: bool = False  # the driver was replaced under us; only a new process can load it
    awaited: bool = False  # the driver, or a card of it, has not answered yet for the first time


@dataclass(frozen=True, slots=True)
class Event:
    """Something the driver told of its own accord. `instance` is a GPU instance; None: the whole card."""

    uuid: str
    kind: EventKind
    code: int = 0  # the XID
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """What a cgroup may use of a card, and uses. None: no limit."""

    hard_mib: int | None
    used_mib: int


class Reader(Protocol):
    """A node's cards. Every method may be called from any thread; none raises because a call is not supported."""

    def read(self, deadline_s: float) -> Reading:
        """Read all cards; return within the deadline, with the last reading of those that did not answer."""

    def recall(self, known: Iterable[Gpu], wanted: Callable[[str], bool]) -> None:
        """Take the cards that an earlier process saw: those that are not seen now are lost.

        One that is surely gone and is not `wanted` is forgotten instead.
        """

    def wait_event(self, timeout_s: float) -> Event | None:
        """Wait for the next event, None if there was none in time. Belongs into a thread of its own."""

    def memory_limit(self, uuid: str, cgroup: str) -> MemoryLimit | None:
        """Return the limit of a cgroup directory on a card; None if the driver has no such limits."""

    def set_memory_limit(self, uuid: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit what a cgroup directory may use of a card, or clear the limit with None.

        Raises
        ------
        LimitRefused
            The driver has no such limits, or said no.
        """

    def close(self) -> None:
        """Let the driver go. Calls that hang are left to themselves."""
