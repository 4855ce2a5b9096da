"""Traces: nodes, pods and arrival orders, read from files or made up. The only reader of traces.

A folder is laid out as the openb benchmark of FGD (USENIX ATC'23): `nodes/openb_node_list_gpu_node.csv`,
`pods/openb_pod_list_<name>.csv`, `orders/<name>_<seed>.ord.gz`. The files are not ours to ship; without them
`synthetic` makes a trace with the same shape of demand.
"""

import csv
import gzip
import random
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scoring.model import CARD, WHOLE, Ask, Card, Demand, Fleet, Row, normal_model, one

NODES: Final = Path("nodes/openb_node_list_gpu_node.csv")
SLOTS: Final = 1000  # a trace bounds no sharers, and no share is below a thousandth
INFLATION: Final = 1.3  # arrivals in cards, as a multiple of the cards there are
MOST_CARDS: Final = 1000  # of a node or a pod; a fleet's arrays are as wide as its largest node
MOST: Final = 10**12  # of any other amount; sums of more could overflow


class BadTrace(ValueError):
    """A trace that cannot be read; the message is one sentence that names the file."""


@dataclass(frozen=True, slots=True)
class Node:
    """One node of a trace: CPU in thousandths of a core, memory in MiB, `gpus` cards of one model."""

    name: str
    cpu_milli: int
    ram_mib: int
    gpus: int
    model: str

    def row(self) -> Row:
        """Return the node with nothing on it. A trace's cards tell no memory."""
        cards = tuple(Card(f"{self.name}/{i}", self.model, 0, CARD, SLOTS, 0, CARD, SLOTS) for i in range(self.gpus))
        return Row(cards, self.cpu_milli, self.ram_mib, self.cpu_milli, self.ram_mib)


@dataclass(frozen=True, slots=True)
class Trace:
    """Nodes in the order that breaks ties, pods in the order of arrival, and the pods that are known before."""

    name: str
    nodes: tuple[Node, ...]
    arrivals: tuple[Demand, ...]
    history: tuple[Demand, ...]

    def fleet(self) -> Fleet:
        """Return the nodes, empty."""
        return Fleet((node.name, node.row()) for node in self.nodes)

    @property
    def milli(self) -> int:
        """Compute of all cards, in thousandths of a card."""
        return CARD * sum(node.gpus for node in self.nodes)


def load(folder: Path, pods: str, *, order: Path | None = None, seed: int | None = None) -> Trace:
    """Return a trace of a folder, its pods arriving in the order of a file or of a seed.

    A seed takes the folder's order file of that seed if there is one, else a shuffle of ours: the pods in random
    order, then copies of random ones (or some left out) until arrivals reach 130 % of the cards.

    Raises
    ------
    BadTrace
    """
    listed = list_of(folder, pods)
    nodes = {node.name: node for node in _read_nodes(folder / NODES)}
    demands = dict(_read_pods(listed))
    if not any(node.gpus for node in nodes.values()):
        raise BadTrace(f"{folder / NODES} has no node with a card.")
    if not any(demand.milli for demand in demands.values()):
        raise BadTrace(f"{listed} has no pod that asks for a card.")
    if order is None and seed is not None and (given := folder / "orders" / f"{pods}_{seed}.ord.gz").exists():
        order = given
    elif order is not None:
        _refuse_order_of_others(order, folder, pods)
    if order is None:
        return _shuffled(pods, tuple(nodes.values()), tuple(demands.values()), seed or 0)
    pod_names, node_names = _read_order(order)
    try:
        arrivals = tuple(demands[name.split("-tuned-")[0]] for name in pod_names)
        ordered = tuple(nodes[name] for name in node_names) or tuple(nodes.values())
    except KeyError as error:
        raise BadTrace(f"{order} names {error.args[0]}, which is in neither {pods} nor the nodes.") from error
    return Trace(pods, ordered, arrivals, tuple(demands.values()))


def list_of(folder: Path, pods: str) -> Path:
    """Return the file of a folder that lists these pods."""
    return folder / "pods" / f"openb_pod_list_{pods}.csv"


def synthetic(seed: int, nodes: int = 200) -> Trace:
    """Return a made-up trace with the shape of openb's default demand: shares, single cards, few large pods."""
    draw = random.Random(seed)
    machines = [draw.choices(_MACHINES, weights=[m[0] for m in _MACHINES])[0] for _ in range(nodes)]
    made = tuple(
        Node(f"node-{i:04d}", cpu, ram, gpus, model) for i, (_, cpu, ram, gpus, model) in enumerate(machines)
    )
    cards = CARD * sum(node.gpus for node in made)
    pods: list[Demand] = []
    asked = 0
    while asked < 0.98 * cards:
        pods.append(_draw_pod(draw))
        asked += pods[-1].milli
    return _shuffled("synthetic", made, tuple(pods), seed)


