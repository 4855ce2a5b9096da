"""The example cluster as the demo needs it: what kube-scheduler knows of its nodes, and what its cards can give."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from contract.inventory import decode
from contract.names import Resources
from extender.cluster.embedded import EmbeddedCluster
from extender.node import Rules, node_facts
from extender.pod import holding_of

FILE: Final = Path(__file__).parents[2] / "deploy" / "examples" / "cluster.yaml"


@dataclass(frozen=True, slots=True)
class Card:
    """A card's capacity, not what is free of it, in MiB and thousandths.

    `memory_mib` is the card's total less what the driver reserves, `milli` 1000 times the node's overcommit
    factor. `foreign_mib` of the memory is used by nobody that Tessera knows, and is not offered; a card that is
    not `healthy` takes no new pod.
    """

    node: str
    index: int
    uuid: str
    model: str
    memory_mib: int
    milli: int
    foreign_mib: int
    healthy: bool

    def as_json(self) -> dict[str, Any]:
        """Return the card as JSON-ready values."""
        return asdict(self)


@dataclass(slots=True)
class Room:
    """What is left of a node's CPU (thousandths) and memory (MiB); kube-scheduler's own accounting."""

    cpu: int
    ram: int


@dataclass(frozen=True, slots=True)
class Example:
    """Nodes by name, and every card."""

    rooms: dict[str, Room]
    cards: tuple[Card, ...]


def read(path: Path = FILE) -> Example:
    """Return the cluster of a file.

    Raises
    ------
    extender.cluster.embedded.BadSnapshot
    """
    # The classes of the API objects belong to the extender: here they are only handed on to it.
    nodes, gpunodes, pods = (_objects(source.list()[0]) for source in EmbeddedCluster.load(path).sources())
    facts = {node.metadata.name: node_facts(node, Rules()) for node in nodes}
    rooms = {name: Room(fact.cpu, fact.ram) for name, fact in facts.items()}
    for pod in pods:
        if (held := holding_of(pod, Resources())) is not None:
            rooms[held.node].cpu -= held.cpu_milli
            rooms[held.node].ram -= held.ram_mib
    cards: list[Card] = []
    for found in gpunodes:
        name = found.metadata.name
        cards += _cards(name, found.status, facts[name].overcommit or Rules().overcommit)
    return Example(rooms, tuple(cards))


def _objects(found: list[Any]) -> list[Any]:
    return found


def _cards(node: str, status: dict[str, Any], milli: int) -> list[Card]:
    return [
        Card(
            node,
            gpu.index,
            gpu.uuid,
            gpu.model,
            max((gpu.memory_mib or 0) - gpu.reserved_mib, 0),
            milli,
            gpu.foreign_mib,
            gpu.healthy and not gpu.mig,
        )
        for gpu in decode(node, status).gpus
    ]
