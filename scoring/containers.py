"""Which card does each container of one pod get, on one node? The one place that answers, exactly.

Containers may share a card or sit on several. The search goes card by card and gives each card a largest set of
containers that fits there (more on a card never makes the rest harder). Containers that ask alike are one type:
only how many of them a card takes is tried, and those with the most cards still to get take it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Final

from scoring.model import Demand

Amount = tuple[int, int, int]  # MiB, thousandths, slots
Card = tuple[Amount, tuple[Amount, ...]]  # what is free of it, and what each ask would take of it

EXACT_UP_TO: Final = 8  # containers; above, each card takes the first set that fits and no choice is undone
MOST_STATES: Final = 100  # of one search; a pod that needs more is treated as one that does not fit
MOST_IN_ALL: Final = 500  # of one question about many nodes, so that no pod holds up the others
MOST_KNOWN: Final = 4096  # answers kept

Places = tuple[tuple[int, ...], ...]  # for each ask its cards, as positions


@dataclass(slots=True)
class Budget:
    """The states that one question may still visit, and how many nodes it had none left for."""

    left: int = MOST_IN_ALL
    skipped: int = 0


_known: dict[tuple[Demand, tuple[Card, ...]], Places | None] = {}


def spread_out(demand: Demand, cards: Sequence[Card], budget: Budget | None = None) -> Places | None:
    """Return each ask's cards as positions in `cards`, which are filled in this order; None: there is no way."""
    key, budget = (demand, tuple(cards)), budget or Budget()
    if key not in _known:
        if budget.left <= 0:
            budget.skipped += 1
            return None
        if len(_known) >= MOST_KNOWN:
            _known.clear()
        _known[key] = _searched(*key, budget)
    return _known[key]


def _searched(demand: Demand, cards: tuple[Card, ...], budget: Budget) -> Places | None:
    if not _enough_in_all(demand, cards):
        return None
    search = _Search(demand, cards)
    path = search.place(0, search.start())
    budget.left -= search.states
    if path is None:
        return None
    return tuple(tuple(at for at, asks in enumerate(path) if i in asks) for i in range(len(demand.asks)))


def _enough_in_all(demand: Demand, cards: Sequence[Card]) -> bool:
    """Say whether all cards together have what each phase takes at the least, and each ask enough of them."""
    if any(ask.count > len(cards) for ask in demand.asks):
        return False
    for d in range(2):
        least = [min(wants[i][d] for _, wants in cards) * ask.count for i, ask in enumerate(demand.asks)]
        free = sum(free[d] for free, _ in cards)
        if any(sum(least[i] for i in phase) > free for phase in demand.phases):
            return False
    return True


def together(amounts: Sequence[Amount]) -> Amount:
    """Return what containers take of one card at the same time. Those of an exclusive pod share all slots."""
    most = max(a[2] for a in amounts)
    return sum(a[0] for a in amounts), sum(a[1] for a in amounts), most if most > 1 else len(amounts)


@dataclass(slots=True)
class _Search:
    demand: Demand
    cards: tuple[Card, ...]
    types: list[list[int]] = field(init=False)  # asks that are alike
    failed: set[tuple[int, tuple[tuple[int, ...], ...]]] = field(default_factory=set)
    states: int = 0

    def __post_init__(self) -> None:
        phases = [frozenset(p for p, phase in enumerate(self.demand.phases) if i in phase) for i in self._asks()]
        alike: dict[object, list[int]] = {}
        for i in self._asks():
            wants = tuple(card[1][i] for card in self.cards)
            alike.setdefault((wants, phases[i]), []).append(i)
        self.types = list(alike.values())

    def _asks(self) -> range:
        return range(len(self.demand.asks))

    def start(self) -> dict[int, int]:
        """Return the cards that each ask has still to get."""
        return {i: self.demand.asks[i].count for i in self._asks()}

    def place(self, at: int, remaining: dict[int, int]) -> list[tuple[int, ...]] | None:
        """Return the asks of each card from `at` on that satisfy what remains, or None."""
        most = max(remaining.values())
        if not most:
            return []
        key = (at, tuple(tuple(sorted(remaining[i] for i in members)) for members in self.types))
        if most > len(self.cards) - at or key in self.failed or self.states >= MOST_STATES:
            return None
        self.states += 1
        for asks in self._choices(at, remaining):
            rest = self.place(at + 1, {i: n - (i in asks) for i, n in remaining.items()})
            if rest is not None:
                return [asks, *rest]
        self.failed.add(key)
        return None

    def _choices(self, at: int, remaining: dict[int, int]) -> Iterator[tuple[int, ...]]:
        """Yield the largest sets of asks that fit on a card, those with most asks first."""
        if len(self.demand.asks) > EXACT_UP_TO:
            yield self._greedy(at, remaining)
            return
        wanting = [sorted((i for i in t if remaining[i]), key=lambda i: -remaining[i]) for t in self.types]
        found: list[tuple[int, ...]] = []
        for counts in sorted(product(*(range(len(w) + 1) for w in wanting)), key=lambda c: (-sum(c), c)):
            if any(all(c <= f for c, f in zip(counts, larger, strict=True)) for larger in found):
                continue
            asks = tuple(i for w, n in zip(wanting, counts, strict=True) for i in w[:n])
            if self._fit(at, asks):
                found.append(counts)
                yield asks

    def _greedy(self, at: int, remaining: dict[int, int]) -> tuple[int, ...]:
        taken: tuple[int, ...] = ()
        for i in sorted((i for i, n in remaining.items() if n), key=lambda i: -remaining[i]):
            if self._fit(at, (*taken, i)):
                taken = (*taken, i)
        return taken

    def _fit(self, at: int, asks: tuple[int, ...]) -> bool:
        free, wants = self.cards[at]
        chosen = set(asks)
        for phase in self.demand.phases:
            now = [wants[i] for i in phase if i in chosen]
            if now and any(taken > have for taken, have in zip(together(now), free, strict=True)):
                return False
        return True
