"""What pods are like: the demands seen so far, and the few that make up most of them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.model import Bools, Demand, Fleet, Floats, Ints

POPULARITY: Final = 0.95  # share of all pods that the typical ones must reach (FGD, USENIX ATC'23, section 5)

# CPU, thousandths, cards, models joined by "|", MiB, percent, exclusive: what tells demands apart in every measure
_Shape = tuple[int, int, int, str, int, int, bool]


@dataclass(frozen=True, slots=True)
class Typical:
    """M demands as arrays [M], most frequent first. A pod of several containers counts as its hardest ask.

    `freq` sums to 1; `models` are patterns for `Fleet.allowed_models`; node memory is in no measure.
    """

    freq: Floats
    cpu: Ints
    count: Ints
    milli: Ints
    mib: Ints
    percent: Ints
    exclusive: Bools
    models: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.freq)


class Workload:
    """How often each demand was seen, given as history or since."""

    def __init__(self, history: Iterable[Demand] = ()) -> None:
        self.counts: Counter[Demand] = Counter(history)
        self.given = self.counts.total()
        self.seen = 0  # pods since
        self.running = 0  # of them, those that hold something now
        self.departed = 0  # of them, those that did and are gone

    def add(self, demand: Demand) -> None:
        """Count one pod."""
        self.counts[demand] += 1
        self.seen += 1

    def start(self) -> None:
        """Count a pod that was placed."""
        self.running += 1

    def end(self) -> None:
        """Count a placed pod that is gone."""
        self.running -= 1
        self.departed += 1

    @property
    def placed(self) -> int:
        """How many pods were ever placed."""
        return self.running + self.departed

    def typical(self, popularity: float = POPULARITY) -> Typical:
        """Return the most frequent demands that together reach `popularity` of all pods; ties go to the larger."""
        ranked = self._ranked()
        reached, kept, total = 0, 0, self.counts.total()
        while reached < popularity * total:
            reached += ranked[kept][1]
            kept += 1
        return _typical(ranked[:kept], total)

    def everything(self) -> tuple[Typical, Ints]:
        """Return all demands, most frequent first, and how often each was seen [M]."""
        ranked = self._ranked()
        return _typical(ranked, self.counts.total()), np.array([times for _, times in ranked], np.int64)

    def _ranked(self) -> list[tuple[_Shape, int]]:
        shapes: Counter[_Shape] = Counter()
        for demand, times in self.counts.items():
            shapes[_shape(demand)] += times
        return sorted(shapes.items(), key=lambda item: (item[1], item[0]), reverse=True)


def _typical(ranked: list[tuple[_Shape, int]], total: int) -> Typical:
    # First of all pods, then to a sum of 1: the published results depend on the last bit.
    reached = sum(times for _, times in ranked) / total if total else 1.0
    cpu, milli, count, mib, percent = (np.array([s[i] for s, _ in ranked], np.int64) for i in (0, 1, 2, 4, 5))
    return Typical(
        freq=np.array([times / total / reached for _, times in ranked], np.float64),
        cpu=cpu,
        count=count,
        milli=milli,
        mib=mib,
        percent=percent,
        exclusive=np.array([shape[6] for shape, _ in ranked], np.bool_),
        models=tuple(tuple(shape[3].split("|")) if shape[3] else () for shape, _ in ranked),
    )


def _shape(demand: Demand) -> _Shape:
    ask = demand.main
    if ask is None:
        return (demand.cpu_milli, 0, 0, "", 0, 0, False)
    count = max(sum(demand.asks[i].count for i in phase) for phase in demand.phases)
    return (demand.cpu_milli, ask.milli, count, "|".join(demand.models), ask.mib, ask.percent, ask.exclusive)


def allowed(fleet: Fleet, typical: Typical) -> Bools:
    """Say for each typical demand and model code whether the demand allows that model [M, models]."""
    return np.array([fleet.allowed_models(patterns) for patterns in typical.models], np.bool_)
