"""Pods that come and go: how much of the offered GPU time a policy turns away, or lets wait, at a given load.

Arrivals are Poisson, shapes are drawn from a trace's pods, lifetimes from a distribution; all three depend on the
seed alone, so two policies with one seed see the same pods at the same times and their difference is a paired one.
Time is counted in mean lifetimes. Load is the GPU time offered per unit of time, over the compute of all cards.
"""

import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

import numpy as np
import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.bound import REFERENCE
from benchmarks.options import BadOption, Jobs, Loads, Pods, TraceFolder, fail, known_policies, source
from benchmarks.report import interval, side_by_side
from benchmarks.traces import BadTrace, Trace, durations, load, synthetic
from scoring.fit import fits, node_fits
from scoring.model import CARD, Demand, Floats, Ints, Placement
from scoring.place import Board
from scoring.policies import DEFAULT, POLICIES, learn
from scoring.workload import Workload

WARM_UP: Final = 25_000  # arrivals that fill the fleet and are not counted
ARRIVALS: Final = 45_000
SIGMA: Final = 1.5  # of the lognormal lifetimes: the standard deviation is 2.9 times the mean
LIFETIMES: Final = ("exponential", "lognormal", "trace")
CLASSES: Final = ("share", "1", "2", "4", "8", "cpu")  # by cards, as `Demand.kind` counts; 4 and 8 are upper ends
CPU_ONLY: Final = CLASSES.index("cpu")


@dataclass(frozen=True, slots=True)
class ClassResult:
    """One class of pods; GPU time in cards times mean lifetimes."""

    pods: int
    rejected_pods: int
    offered: float
    rejected: float
    waited: float  # by pods in the queue, from arrival to placement or the end


