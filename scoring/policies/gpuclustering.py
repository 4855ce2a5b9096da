"""GPU clustering: a pod goes where pods of its class are: shares, one card, two, four, eight (FGD's comparison)."""

import numpy as np

from scoring.fit import Trials
from scoring.model import Demand, Fleet, Floats, Ints
from scoring.policies.bestfit import GPU, idle
from scoring.policies.policy import Policy


class GpuClustering(Policy):
    """75 if the node hosts the class and no other, 50 if others too, 25 if none; plus 25 times its full part."""

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        if not demand.asks:
            return np.zeros(len(trials))
        full = 25 * (GPU - idle(fleet, rows)) / GPU
        hosted = fleet.hosted[rows] > 0
        same = hosted[:, demand.kind]
        kinds = hosted.sum(axis=1)
        bonus = np.where(same, np.where(kinds > 1, 50, 75), np.where(kinds > 0, 0, 25))
        return np.trunc(full + bonus)[trials.at]
