"""How full and how fragmented the cluster was: a sample every ten seconds, two hours of them, in memory."""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Final

import numpy as np

from extender.state import ClusterState
from scoring.fragmentation import of_nodes
from scoring.model import left

SECONDS: Final = 10.0
SAMPLES: Final = 720
SLICE: Final = 250  # nodes between two chances for the verbs

# Seconds since 1970; then in thousandths: promised memory, promised compute, and what of the free compute typical
# pods could not use.
Sample = tuple[int, int, int, int]


class History:
    """The last samples of a state. `blind`: why there is nothing to sample, or ""; `clock`: seconds since 1970."""

    def __init__(
        self, state: ClusterState, blind: Callable[[], str] = str, clock: Callable[[], float] = time.time
    ) -> None:
        self._state, self._blind, self._clock = state, blind, clock
        self._samples: deque[Sample] = deque(maxlen=SAMPLES)

    @property
    def samples(self) -> list[Sample]:
        """All samples, the oldest first."""
        return list(self._samples)

    async def run(self) -> None:
        """Sample until cancelled."""
        while True:
            if not self._blind():
                await self.step()
            await asyncio.sleep(SECONDS if self._samples else 1)

    async def step(self) -> None:
        """Take one sample, letting others work in between."""
        fleet, workload = self._state.fleet, self._state.workload
        typical = workload.typical() if workload.counts else None
        lost = idle = 0.0
        has, free = np.zeros(2), np.zeros(2)
        for first in range(0, len(fleet), SLICE):
            rows = np.arange(first, min(first + SLICE, len(fleet)))
            now, can = fleet.free, fleet.capacity
            there = (can.slots[rows] >= 0) & (now.slots[rows] >= 0)
            for i in range(2):
                has[i] += can[i][rows].sum(where=there)
                free[i] += np.maximum(now[i][rows], 0).sum(where=there)
            idle += np.where(now.slots[rows] >= 1, left(now.mib[rows], now.milli[rows], can.mib[rows]), 0).sum()
            if typical is not None:
                lost += of_nodes(fleet, typical, rows).sum()
            await asyncio.sleep(0)
        full = np.where(has > 0, 1000 * (1 - free / np.maximum(has, 1)), 0)
        fragmented = 1000 * lost / idle if idle else 0
        self._samples.append((int(self._clock()), round(full[0]), round(full[1]), round(fragmented)))
