"""What every policy is."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Final, Literal

from scoring.fit import Trials
from scoring.model import Demand, Fleet, Floats, Ints
from scoring.workload import Workload

# A look at fleet and load that is not finished: what is left to compute may run in another thread, and what that
# returns puts the outcome in force when called between two decisions.
Study = Callable[[], Callable[[], None]]

FIRST_LOOK: Final = 5  # pods after which a policy first learns from those seen; then at every doubling ...
LOOK_EVERY: Final = 600  # ... and at last after so many


class Policy(ABC):
    """A preference among the ways to place a demand.

    `cards` says on which cards of a node a share of one card is tried: the one with the least left, one of each
    kind of equal cards, or all. `epoch` changes whenever the same question may get another answer.
    """

    cards: Literal["tightest", "distinct", "all"] = "tightest"
    epoch: int = 0

    @abstractmethod
    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        """Return the preference for each trial [T]; `trials.at` points into `rows`. Changes nothing."""

    def attend(self, fleet: Fleet, workload: Workload) -> Study | None:
        """Take note of how fleet and load have changed, between two decisions. Cheap; what is not is returned."""
        return None


def learn(policy: Policy, fleet: Fleet, workload: Workload) -> None:
    """Let a policy attend, and finish at once what it began."""
    study = policy.attend(fleet, workload)
    if study is not None:
        study()()
