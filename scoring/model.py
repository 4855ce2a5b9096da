"""The nouns of packing: what is asked (`Demand`), what there is (`Fleet`), what was chosen (`Placement`).

Amounts that are added and taken away are whole numbers: memory in MiB, compute in thousandths of a card, CPU in
thousandths of a core. Nobody who asks a question writes to a Fleet: `put`, `take` and `give_back` are the only
ways in.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import zip_longest
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

CARD: Final = 1000  # thousandths of a card
KINDS: Final = 5  # classes of GPU pods: shares, one card, two, up to four, more
NOBODY, SEVERAL, UNKNOWN = 0, -1, -2  # whose pods are on a card, if not one tenant's
PATTERNS: Final = 4096  # of models, for which it is remembered which models they allow
ABSENT: Final = -1  # free on a card that is not there, or not offered: nothing ever fits


@dataclass(frozen=True, slots=True)
class Ask:
    """What one container wants of each of `count` distinct cards.

    Memory is the larger of `mib` and `percent` of the chosen card's memory, rounded up. `exclusive`: nobody may
    join; `whole`: the card must also give all of its memory, whatever that is.
    """

    count: int = 1
    mib: int = 0
    percent: int = 0
    milli: int = 0
    exclusive: bool = False
    whole: bool = False


WHOLE: Final = Ask(percent=100, milli=CARD, exclusive=True, whole=True)


@dataclass(frozen=True)
class Demand:
    """The shape of a pod: equal demands are equal pods to every policy.

    `phases` says which asks hold their cards at the same time (indices into `asks`): the containers with the
    sidecars, and each init container with the sidecars before it. A card is charged the dearest phase. `tenant`:
    who asks, "" where nobody minds; `private`: it shares cards with pods of its own tenant alone.
    """

    asks: tuple[Ask, ...] = ()
    phases: tuple[tuple[int, ...], ...] = ()
    cpu_milli: int = 0
    ram_mib: int = 0
    models: tuple[str, ...] = ()  # patterns, a leading "!" excludes
    uuids: tuple[str, ...] = ()
    tenant: str = ""
    private: bool = False

    @cached_property
    def cards(self) -> int:
        """The number of (container, card) pairs."""
        return sum(ask.count for ask in self.asks)

    @cached_property
    def main(self) -> Ask | None:
        """The ask that is hardest to place, which stands for the pod where one number must do."""
        return max(self.asks, key=lambda a: (a.milli * a.count, a.count, a.percent, a.mib), default=None)

    @cached_property
    def milli(self) -> int:
        """Compute in thousandths of a card, all cards of the dearest phase together."""
        return max((sum(self.asks[i].milli * self.asks[i].count for i in phase) for phase in self.phases), default=0)

    @cached_property
    def kind(self) -> int:
        """The class of the pod, an index below KINDS; meaningless for a pod without GPU demand."""
        return kind_of(self.cards, whole=all(ask.whole for ask in self.asks))

    @cached_property
    def anonymous(self) -> "Demand":
        """The same demand of nobody in particular."""
        return replace(self, tenant="") if self.tenant else self

    @cached_property
    def _hash(self) -> int:
        who = (self.tenant, self.private)
        return hash((self.asks, self.phases, self.cpu_milli, self.ram_mib, self.models, self.uuids, who))

    def __hash__(self) -> int:
        return self._hash


def one(ask: Ask, cpu_milli: int = 0, ram_mib: int = 0, models: tuple[str, ...] = ()) -> Demand:
    """Return the demand of a pod with one GPU container."""
    return Demand((ask,), ((0,),), cpu_milli, ram_mib, models)


@dataclass(frozen=True, slots=True)
class Card:
    """One card of a node: its capacity and what is free of it; `slots` counts pods' containers on the card.

    `holders`: the tenant of each pod on it, and whether that pod is private.
    """

    uuid: str
    model: str
    mib: int
    milli: int
    slots: int
    mib_free: int
    milli_free: int
    slots_free: int
    holders: tuple[tuple[str, bool], ...] = ()


NO_CARD: Final = Card("", "", ABSENT, ABSENT, ABSENT, ABSENT, ABSENT, ABSENT)


@dataclass(frozen=True, slots=True)
class Row:
    """One node: its cards in the order of their index, CPU in thousandths of a core, memory in MiB."""

    cards: tuple[Card, ...] = ()
    cpu: int = 0
    ram: int = 0
    cpu_free: int = 0
    ram_free: int = 0
    hosted: tuple[int, ...] = (0,) * KINDS  # pods by class


class Room(NamedTuple):
    """Amounts by card (nodes x cards) and by node: either what is free or the capacity."""

    mib: Ints
    milli: Ints
    slots: Ints
    cpu: Ints
    ram: Ints


@dataclass(frozen=True, slots=True)
class Charge:
    """What a placement takes from its node: amounts by card, in the Fleet's width, and of the node itself."""

    mib: Ints
    milli: Ints
    slots: Ints
    cpu: int
    ram: int
    kind: int | None  # the pod's class, None without GPU demand
    holder: tuple[str, bool] | None = None  # who is on the cards then, if anybody minds


