"""Which cards are fit for work. Pure, but for a queue that the thread of events fills.

    healthy --trouble--> bad --trouble gone, enough good readings--> healthy

Trouble that a reading shows (lost, silent, needs a reset) ends when readings no longer show it. Trouble that an event
told (a fatal XID) is in no reading, so it ends only by the driver's own verdict that nothing is needed, or, where the
driver gives none, when the card was lost and came back.
"""

import math
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass, replace
from typing import Final

from contract.inventory import Gpu
from nodeagent.reader import Card, Event, EventKind, Reading, Recovery

APPLICATION_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})  # the vendor's device plugin ignores the same six

_XIDS: Final = {
    48: "double-bit ECC error",
    62: "internal micro-controller halt",
    63: "row remapping event",
    64: "row remapping failure",
    74: "NVLink error",
    79: "the card has fallen off the bus",
    94: "contained memory error",
    95: "uncontained memory error",
    119: "GSP timeout",
    120: "GSP error",
    140: "unrecovered ECC error",
}
_XID: Final = re.compile(r"XID (\d+)")
_DOUBLE_BIT: Final = "Double-bit ECC error"
_UNAVAILABLE: Final = "The driver says that the card is unavailable."
_NEEDS: Final = {
    Recovery.RESET: "a reset",
    Recovery.REBOOT: "a reboot of the node",
    Recovery.DRAIN_P2P: "peer-to-peer traffic to be drained",
    Recovery.DRAIN_AND_RESET: "to be drained and reset",
    Recovery.IMEX: "the IMEX domain to be recovered",
    Recovery.BUS_RESET: "a reset of its bus",
    Recovery.SYSTEM_REBOOT: "a reboot of the whole system",
}


@dataclass(frozen=True, slots=True)
class _Bad:
    """A card, or an instance of one, that is out of service."""

    reason: str
    since: float  # of the last trouble
    told: bool  # by an event: readings cannot show that it is over
    back: bool = False  # it was lost since
    good: int = 0  # readings without trouble, one after the other


