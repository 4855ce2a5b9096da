"""quota: what namespaces may take of GPUs and what they have taken, by Kubernetes' own ResourceQuota. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from contract.names import WHOLE_GPUS, Resources
from extender.kubectl.table import Column, Report
from extender.kubectl.top import percent_of
from extender.quantity import BadQuantity, to_count, to_mib
from extender.words import mib

REQUESTS: Final = "requests."


def _memory(mebibytes: int) -> str:
    return f"-{mib(-mebibytes)}" if mebibytes < 0 else mib(mebibytes)


_UNITS: Final = {"MiB": _memory, "Percent": percent_of}
COLUMNS: Final = (
    Column("NAMESPACE", "namespace"),
    Column("QUOTA", "quota"),
    Column("RESOURCE", "resource"),
    Column("USED", "used", right=True, units=_UNITS),
    Column("HARD", "hard", right=True, units=_UNITS),
    Column("LEFT", "left", right=True, units=_UNITS),
    Column("NOTE", "note"),
)


def quotas(found: Iterable[Mapping[str, Any]], resources: Resources) -> Report:
    """Return one row for each quota and each resource of ours that it bounds, or seems meant to bound."""
    ours = (resources.memory, resources.utilization, resources.share)
    rows = []
    for item in sorted(found, key=lambda item: (item["metadata"]["namespace"], item["metadata"]["name"])):
        hard = (item.get("spec") or {}).get("hard") or {}
        used = (item.get("status") or {}).get("used") or {}
        for key in sorted(hard):
            note = _note(key, ours)
            if note is not None:
                rows.append(_row(item["metadata"], key, used.get(key, "0"), hard[key], note, resources))
    return Report(COLUMNS, rows, (), "No ResourceQuota bounds GPUs.")


def _note(key: str, ours: tuple[str, ...]) -> str | None:
    """Return what is to be said of a key, "" if it is right, None if it is not about GPUs."""
    if key.removeprefix(REQUESTS) in ours and key.startswith(REQUESTS):
        return ""
    bare = key.removeprefix(REQUESTS).removeprefix("limits.")
    if bare in ours:
        return f"counts nothing: write {REQUESTS}{bare}"
    if bare == WHOLE_GPUS or "gpu" not in bare:
        return None
    return f"not a resource of Tessera's, which are {', '.join(ours)}"


def _row(meta: Mapping[str, Any], key: str, used: Any, hard: Any, note: str, resources: Resources) -> dict[str, Any]:
    bare = key.removeprefix(REQUESTS).removeprefix("limits.")
    unit = {resources.memory: "MiB", resources.utilization: "Percent"}.get(bare, "")
    taken, most = _whole(used, unit), _whole(hard, unit)
    return {
        "namespace": meta["namespace"],
        "quota": meta["name"],
        "resource": key,
        f"used{unit}": taken,
        f"hard{unit}": most,
        f"left{unit}": None if note or taken is None or most is None else most - taken,
        "note": note,
    }


def _whole(value: Any, unit: str) -> int | None:
    """Return a quantity in a unit, None if it is none."""
    try:
        return to_mib(value) if unit == "MiB" else to_count(value)
    except BadQuantity:
        return None
