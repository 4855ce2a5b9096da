"""Random: any node that fits, and there any card that fits; the baseline of the published comparison."""

import numpy as np

from scoring.fit import Trials
from scoring.model import Demand, Fleet, Floats, Ints
from scoring.policies.policy import Policy


class Random(Policy):
    """A fresh draw for every question: first a node, then a card of it, each uniformly."""

    cards = "all"

    def __init__(self, seed: int) -> None:
        self._random = np.random.default_rng(seed)

    @property
    def epoch(self) -> int:  # type: ignore[override]
        """Another one at every look: no draw is kept."""
        self._looks = getattr(self, "_looks", 0) + 1
        return self._looks

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        nodes = self._random.random(len(rows))
        return nodes[trials.at] + 1e-9 * self._random.random(len(trials))
