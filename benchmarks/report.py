"""The report: every policy on every trace and seed, as tables and figures between two marks of a page.

Each replay is kept in a cache under what it depends on (the data, the policy, the code that decides), so that an
interrupted report goes on where it was, and a change of one policy repeats that policy's replays alone.
"""

import ast
import hashlib
import importlib.util
import inspect
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass
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
    Jobs,
    ManyPods,
    TraceFolder,
    fail,
    known_policies,
    one_name_each,
    seeds_of,
    sources,
)
from benchmarks.replay import Result, replay
from benchmarks.traces import NODES, BadTrace, Trace, load, rows, synthetic
from scoring.bound import Bounds, NoCompute, bounds
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
class Task:
    """A replay to be made, as another process makes it. Without a folder the trace is synthetic."""

    folder: Path | None
    pods: str
    policy: str
    seed: int

    def __call__(self) -> Result:
        return replay(self.trace(), self.policy, seed=self.seed)

    def trace(self) -> Trace:
        """Return the trace to replay."""
        return synthetic(self.seed) if self.folder is None else load(self.folder, self.pods, seed=self.seed)

    @property
    def instance(self) -> tuple[str, int | None]:
        """What bounds depend on: the pods, and if the trace is synthetic the seed that draws it."""
        return self.pods, self.seed if self.folder is None else None

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


def limits_of(tasks: Sequence[Task], jobs: int) -> dict[str, Bounds]:
    """Return what no policy can exceed by trace, in the mean of the instances that the tasks replay.

    A trace of which nobody wants a card has none.
    """
    first = {task.instance: task for task in reversed(tasks)}
    done = dict(side_by_side([task.bounds for task in first.values()], "bounds", jobs))
    found: dict[str, list[Bounds]] = {}
    for i, (pods, _) in enumerate(first):
        if (limit := done[i]) is not None:
            found.setdefault(pods, []).append(limit)
    return {pods: Bounds(*np.mean([astuple(limit) for limit in limits], axis=0)) for pods, limits in found.items()}


def make_cache(kept: Path) -> Path:
    """Return the folder in which replays are kept, made if it is not there; BadOption if it cannot be written."""
    try:
        (folder := kept.expanduser()).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadOption(f"{kept} cannot be a cache folder: {error.strerror}.") from error
    if not os.access(folder, os.W_OK):
        raise BadOption(f"{kept} cannot be a cache folder: nothing may be written there.")
    return folder


def run_all(tasks: Sequence[Task], kept: Path, jobs: int) -> list[Result]:
    """Return the tasks' results in their order: those in the cache folder `kept` from there, the others made."""
    files = [kept / task.key() for task in tasks]
    runs = {i: _read(file) for i, file in enumerate(files) if file.exists()}
    missing = [i for i in range(len(tasks)) if i not in runs]
    for at, run in side_by_side([tasks[i] for i in missing], f"{len(runs)} kept, {len(missing)} to run", jobs):
        runs[missing[at]] = run
        _write(files[missing[at]], run)
    return [runs[i] for i in range(len(tasks))]


def _read(file: Path) -> Result:
    try:
        return Result(**json.loads(file.read_text()))
    except (OSError, ValueError, TypeError) as error:
        raise BadOption(f"{file} is damaged; delete it, and its replay is made again.") from error


def _write(file: Path, run: Result) -> None:
    """Write a whole file or none: a reader never meets half of it."""
    part = file.with_suffix(f".{os.getpid()}")
    part.write_text(json.dumps(run.as_json()))
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


def cards_saved(policies: Mapping[str, Sequence[Result]], policy: str, percent: int) -> float:
    """Return how many cards a policy has in use more than the reference at a percent arrived, mean of the seeds."""
    return _in_use(policies[policy], percent) - _in_use(policies[REFERENCE], percent)


def _in_use(runs: Sequence[Result], percent: int) -> float:
    return float(np.mean([at(run.allocation, percent) / 100 * run.cards for run in runs]))


def group(runs: Sequence[Result]) -> dict[str, dict[str, list[Result]]]:
    """Return the results by trace and policy."""
    grouped: dict[str, dict[str, list[Result]]] = {}
    for run in runs:
        grouped.setdefault(run.trace, {}).setdefault(run.policy, []).append(run)
    return grouped


def published(folder: Path, seeds: Sequence[int]) -> dict[tuple[str, str], str]:
    """Return the published allocation by trace and policy, the mean of these seeds (all, if it has none of them).

    Raises
    ------
    BadTrace
    """
    if not (folder / PUBLISHED).exists():
        return {}
    by_key: dict[tuple[str, str], list[tuple[int, list[float]]]] = {}
    for row in rows(folder / PUBLISHED):
        try:
            key, seed, allocated = _published(row)
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise BadTrace(f"{folder / PUBLISHED} has a row that is no published result: {error}.") from error
        by_key.setdefault(key, []).append((seed, allocated))
    out = {}
    for key, found in by_key.items():
        same = [allocated for seed, allocated in found if seed in seeds] or [allocated for _, allocated in found]
        out[key] = _three(np.mean(same, axis=0).tolist())
    return out


