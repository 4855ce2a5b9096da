"""Which pods must go so that a demand gets room on the cards of one node? The set that does the least harm.

Harm is compared in kube-scheduler's order: fewest broken budgets, lowest highest priority, smallest sum of
priorities, fewest pods, latest start of the most important one. No pod of the demand's own priority or a higher one
ever goes, and no pod goes in part.

The search takes as many cards as the demand can use at a time and decides, from the most important pod on them
down, whether it may stay. To stay is tried first, so the first answer is already a minimal one, and whatever is as
harmful as the best answer so far is cut.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Final

import numpy as np

from scoring.containers import MOST_STATES, Amount, Budget, Card, spread_out
from scoring.fit import needs, usable
from scoring.model import Demand, Fleet

MOST_LOOKS: Final = 2_000  # at sets of pods, on one node; the best answer until then stands, or the first one after
MOST_IN_ALL: Final = 10_000  # of one question about many nodes
SEVERAL: Final = 10  # looks that one costs if containers must be spread over cards, beside the states of that search
ZERO: Final = 1 << 31  # added to each priority, or more pods of negative priority would be less harm

Harm = tuple[int, int, int, int, float]


@dataclass(frozen=True, slots=True)
class Occupant:
    """A pod on a node: what it takes of each card (by position), of CPU in thousandths, of memory in MiB.

    `started`: in seconds, infinite if it has not. `budgets`: which disruption budgets count it. `tenant`, `private`:
    as of a Demand.
    """

    key: str
    priority: int
    cards: Mapping[int, Amount]
    started: float = float("inf")
    cpu_milli: int = 0
    ram_mib: int = 0
    budgets: tuple[int, ...] = ()
    tenant: str = ""
    private: bool = False


@dataclass(slots=True)
class Looks:
    """How many looks one question may still take."""

    left: int = MOST_IN_ALL


def broken(victims: Sequence[Occupant], allowed: Sequence[int]) -> int:
    """Return by how many pods the victims exceed the disruptions that each budget allows, all together."""
    hit = [b for victim in victims for b in victim.budgets]
    return sum(max(hit.count(b) - allowed[b], 0) for b in set(hit))


def harm(victims: Sequence[Occupant], allowed: Sequence[int] = ()) -> Harm:
    """Return what is compared between sets of victims: less is better."""
    highest = max((v.priority for v in victims), default=-ZERO)
    first = min((v.started for v in victims if v.priority == highest), default=0.0)
    total = sum(v.priority + ZERO for v in victims)
    return broken(victims, allowed), highest, total, len(victims), -first


def least_victims(
    emptied: Fleet,
    demand: Demand,
    priority: int,
    occupants: Sequence[Occupant],
    allowed: Sequence[int] = (),
    forced: frozenset[str] = frozenset(),
    looks: Looks | None = None,
) -> tuple[Occupant, ...] | None:
    """Return the least harmful victims, the most important first, after which a demand fits; None: none suffice.

    Parameters
    ----------
    emptied
        The one node, as it would be if no occupant were there.
    priority
        The demand's. Occupants of the same or a higher one stay.
    allowed
        How many more disruptions each budget allows.
    forced
        Keys of occupants below that priority that go in any case.
    looks
        Once they are over, nodes are left out for a demand of several containers: each would take too long.
    """
    looks = looks or Looks()
    if looks.left <= 0 and len(demand.asks) > 1:
        return None
    search = _Search(emptied, demand, priority, occupants, allowed, forced, min(MOST_LOOKS, looks.left))
    before = search.left
    best = search.run()
    looks.left -= before - search.left
    return None if best is None else tuple(search.spared(best))


def _rank(occupant: Occupant) -> tuple[bool, int, list[Amount], float]:
    """Sort the first to stay first: those that a budget counts, then by priority, smallness and age."""
    return not occupant.budgets, -occupant.priority, sorted(occupant.cards.values()), occupant.started


@dataclass(slots=True)
class _Room:
    """What is free: amounts by card, CPU, memory."""

    cards: dict[int, Amount]
    cpu: int
    ram: int

    def without(self, occupant: Occupant, demand: Demand) -> "_Room":
        """Return the room that is left for a demand if an occupant stays: none of its cards if they may not meet."""
        cards = dict(self.cards)
        apart = occupant.tenant != demand.tenant and (occupant.private or demand.private)
        for at, (mib, milli, slots) in occupant.cards.items():
            if at not in cards:
                continue
            have = cards[at]
            left = (have[0] - mib, have[1] - milli, have[2] - slots)
            if apart or min(left) < 0:
                del cards[at]  # it offers nothing; a negative amount would be taken off what the others have together
            else:
                cards[at] = left
        return _Room(cards, self.cpu - occupant.cpu_milli, self.ram - occupant.ram_mib)


@dataclass(slots=True)
class _Search:
    fleet: Fleet
    demand: Demand
    priority: int
    occupants: Sequence[Occupant]
    allowed: Sequence[int]
    forced: frozenset[str]
    left: int
    best: tuple[Occupant, ...] | None = None
    least: Harm = (0, 0, 0, 0, 0.0)
    lower: list[Occupant] = field(init=False)
    goes: list[Occupant] = field(init=False)  # whatever else does
    wants: dict[int, tuple[Amount, ...]] = field(init=False)  # by usable card, what each ask takes of it
    room: _Room = field(init=False)  # if all lower ones went

    def __post_init__(self) -> None:
        fleet, demand, row = self.fleet, self.demand, np.zeros(1, np.int64)
        below = sorted((o for o in self.occupants if o.priority < self.priority), key=_rank)
        self.lower = [o for o in below if o.key not in self.forced]
        self.goes = [o for o in below if o.key in self.forced]
        allowed, want = usable(fleet, demand, row), [needs(fleet, ask, row) for ask in demand.asks]
        there = [c for c in range(fleet.width) if allowed is None or allowed[0, c]]
        free = {
            c: (int(fleet.free.mib[0, c]), int(fleet.free.milli[0, c]), int(fleet.free.slots[0, c])) for c in there
        }
        self.room = _Room(
            {c: amounts for c, amounts in free.items() if amounts[2] > 0},
            int(fleet.free.cpu[0]) - demand.cpu_milli,
            int(fleet.free.ram[0]) - demand.ram_mib,
        )
        self.wants = {
            c: tuple((int(w.mib[0, c]), w.milli, int(w.slots[0, c])) for w in want) for c in self.room.cards
        }
        for occupant in self.occupants:
            if occupant.priority >= self.priority:
                self.room = self.room.without(occupant, self.demand)

    def run(self) -> tuple[Occupant, ...] | None:
        """Return the least harmful victims; None: the demand does not fit even without all lower ones."""
        if not self._fits(self.room):
            return None
        staying = self.room
        for occupant in self.lower:
            staying = staying.without(occupant, self.demand)
        # Pods on other cards need only be looked at if the node itself is short of CPU or memory.
        short = staying.cpu < 0 or staying.ram < 0
        for cards in self._card_sets():
            if self.left <= 0:
                break
            self._among(cards, short=short)
        if self.best is None:
            self._among(tuple(self.room.cards), short=short)
        return self.best

    def _card_sets(self) -> Iterator[tuple[int, ...]]:
        """Yield every set of cards that the demand can touch at a time, those with the least on them first."""
        on = {c: [o for o in self.lower if c in o.cards] for c in self.room.cards}
        cards = sorted(on, key=lambda c: (harm(on[c], self.allowed), c))
        return combinations(cards, min(self.demand.cards, len(cards)))

    def _among(self, cards: tuple[int, ...], *, short: bool) -> None:
        """Look for less harmful victims if the demand goes to some of these cards."""
        room = _Room({c: self.room.cards[c] for c in cards}, self.room.cpu, self.room.ram)
        if self._fits(room):
            self._decide([o for o in self.lower if short or any(c in o.cards for c in cards)], room)

    def _decide(self, pods: list[Occupant], room: _Room) -> None:
        """Try for each pod to let it stay, then to let it go; `room`: what is free if all of them go."""
        open_: list[tuple[int, _Room, tuple[Occupant, ...]]] = [(0, room, tuple(self.goes))]
        while open_:
            at, room, victims = open_.pop()
            now = harm(victims, self.allowed)
            if self.best is not None and (self.left <= 0 or now >= self.least):
                continue
            if at == len(pods):
                self.best, self.least = victims, now
                continue
            pod = pods[at]
            open_.append((at + 1, room, (*victims, pod)))
            # Of equal pods the younger go: if the older one went, so does this one.
            if not (at and victims and victims[-1] is pods[at - 1] and _twins(victims[-1], pod)):
                stays = room.without(pod, self.demand)
                if self._fits(stays):
                    open_.append((at + 1, stays, victims))

    def spared(self, victims: Sequence[Occupant]) -> list[Occupant]:
        """Return the victims, the most important first, without those that need not go after all."""
        room = self.room
        for occupant in self.lower:
            if occupant not in victims:
                room = room.without(occupant, self.demand)
        kept = []
        for victim in sorted(victims, key=_rank):
            stays = room.without(victim, self.demand)
            if victim.key not in self.forced and self._fits(stays):
                room = stays
            else:
                kept.append(victim)
        return sorted(kept, key=lambda v: (-v.priority, v.started, v.key))

    def _fits(self, room: _Room) -> bool:
        """Say whether the demand fits in some room."""
        asks = self.demand.asks
        self.left -= 1
        if room.cpu < 0 or room.ram < 0:
            return False
        if len(asks) == 1:
            here = sum(
                all(h >= w for h, w in zip(have, self.wants[c][0], strict=True)) for c, have in room.cards.items()
            )
            return here >= asks[0].count
        cards: list[Card] = [(have, self.wants[c]) for c, have in room.cards.items()]
        budget = Budget(MOST_STATES)
        found = spread_out(self.demand, cards, budget)
        self.left -= SEVERAL + MOST_STATES - budget.left
        return found is not None


def _twins(a: Occupant, b: Occupant) -> bool:
    return replace(a, key="", started=0.0) == replace(b, key="", started=0.0)
