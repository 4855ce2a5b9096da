"""One node: what its Node says, what its cards can give, and what is left beside what is held there. Pure."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from contract.assignment import Assignment, Grant
from contract.inventory import Gpu, Inventory
from contract.names import OVERCOMMIT, WHOLE_GPUS, Resources
from extender.pod import Holding, Request, Share
from extender.quantity import BadQuantity, quantity, to_count, to_mib, to_milli
from extender.wire import Node
from scoring.model import ABSENT, CARD, KINDS, Card, Fleet, Placement, Row, kind_of

BAD_OVERCOMMIT: Final = "the node's annotation tessera.gpu/overcommit is not a factor from 1 to 10"
BAD_RECORD: Final = "the assignment of a pod on the node cannot be read"
LOST_CARD: Final = "a pod on the node holds a card that the node does not report"
SILENT: Final = "the node's agent is silent"
OVERPROMISED: Final = "its pods hold more of it than it can give"
OTHER_PLUGIN: Final = "the node also advertises nvidia.com/gpu, whose plugin hands out the same cards"


@dataclass(frozen=True, slots=True)
class Rules:
    """What a card can give. `overcommit` is a factor in thousandths, `headroom_mib` is kept free on every card."""

    overcommit: int = 1000
    sharers: int = 48
    headroom_mib: int = 0
    boundary: bool = False  # every pod shares cards with pods of its own namespace alone
    allow_whole_gpus: bool = False
    policy: str = "binpack"
    seed: int = 0
    resources: Resources = field(default_factory=Resources)


Amounts = tuple[int | None, ...]  # of memory in bytes, utilization in percent, places; None: not there
NOTHING: Final[Amounts] = (None, None, None)


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """One Node: CPU in thousandths, memory in MiB, its own overcommit factor, and why it is closed if it is."""

    cpu: int = 0
    ram: int = 0
    overcommit: int | None = None
    closed: str = ""
    advertised: tuple[Amounts, Amounts] = (NOTHING, NOTHING)  # capacity and allocatable of our resources


def node_facts(node: Node, rules: Rules) -> NodeFacts:
    """Return what a Node says that matters to us."""
    allocatable = node.status.allocatable or {}
    said = (node.metadata.annotations or {}).get(OVERCOMMIT)
    factor, closed = None, ""
    if said is not None:
        factor = _factor(said)
        closed = BAD_OVERCOMMIT if factor is None else ""
    cpu, ram = _amount(to_milli, allocatable.get("cpu")), _amount(to_mib, allocatable.get("memory"))
    if _amount(to_milli, allocatable.get(WHOLE_GPUS)) and not rules.allow_whole_gpus:
        closed = OTHER_PLUGIN
    advertised = (_amounts(node.status.capacity or {}, rules), _amounts(allocatable, rules))
    return NodeFacts(cpu, ram, factor, closed, advertised)


def _amounts(said: dict[str, Any], rules: Rules) -> Amounts:
    names = (rules.resources.memory, rules.resources.utilization, rules.resources.share)
    return tuple(_amount(to_count, said[name]) if name in said else None for name in names)


def _amount(parse: Callable[[Any], int], value: Any) -> int:
    """Return what a node says it has of something; what cannot be read is none."""
    try:
        return 0 if value is None else parse(value)
    except BadQuantity:
        return 0


def _factor(said: str) -> int | None:
    try:
        factor = quantity(said)
    except BadQuantity:
        return None
    return to_milli(said) if 1 <= factor <= 10 else None


def node_row(
    facts: NodeFacts, inventory: Inventory, held: list[Holding], rules: Rules, *, silent: bool
) -> tuple[Row, str]:
    """Return a node as the Fleet has it with what is held there, and why it takes no GPU pod ("" if it does)."""
    closed = facts.closed or (SILENT if silent else "") or _closed_by_records(inventory, held)
    factor = _overcommit(facts, rules)
    cards = tuple(
        _card(gpu, [h for h in held if gpu.uuid in h.cards], factor, rules, offered=not closed)
        for gpu in inventory.gpus
    )
    hosted = Counter(_kind(holding) for holding in held if holding.cards)
    cpu_left, ram_left = facts.cpu - sum(h.cpu_milli for h in held), facts.ram - sum(h.ram_mib for h in held)
    return Row(cards, facts.cpu, facts.ram, cpu_left, ram_left, tuple(hosted[kind] for kind in range(KINDS))), closed


def _overcommit(facts: NodeFacts, rules: Rules) -> int:
    return rules.overcommit if facts.overcommit is None else facts.overcommit


def _kind(holding: Holding) -> int:
    return kind_of(len(holding.cards), whole=all(share.exclusive for share in holding.cards.values()))


def _closed_by_records(inventory: Inventory, held: list[Holding]) -> str:
    if any(holding.problem for holding in held):
        return BAD_RECORD
    known = {gpu.uuid for gpu in inventory.gpus}
    return LOST_CARD if any(uuid not in known for h in held for uuid in h.cards) else ""


def _card(gpu: Gpu, held: list[Holding], factor: int, rules: Rules, *, offered: bool) -> Card:
    """Return a card's capacity, what is free of it, and who is on it.

    Memory that a process of nobody we know uses is not offered. A card that is unhealthy, in MIG mode, or
    promised beyond its capacity takes nothing more.
    """
    holders = tuple(sorted((h.namespace, h.private or rules.boundary) for h in held))
    mib, milli, slots = gives = _gives(gpu, factor, rules)
    mib_left, milli_left, slots_left = _left(gives, [h.cards[gpu.uuid] for h in held])
    beyond = min(mib_left, milli_left, slots_left) < 0
    if not offered or not gpu.healthy or gpu.mig or beyond:
        return Card(gpu.uuid, gpu.model, mib, milli, slots, ABSENT, ABSENT, ABSENT, holders)
    free = max(mib_left - gpu.foreign_mib, 0)
    return Card(gpu.uuid, gpu.model, mib, milli, slots, free, milli_left, slots_left, holders)


def _gives(gpu: Gpu, factor: int, rules: Rules) -> tuple[int, int, int]:
    """Return what a card can give: MiB, thousandths, places."""
    mib = max((gpu.memory_mib or 0) - gpu.reserved_mib - rules.headroom_mib, 0)
    return mib, CARD * factor // 1000, rules.sharers


def _left(gives: tuple[int, int, int], shares: list[Share]) -> tuple[int, int, int]:
    """Return what shares leave of that; below 0 where together they exceed it."""
    mib, milli, slots = gives
    taken = sum(max(slots, s.slots) if s.exclusive else s.slots for s in shares)
    return mib - sum(s.mib for s in shares), milli - sum(s.milli for s in shares), slots - taken


def overpromised(facts: NodeFacts, inventory: Inventory, held: list[Holding], rules: Rules) -> tuple[str, ...]:
    """Return the UUIDs of a node's cards that cannot give what is held of them."""
    factor = _overcommit(facts, rules)
    return tuple(
        gpu.uuid
        for gpu in inventory.gpus
        if min(_left(_gives(gpu, factor, rules), [h.cards[gpu.uuid] for h in held if gpu.uuid in h.cards])) < 0
    )


def offers_more(row: Row, than: Row) -> bool:
    """Say whether a row has a card with more of anything free, or for others, than it had before."""
    if [card.uuid for card in row.cards] != [card.uuid for card in than.cards]:
        return True
    return any(
        now.mib_free > was.mib_free
        or now.milli_free > was.milli_free
        or now.slots_free > was.slots_free
        or (now.holders != was.holders and len(now.holders) <= len(was.holders))
        for now, was in zip(row.cards, than.cards, strict=True)
    )


def record_of(fleet: Fleet, uid: str, request: Request, placement: Placement) -> Assignment:
    """Return what the Binding of a pod says of the cards chosen for it."""
    row, containers = placement.row, {}
    for name, ask, cards in zip(request.containers, request.demand.asks, placement.cards, strict=True):
        memory = [int(fleet.capacity.mib[row, c]) for c in cards]
        containers[name] = tuple(
            Grant(fleet.uuids[row][c], max(ask.mib, -(-mib * ask.percent // 100)), ask.milli, ask.exclusive)
            for c, mib in zip(cards, memory, strict=True)
        )
    return Assignment(fleet.names[row], uid, containers, request.demand.private)
