"""Status: what is promised of each card, written into the GPUNode beside what its agent measured.

For people: nothing that decides reads it. So it may lag: a node is written at most once in ten seconds, and only the
cards that its agent reports, so that a card that is gone does not live on in what was promised of it.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from extender.cluster import NotDone, PerhapsDone
from extender.controllers import Clock, Pace, repeat
from extender.metrics import Metrics
from extender.state import ClusterState

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 1.0
NODE_SECONDS: Final = 10.0
SWEEP_SECONDS: Final = 60.0  # all nodes are looked at again, so many in each step
LONGEST_PAUSE: Final = 120.0
PER_SECOND: Final = 20.0
LOOKS: Final = 200  # nodes looked at in one step: some milliseconds

Cards = list[dict[str, Any]]


class Applier(Protocol):
    """What writes our part of a GPUNode's status; what of ours is not in it is taken out."""

    async def apply_gpu_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Raise NotDone or PerhapsDone if it was not taken for certain."""


def promised(state: ClusterState, name: str) -> Cards | None:
    """Return what is promised of each card that a node's agent reports; None: the inventory is not known. Pure."""
    inventory = state.inventories.get(name)
    if inventory is None:
        return None
    held = list(state.on_node(name))
    return [
        {
            "uuid": gpu.uuid,
            "promisedMiB": sum(h.cards[gpu.uuid].mib for h in held if gpu.uuid in h.cards),
            "promisedMilli": sum(h.cards[gpu.uuid].milli for h in held if gpu.uuid in h.cards),
            "sharers": sum(h.cards[gpu.uuid].slots for h in held if gpu.uuid in h.cards),
        }
        for gpu in inventory.gpus
    ]


@dataclass(slots=True)
class _Told:
    """What a node's GPUNode says of us, when it may be written again, and how often in a row that failed."""

    cards: Cards | None = None
    at: float = float("-inf")
    failures: int = 0


@dataclass(slots=True)
class Status:
    """Writes promised totals at a bounded pace. `may_act`: this replica leads, and has seen everything."""

    state: ClusterState
    applier: Applier
    may_act: Callable[[], bool]
    clock: Clock = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(PER_SECOND, PER_SECOND))
    metrics: Metrics = field(default_factory=Metrics)
    _told: dict[str, _Told] = field(default_factory=dict)
    _swept: float = float("-inf")

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Write what is due now."""
        if not self.may_act():
            self._told.clear()  # another replica may write meanwhile
            self._swept = float("-inf")
            return
        now, due = self.clock(), self.state.untold
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            due.update({name: None for name in [*self.state.inventories, *self._told] if name not in due})
        for name in [name for name in due if name not in self._told or self._told[name].at <= now][:LOOKS]:
            cards = promised(self.state, name)
            told = self._told.setdefault(name, _Told())
            if told.cards is None and self._says(name) == cards:
                told.cards = cards
            if cards is not None and cards != told.cards and not self.pace.take(self.clock()):
                return
            del due[name]
            if cards is None:
                del self._told[name]
            elif cards != told.cards:
                await self._write(name, cards, told)

    def _says(self, name: str) -> Cards:
        """Return what a GPUNode says already, as after a change of leader."""
        inventory = self.state.inventories.get(name)
        return [
            {
                "uuid": gpu.uuid,
                "promisedMiB": gpu.promised_mib,
                "promisedMilli": gpu.promised_milli,
                "sharers": gpu.sharers,
            }
            for gpu in (inventory.gpus if inventory else ())
        ]

    async def _write(self, name: str, cards: Cards, told: _Told) -> None:
        try:
            await self.applier.apply_gpu_node_status(name, {"promises": cards})
        except (NotDone, PerhapsDone) as error:
            self.metrics.writes.labels("status", "failed").inc()
            told.failures += 1
            told.at = self.clock() + min(LONGEST_PAUSE, NODE_SECONDS * 2.0 ** (told.failures - 1))
            self.state.untold.setdefault(name)
            log.warning("What is promised on node %s is not written yet: %s", name, error)
        else:
            self.metrics.writes.labels("status", "done").inc()
            told.cards, told.failures, told.at = cards, 0, self.clock() + NODE_SECONDS
