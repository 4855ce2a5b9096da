"""Best fit: the node that is left with the least CPU and GPU, and there the card with the least left."""

from typing import Final

import numpy as np

from scoring.fit import Trials
from scoring.model import CARD, Demand, Fleet, Floats, Ints, left
from scoring.policies.policy import Policy

CPU: Final = 128_000  # thousandths of a core, of the largest node
GPU: Final = 8 * CARD


class BestFit(Policy):
    """`100 * (1 - (cpu left / CPU + cards left / GPU) / 2)` after placing, cut to a whole number as published."""

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        cpu = fleet.free.cpu[trials.rows] - demand.cpu_milli
        cards = idle(fleet, rows)[trials.at] - taken(fleet, trials)
        return np.trunc(100 * (1 - (0.5 * cpu / CPU + 0.5 * cards / GPU)))


def idle(fleet: Fleet, rows: Ints) -> Ints:
    """Return what all cards of some nodes have left [R], in thousandths of a card."""
    return left(fleet.free.mib[rows], fleet.free.milli[rows], fleet.capacity.mib[rows]).sum(axis=1)


def taken(fleet: Fleet, trials: Trials) -> Ints:
    """Return what each trial takes of what its node's cards have left [T], in thousandths of a card."""
    touched = (trials.rows[:, None], trials.cards)
    mib, milli, capacity = fleet.free.mib[touched], fleet.free.milli[touched], fleet.capacity.mib[touched]
    return (left(mib, milli, capacity) - left(mib - trials.mib, milli - trials.milli, capacity)).sum(axis=1)
