"""GPU packing: cards in use before idle cards, nodes in use before idle nodes (FGD's comparison, USENIX ATC'23)."""

import numpy as np

from scoring.fit import Trials
from scoring.model import CARD, Demand, Fleet, Floats, Ints, left
from scoring.policies.policy import Policy


class GpuPacking(Policy):
    """Three bands: 100 to 50 on cards in use, by how little they have left; then idle cards of a node in use; then
    idle nodes, those with fewer cards first."""

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        if not demand.asks:
            return np.zeros(len(trials))
        have = left(fleet.free.mib[rows], fleet.free.milli[rows], fleet.capacity.mib[rows])
        there = fleet.capacity.slots[rows] > 0
        whole = (fleet.free.slots[rows] == fleet.capacity.slots[rows]) & there
        idle = whole.sum(axis=1)[trials.at]
        node_idle = (whole == there).all(axis=1)[trials.at]
        touched = (trials.at[:, None], trials.cards)
        opened = whole[touched].sum(axis=1)
        remains = (have[touched] * 100 // CARD).sum(axis=1)
        in_use = np.where(opened > 0, np.maximum(50 - opened, 33), np.maximum(100 - remains // 10, 50))
        return np.where(node_idle, np.maximum(33 - idle, idle), in_use).astype(np.float64)