class Health:
    """What is wrong with the cards of a node. `heard` may be called from another thread than `judge`."""

    def __init__(
        self,
        benign: Set[int] = APPLICATION_XIDS,
        *,
        probes: int = 3,
        settle_s: float = 10.0,
        silent_s: float = 10.0,
    ) -> None:
        """Make it.

        Parameters
        ----------
        benign
            XIDs that are the application's fault: they are counted, and the card stays in service.
        probes, settle_s
            A card is back after so many good readings, and so many seconds after its last trouble.
        silent_s
            A card that does not answer for longer is out of service.
        """
        self.xids: Counter[tuple[str, int]] = Counter()  # by card and number, benign ones too
        self._benign, self._probes, self._settle_s, self._silent_s = benign, probes, settle_s, silent_s
        self._heard: deque[Event] = deque()
        self._bad: dict[tuple[str, int | None], _Bad] = {}  # by card and GPU instance; None: the whole card
        self._errors: dict[str, int] = {}  # uncorrectable ones, as last read

    def recall(self, known: Iterable[Gpu]) -> None:
        """Take cards as an earlier process last told them: what an event took out of service stays out."""
        for where, reason in _told(known):
            xid = _XID.match(reason)
            if int(xid[1]) not in self._benign if xid else reason in (_DOUBLE_BIT, _UNAVAILABLE):
                self._bad[where] = _Bad(reason, -math.inf, told=True)

    def heard(self, event: Event) -> bool:
        """Take an event, which counts at the next judgement; say whether that should be at once."""
        self._heard.append(event)
        return not self._application(event)

    def judge(self, reading: Reading, now: float) -> Reading:
        """Return the reading with the health of every card, and of every MIG instance, filled in."""
        told: dict[tuple[str, int | None], str] = {}
        instances = {(card.gpu.uuid, mig.gpu_instance) for card in reading.cards for mig in card.gpu.mig_instances}
        while self._heard:
            event = self._heard.popleft()
            if event.kind is EventKind.XID:
                self.xids[event.uuid, event.code] += 1
            where = event.uuid, event.instance
            if reason := self._fatal(event):
                told[where if where in instances else (event.uuid, None)] = reason
        return replace(reading, cards=tuple(self._judged(card, told, now) for card in reading.cards))

    def _application(self, event: Event) -> bool:
        return event.kind is EventKind.XID and event.code in self._benign

    def _fatal(self, event: Event) -> str:
        if self._application(event):
            return ""
        if event.kind is EventKind.XID:
            return f"XID {event.code}" + (f" ({_XIDS[event.code]})" if event.code in _XIDS else "")
        if event.kind is EventKind.DOUBLE_BIT_ECC:
            return _DOUBLE_BIT
        return _UNAVAILABLE if event.kind is EventKind.UNAVAILABLE else ""

    def _judged(self, card: Card, told: dict[tuple[str, int | None], str], now: float) -> Card:
        uuid = card.gpu.uuid
        risen = self._risen(card)
        reason = self._step(card, None, told.get((uuid, None), risen), self._shown(card), now)
        instances = []
        for instance in card.gpu.mig_instances:
            where = instance.gpu_instance
            why = self._step(card, where, told.get((uuid, where), ""), "", now) if where is not None else ""
            instances.append(replace(instance, healthy=not why, reason=why))
        gpu: Gpu = replace(card.gpu, healthy=not reason, reason=reason, mig_instances=tuple(instances))
        return replace(card, gpu=gpu)

    def _step(self, card: Card, instance: int | None, told: str, shown: str, now: float) -> str:
        """Follow one card or instance by one reading; return why it is out of service."""
        key = card.gpu.uuid, instance
        bad = self._bad.get(key)
        if told or shown:
            kept = bad.reason if bad else ""  # the first one: what a dying card shows may change every second
            back = bool(bad and bad.back and not told) or card.lost
            bad = _Bad(told or kept or shown, now, told=bool(told or (bad and bad.told)), back=back)
        elif bad:
            over = not bad.told or card.recovery is Recovery.NONE or (card.recovery is None and bad.back)
            well = over and not card.failed and card.age_s == 0
            bad = replace(bad, good=bad.good + 1 if well else 0)
        if bad is None or (bad.good >= self._probes and now - bad.since >= self._settle_s):
            self._bad.pop(key, None)
            return ""
        self._bad[key] = bad
        return bad.reason

    def _shown(self, card: Card) -> str:
        """Return what this reading shows to be wrong."""
        if not card.gpu.healthy:
            return card.gpu.reason or "The card cannot be read."
        if card.age_s > self._silent_s:
            return f"The card has not answered for more than {self._silent_s:g} s."
        if card.recovery:
            return f"The driver says that the card needs {_NEEDS[card.recovery]}."
        if card.gpu.used_mib is None and any(call.startswith("nvmlDeviceGetMemoryInfo") for call in card.failed):
            return "The driver does not answer for the card's memory."
        if card.recovery is None and card.ecc_uncorrected:
            return "There were uncorrectable memory errors since the driver was loaded."
        if card.recovery is None and card.repair_pending:
            return "Bad memory waits for a reset to be replaced, or could not be."
        return ""

    def _risen(self, card: Card) -> str:
        """Return what to say when a driver that gives verdicts has counted further uncorrectable errors."""
        now, last = card.ecc_uncorrected, self._errors.get(card.gpu.uuid)
        if now is None:
            return ""
        self._errors[card.gpu.uuid] = now
        return "Uncorrectable memory errors" if last is not None and now > last and card.recovery is not None else ""


def _told(cards: Iterable[Gpu]) -> Iterator[tuple[tuple[str, int | None], str]]:
    """Yield why each card, and each instance, was said to be out of service."""
    for gpu in cards:
        yield (gpu.uuid, None), gpu.reason
        yield from (((gpu.uuid, mig.gpu_instance), mig.reason) for mig in gpu.mig_instances)
