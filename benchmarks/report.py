"""The report: every policy on every trace and seed, as tables and figures between two marks of a page.

Each replay is kept in a cache under what it depends on (the data, the policy, the code that decides), so that an
interrupted report goes on where it was, and a change of one policy repeats that policy's replays alone.
"""

import ast
import csv
import hashlib
import importlib.util
import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import joblib
import numpy as np
import typer
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

from benchmarks.bound import REFERENCE, gap_closed
from benchmarks.options import (
    SYNTHETIC,
    BadOption,
    TraceFolder,
    fail,
    known_policies,
    one_name_each,
    seeds_of,
    traces_in,
)
from benchmarks.replay import Result, replay
from benchmarks.traces import NODES, BadTrace, Trace, load, synthetic
from scoring.bound import Bounds, NoCompute, bounds
from scoring.model import CARD
from scoring.policies import POLICIES
from scoring.workload import Workload

CACHE: Final = Path("~/.cache/tessera-bench")
BEGIN: Final = "<!-- report:begin -->"
END: Final = "<!-- report:end -->"
ARRIVED: Final = (90, 100, 130)  # percent
PUBLISHED: Final = Path("published/analysis_allo_discrete.csv")
ROOTS: Final = ("benchmarks.replay", "scoring.place", "scoring.fragmentation", "scoring.workload")

# Student's t, two-sided 95 %, for 1 to 30 degrees of freedom.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)

T = TypeVar("T")
Grouped = Mapping[str, Mapping[str, Sequence[Result]]]  # trace -> policy -> seeds


@dataclass(frozen=True, slots=True)
class Run:
    """A replay, and how many cards its fleet has."""

    cards: int
    result: Result


