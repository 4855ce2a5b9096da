"""What the commands of tessera-bench can be asked, and how they say that they cannot do it."""

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from benchmarks.traces import BadTrace, Trace, load, synthetic
from scoring.policies import POLICIES
from scoring.workload import Workload

SYNTHETIC: Final = "synthetic"  # what there is without files
NODES: Final = 200  # of it
SEED: Final = 42  # where one seed is wanted and none is named

TraceFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder with nodes/, pods/ and orders/; default: $TESSERA_TRACES, else a synthetic trace.",
        envvar="TESSERA_TRACES",
    ),
]


Pods = Annotated[
    str | None, typer.Option(help="Whose pods of the folder: openb_pod_list_<PODS>.csv; default: default.")
]

ManyPods = Annotated[list[str] | None, typer.Option("--pods", help="Default: all of the folder; or synthetic.")]

Nodes = Annotated[int | None, typer.Option(min=1, help=f"Nodes of the synthetic trace; default: {NODES}.")]


class BadOption(ValueError):
    """What was asked for cannot be done; the message is one sentence."""


def known_policies(names: list[str]) -> list[str]:
    """Return names of policies, each once, or raise BadOption if one is not."""
    if unknown := [name for name in names if name not in POLICIES]:
        raise BadOption(f"there is no policy {unknown[0]!r}; the policies are {', '.join(sorted(POLICIES))}.")
    return list(dict.fromkeys(names))


def fail(sentence: str) -> NoReturn:
    """Say why a command cannot go on, and end it."""
    print(f"tessera-bench: {sentence}", file=sys.stderr)
    raise SystemExit(2)


def _jobs(number: int) -> int:
    if number == 0:
        fail("--jobs 0 would run nothing; -1 is a process for each core.")
    return number


Jobs = Annotated[int, typer.Option(help="Processes; -1: one a core.", callback=_jobs)]


def _loads(loads: list[float] | None) -> list[float] | None:
    if wrong := [load for load in loads or () if not 0 < load < math.inf]:
        fail(f"--load {wrong[0]} is not a finite number above 0.")
    return loads and list(dict.fromkeys(loads))


Loads = Annotated[
    list[float] | None, typer.Option("--load", help="GPU time offered / that of all cards.", callback=_loads)
]


def one_name_each() -> list[str]:
    """Return the policies' names without the aliases: of one class, its own name, else the first in the table."""
    names: dict[type, str] = {}
    for name, made in POLICIES.items():
        kind = type(made(Workload(), 0))
        if kind not in names or name == kind.__name__.lower():
            names[kind] = name
    return list(names.values())


def traces_in(folder: Path | None) -> list[str]:
    """Return the names of a folder's traces; without a folder there is the synthetic one."""
    if folder is None:
        return [SYNTHETIC]
    files = sorted(folder.glob("pods/openb_pod_list_*.csv"))
    if not files:
        raise BadTrace(f"{folder} has no pods/openb_pod_list_*.csv.")
    return [file.stem.removeprefix("openb_pod_list_") for file in files]


def sources(folder: Path | None, pods: Sequence[str] | None) -> dict[str, Path | None]:
    """Return the traces that are meant (None: all of the folder), each with its folder; the synthetic one has none.

    Raises
    ------
    BadOption
        Pods of a folder, and there is no folder.
    BadTrace
    """
    names = pods or traces_in(folder)
    if folder is None and set(names) != {SYNTHETIC}:
        raise BadOption(f"without --trace there are no pods but {SYNTHETIC}.")
    return {name: None if name == SYNTHETIC else folder for name in names}


def source(folder: Path | None, pods: str | None, nodes: int | None = None) -> tuple[str, Path | None]:
    """Return the one trace that is meant and its folder, as `sources` does; only the synthetic one takes `nodes`."""
    ((name, of),) = sources(folder, [pods or (SYNTHETIC if folder is None else "default")]).items()
    if of is not None and nodes is not None:
        raise BadOption("--nodes is of the synthetic trace, and --trace names a folder.")
    return name, of


def trace_of(
    folder: Path | None,
    pods: str | None,
    *,
    seed: int | None,
    nodes: int | None = None,
    order: Path | None = None,
) -> Trace:
    """Return the one trace that is meant, its pods in the order of a file or of a seed.

    Raises
    ------
    BadOption, BadTrace
    """
    name, of = source(folder, pods, nodes)
    if of is not None:
        return load(of, name, order=order, seed=seed)
    if order is not None:
        raise BadOption("an --order needs the --trace whose pods it names.")
    return synthetic(seed or 0, nodes or NODES)


def seeds_of(text: str) -> list[int]:
    """Return the seeds of "42-51" or "42,43", each once; BadOption if there are none."""
    try:
        ends = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError as error:
        raise BadOption(f"{text!r} is no list of seeds like 42-51 or 42,43.") from error
    if any(part[0] > part[-1] for part in ends):
        raise BadOption(f"{text!r} has a range that ends before it begins.")
    return list(dict.fromkeys(seed for part in ends for seed in range(part[0], part[-1] + 1)))
