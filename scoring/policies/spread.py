"""Spread: the node that keeps the most, as a share of its cards, and there the emptiest card."""

import numpy as np

from scoring.fit import Trials
from scoring.model import CARD, Demand, Fleet, Floats, Ints, left
from scoring.policies.bestfit import idle, taken
from scoring.policies.policy import Policy


class Spread(Policy):
    """What the node has left as a share of its cards, then what the touched cards keep."""

    cards = "distinct"

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        size = np.maximum((fleet.capacity.slots[rows] > 0).sum(axis=1) * CARD, 1)
        by_node = (idle(fleet, rows)[trials.at] - taken(fleet, trials)) / size[trials.at]
        touched = (trials.rows[:, None], trials.cards)
        kept = left(
            fleet.free.mib[touched] - trials.mib,
            fleet.free.milli[touched] - trials.milli,
            fleet.capacity.mib[touched],
        )
        return by_node + kept.sum(axis=1) / (CARD * CARD * max(fleet.width, 1))
