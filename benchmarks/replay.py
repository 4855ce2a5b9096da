"""A trace through a policy, pod by pod: what is allocated, what fails, how fragmented the fleet becomes.

The published protocol of FGD (USENIX ATC'23): pods are offered one at a time and never leave; one that fits
nowhere fails for good and still counts as arrived. Arrivals are binned by whole percent of the fleet's cards.
"""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Final

import numpy as np

from benchmarks.traces import Trace
from scoring.fragmentation import of_nodes
from scoring.model import CARD
from scoring.place import Board
from scoring.policies import POLICIES, Policy, learn
from scoring.workload import Workload

LAST: Final = 130  # percent; a curve goes on to it, or as far as pods arrive


@dataclass(frozen=True, slots=True)
class Result:
    """One replay. The curves map arrived percent to percent: of the fleet's cards (`allocation`,
    `fragmentation_amount`) or of what is idle of them (`fragmentation_ratio`)."""

    trace: str
    policy: str
    seed: int | None
    nodes: int
    cards: int
    pods: int
    failed_pods: int
    seconds: float
    allocation: dict[str, float]
    fragmentation_ratio: dict[str, float]
    fragmentation_amount: dict[str, float]
    decision_ms: float = 0.0  # median: all nodes scored, devices chosen, state updated

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON-ready values."""
        return asdict(self)


@dataclass(slots=True)
class _Curve:
    """Values by exact arrived percent, averaged as the published tables are: of the three published measures each
    is rounded at its own place, before or after the mean. `first`: the value before anything arrives."""

    value_digits: int
    mean_digits: int
    first: float = 0.0
    arrived: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    def add(self, arrived: float, value: float) -> None:
        self.arrived.append(arrived)
        self.values.append(round(value, self.value_digits))

    def binned(self, last: int) -> dict[str, float]:
        """Return the mean of the values that arrived at each whole percent.

        An empty bin takes its neighbours'; if they are empty too, the value before it stays.
        """
        bins: dict[int, list[float]] = {}
        for arrived, value in zip(self.arrived, self.values, strict=True):
            bins.setdefault(round(arrived), []).append(value)
        out = {}
        now = round(self.first, self.mean_digits)
        for k in range(last + 1):
            near = bins.get(k) or [v for n in (k - 1, k, k + 1) for v in bins.get(n, [])]
            if near:
                now = round(sum(near) / len(near), self.mean_digits)
            out[str(k)] = now
        return out


def replay(
    trace: Trace,
    policy: str,
    *,
    seed: int | None = None,
    progress: Callable[[int], None] = lambda _: None,
    made: Callable[[Workload, int], Policy] | None = None,
    given: bool = True,
) -> Result:
    """Offer a trace's pods to a policy, one at a time, and return what became of them.

    `made` makes the policy if it is not one of the table. `given`: the policy knows the trace's pods as history, else
    only those that have arrived; fragments are measured with the trace's pods in either case. `progress` is called
    with the number of pods done, every hundred pods.
    """
    start = time.perf_counter()
    fleet, workload = trace.fleet(), Workload(trace.history if given else ())
    board = Board(fleet, (made or POLICIES[policy])(workload, seed or 0))
    typical, total = Workload(trace.history).typical(), trace.milli
    fragments = of_nodes(fleet, typical, np.arange(len(fleet)))
    used, arrived, failed = 0, 0, 0
    idle = 100 * float(fragments.sum()) / total
    allocation, ratio, amount = _Curve(2, 2), _Curve(2, 6, idle), _Curve(9, 2, idle)
    decisions: list[float] = []
    for done, demand in enumerate(trace.arrivals, 1):
        began = time.perf_counter()
        learn(board.policy, fleet, workload)
        placement = board.best(demand)
        workload.add(demand)
        if placement is not None:
            fleet.take(placement)
            workload.start()
        decisions.append(time.perf_counter() - began)
        arrived += demand.milli
        if placement is None:
            failed += 1
        else:
            used += demand.milli
            row = np.array([placement.row])
            after = of_nodes(fleet, typical, row)
            fragments[placement.row] = after[0]
        percent, fragmented = 100 * arrived / total, float(fragments.sum())
        allocation.add(percent, 100 * used / total)
        ratio.add(percent, 100 * fragmented / max(total - used, 1))
        amount.add(percent, 100 * fragmented / total)
        if done % 100 == 0:
            progress(done)
    last = max(LAST, round(100 * arrived / total))
    return Result(
        trace.name,
        policy,
        seed,
        len(trace.nodes),
        total // CARD,
        len(trace.arrivals),
        failed,
        round(time.perf_counter() - start, 3),
        allocation.binned(last),
        ratio.binned(last),
        amount.binned(last),
        round(1000 * float(np.median(decisions)), 3),
    )
