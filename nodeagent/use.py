"""Who uses what of each card: pods within and beyond their grants, and what belongs to nobody we know. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from nodeagent.pods import HeldPod
from nodeagent.processes import NOBODY, Owner
from nodeagent.reader import Card, Reading


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod uses of one card, as measured. None: the driver does not tell."""

    pod: HeldPod
    used_mib: int | None
    utilization: int | None
    granted_mib: int | None  # None: the card was not granted to the pod


@dataclass(frozen=True, slots=True)
class CardUse:
    """Use of one card. `foreign_mib`: by processes of no pod and of pods without a grant, and beyond all grants.

    It is None where the driver does not tell. `pods`: those with a grant or a process on the card.
    """

    foreign_mib: int | None = None
    pods: tuple[PodUse, ...] = field(default=())


def uses(reading: Reading, owners: Mapping[int, Owner], pods: Mapping[str, HeldPod] | None) -> dict[str, CardUse]:
    """Return the use of every card, by UUID.

    Before the pods were listed (None) nobody knows what is granted: only processes of no pod are foreign then.
    """
    return {card.gpu.uuid: _use(card, owners, pods) for card in reading.cards}


def _use(card: Card, owners: Mapping[int, Owner], pods: Mapping[str, HeldPod] | None) -> CardUse:
    uuid, known = card.gpu.uuid, pods or {}
    strangers: list[int | None] = []
    by_pod: dict[str, list[int | None]] = {}
    for process in card.processes or ():
        uid = owners.get(process.pid, NOBODY).pod
        pod = known.get(uid)
        if pod is not None:
            sums = by_pod.setdefault(uid, [None, None])
            sums[0] = _plus(sums[0], process.used_mib)
            sums[1] = _plus(sums[1], process.utilization)
        if uid == "" or (pods is not None and (pod is None or uuid not in pod.granted)):
            strangers.append(process.used_mib)
    idle = None if card.processes is None else 0
    for uid in (uid for uid, pod in known.items() if uuid in pod.granted):
        by_pod.setdefault(uid, [idle, None])
    found = tuple(
        PodUse(known[uid], used, busy, known[uid].granted.get(uuid)) for uid, (used, busy) in sorted(by_pod.items())
    )
    told = [mib for mib in strangers if mib is not None]
    foreign = None if card.processes is None or (strangers and not told) else sum(told)
    if pods is not None and card.gpu.used_mib is not None:
        foreign = max(foreign or 0, card.gpu.used_mib - sum(pod.granted.get(uuid, 0) for pod in pods.values()))
    return CardUse(foreign, found)


def _plus(total: int | None, more: int | None) -> int | None:
    return total if more is None else (total or 0) + more