def _published(row: Mapping[str, str]) -> tuple[tuple[str, str], int, list[float]]:
    """Return a row's trace and policy, its seed, and the allocation at each of ARRIVED."""
    key = row["workload"].removeprefix("openb_pod_list_"), row["sc_policy"].partition("-")[2].lower()
    allocated = [float(row[str(percent)]) for percent in ARRIVED]
    if not all(map(math.isfinite, allocated)):
        raise ValueError(f"{allocated} are not all finite")
    return key, int(row["seed"]), allocated


def write(
    runs: Sequence[Result], page: Path, *, limits: Mapping[str, Bounds], known: Mapping[tuple[str, str], str]
) -> None:
    """Draw the figures into `figures/` beside a page, and put the tables and them between its marks."""
    from benchmarks.figures import draw  # drawing takes a second to load, which other commands need not wait for

    before, after = around(page)
    drawn = draw(group(runs), page.parent / "figures")
    text = markdown(runs, limits=limits, known=known, figures=[f"figures/{file.name}" for file in drawn])
    page.write_text(f"{before}\n\n{text}\n\n{after}")


def markdown(
    runs: Sequence[Result],
    *,
    limits: Mapping[str, Bounds],
    known: Mapping[tuple[str, str], str],
    figures: Sequence[str] = (),
) -> str:
    """Return the tables, and the figures (paths as the page names them).

    `limits`: what no policy exceeds at 130 %, by trace, mean of the seeds; `known`: what was published, by trace and
    policy.
    """
    grouped = group(runs)
    seeds = sorted({str(run.seed) for run in runs})
    parts = [
        f"Means over the seeds {', '.join(seeds)}, made by `tessera-bench report`.",
        "GPU allocation at 130 % arrived, beside what no policy that places what fits can exceed (W), and none of "
        "those in which nothing fails before it must (N):",
        _overview(grouped, limits),
        f"Arrived is GPU demand as % of all cards. *To W* and *to N*: the part of the way there from {REFERENCE}, at "
        f"130 %. *Cards*: those in use more than with {REFERENCE}, at 100 and 130 %.",
        "\n".join(_rows(grouped, limits, known)),
        *(f"![{Path(figure).stem}]({figure})" for figure in figures),
    ]
    return "\n\n".join(parts)


def _overview(grouped: Grouped, limits: Mapping[str, Bounds]) -> str:
    policies = list(dict.fromkeys(policy for found in grouped.values() for policy in found))
    lines = [f"| trace | {' | '.join(policies)} | W | N |", "|---|" + "---:|" * (len(policies) + 2)]
    for trace, found in grouped.items():
        cells = [f"{mean_at(found[p], 130):.2f}" if p in found else "" for p in policies]
        cells += [f"{value:.2f}" for value in _w_and_n(limits, trace)] or ["", ""]
        lines.append(f"| {trace} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _rows(grouped: Grouped, limits: Mapping[str, Bounds], known: Mapping[tuple[str, str], str]) -> Iterator[str]:
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
                saved = " / ".join(f"{cards_saved(found, policy, k):+.0f}" for k in (100, 130))
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
    pods: ManyPods = None,
    policy: Annotated[list[str] | None, typer.Option(help="Default: all, each under one name.")] = None,
    seeds: Annotated[str, typer.Option(help="42-51, or 42,43.")] = "42-51",
    kept: Annotated[Path, typer.Option("--cache", help="Where finished replays are kept.")] = CACHE,
    into: Annotated[Path | None, typer.Option(exists=True, dir_okay=False, help="Page; default: print.")] = None,
    jobs: Jobs = -1,
) -> None:
    """Replay all traces with all policies and seeds, and write tables and figures."""
    try:
        chosen, over = known_policies(policy or one_name_each()), seeds_of(seeds)
        folders = sources(trace, pods)
        tasks = [Task(folder, name, p, seed) for name, folder in folders.items() for p in chosen for seed in over]
        if into is not None:
            around(into)  # before hours of work, not after, as the next two
        known = {} if trace is None else published(trace, over)
        cache_folder = make_cache(kept)
        limits = limits_of(tasks, jobs)
        runs = run_all(tasks, cache_folder, jobs)
        if into is None:
            print(markdown(runs, limits=limits, known=known))
        else:
            write(runs, into, limits=limits, known=known)
    except (BadTrace, BadOption) as error:
        fail(str(error))
