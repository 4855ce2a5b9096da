"""What each term of the default policy brings: the policy without it, on the same traces and orders.

And what it costs to know nothing before the first pod comes.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Final

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from benchmarks.options import BadOption, Jobs, ManyPods, TraceFolder, fail, seeds_of, sources
from benchmarks.replay import replay
from benchmarks.report import ARRIVED, at, side_by_side
from benchmarks.traces import BadTrace, load, synthetic
from scoring.model import Floats
from scoring.policies.binpack import Binpack
from scoring.potential import Weights
from scoring.prices import LEVELS
from scoring.workload import Workload


class _NoFragments(Binpack):
    def weights(self, scarcity: float, cpu_per_card: float) -> Weights:
        return replace(super().weights(scarcity, cpu_per_card), fragments=0.0)


class _NoFilled(Binpack):
    def weights(self, scarcity: float, cpu_per_card: float) -> Weights:
        return replace(super().weights(scarcity, cpu_per_card), filled=0.0)


class _NoStranded(Binpack):
    def weights(self, scarcity: float, cpu_per_card: float) -> Weights:
        return replace(super().weights(scarcity, cpu_per_card), stranded=0.0)


class _NoHinges(Binpack):
    def weights(self, scarcity: float, cpu_per_card: float) -> Weights:
        return replace(super().weights(scarcity, cpu_per_card), hinges=())


class _NoPrices(Binpack):
    def worth(self, value: Floats) -> Floats:
        return np.arange(LEVELS) / (LEVELS - 1)


class _NoCapability(Binpack):
    capability = 0.0


class _NoHosts(Binpack):
    host_price = 0.0


class _PlentyOfCpu(Binpack):
    scarce = (1e9, 2e9)


class _ScarceCpu(Binpack):
    scarce = (-1.0, 0.0)


NOT_GIVEN: Final = "no history given"

VARIANTS: Final[dict[str, Callable[[Workload], Binpack]]] = {
    "whole": Binpack,
    NOT_GIVEN: Binpack,
    "no fragments F": _NoFragments,
    "no prices V": _NoPrices,
    "no capability sigma": _NoCapability,
    "no hosts H": _NoHosts,
    "no hinges": _NoHinges,
    "no filled S": _NoFilled,
    "no stranded C": _NoStranded,
    "as if CPU were plenty": _PlentyOfCpu,
    "as if CPU were scarce": _ScarceCpu,
}


@dataclass(frozen=True, slots=True)
class _Task:
    """One replay of one variant: allocation at each of ARRIVED."""

    folder: Path | None
    pods: str
    variant: str
    seed: int

    def __call__(self) -> tuple[float, ...]:
        trace = synthetic(self.seed) if self.folder is None else load(self.folder, self.pods, seed=self.seed)
        made, given = VARIANTS[self.variant], self.variant != NOT_GIVEN
        result = replay(trace, self.variant, seed=self.seed, made=lambda known, _: made(known), given=given)
        return tuple(at(result.allocation, percent) for percent in ARRIVED)


def ablation_command(
    trace: TraceFolder = None,
    pods: ManyPods = None,
    seeds: Annotated[str, typer.Option(help="42-44, or 42,43.")] = "42-44",
    jobs: Jobs = -1,
) -> None:
    """Replay traces with the default policy whole, and without one term at a time."""
    try:
        names, over = sources(trace, pods), seeds_of(seeds)
        tasks = [
            _Task(folder, name, variant, seed)
            for variant in VARIANTS
            for name, folder in names.items()
            for seed in over
        ]
        found = dict(side_by_side(tasks, "replays", jobs))
    except (BadTrace, BadOption) as error:
        fail(str(error))
    mean: dict[tuple[str, str], Floats] = {}
    for variant in VARIANTS:
        for name in names:
            runs = [found[i] for i, task in enumerate(tasks) if (task.variant, task.pods) == (variant, name)]
            mean[variant, name] = np.mean(runs, axis=0)
    for k, percent in enumerate(ARRIVED):
        table = Table("variant", *names, title=f"Allocated % at {percent} % arrived; below the first row: the change")
        for variant in VARIANTS:
            first = variant == next(iter(VARIANTS))
            less = [mean[variant, name][k] - (0 if first else mean["whole", name][k]) for name in names]
            table.add_row(variant, *(f"{value:.2f}" if first else f"{value:+.2f}" for value in less))
        Console(width=200).print(table)
