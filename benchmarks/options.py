"""What the commands of tessera-bench can be asked, and how they say that they cannot do it."""

import sys
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from benchmarks.traces import BadTrace
from scoring.policies import POLICIES
from scoring.workload import Workload

SYNTHETIC: Final = "synthetic"  # what there is without files

TraceFolder = Annotated[
    Path | None,
    typer.Option(
        help="Folder with nodes/, pods/ and orders/; default: $TESSERA_TRACES, else a synthetic trace.",
        envvar="TESSERA_TRACES",
    ),
]


class BadOption(ValueError):
    """What was asked for cannot be done; the message is one sentence."""


def known_policies(names: list[str]) -> list[str]:
    """Return names of policies, or raise BadOption if one is not."""
    if unknown := [name for name in names if name not in POLICIES]:
        raise BadOption(f"there is no policy {unknown[0]!r}; the policies are {', '.join(sorted(POLICIES))}.")
    return names


def fail(sentence: str) -> NoReturn:
    """Say why a command cannot go on, and end it."""
    print(f"tessera-bench: {sentence}", file=sys.stderr)
    raise SystemExit(2)


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


def seeds_of(text: str) -> list[int]:
    """Return the seeds of "42-51" or "42,43"."""
    try:
        ends = [[int(end) for end in part.split("-", 1)] for part in text.split(",")]
    except ValueError as error:
        raise BadOption(f"{text!r} is no list of seeds like 42-51 or 42,43.") from error
    return [seed for part in ends for seed in range(part[0], part[-1] + 1)]
