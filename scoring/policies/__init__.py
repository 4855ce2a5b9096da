"""Packing policies: one a file, one line in one table.

A policy scores trials, ways to place one demand on one node; the higher the better. It neither decides what
fits nor writes anything.
"""

from collections.abc import Callable
from typing import Final

from scoring.policies.bestfit import BestFit
from scoring.policies.binpack import Binpack
from scoring.policies.dotprod import DotProd
from scoring.policies.fgd import Fgd
from scoring.policies.gpuclustering import GpuClustering
from scoring.policies.gpupacking import GpuPacking
from scoring.policies.policy import Policy, Study, learn
from scoring.policies.random import Random
from scoring.policies.spread import Spread
from scoring.workload import Workload

DEFAULT: Final = "binpack"

POLICIES: Final[dict[str, Callable[[Workload, int], Policy]]] = {
    "binpack": lambda workload, _: Binpack(workload),  # the product's default
    "bestfit": lambda _, __: BestFit(),
    "dotprod": lambda _, __: DotProd(),
    "fgd": lambda workload, _: Fgd(workload),
    "gpuclustering": lambda _, __: GpuClustering(),
    "gpupacking": lambda _, __: GpuPacking(),
    "spread": lambda _, __: Spread(),
    "random": lambda _, seed: Random(seed),
}

__all__ = ["DEFAULT", "POLICIES", "Policy", "Study", "learn"]
