"""Traces: nodes, pods and arrival orders, read from files or made up. The only reader of traces.

A folder is laid out as the openb benchmark of FGD (USENIX ATC'23): `nodes/openb_node_list_gpu_node.csv`,
`pods/openb_pod_list_<name>.csv`, `orders/<name>_<seed>.ord.gz`. The files are not ours to ship; without them
`synthetic` makes a trace with the same shape of demand.
"""

import csv
import gzip
import random
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from scoring.model import CARD, WHOLE, Ask, Card, Demand, Fleet, Row, normal_model, one

NODES: Final = Path("nodes/openb_node_list_gpu_node.csv")
SLOTS: Final = 1000  # a trace bounds no sharers, and no share is below a thousandth
INFLATION: Final = 1.3  # arrivals in cards, as a multiple of the cards there are


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
    listed = folder / "pods" / f"openb_pod_list_{pods}.csv"
    nodes = {node.name: node for node in _read_nodes(folder / NODES)}
    demands = dict(_read_pods(listed))
    if not any(node.gpus for node in nodes.values()):
        raise BadTrace(f"{folder / NODES} has no node with a card.")
    if not any(demand.milli for demand in demands.values()):
        raise BadTrace(f"{listed} has no pod that asks for a card.")
    if order is None and seed is not None and (given := folder / "orders" / f"{pods}_{seed}.ord.gz").exists():
        order = given
    if order is None:
        return _shuffled(pods, tuple(nodes.values()), tuple(demands.values()), seed or 0)
    pod_names, node_names = _read_order(order)
    try:
        arrivals = tuple(demands[name.split("-tuned-")[0]] for name in pod_names)
        ordered = tuple(nodes[name] for name in node_names) or tuple(nodes.values())
    except KeyError as error:
        raise BadTrace(f"{order} names {error.args[0]}, which is in neither {pods} nor the nodes.") from error
    return Trace(pods, ordered, arrivals, tuple(demands.values()))


def synthetic(seed: int, nodes: int = 200) -> Trace:
    """Return a made-up trace with the shape of openb's default demand: shares, single cards, few large pods."""
    draw = random.Random(seed)
    machines = [draw.choices(_MACHINES, weights=[m[0] for m in _MACHINES])[0] for _ in range(nodes)]
    made = tuple(
        Node(f"node-{i:04d}", cpu, ram, gpus, model) for i, (_, cpu, ram, gpus, model) in enumerate(machines)
    )
    cards = CARD * sum(node.gpus for node in made)
    pods: list[Demand] = []
    while sum(d.milli for d in pods) < 0.98 * cards:
        pods.append(_draw_pod(draw))
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


def _rows(path: Path) -> Iterator[dict[str, str]]:
    try:
        with path.open(newline="") as file:
            yield from csv.DictReader(file)
    except OSError as error:
        raise BadTrace(f"{path} cannot be read: {error.strerror}.") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise BadTrace(f"{path} is no CSV: {error}.") from error


def _read_nodes(path: Path) -> Iterable[Node]:
    for row in _rows(path):
        try:
            yield Node(row["sn"], int(row["cpu_milli"]), int(row["memory_mib"]), int(row["gpu"]), row["model"])
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path} has a row that is no node: {error}.") from error


def _read_pods(path: Path) -> Iterable[tuple[str, Demand]]:
    for row in _rows(path):
        try:
            yield (
                row["name"],
                _demand(
                    int(row["cpu_milli"]),
                    int(row["memory_mib"]),
                    int(row["num_gpu"]),
                    int(row["gpu_milli"]),
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
    path = folder / "pods" / f"openb_pod_list_{pods}.csv"
    ran: dict[str, float] = {}
    for row in _rows(path):
        try:
            ran[row["name"]] = float(row["deletion_time"]) - float(row["scheduled_time"] or row["creation_time"])
        except (KeyError, ValueError, TypeError) as error:
            raise BadTrace(f"{path} does not tell how long its pods ran: {error}.") from error
    return tuple(ran.values())


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