# weight, CPU, memory, cards, model
_MACHINES: Final = (
    (45, 96_000, 393_216, 8, "G2"),
    (33, 104_000, 524_288, 2, "T4"),
    (11, 16_000, 122_880, 2, "P100"),
    (4, 32_000, 131_072, 4, "V100M16"),
    (4, 128_000, 786_432, 8, "G3"),
    (3, 96_000, 786_432, 8, "V100M32"),
)
# weight, cards, thousandths of each, CPU choices
_PODS: Final = (
    (13, 0, 0, (1_000, 2_000, 4_000, 8_000, 16_000)),
    (12, 1, 100, (1_000, 2_000, 4_000)),
    (9, 1, 250, (2_000, 4_000, 8_000)),
    (8, 1, 500, (4_000, 8_000, 12_000)),
    (9, 1, 810, (4_000, 8_000, 12_000)),
    (48, 1, 1000, (4_000, 6_000, 8_000, 12_000, 16_000)),
    (0.2, 2, 1000, (16_000, 32_000)),
    (0.2, 4, 1000, (32_000, 48_000)),
    (0.6, 8, 1000, (64_000, 88_000)),
)


def _draw_pod(draw: random.Random) -> Demand:
    _, gpus, milli, cpus = draw.choices(_PODS, weights=[p[0] for p in _PODS])[0]
    cpu = draw.choice(cpus)
    return _demand(cpu, 4 * 1024 * cpu // 1000 // 2, gpus, milli, "")


def _demand(cpu_milli: int, ram_mib: int, gpus: int, milli: int, spec: str) -> Demand:
    if not gpus:
        return Demand(cpu_milli=cpu_milli, ram_mib=ram_mib)
    models = tuple(normal_model(name) for name in spec.split("|")) if spec else ()
    if milli >= CARD:
        ask = Ask(count=gpus, percent=WHOLE.percent, milli=CARD, exclusive=True, whole=True)
    else:
        ask = Ask(count=gpus, milli=milli)
    return one(ask, cpu_milli, ram_mib, models)


def _shuffled(name: str, nodes: tuple[Node, ...], pods: tuple[Demand, ...], seed: int) -> Trace:
    draw = random.Random(seed)
    arrivals = draw.sample(pods, len(pods))
    target = INFLATION * CARD * sum(node.gpus for node in nodes)
    arrived = sum(pod.milli for pod in arrivals)
    while arrived > target:
        arrived -= arrivals.pop(draw.randrange(len(arrivals))).milli
    while (more := draw.choice(pods)).milli + arrived <= target:
        arrivals.append(more)
        arrived += more.milli
    return Trace(name, tuple(draw.sample(nodes, len(nodes))), tuple(arrivals), pods)


def rows(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a CSV file by its first line; BadTrace if it is none."""
    try:
        with path.open(newline="") as file:
            yield from csv.DictReader(file)
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path} is no CSV: {error}.") from error


def _number(row: Mapping[str, str], column: str, most: int = MOST) -> int:
    """Return a row's whole number from 0 to `most`; ValueError, KeyError or TypeError if there is none."""
    if not 0 <= (value := int(row[column])) <= most:
        raise ValueError(f"{column} is {value}, not from 0 to {most}")
    return value


def _read_nodes(path: Path) -> Iterable[Node]:
    for row in rows(path):
        try:
            cpu, ram, gpus = _number(row, "cpu_milli"), _number(row, "memory_mib"), _number(row, "gpu", MOST_CARDS)
            yield Node(row["sn"], cpu, ram, gpus, row["model"])
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path} has a row that is no node: {error}.") from error


def _read_pods(path: Path) -> Iterable[tuple[str, Demand]]:
    for row in rows(path):
        try:
            yield (
                row["name"],
                _demand(
                    _number(row, "cpu_milli"),
                    _number(row, "memory_mib"),
                    _number(row, "num_gpu", MOST_CARDS),
                    _number(row, "gpu_milli", CARD),
                    row.get("gpu_spec") or "",
                ),
            )
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path} has a row that is no pod: {error}.") from error


def durations(folder: Path, pods: str) -> tuple[float, ...]:
    """Return how long each pod of a folder's list ran, in seconds, in the order of `Trace.history`.

    From being scheduled (of those that never were: created) to being deleted, or to the end of the trace.

    Raises
    ------
    BadTrace
    """
    path = list_of(folder, pods)
    ran: dict[str, float] = {}
    for row in rows(path):
        try:
            seconds = float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"])
            if not 0 <= seconds <= MOST:
                raise ValueError(f"{row['name']} for {seconds:g} seconds")
            ran[row["name"]] = seconds
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path} does not tell how long its pods ran: {error}.") from error
    if not any(ran.values()):
        raise BadTrace(f"{path} has no pod that ran at all.")
    return tuple(ran.values())


def _refuse_order_of_others(order: Path, folder: Path, pods: str) -> None:
    """Raise BadTrace if a file's name says that it orders other pods of the folder, which may share their names."""
    named = re.fullmatch(r"(.+)_\d+\.ord\.gz", order.name)
    if named and named[1] != pods and list_of(folder, named[1]).exists():
        raise BadTrace(f"{order} is an order of the pods {named[1]}, not of {pods}.")


def _read_order(path: Path) -> tuple[list[str], list[str]]:
    lines: dict[str, list[str]] = {"P": [], "N": []}
    try:
        with gzip.open(path, "rt") as file:
            for line in file:
                kind, *names = line.split() or [""]
                if kind in lines:
                    lines[kind] += names
    except (OSError, EOFError, UnicodeDecodeError, zlib.error) as error:
        raise BadTrace(f"{path} cannot be read as an arrival order: {error}.") from error
    if not lines["P"]:
        raise BadTrace(f"{path} has no line of pods (P name name ...).")
    return lines["P"], lines["N"]