@dataclass(frozen=True, slots=True)
class Task:
    """A replay to be made, as another process makes it. Without a folder the trace is synthetic."""

    folder: Path | None
    pods: str
    policy: str
    seed: int

    def __call__(self) -> Run:
        trace = self.trace()
        return Run(trace.milli // CARD, replay(trace, self.policy, seed=self.seed))

    def trace(self) -> Trace:
        """Return the trace to replay."""
        return synthetic(self.seed) if self.folder is None else load(self.folder, self.pods, seed=self.seed)

    def bounds(self) -> Bounds | None:
        """Return what no policy can exceed when all pods have arrived; None: nobody wants a card."""
        trace = self.trace()
        try:
            return bounds(trace.fleet(), Workload(trace.history), ARRIVED[-1])
        except NoCompute:
            return None

    def key(self) -> str:
        """Return a file name that changes with whatever could change the result."""
        digest = hashlib.sha256((_code(self.policy) + self._data()).encode()).hexdigest()[:16]
        return f"{self.pods}_{self.policy}_{self.seed}_{digest}.json"

    def _data(self) -> str:
        if self.folder is None:
            return SYNTHETIC
        files = (NODES, Path(f"pods/openb_pod_list_{self.pods}.csv"), Path(f"orders/{self.pods}_{self.seed}.ord.gz"))
        return " ".join(_sum_of(self.folder / file) for file in files)


@cache
def _sum_of(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "none"


@cache
def _code(policy: str) -> str:
    """Return a hash of the modules of ours that a replay of a policy runs, and of the policy's line in the table."""
    made = POLICIES[policy]
    modules = _imported((*ROOTS, type(made(Workload(), 0)).__module__))
    return " ".join([inspect.getsource(made), *(_sum_of(file) for _, file in sorted(modules.items()))])


def _imported(names: Iterable[str]) -> dict[str, Path]:
    """Return the modules of `scoring` and `benchmarks` that some modules import, directly or not, with their files.

    The table of policies imports every policy and belongs to none.
    """
    found: dict[str, Path] = {}
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in found or name == "scoring.policies" or name.split(".")[0] not in ("scoring", "benchmarks"):
            continue
        parent = importlib.util.find_spec(name.rpartition(".")[0] or name)
        spec = importlib.util.find_spec(name) if parent and parent.submodule_search_locations is not None else None
        if spec is None or spec.origin is None:
            continue  # a name in a module, not a module
        found[name] = Path(spec.origin)
        for node in ast.walk(ast.parse(found[name].read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                todo += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                todo += [alias.name for alias in node.names]
    return found


def side_by_side(tasks: Sequence[Callable[[], T]], label: str, jobs: int) -> Iterator[tuple[int, T]]:
    """Run tasks in `jobs` processes (-1: one a core) and yield each one's index and result as it ends.

    On a terminal, show how many have ended.
    """
    errors = Console(stderr=True)
    columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=errors, disable=not errors.is_terminal, transient=True) as progress:
        bar = progress.add_task(label, total=len(tasks))
        run = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered", batch_size=1)
        for done in run(joblib.delayed(_call)(i, task) for i, task in enumerate(tasks)):
            progress.advance(bar)
            yield done


def _call(index: int, task: Callable[[], Any]) -> tuple[int, Any]:
    return index, task()


def run_all(tasks: Sequence[Task], kept: Path, jobs: int) -> list[Run]:
    """Return the tasks' results in their order: those in the cache folder `kept` from there, the others made."""
    kept.mkdir(parents=True, exist_ok=True)
    files = [kept / task.key() for task in tasks]
    runs = {i: _read(file) for i, file in enumerate(files) if file.exists()}
    missing = [i for i in range(len(tasks)) if i not in runs]
    for at, run in side_by_side([tasks[i] for i in missing], f"{len(runs)} kept, {len(missing)} to run", jobs):
        runs[missing[at]] = run
        _write(files[missing[at]], run)
    return [runs[i] for i in range(len(tasks))]


def _read(file: Path) -> Run:
    found = json.loads(file.read_text())
    return Run(found["cards"], Result(**found["result"]))


def _write(file: Path, run: Run) -> None:
    """Write a whole file or none: a reader never meets half of it."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps({"cards": run.cards, "result": run.result.as_json()}))
    part.replace(file)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and what to add and take away for its 95 % interval by Student's t."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, np.inf
    return mean, _T[min(len(values) - 2, len(_T) - 1)] * float(np.std(values, ddof=1)) / len(values) ** 0.5


def at(curve: Mapping[str, float], percent: int) -> float:
    """Return a curve's value at a percent arrived, or at the last one before."""
    return curve[str(max(int(k) for k in curve if int(k) <= percent))]


def mean_at(runs: Sequence[Result], percent: int) -> float:
    """Return the mean allocation of some runs at a percent arrived."""
    return float(np.mean([at(run.allocation, percent) for run in runs]))


def cards_saved(policies: Mapping[str, Sequence[Result]], policy: str, percent: int, cards: int) -> float:
    """Return how many of a trace's cards a policy has in use more than the reference, at a percent arrived."""
    return (mean_at(policies[policy], percent) - mean_at(policies[REFERENCE], percent)) / 100 * cards


def group(runs: Sequence[Run]) -> dict[str, dict[str, list[Result]]]:
    """Return the results by trace and policy."""
    grouped: dict[str, dict[str, list[Result]]] = {}
    for run in runs:
        grouped.setdefault(run.result.trace, {}).setdefault(run.result.policy, []).append(run.result)
    return grouped


def published(folder: Path, seeds: Sequence[int]) -> dict[tuple[str, str], str]:
    """Return the published allocation by trace and policy, the mean of these seeds (all, if it has none of them)."""
    if not (folder / PUBLISHED).exists():
        return {}
    rows: dict[tuple[str, str], list[dict[str, str]]] = {}
    with (folder / PUBLISHED).open(newline="") as file:
        for row in csv.DictReader(file):
            policy = row["sc_policy"].partition("-")[2].lower()
            rows.setdefault((row["workload"].removeprefix("openb_pod_list_"), policy), []).append(row)
    out = {}
    for key, found in rows.items():
        same = [row for row in found if int(row["seed"]) in seeds] or found
        out[key] = _three([float(np.mean([float(row[str(k)]) for row in same])) for k in ARRIVED])
    return out


def write(
    runs: Sequence[Run], page: Path, *, limits: Mapping[str, Bounds], known: Mapping[tuple[str, str], str]
) -> None:
    """Draw the figures into `figures/` beside a page, and put the tables and them between its marks."""
    from benchmarks.figures import draw  # drawing takes a second to load, which other commands need not wait for

    before, after = around(page)
    drawn = draw(group(runs), _cards(runs), page.parent / "figures")
    text = markdown(runs, limits=limits, known=known, figures=[f"figures/{file.name}" for file in drawn])
    page.write_text(f"{before}\n\n{text}\n\n{after}")


def markdown(
    runs: Sequence[Run],
    *,
    limits: Mapping[str, Bounds],
    known: Mapping[tuple[str, str], str],
    figures: Sequence[str] = (),
) -> str:
    """Return the tables, and the figures (paths as the page names them).

    `limits`: what no policy exceeds at 130 %, by trace; `known`: what was published, by trace and policy.
    """
    grouped = group(runs)
    seeds = sorted({str(run.result.seed) for run in runs})
    parts = [
        f"Means over the seeds {', '.join(seeds)}, made by `tessera-bench report`.",
        "GPU allocation at 130 % arrived, beside what no policy that places what fits can exceed (W), and none of "
        "those in which nothing fails before it must (N):",
        _overview(grouped, limits),
        f"Arrived is GPU demand as % of all cards. *To W* and *to N*: the part of the way there from {REFERENCE}, at "
        f"130 %. *Cards*: those in use more than with {REFERENCE}, at 100 and 130 %.",
        "\n".join(_rows(grouped, _cards(runs), limits, known)),
        *(f"![{Path(figure).stem}]({figure})" for figure in figures),
    ]
    return "\n\n".join(parts)


def _cards(runs: Sequence[Run]) -> dict[str, int]:
    return {run.result.trace: run.cards for run in runs}


def _overview(grouped: Grouped, limits: Mapping[str, Bounds]) -> str:
    policies = list(dict.fromkeys(policy for found in grouped.values() for policy in found))
    lines = [f"| trace | {' | '.join(policies)} | W | N |", "|---|" + "---:|" * (len(policies) + 2)]
    for trace, found in grouped.items():
        cells = [f"{mean_at(found[p], 130):.2f}" if p in found else "" for p in policies]
        cells += [f"{value:.2f}" for value in _w_and_n(limits, trace)] or ["", ""]
        lines.append(f"| {trace} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(
    grouped: Grouped, cards: Mapping[str, int], limits: Mapping[str, Bounds], known: Mapping[tuple[str, str], str]
) -> Iterator[str]:
    yield "| trace | policy | allocated % at 90 / 100 / 130 % | published | failed pods | to W | to N | cards |"
    yield "|---|---|---|---|---:|---:|---:|---:|"
    for trace, found in grouped.items():
        for i, (policy, runs) in enumerate(found.items()):
            allocated = _three([mean_at(runs, k) for k in ARRIVED])
            failed = f"{np.mean([run.failed_pods for run in runs]):.0f}"
            to_w, to_n, saved = "", "", ""
            if policy != REFERENCE and REFERENCE in found:
                ends = mean_at(runs, 130), mean_at(found[REFERENCE], 130)
                to_w, to_n = [_percent(gap_closed(*ends, limit)) for limit in _w_and_n(limits, trace)] or ("", "")
                saved = " / ".join(f"{cards_saved(found, policy, k, cards[trace]):+.0f}" for k in (100, 130))
            beside = known.get((trace, policy), "")
            cells = (trace if i == 0 else "", policy, allocated, beside, failed, to_w, to_n, saved)
            yield f"| {' | '.join(cells)} |"


def _w_and_n(limits: Mapping[str, Bounds], trace: str) -> tuple[float, ...]:
    return (limits[trace].work_conserving, limits[trace].latest_failure) if trace in limits else ()


def _percent(part: float | None) -> str:
    return "" if part is None else f"{100 * part:.0f} %"


def _three(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.2f}" for value in values)


def around(page: Path) -> tuple[str, str]:
    """Return a page up to the first mark and from the second on.

    Raises
    ------
    BadOption
        It has not exactly one pair of marks.
    """
    before, begin, rest = page.read_text().partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end or BEGIN in rest or END in after:
        raise BadOption(f"{page} needs the lines {BEGIN} and {END}, once.")
    return before + begin, end + after


def report_command(
    trace: TraceFolder = None,
    pods: Annotated[list[str] | None, typer.Option(help="Default: all of the folder; or synthetic.")] = None,
    policy: Annotated[list[str] | None, typer.Option(help="Default: all, each under one name.")] = None,
    seeds: Annotated[str, typer.Option(help="42-51, or 42,43.")] = "42-51",
    kept: Annotated[Path, typer.Option("--cache", help="Where finished replays are kept.")] = CACHE,
    into: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Page; default: print.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes; -1: one a core.")] = -1,
) -> None:
    """Replay all traces with all policies and seeds, and write tables and figures."""
    try:
        chosen, over = known_policies(policy or one_name_each()), seeds_of(seeds)
        names = pods or traces_in(trace)
        if into is not None:
            around(into)  # before hours of work, not after
        if trace is None and set(names) != {SYNTHETIC}:
            raise BadOption(f"without --trace there are no pods but {SYNTHETIC}.")
        folders = {name: None if name == SYNTHETIC else trace for name in names}
        tasks = [Task(folder, name, p, seed) for name, folder in folders.items() for p in chosen for seed in over]
        first = {task.pods: task.bounds for task in reversed(tasks)}
        found = {list(first)[i]: limit for i, limit in side_by_side(list(first.values()), "bounds", jobs)}
        limits = {name: limit for name, limit in found.items() if limit is not None}
        runs = run_all(tasks, kept.expanduser(), jobs)
        known = {} if trace is None else published(trace, over)
        if into is None:
            print(markdown(runs, limits=limits, known=known))
        else:
            write(runs, into, limits=limits, known=known)
    except (BadTrace, BadOption) as error:
        fail(str(error))
