"""`tessera-bench bound`: what no policy can exceed, for a trace or a cluster, and how near replays have come."""

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

from benchmarks.options import SEED, SYNTHETIC, BadOption, Nodes, Pods, TraceFolder, fail, trace_of
from benchmarks.traces import BadTrace
from extender.cluster.embedded import BadSnapshot, EmbeddedCluster
from extender.node import Rules
from extender.pod import FINISHED
from extender.state import ClusterState
from scoring.bound import Bounds, NoCompute, bounds
from scoring.model import Fleet
from scoring.workload import Workload

REFERENCE: Final = "fgd"  # the policy that others are measured against


class BadResult(ValueError):
    """A file that is no result of a replay, or of another one; the message is one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Instance:
    """What bounds hold for: so many nodes and the pods of a trace. `seed`: that of a synthetic one, whose nodes and
    pods it draws; None for files, whose bounds no seed changes."""

    trace: str
    nodes: int
    seed: int | None

    def __str__(self) -> str:
        """Name it in a sentence."""
        return f"{self.trace} ({self.nodes} nodes{'' if self.seed is None else f', seed {self.seed}'})"


@dataclass(frozen=True, slots=True)
class Reached:
    """What a policy allocated in percent of all cards, in the mean of so many replays.

    `gap_closed`: the part of the way from FGD to W that it has come, `gap_closed_late` to N; None without FGD.
    """

    policy: str
    replays: int
    allocation: float
    gap_closed: float | None
    gap_closed_late: float | None


def bound_command(
    trace: TraceFolder = None,
    pods: Pods = None,
    seed: Annotated[int | None, typer.Option(min=0, help=f"Of the synthetic trace; default {SEED}.")] = None,
    nodes: Nodes = None,
    cluster: Annotated[
        Path | None, typer.Option(help="A cluster (YAML: Nodes, GPUNodes, Pods) instead of a trace.")
    ] = None,
    at_load: Annotated[
        int, typer.Option("--load", min=1, help="Compute that arrives, in percent of the cards'.")
    ] = 130,
    results: Annotated[
        list[Path] | None, typer.Option("--result", help="Output of replay --json to compare; may be repeated.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Bound the compute that any policy can allocate, in percent of all cards."""
    try:
        if cluster is None:
            of, fleet, workload = _of_trace(trace, pods, SEED if seed is None else seed, nodes)
        elif any(option is not None for option in (pods, seed, nodes)):
            raise BadOption("a --cluster has its own pods and nodes; leave --pods, --seed and --nodes out.")
        else:
            fleet, workload = snapshot(cluster)
            of = Instance(cluster.name, len(fleet), None)
        found = bounds(fleet, workload, at_load)
        reached = compare(results or (), of, at_load, found)
    except (BadOption, BadTrace, BadSnapshot, BadResult, NoCompute) as error:
        fail(str(error))
    if as_json:
        rows = [asdict(one) for one in reached]
        print(json.dumps({**asdict(of), "load": at_load, **asdict(found), "results": rows}))
    else:
        _show(of, at_load, found, reached)


def gap_closed(policy: float, reference: float, bound: float) -> float | None:
    """Return which part of the way from a reference to a bound a policy has come; negative if it went back.

    None if the reference is at the bound already, or beyond: a bound is fluid, and so is its load.
    """
    return (policy - reference) / (bound - reference) if reference < bound else None


def snapshot(path: Path) -> tuple[Fleet, Workload]:
    """Return a cluster as it would be if nothing ran there, and the pods that ask for its cards, bound or not.

    Cards that the extender would not offer are not there: unhealthy ones, and those of closed nodes.

    Raises
    ------
    BadSnapshot
    """
    state, cluster = ClusterState(Rules()), EmbeddedCluster.load(path)
    nodes, inventories, _ = cluster.sources()
    takers: tuple[Callable[[Any], None], ...] = (state.saw_node, state.saw_inventory)
    for source, take in zip((nodes, inventories), takers, strict=True):
        for seen in source.list()[0]:
            take(seen)
    for pod in cluster.pods():
        if pod.status.phase not in FINISHED:
            state.saw_pod(replace(pod, spec=replace(pod.spec, node_name="")))
    return state.fleet, state.workload


def compare(results: Sequence[Path], of: Instance, at_load: int, found: Bounds) -> list[Reached]:
    """Return what each policy reached at a load, in the order of the files.

    Raises
    ------
    BadResult
    """
    by_policy: dict[str, list[float]] = {}
    for path in results:
        policy, allocation = _read(path, of, at_load)
        by_policy.setdefault(policy, []).append(allocation)
    means = {policy: sum(values) / len(values) for policy, values in by_policy.items()}
    reference = means.get(REFERENCE)
    limits = (found.work_conserving, found.latest_failure)
    return [
        Reached(
            policy,
            len(by_policy[policy]),
            mean,
            *(None if reference is None else gap_closed(mean, reference, limit) for limit in limits),
        )
        for policy, mean in means.items()
    ]


def _read(path: Path, of: Instance, at_load: int) -> tuple[str, float]:
    try:
        result = json.loads(path.read_text())
        seed = result["seed"] if result["trace"] == SYNTHETIC else None
        replayed = Instance(result["trace"], result["nodes"], seed)
        policy, curve = str(result["policy"]), dict(result["allocation"])
        allocation = float(curve[str(at_load)]) if str(at_load) in curve else None
        if allocation is not None and not 0 <= allocation <= 100:
            raise ValueError(allocation)
    except OSError as error:
        raise BadResult(f"{path} cannot be read: {error.strerror}.") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BadResult(f"{path} is no output of tessera-bench replay --json.") from error
    if replayed != of:
        raise BadResult(f"{path} is a replay of {replayed}, not of {of}.")
    if allocation is None:
        raise BadResult(f"{path} has no allocation at {at_load} % arrived.")
    return policy, allocation


def _of_trace(trace: Path | None, pods: str | None, seed: int, nodes: int | None) -> tuple[Instance, Fleet, Workload]:
    found = trace_of(trace, pods, seed=seed, nodes=nodes)
    of = Instance(found.name, len(found.nodes), seed if found.name == SYNTHETIC else None)
    return of, found.fleet(), Workload(found.history)


def _show(of: Instance, at_load: int, found: Bounds, reached: Sequence[Reached]) -> None:
    console = Console()
    table = Table(title=f"{of}, at most allocated at {at_load} % arrived")
    table.add_column("a policy that")
    table.add_column("% of all cards", justify="right")
    table.add_row("may refuse any pod (B)", f"{found.free_rejection:.2f}")
    table.add_row("places what fits (W)", f"{found.work_conserving:.2f}")
    table.add_row("... and fails as late as possible (N)", f"{found.latest_failure:.2f}")
    console.print(table)
    if reached:
        console.print(_compared(reached))


def _compared(reached: Sequence[Reached]) -> Table:
    table = Table(title=f"replays, and how much of the gap from {REFERENCE} they closed")
    for column in ("policy", "replays", "allocated %", "to W %", "to N %"):
        table.add_column(column, justify="left" if column == "policy" else "right")
    for one in reached:
        parts = ("" if part is None else f"{100 * part:.0f}" for part in (one.gap_closed, one.gap_closed_late))
        table.add_row(one.policy, str(one.replays), f"{one.allocation:.2f}", *parts)
    return table
