"""pods, and top of pods and namespaces: what the records on pods say that they hold. Pure.

Nobody tells the API server what a pod by itself uses, so beside a pod stands what its cards do.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final

from contract.inventory import Gpu
from contract.names import Resources
from extender.kubectl.table import Column, Report
from extender.kubectl.top import inventories, mean, percent_of, total
from extender.pod import Holding, holding_of
from extender.wire import GpuNode, Pod
from extender.words import mib, percent

Cards = dict[str, Gpu]

_HELD: Final = (
    Column("GPU-MEMORY", "promisedMiB", mib, right=True),
    Column("GPU-UTIL", "promisedMilli", percent, right=True),
)
POD_COLUMNS: Final = (
    Column("NAMESPACE", "namespace"),
    Column("POD", "pod"),
    Column("NODE", "node"),
    Column("CARDS", "cards", right=True),
    *_HELD,
    Column("CARD-USED", "usedMiB", mib, right=True),
    Column("CARD-BUSY", "busyPercent", percent_of, right=True),
    Column("UUIDS", "uuids", ",".join, wide=True),
    Column("NOTE", "note"),
)
NAMESPACE_COLUMNS: Final = (
    Column("NAMESPACE", "namespace"),
    Column("PODS", "pods", right=True),
    Column("CARDS", "cards", right=True),
    *_HELD,
)


def top_pods(pods: Iterable[Pod], nodes: Iterable[GpuNode], resources: Resources) -> Report:
    """Return one row a pod that holds a share of a card, or should."""
    cards = {gpu.uuid: gpu for inventory, _ in inventories(nodes) for gpu in inventory.gpus}
    rows = [_pod(held, cards) for held in _holdings(pods, resources)]
    return Report(POD_COLUMNS, rows, (), "No pod holds a share of a card.")


def top_namespaces(pods: Iterable[Pod], resources: Resources) -> Report:
    """Return one row a namespace; a card that two of its pods share counts once."""
    by_name: dict[str, list[Holding]] = {}
    for held in _holdings(pods, resources):
        by_name.setdefault(held.namespace, []).append(held)
    rows = [
        {
            "namespace": name,
            "pods": len(held),
            "cards": len({uuid for h in held for uuid in h.cards}),
            **_promised(held),
        }
        for name, held in sorted(by_name.items())
    ]
    return Report(NAMESPACE_COLUMNS, rows, (), "No pod holds a share of a card.")


def _holdings(pods: Iterable[Pod], resources: Resources) -> list[Holding]:
    found = (holding_of(pod, resources) for pod in pods)
    held = [h for h in found if h is not None and (h.cards or h.unaccounted or h.problem)]
    return sorted(held, key=lambda h: (h.namespace, h.name))


def _promised(held: Sequence[Holding]) -> dict[str, int]:
    shares = [share for h in held for share in h.cards.values()]
    return {"promisedMiB": sum(s.mib for s in shares), "promisedMilli": sum(s.milli for s in shares)}


def _pod(held: Holding, cards: Cards) -> dict[str, Any]:
    mine = [cards[uuid] for uuid in held.cards if uuid in cards]
    lost = len(held.cards) - len(mine)
    note = held.problem or ("no record: it was not bound by Tessera" if held.unaccounted else "")
    return {
        "namespace": held.namespace,
        "pod": held.name,
        "node": held.node,
        "cards": len(held.cards),
        **_promised([held]),
        "usedMiB": total(gpu.used_mib for gpu in mine),
        "busyPercent": mean(gpu.utilization for gpu in mine),
        "uuids": sorted(held.cards),
        "note": note or (f"{lost} of its cards are not reported" if lost else ""),
    }