@dataclass(frozen=True, slots=True)
class ChurnResult:
    """One run, over the arrivals after the warm-up. Percentages are of the offered GPU time, of all cards for
    `allocation` (a mean over time)."""

    trace: str
    policy: str
    load: float
    lifetimes: str
    seed: int
    queue: bool
    pods: int
    rejected_pods: int
    waiting_pods: int  # at the end
    rejected_percent: float
    waited_percent: float
    allocation: float
    classes: dict[str, ClassResult]
    events: int
    seconds: float

    @property
    def lost(self) -> float:
        """Percent of the offered GPU time that was turned away or, with a queue, waited for."""
        return self.waited_percent if self.queue else self.rejected_percent

    def as_json(self) -> dict[str, object]:
        """Return the result as JSON-ready values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Offers:
    """What arrives: times ascending, which of `shapes`, for how long. Pods before the `first` are not counted."""

    shapes: tuple[Demand, ...]
    at: Floats  # [P]
    shape: Ints  # [P]
    lifetime: Floats  # [P]
    first: int


def offers(
    trace: Trace,
    *,
    load: float,
    seed: int,
    warm_up: int = WARM_UP,
    arrivals: int = ARRIVALS,
    lifetimes: str | Sequence[float] = "exponential",
) -> Offers:
    """Return the pods of one run, the same for every policy.

    `lifetimes`: "exponential", "lognormal", or one for each of the trace's pods, which a drawn pod brings along.
    Exponential runs start with an empty fleet. The others are so long-tailed that the fleet would not fill during
    any warm-up: theirs starts with the pods that such a load has running at a random moment.
    """
    random = np.random.default_rng(seed)
    shapes = tuple(dict.fromkeys(trace.history))
    index = {demand: i for i, demand in enumerate(shapes)}
    shape_of = np.array([index[demand] for demand in trace.history])
    milli = np.array([demand.milli for demand in trace.history])
    known = None if isinstance(lifetimes, str) else np.asarray(lifetimes, np.float64) / np.mean(lifetimes)
    each = float(milli.mean()) if known is None else float((milli * known).mean())
    if each <= 0:
        raise BadTrace(f"no pod of {trace.name} wants a card, so there is no load to speak of.")
    rate = load * trace.milli / each
    total = warm_up + arrivals
    at = random.exponential(size=total).cumsum() / rate
    pods = random.integers(len(milli), size=total)
    lifetime = known[pods] if known is not None else _draw(random, str(lifetimes), total)
    if lifetimes == "exponential":
        return Offers(shapes, at, shape_of[pods], lifetime, warm_up)
    there, rest = _running(random, rate, len(milli), known)
    return Offers(
        shapes,
        np.concatenate([np.zeros(len(there)), at]),
        shape_of[np.concatenate([there, pods])],
        np.concatenate([rest, lifetime]),
        len(there) + warm_up,
    )


def _draw(random: np.random.Generator, lifetimes: str, size: int) -> Floats:
    """Return lifetimes with the mean 1."""
    if lifetimes == "exponential":
        return random.exponential(size=size)
    if lifetimes == "lognormal":
        return random.lognormal(-SIGMA * SIGMA / 2, SIGMA, size)
    raise ValueError(f"there are no {lifetimes!r} lifetimes.")


def _running(random: np.random.Generator, rate: float, pods: int, known: Floats | None) -> tuple[Ints, Floats]:
    """Return the pods that run at a random moment of an endless cluster, and how long they will still run.

    A pod is met there in proportion to its lifetime, at a uniformly random point of it.
    """
    count = int(random.poisson(rate))
    if known is None:
        met, whole = random.integers(pods, size=count), random.lognormal(SIGMA * SIGMA / 2, SIGMA, count)
    else:
        met = random.choice(pods, size=count, p=known / known.sum())
        whole = known[met]
    return met, whole * random.random(count)


class _Cluster:
    """The fleet, who runs on it until when, and who waits. Time only moves forward."""

    def __init__(self, trace: Trace, policy: str, pods: Offers, seed: int, *, given: bool, queue: bool) -> None:
        self.pods, self.queue = pods, queue
        self.fleet, self.workload = trace.fleet(), Workload(trace.history if given else ())
        self.board = Board(self.fleet, POLICIES[policy](self.workload, seed))
        self.shape, self.lifetime = pods.shape.tolist(), pods.lifetime.tolist()
        self.leaving: list[tuple[float, int, Placement]] = []  # a heap by time
        self.waiting: dict[int, deque[int]] = {}  # by shape, in the order of arrival
        self.placed = np.full(len(pods.at), np.nan)  # when
        self.now, self.used, self.area = 0.0, 0, 0.0

    def arrive(self, pod: int, now: float) -> None:
        """Let everybody leave whose time has come, then place a pod, or let it wait, or turn it away."""
        while self.leaving and self.leaving[0][0] <= now:
            self._leave()
        self._move_to(now)
        demand = self.pods.shapes[self.shape[pod]]
        learn(self.board.policy, self.fleet, self.workload)
        placement = self.board.best(demand)
        self.workload.add(demand)
        if placement is not None:
            self._place(pod, placement)
        elif self.queue:
            self.waiting.setdefault(self.shape[pod], deque()).append(pod)

    def _place(self, pod: int, placement: Placement) -> None:
        self.fleet.take(placement)
        self.workload.start()
        self.used += self.pods.shapes[self.shape[pod]].milli
        self.placed[pod] = self.now
        heapq.heappush(self.leaving, (self.now + self.lifetime[pod], pod, placement))

    def _leave(self) -> None:
        then, pod, placement = heapq.heappop(self.leaving)
        self._move_to(then)
        self.fleet.give_back(placement)
        self.used -= self.pods.shapes[self.shape[pod]].milli
        self.workload.end()
        if self.waiting:
            self._retry(placement.row)

    def _retry(self, row: int) -> None:
        """Offer a node that has just got room to those who wait, first come first served.

        Whoever waits fits on no other node. A shape that does not fit now will not after others took more.
        """
        rows = np.array([row])
        heads = [(pods[0], shape) for shape, pods in self.waiting.items()]
        heapq.heapify(heads)
        while heads:
            pod, shape = heapq.heappop(heads)
            demand = self.pods.shapes[shape]
            if not (node_fits(demand, rows, self.fleet.free)[0] and fits(self.fleet, demand, rows)[0]):
                continue
            placement = self.board.choose(demand, row)
            assert placement is not None, "it fits"
            self._place(pod, placement)
            self.waiting[shape].popleft()
            if self.waiting[shape]:
                heapq.heappush(heads, (self.waiting[shape][0], shape))
            else:
                del self.waiting[shape]

    def _move_to(self, now: float) -> None:
        self.area += self.used * (now - self.now)
        self.now = now


def churn(
    trace: Trace,
    policy: str,
    *,
    load: float,
    seed: int,
    warm_up: int = WARM_UP,
    arrivals: int = ARRIVALS,
    lifetimes: str | Sequence[float] = "exponential",
    queue: bool = False,
    given: bool = True,
    progress: Callable[[int], None] = lambda _: None,
) -> ChurnResult:
    """Let pods come and go and return what was rejected, or waited for.

    `queue`: a pod that fits nowhere waits and is tried again, first come first served, whenever a pod leaves;
    else it is turned away. `given`: the policy knows the trace's pods as history; else only pods that have arrived.
    `progress` is called with the number of arrivals done, every hundred.
    """
    start = time.perf_counter()
    pods = offers(trace, load=load, seed=seed, warm_up=warm_up, arrivals=arrivals, lifetimes=lifetimes)
    cluster = _Cluster(trace, policy, pods, seed, given=given, queue=queue)
    since = 0.0
    for pod, now in enumerate(pods.at.tolist()):
        cluster.arrive(pod, now)
        if pod == pods.first:
            since, cluster.area = now, 0.0
        if pod % 100 == 99:
            progress(pod + 1)
    classes = _by_class(cluster, pods)
    span = (cluster.now - since) * trace.milli
    offered = sum(c.offered for c in classes.values()) or 1.0
    return ChurnResult(
        trace=trace.name,
        policy=policy,
        load=load,
        lifetimes=lifetimes if isinstance(lifetimes, str) else "trace",
        seed=seed,
        queue=queue,
        pods=sum(c.pods for c in classes.values()),
        rejected_pods=sum(c.rejected_pods for c in classes.values()),
        waiting_pods=sum(len(waiting) for waiting in cluster.waiting.values()),
        rejected_percent=100 * sum(c.rejected for c in classes.values()) / offered,
        waited_percent=100 * sum(c.waited for c in classes.values()) / offered,
        allocation=100 * cluster.area / span if span else 0.0,
        classes=classes,
        events=len(pods.at) + cluster.workload.departed,
        seconds=round(time.perf_counter() - start, 3),
    )


def _by_class(cluster: _Cluster, pods: Offers) -> dict[str, ClassResult]:
    kinds = np.array([demand.kind if demand.asks else CPU_ONLY for demand in pods.shapes])[pods.shape]
    cards = np.array([demand.milli for demand in pods.shapes])[pods.shape] / CARD
    placed = ~np.isnan(cluster.placed)
    rejected = ~placed & (not cluster.queue)
    waited = np.where(placed, cluster.placed, cluster.now if cluster.queue else pods.at) - pods.at
    out = {}
    for kind, name in enumerate(CLASSES):
        here = kinds == kind
        here[: pods.first] = False
        out[name] = ClassResult(
            int(here.sum()),
            int((here & rejected).sum()),
            float((cards * pods.lifetime)[here].sum()),
            float((cards * pods.lifetime)[here & rejected].sum()),
            float((cards * waited)[here].sum()),
        )
    return out


def _run(folder: Path | None, pods: str, policy: str, seed: int, **how: Any) -> ChurnResult:
    """Make one run, as another process does."""
    trace = synthetic(seed) if folder is None else load(folder, pods, seed=seed)
    if how["lifetimes"] == "trace":
        if folder is None:
            raise BadTrace("the synthetic trace has no lifetimes of its own.")
        how["lifetimes"] = durations(folder, pods)
    return churn(trace, policy, seed=seed, **how)


def churn_command(
    trace: TraceFolder = None,
    pods: Pods = None,
    policy: Annotated[list[str] | None, typer.Option(help=f"Default: bestfit, {REFERENCE}, {DEFAULT}.")] = None,
    load: Loads = None,
    seeds: Annotated[int, typer.Option(min=1, help="How many seeds, from 42 on.")] = 10,
    warm_up: Annotated[int, typer.Option(min=0, help="Arrivals before those that count.")] = WARM_UP,
    arrivals: Annotated[int, typer.Option(min=1, help="Arrivals that count.")] = ARRIVALS,
    lifetimes: Annotated[str, typer.Option(help=f"One of {', '.join(LIFETIMES)}.")] = "exponential",
    queue: Annotated[bool, typer.Option("--queue", help="A pod that fits nowhere waits.")] = False,
    given: Annotated[bool, typer.Option(help="The trace's pods are known as history.")] = True,
    jobs: Jobs = -1,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a run instead of a table.")] = False,
) -> None:
    """Let pods come and go at some loads, and show what each policy turns away, against FGD."""
    loads, how = load or [0.9, 0.95, 1.0], {"warm_up": warm_up, "arrivals": arrivals, "queue": queue, "given": given}
    try:
        policies = known_policies(policy or list(dict.fromkeys(("bestfit", REFERENCE, DEFAULT))))
        if lifetimes not in LIFETIMES:
            raise BadOption(f"there are no {lifetimes!r} lifetimes; there are {', '.join(LIFETIMES)}.")
        shapes, folder = source(trace, pods)
        runs = [
            partial(_run, folder, shapes, name, seed, load=at, lifetimes=lifetimes, **how)
            for seed in range(42, 42 + seeds)
            for at in loads
            for name in policies
        ]
        results = [result for _, result in side_by_side(runs, "churn", jobs)]
    except (BadTrace, BadOption) as error:
        fail(str(error))
    results.sort(key=lambda r: (r.load, policies.index(r.policy), r.seed))
    if as_json:
        for result in results:
            print(json.dumps(result.as_json()))
    else:
        console = Console()
        (console if console.is_terminal else Console(width=110)).print(_table(results))


def _table(results: Sequence[ChurnResult]) -> Table:
    """Return a row for each load and policy, with the difference to the reference, seed by seed."""
    groups: dict[tuple[float, str], list[ChurnResult]] = {}
    for result in results:
        groups.setdefault((result.load, result.policy), []).append(result)
    first = results[0]
    lost = "waited" if first.queue else "rejected"
    table = Table(
        title=f"{first.trace}, {first.lifetimes} lifetimes: GPU time {lost}, % of that offered",
        caption=f"means of {len({r.seed for r in results})} seeds; to {REFERENCE}: points with the 95 % interval, "
        "paired by seed; share, 1, ... 8: of pods that want so many cards; used: of all cards, mean over time",
        box=SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("load", "policy"):
        table.add_column(column, no_wrap=True)
    for column in (lost, f"to {REFERENCE}", "", *(c for c in CLASSES if c != "cpu"), "used"):
        table.add_column(column, justify="right", no_wrap=True)
    for (at, policy), runs in groups.items():
        lost_all = f"{np.mean([r.lost for r in runs]):.2f}"
        by_class = [_mean_by_class(runs, name) for name in CLASSES if name != "cpu"]
        used = f"{np.mean([r.allocation for r in runs]):.2f}"
        table.add_row(f"{at:.2f}", policy, lost_all, *_against(runs, groups.get((at, REFERENCE))), *by_class, used)
    return table


def _against(runs: Sequence[ChurnResult], reference: Sequence[ChurnResult] | None) -> tuple[str, str]:
    """Return the mean difference with its interval, and as a share of the reference."""
    if reference is None or runs[0].policy == REFERENCE:
        return ("", "")
    mean, half = interval([a.lost - b.lost for a, b in zip(runs, reference, strict=True)])
    base = float(np.mean([b.lost for b in reference]))
    return (f"{mean:+.2f} ± {half:.2f}", f"{100 * mean / base:+.0f} %" if base else "")


def _mean_by_class(runs: Sequence[ChurnResult], name: str) -> str:
    offered = sum(r.classes[name].offered for r in runs)
    lost = sum(r.classes[name].waited if r.queue else r.classes[name].rejected for r in runs)
    return f"{100 * lost / offered:.1f}" if offered else ""
