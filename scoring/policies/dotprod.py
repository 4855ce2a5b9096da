"""Dot product: the node whose free CPU and cards point least along the demand (FGD's comparison, USENIX ATC'23)."""

import numpy as np

from scoring.fit import Trials
from scoring.model import Demand, Fleet, Floats, Ints
from scoring.policies.bestfit import CPU, GPU, idle
from scoring.policies.policy import Policy


class DotProd(Policy):
    """`100 * (1 - (free CPU * CPU + idle cards * cards) / 2)`, each in shares of the largest node, before placing."""

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        cpu = fleet.free.cpu[trials.rows] / CPU * (demand.cpu_milli / CPU)
        cards = idle(fleet, rows)[trials.at] / GPU * (demand.milli / GPU)
        return np.trunc(100 * (1 - (cpu + cards) / 2))
