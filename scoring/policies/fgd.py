"""Fragmentation gradient descent: the node and card whose fragmentation grows least.

Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent",
USENIX ATC'23, algorithm 1.
"""

import numpy as np

from scoring.fit import Trials
from scoring.fragmentation import before_and_after
from scoring.model import CARD, Demand, Fleet, Floats, Ints
from scoring.policies.policy import FIRST_LOOK, LOOK_EVERY, Policy, Study
from scoring.workload import Workload


class Fgd(Policy):
    """`100 * sigmoid(F before - F after)`, F in cards, cut to a whole number as published (it packs better so)."""

    cards = "distinct"

    def __init__(self, workload: Workload) -> None:
        self._typical = workload.typical()
        self._next_look = FIRST_LOOK

    def attend(self, fleet: Fleet, workload: Workload) -> Study | None:
        """Learn the target workload from the pods seen; one that was given as history is kept, as published."""
        if workload.given or workload.seen < self._next_look:
            return None
        self._next_look = workload.seen + min(workload.seen, LOOK_EVERY)
        self._typical = workload.typical()
        self.epoch += 1
        return None

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        if not len(self._typical):
            return np.zeros(len(trials))
        before, after = before_and_after(fleet, self._typical, rows, trials, demand.cpu_milli)
        gained = (before[trials.at] - after) / CARD
        return np.trunc(100 * (1 / (1 + np.exp(-gained))))
