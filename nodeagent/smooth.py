"""Steadier samples, and whether a change is worth telling. Pure: seconds are arguments.

What 5,000 agents write lands in one etcd, so each tells what others act on at once, and the rest seldom.
"""

from collections import deque
from dataclasses import dataclass, fields, replace
from math import exp, inf
from operator import attrgetter
from typing import Final, TypeVar

from contract.inventory import Gpu, Inventory, MigInstance

FOREIGN_MIB: Final = 512
FOREIGN_PERCENT: Final = 2
USED_PERCENT: Final = 5
UTILIZATION_POINTS: Final = 10
MEASURED_SECONDS: Final = 60.0  # between two reports for no other reason than measured use
SMOOTH_SECONDS: Final = 10.0
FALL_SECONDS: Final = 10.0
ABSENT_SECONDS: Final = 30.0  # without a figure, before that is a fact

_Part = TypeVar("_Part", Gpu, MigInstance)


class Steady:
    """The samples of one card, made steadier.

    Utilization is averaged, the last ten seconds weighing most. Foreign memory rises at once and falls only when it
    has stayed low for ten seconds: what comes and goes is not offered in between, and is not told each time. A figure
    that the driver does not tell is absent after half a minute; until then the last one stands in for it.
    """

    def __init__(self) -> None:
        self._busy: float | None = None
        self._at = -inf  # when it was measured
        self._used: dict[str, tuple[float, int | None]] = {}  # by card or instance, with when it was measured
        self._peaks: deque[tuple[float, int]] = deque()  # falling amounts, each with when it was last seen

    def card(self, gpu: Gpu, foreign_mib: int, now: float) -> Gpu:
        """Return a sample of the card made steadier."""
        before, self._used = self._used, {}
        return replace(
            self._with_used(gpu, before, now),
            mig_instances=tuple(self._with_used(each, before, now) for each in gpu.mig_instances),
            utilization=self.utilization(gpu.utilization, now),
            foreign_mib=self.foreign(foreign_mib, now),
        )

    def _with_used(self, part: _Part, before: dict[str, tuple[float, int | None]], now: float) -> _Part:
        told = part.used_mib is not None
        at, mib = (now, part.used_mib) if told else before.get(part.uuid, (-inf, None))
        if now - at > ABSENT_SECONDS:
            return part
        self._used[part.uuid] = at, mib
        return part if told else replace(part, used_mib=mib)

    def utilization(self, percent: int | None, now: float) -> int | None:
        """Return the average with one more sample; a card that does not tell for long has none."""
        if percent is None:
            self._busy = None if now - self._at > ABSENT_SECONDS else self._busy
        else:
            last = percent if self._busy is None else self._busy
            self._busy = last + (percent - last) * (1 - exp(-max(0.0, now - self._at) / SMOOTH_SECONDS))
            self._at = now
        return None if self._busy is None else round(self._busy)

    def foreign(self, mib: int, now: float) -> int:
        """Return the most of the last ten seconds, with one more sample."""
        while self._peaks and self._peaks[-1][1] <= mib:
            self._peaks.pop()
        self._peaks.append((now, mib))
        while self._peaks[0][0] < now - FALL_SECONDS:
            self._peaks.popleft()
        return self._peaks[0][1]


@dataclass(frozen=True, slots=True)
class Report:
    """What is told: the cards, and the conditions as (type, status, reason, message)."""

    inventory: Inventory
    conditions: tuple[tuple[str, str, str, str], ...] = ()


def worth_telling(told: Report | None, now: Report, passed: float) -> bool:
    """Say whether a report should go out that follows the last told one by `passed` seconds.

    Facts, health and conditions at any change; foreign memory when it moved by 512 MiB or 2 % of the card; other
    measured use once a minute, if it moved by 5 % of the memory or 10 points.
    """
    if told is None or not _same_facts(told, now):
        return True
    pairs = list(zip(told.inventory.gpus, now.inventory.gpus, strict=True))
    if any(_foreign_moved(was, gpu) for was, gpu in pairs):
        return True
    return passed >= MEASURED_SECONDS and any(_use_moved(was, gpu) for was, gpu in pairs)


# All of a card, or of an instance, but what is measured. This is asked every second, so it makes no objects.
_MEASURED: Final = {"foreign_mib", "used_mib", "utilization", "mig_instances"}
_card_facts: Final = attrgetter(*(f.name for f in fields(Gpu) if f.name not in _MEASURED))
_instance_facts: Final = attrgetter(*(f.name for f in fields(MigInstance) if f.name not in _MEASURED))
_node_facts: Final = attrgetter("node", "driver_version", "cuda_version", "mig_profiles")


def _same_facts(was: Report, now: Report) -> bool:
    old, new = was.inventory, now.inventory
    return (
        was.conditions == now.conditions
        and _node_facts(old) == _node_facts(new)
        and len(old.gpus) == len(new.gpus)
        and all(map(_same_card, old.gpus, new.gpus))
    )


def _same_card(was: Gpu, now: Gpu) -> bool:
    """Compare two cards without what was measured; whether it can be measured is a fact."""
    return (
        _card_facts(was) == _card_facts(now)
        and (was.used_mib is None) == (now.used_mib is None)
        and (was.utilization is None) == (now.utilization is None)
        and len(was.mig_instances) == len(now.mig_instances)
        and all(map(_same_instance, was.mig_instances, now.mig_instances))
    )


def _same_instance(was: MigInstance, now: MigInstance) -> bool:
    return _instance_facts(was) == _instance_facts(now) and (was.used_mib is None) == (now.used_mib is None)


def _foreign_moved(was: Gpu, now: Gpu) -> bool:
    moved = abs(now.foreign_mib - was.foreign_mib)
    return moved >= FOREIGN_MIB or (moved > 0 and 100 * moved >= FOREIGN_PERCENT * (now.memory_mib or 1 << 40))


def _use_moved(was: Gpu, now: Gpu) -> bool:
    busy = abs((now.utilization or 0) - (was.utilization or 0))
    pairs = [(was.used_mib, now.used_mib, now.memory_mib)]
    pairs += [
        (old.used_mib, new.used_mib, new.memory_mib)
        for old, new in zip(was.mig_instances, now.mig_instances, strict=True)
    ]
    return busy >= UTILIZATION_POINTS or any(
        100 * abs((new or 0) - (old or 0)) >= USED_PERCENT * (memory or 1 << 40) for old, new, memory in pairs
    )
