"""explain: what one pod asks, what it holds or why it waits. Pure.

The pod alone tells what it asks and what it holds; why each node's cards do not take it, the extender tells; what the
other filters of kube-scheduler say stands in the pod's condition. What is missing is said, and the rest is shown.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from contract.names import Resources
from extender.kubectl.table import Column, Report
from extender.pod import FINISHED, holding_of, request_of
from extender.request import BadDemand
from extender.wire import Pod
from extender.words import in_words, mib, percent

COLUMNS: Final = (
    Column("NODES", "nodes", right=True),
    Column("REASON", "reason"),
    Column("FOR EXAMPLE", "examples", ", ".join),
)
NODE_COLUMNS: Final = (Column("NODE", "node"), Column("REASON", "reason"))
_GATES: Final = "It has scheduling gates, and kube-scheduler does not look at it before they are gone: {}."


class Told(msgspec.Struct):
    """What the extender tells of a waiting pod (`extender/explain.py`)."""

    said: list[str] = []
    reasons: list[dict[str, Any]] = []
    why: dict[str, str] = {}


def told_in(answer: bytes | str) -> Told | str:
    """Return what is in the extender's answer; a sentence stays one."""
    if isinstance(answer, str):
        return answer
    try:
        return msgspec.json.decode(answer, type=Told)
    except msgspec.DecodeError as error:
        return f"its answer cannot be read: {error}."


def explained(
    raw: Mapping[str, Any], told: Told | str, events: Iterable[Mapping[str, Any]], resources: Resources, *, wide: bool
) -> Report:
    """Return what is to be said of a pod. `told`: by the extender, or the sentence why it told nothing."""
    pod = msgspec.convert(raw, Pod)
    where = f"{pod.metadata.namespace}/{pod.metadata.name}"
    notes, waits = _own_words(pod, raw, resources)
    rows: list[dict[str, Any]] = []
    columns: tuple[Column, ...] = COLUMNS
    if waits:
        notes += _conditions(raw)
        if isinstance(told, str):
            notes += [f"The extender tells nothing more: {told}", *_events(events)]
        else:
            notes += told.said
            rows = told.reasons
            if wide:
                columns, rows = NODE_COLUMNS, [{"node": n, "reason": r} for n, r in sorted(told.why.items())]
    return Report(columns, rows, [f"Pod {where}", *notes], "", extra={"pod": where})


def asks_the_extender(raw: Mapping[str, Any], resources: Resources) -> bool:
    """Say whether the extender may know more about a pod: it waits, and what it asks can be read."""
    pod = msgspec.convert(raw, Pod)
    try:
        return not pod.spec.node_name and request_of(pod, resources) is not None
    except BadDemand:
        return False


def _own_words(pod: Pod, raw: Mapping[str, Any], resources: Resources) -> tuple[list[str], bool]:
    """Return what a pod tells by itself, and whether it waits for cards."""
    try:
        request = request_of(pod, resources)
    except BadDemand as error:
        return [f"What it asks cannot be read, so no node takes it: {error}"], False
    if request is None:
        return ["It asks no GPU of Tessera."], False
    said = [f"It asks for {'; '.join(in_words(request))}."]
    if pod.status.phase in FINISHED:
        return [*said, f"It has ended ({pod.status.phase}) and holds nothing."], False
    held = holding_of(pod, resources)
    if held is None:
        gates = [str(gate.get("name")) for gate in (raw.get("spec") or {}).get("schedulingGates") or []]
        return said + [_GATES.format(", ".join(gates))] * bool(gates), True
    if held.problem:
        return [*said, f"It is on {held.node}, and its record cannot be read: {held.problem}"], False
    if held.unaccounted:
        return [*said, f"It is on {held.node} without a record: something else than Tessera bound it."], False
    shares = [
        f"  {uuid}: {mib(share.mib)} and {percent(share.milli)}{', alone' if share.exclusive else ''}"
        for uuid, share in sorted(held.cards.items())
    ]
    return [*said, f"It is on {held.node} and holds:", *shares], False


def _conditions(raw: Mapping[str, Any]) -> list[str]:
    """Return what kube-scheduler wrote on the pod."""
    conditions = (raw.get("status") or {}).get("conditions") or []
    said = [c.get("message") for c in conditions if c.get("type") == "PodScheduled" and c.get("status") != "True"]
    found = [f"kube-scheduler says: {message}" for message in said if message]
    if not conditions:
        found = [f"No scheduler has looked at it yet; it names {_scheduler(raw)}."]
    return found


def _scheduler(raw: Mapping[str, Any]) -> str:
    return str((raw.get("spec") or {}).get("schedulerName") or "default-scheduler")


def _events(events: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the last event of each reason, which may be all that is left of why a pod waits."""
    last: dict[str, str] = {}
    for event in sorted(events, key=_time):
        last[str(event.get("reason"))] = str(event.get("message") or event.get("note") or "")
    return [f"Event {reason}: {message}" for reason, message in last.items() if message]


def _time(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or "")
