"""top, of nodes and cards: what is promised of them beside what is measured. Pure.

Both stand in the GPUNode objects: the agent writes what it measures, the extender what it promised.
"""

from collections.abc import Iterable
from typing import Any, Final

from contract.inventory import BadInventory, Gpu, Inventory, decode
from extender.kubectl.table import Column, Report
from extender.wire import GpuNode
from extender.words import mib

OVER: Final = "over"  # more is used than was promised


def percent_of(value: float) -> str:
    """Return a percentage in words."""
    return f"{value:.0f}%"


_PROMISED: Final = (
    Column("PROMISED", "promisedMiB", mib, right=True),
    Column("USED", "usedMiB", mib, right=True),
    Column("COMPUTE", "promisedPercent", percent_of, right=True),
    Column("BUSY", "busyPercent", percent_of, right=True),
)
NODE_COLUMNS: Final = (
    Column("NODE", "node"),
    Column("CARDS", "cards", right=True),
    Column("MODEL", "model"),
    Column("MEMORY", "memoryMiB", mib, right=True),
    *_PROMISED,
    Column("PODS", "sharers", right=True, wide=True),
    Column("FOREIGN", "foreignMiB", mib, right=True, wide=True),
    Column("DRIVER", "driver", wide=True),
    Column("NOTE", "note"),
)
CARD_COLUMNS: Final = (
    Column("NODE", "node"),
    Column("CARD", "index", right=True),
    Column("MODEL", "model"),
    Column("MEMORY", "memoryMiB", mib, right=True),
    *_PROMISED,
    Column("PODS", "sharers", right=True),
    Column("UUID", "uuid", wide=True),
    Column("FOREIGN", "foreignMiB", mib, right=True, wide=True),
    Column("NOTE", "note"),
)


def top_nodes(nodes: Iterable[GpuNode]) -> Report:
    """Return one row a node."""
    rows = [_node(inventory, why) for inventory, why in inventories(nodes)]
    sums = {key: sum(row[key] or 0 for row in rows) for key in ("cards", "memoryMiB", "promisedMiB", "usedMiB")}
    said = f"{len(rows)} nodes, {sums['cards']} cards: {mib(sums['promisedMiB'])} of {mib(sums['memoryMiB'])}"
    notes = [f"{said} promised, {mib(sums['usedMiB'])} in use."] if len(rows) > 1 else []
    return Report(NODE_COLUMNS, rows, notes, "No node has reported cards.")


def top_cards(nodes: Iterable[GpuNode]) -> Report:
    """Return one row a card."""
    rows = [_card(inventory.node, gpu) for inventory, _ in inventories(nodes) for gpu in inventory.gpus]
    return Report(CARD_COLUMNS, rows, (), "No node has reported cards.")


def inventories(nodes: Iterable[GpuNode]) -> list[tuple[Inventory, str]]:
    """Return each node's inventory, and a sentence if it cannot be read."""
    found = []
    for node in sorted(nodes, key=lambda node: node.metadata.name):
        try:
            found.append((decode(node.metadata.name, node.status, node.api_version), _trouble(node)))
        except BadInventory as error:
            found.append((Inventory(node.metadata.name), str(error)))
    return found


def _trouble(node: GpuNode) -> str:
    """Return why a node's agent says that the node is not ready, "" if it is."""
    conditions: list[dict[str, Any]] = (node.status or {}).get("conditions") or []
    ready = next((c for c in conditions if c.get("type") == "Ready" and c.get("status") == "False"), {})
    return str(ready.get("message") or ready.get("reason") or "")


def _offered(gpu: Gpu) -> int | None:
    return None if gpu.memory_mib is None else gpu.memory_mib - gpu.reserved_mib


def total(of: Iterable[int | None]) -> int | None:
    """Return the sum of what is known, None if nothing is."""
    known = [value for value in of if value is not None]
    return sum(known) if known else None


def mean(of: Iterable[int | None]) -> int | None:
    """Return the mean of what is known, None if nothing is."""
    known = [value for value in of if value is not None]
    return round(sum(known) / len(known)) if known else None


def _card(node: str, gpu: Gpu) -> dict[str, Any]:
    used = gpu.promised_mib is not None and gpu.used_mib is not None and gpu.used_mib > gpu.promised_mib
    note = (gpu.reason or "unhealthy") if not gpu.healthy else "in MIG mode" if gpu.mig else OVER if used else ""
    return {
        "node": node,
        "index": gpu.index,
        "uuid": gpu.uuid,
        "model": gpu.model,
        "memoryMiB": _offered(gpu),
        "promisedMiB": gpu.promised_mib,
        "usedMiB": gpu.used_mib,
        "promisedPercent": None if gpu.promised_milli is None else gpu.promised_milli // 10,
        "busyPercent": gpu.utilization,
        "sharers": gpu.sharers,
        "foreignMiB": gpu.foreign_mib,
        "note": note,
    }


def _node(inventory: Inventory, trouble: str) -> dict[str, Any]:
    gpus = inventory.gpus
    cards = [_card(inventory.node, gpu) for gpu in gpus]
    bad = sum(not gpu.healthy for gpu in gpus)
    over = sum(card["note"] == OVER for card in cards)
    notes = [f"{bad} unhealthy"] * bool(bad) + [f"{over} over"] * bool(over)
    return {
        "node": inventory.node,
        "cards": len(gpus),
        "model": ", ".join(dict.fromkeys(gpu.model for gpu in gpus)),
        **{key: total(card[key] for card in cards) for key in ("memoryMiB", "promisedMiB", "usedMiB")},
        "promisedPercent": mean(card["promisedPercent"] for card in cards),
        "busyPercent": mean(card["busyPercent"] for card in cards),
        "sharers": total(card["sharers"] for card in cards),
        "foreignMiB": total(card["foreignMiB"] for card in cards),
        "driver": inventory.driver_version,
        "note": trouble or ", ".join(notes),
    }