@dataclass(frozen=True, slots=True)
class Placement:
    """A choice: the node's row, and each ask's cards (indices within the node), in the order of the asks."""

    row: int
    cards: tuple[tuple[int, ...], ...]
    charge: Charge


def kind_of(cards: int, *, whole: bool) -> int:
    """Return the class of a GPU pod that holds so many cards."""
    return min((cards - 1).bit_length() + 1, KINDS - 1) if whole else 0


def normal_model(name: str) -> str:
    """Return a model's name without case and without the vendor's and the family's prefix."""
    return name.strip().lower().removeprefix("nvidia ").removeprefix("tesla ").strip()


class Fleet:
    """Nodes x cards as integer arrays. A row is a node for as long as the Fleet lives; a lost node's row is empty.

    `changes` counts writes; `changed_since` tells which rows were written after a count, for whoever caches.
    """

    def __init__(self, rows: Iterable[tuple[str, Row]] = ()) -> None:
        self.names: list[str] = []
        self.index: dict[str, int] = {}
        self.uuids: list[tuple[str, ...]] = []
        self.models: list[str] = []
        self.model: Ints = np.empty((0, 0), np.int64)
        self.alike: Ints = np.empty((0, 0), np.int64)  # equal for cards of one model and capacity
        self.hosted: Ints = np.empty((0, KINDS), np.int64)  # nodes x classes: pods
        self._tenant: Ints = np.empty((0, 0), np.int64)  # of the pods on a card: NOBODY, SEVERAL, or a tenant's code
        self._private: Bools = np.empty((0, 0), np.bool_)  # some pod on the card is private
        self.holders: dict[tuple[int, int], Counter[tuple[str, bool]]] = {}  # of cards that have any
        self._tenants: dict[str, int] = {}
        self.capacity = Room(*(np.empty(shape, np.int64) for shape in _shapes(0, 0)))
        self.free = Room(*(np.empty(shape, np.int64) for shape in _shapes(0, 0)))
        self._log: list[int] = []
        self._log_start = 0
        self._codes: dict[str, int] = {}
        self._kinds: dict[tuple[str, int, int, int], int] = {}
        self._eligible: dict[tuple[str, ...], Bools] = {}
        rows = list(rows)
        self._reserve(len(rows), max((len(row.cards) for _, row in rows), default=0))
        for name, row in rows:
            self.put(name, row)

    @property
    def width(self) -> int:
        """The number of cards of the widest node."""
        return int(self.model.shape[1])

    @property
    def changes(self) -> int:
        """How many times a row has been written."""
        return self._log_start + len(self._log)

    def __len__(self) -> int:
        return len(self.names)

    def changed_since(self, count: int) -> Ints | None:
        """Return the rows written after `changes` was `count`, each once; None: too long ago to tell."""
        if count < self._log_start:
            return None
        return np.array(sorted(set(self._log[count - self._log_start :])), np.int64)

    def put(self, name: str, row: Row, was: Row | None = None) -> int:
        """Write a node's row, a new one if the node is new; return its index.

        `was`: the row as it was put last, where the caller knows; then only cards that differ are written.
        """
        i = self.index.get(name)
        if i is None:
            i = self.index[name] = len(self.names)
            self.names.append(name)
            self.uuids.append(())
        self._reserve(i + 1, len(row.cards))
        self.uuids[i] = tuple(card.uuid for card in row.cards)
        self.hosted[i] = row.hosted
        self.capacity.cpu[i], self.capacity.ram[i] = row.cpu, row.ram
        self.free.cpu[i], self.free.ram[i] = row.cpu_free, row.ram_free
        before = () if was is None else was.cards
        for c, (card, then) in enumerate(zip_longest(row.cards, before)):
            if card != then:
                self._write(i, c, NO_CARD if card is None else card)
        for c in range(len(row.cards), self.width if was is None else 0):
            self._write(i, c, NO_CARD)
        self._touch(i)
        return i

    def take(self, placement: Placement) -> None:
        """Commit a choice: what it charges is no longer free."""
        self._add(placement, -1)

    def give_back(self, placement: Placement) -> None:
        """Undo `take`."""
        self._add(placement, 1)

    def eligible(self, demand: Demand, rows: Ints) -> Bools | None:
        """Say which cards (rows x cards) a demand's models and uuids allow, whoever is on them; None: all of them."""
        allowed: Bools | None = None
        if demand.models:
            allowed = self.allowed_models(demand.models)[self.model[rows]]
        if demand.uuids:
            named, uuids = np.zeros((len(rows), self.width), np.bool_), frozenset(demand.uuids)
            for at, row in enumerate(rows):
                named[at, : len(self.uuids[row])] = [uuid in uuids for uuid in self.uuids[row]]
            allowed = named if allowed is None else allowed & named
        return allowed

    @property
    def guarded(self) -> bool:
        """Whether some pod on some card is private, so that it matters who asks."""
        return bool(self.holders) and bool(self._private.any())

    def joinable(self, demand: Demand, rows: Ints) -> Bools | None:
        """Say which cards (rows x cards) have nobody on them who may not meet the demand's pod; None: all of them."""
        if not self.holders or not (demand.private or self._private[rows].any()):
            return None
        tenant = self._tenant[rows]
        among_its_own: Bools = (tenant == NOBODY) | (tenant == self._tenants.get(demand.tenant, UNKNOWN))
        return among_its_own if demand.private else among_its_own | ~self._private[rows]

    def allowed_models(self, patterns: tuple[str, ...]) -> Bools:
        """Say for each model code whether the patterns allow it: some positive one matches, no negative one."""
        known = self._eligible.get(patterns)
        if known is None or len(known) < len(self.models):
            if len(self._eligible) >= PATTERNS:  # pods' authors write them, and each may be another
                self._eligible.clear()
            yes = [p for p in patterns if not p.startswith("!")]
            no = [p[1:] for p in patterns if p.startswith("!")]
            known = self._eligible[patterns] = np.array(
                [(not yes or _any_match(m, yes)) and not _any_match(m, no) for m in self.models], np.bool_
            )
        return known

    def _code(self, model: str) -> int:
        model = model.strip().lower()
        if model not in self._codes:
            self._codes[model] = len(self.models)
            self.models.append(model)
        return self._codes[model]

    def _alike(self, card: Card) -> int:
        return self._kinds.setdefault((card.model, card.mib, card.milli, card.slots), len(self._kinds))

    def _add(self, placement: Placement, sign: int) -> None:
        i, charge = placement.row, placement.charge
        self.free.mib[i] += sign * charge.mib
        self.free.milli[i] += sign * charge.milli
        self.free.slots[i] += sign * charge.slots
        self.free.cpu[i] += sign * charge.cpu
        self.free.ram[i] += sign * charge.ram
        if charge.kind is not None:
            self.hosted[i, charge.kind] -= sign
        if charge.holder is not None:
            for c in np.flatnonzero(charge.slots).tolist():
                now = self.holders.get((i, c), Counter())
                now[charge.holder] -= sign
                self._hold(i, c, now)
        self._touch(i)

    def _hold(self, i: int, c: int, holders: Counter[tuple[str, bool]]) -> None:
        """Write who is on a card."""
        holders = +holders
        if not holders:
            if self.holders.pop((i, c), None) is not None:
                self._tenant[i, c], self._private[i, c] = NOBODY, False
            return
        self.holders[i, c] = holders
        tenants = {tenant for tenant, _ in holders}
        code = self._tenants.setdefault(min(tenants), len(self._tenants) + 1)
        self._tenant[i, c] = code if len(tenants) == 1 else SEVERAL
        self._private[i, c] = any(private for _, private in holders)

    def _write(self, i: int, c: int, card: Card) -> None:
        self.model[i, c] = 0 if card is NO_CARD else self._code(card.model)
        self.alike[i, c] = 0 if card is NO_CARD else self._alike(card)
        for array, amount in zip(self.capacity[:3], (card.mib, card.milli, card.slots), strict=True):
            array[i, c] = amount
        for array, amount in zip(self.free[:3], (card.mib_free, card.milli_free, card.slots_free), strict=True):
            array[i, c] = amount
        if card.holders or (i, c) in self.holders:
            self._hold(i, c, Counter(card.holders))

    def _touch(self, row: int) -> None:
        self._log.append(row)
        if len(self._log) > 2 * len(self.names) + 64:
            # Whoever has not looked for so long re-scores everything, which costs him less than this list.
            keep = len(self.names) + 32
            self._log_start += len(self._log) - keep
            self._log = self._log[-keep:]

    def _reserve(self, nodes: int, cards: int) -> None:
        """Make the arrays hold so many nodes and cards, growing by halves so that many nodes cost linear time."""
        have, width = self.model.shape
        if nodes <= have and cards <= width:
            return
        shape = (have if nodes <= have else max(nodes, have + have // 2), max(cards, width))
        self.model = _grown(self.model, shape, 0)
        self.alike = _grown(self.alike, shape, 0)
        self.hosted = _grown(self.hosted, (shape[0], KINDS), 0)
        self._tenant, self._private = (
            _grown(self._tenant, shape, NOBODY),
            _grown(self._private.astype(np.int64), shape, 0) > 0,
        )
        self.capacity = Room(*(_grown(a, s, ABSENT) for a, s in zip(self.capacity, _shapes(*shape), strict=True)))
        self.free = Room(*(_grown(a, s, ABSENT) for a, s in zip(self.free, _shapes(*shape), strict=True)))


def _shapes(nodes: int, cards: int) -> Sequence[tuple[int, ...]]:
    return ((nodes, cards),) * 3 + ((nodes,),) * 2


def _grown(array: Ints, shape: tuple[int, ...], fill: int) -> Ints:
    out = np.full(shape, fill, np.int64)
    out[tuple(slice(n) for n in array.shape)] = array
    return out


def _any_match(model: str, patterns: list[str]) -> bool:
    names = {model, normal_model(model)}
    return any(
        fnmatchcase(name, p) for pattern in patterns for p in (pattern, normal_model(pattern)) for name in names
    )


def left(mib_free: Ints, milli_free: Ints, mib: Ints) -> Ints:
    """Return the thousandths of each card that can still be given: the scarcer of its compute and its memory.

    A card that tells no memory (capacity 0), like those of a trace, has compute alone.
    """
    by_memory = np.where(mib > 0, mib_free * CARD // np.maximum(mib, 1), milli_free)
    return np.maximum(np.minimum(milli_free, by_memory), 0)
