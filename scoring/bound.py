"""Upper bounds on how much compute any policy can put to use: linear programs over a fluid packing.

Pods never leave, arrive in random order, and ask for `load` percent of the fleet's compute. Nodes that are alike
are a *kind*, alike cards of a kind a *pool*, alike pods a *class*. The columns:

    a[c]         the part of class c that is accepted, from 0 to 1
    w[p, place]  pods whose part p (one container's cards) is in a pool; a pod without cards: on a kind
    z[pool, q]   cards of a pool packed by pattern q, a multiset of sizes that fit one card together

The rows: every part of what is accepted is somewhere; no kind gives more CPU and memory than its nodes have; no
pool has more patterns than cards, and they hold what is there of every size. This is cutting stock as Gilmore and
Gomory put it (Operations Research 9, 1961), patterns entering when their price is right. The bounds:

    B  A policy may refuse what it likes.
    W  B, but it must place what fits. Nothing leaves, so a class that has failed once fails for ever, and so does
       every class that is harder in every respect: a[c] is the moment when c first fails, as a part of all
       arrivals, and a[c] >= a[d] wherever c is easier than d.
    N  W, and nothing fails before the latest possible moment: the first failure among the pods that may use the
       same models comes as late as it can; then that of the next such group, given the former; and so on. W can
       gain by failing something early, which a policy that places what fits cannot choose to do.

Fluid: pods may be cut in pieces and the nodes of a kind share their CPU, so no policy need reach a bound.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from typing import Final, NamedTuple

import numpy as np

from scoring.fit import card_fits, fits, needs, node_fits
from scoring.lp import INF, Program, Solution, solve
from scoring.model import CARD, Ask, Bools, Demand, Fleet, Floats, Ints
from scoring.workload import Workload

MANY: Final = 20_000  # multisets on one card beyond which its sizes are rounded down ...
GRIDS: Final = (64, 32, 16, 8, 4, 2)  # ... to whole parts of it, so many at most; a bound can only rise by that
TOLERANCE: Final = 1e-7  # what all patterns left out could add, as a part of all cards
AT_ONCE: Final = 5  # patterns that enter for each pool between two solutions
GRACE: Final = 0.001  # a moment may be missed by this part of it: at the exact one nothing is left to choose

Size = tuple[int, int, int]  # thousandths, MiB, slots


class NoCompute(ValueError):
    """There is nothing to bound: the cards offer no compute, or no pod asks for any."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """B, W and N in percent of the compute that a fleet offers."""

    free_rejection: float
    work_conserving: float
    latest_failure: float


class Kind(NamedTuple):
    """Nodes that are alike: the row of the first, and what all offer together (CPU in thousandths, RAM in MiB)."""

    row: int
    cpu: int
    ram: int


class Pool(NamedTuple):
    """The alike cards of a kind: its index, the first such card of its first node, the number of all, one's room."""

    kind: int
    card: int
    cards: int
    room: Size


@dataclass(frozen=True, slots=True)
class Class:
    """Pods that are alike: one of them, the models that it may use by code, and how many arrive.

    `pinned`: it names cards by UUID, which the bounds forget, so it is not known to be easier than others.
    """

    demand: Demand
    models: tuple[bool, ...]
    pinned: bool
    arrivals: float

    @property
    def parts(self) -> tuple[Ask | None, ...]:
        """The asks of the dearest phase; one None for a pod without GPU demand."""
        asks = self.demand.asks
        phase = max(self.demand.phases, key=lambda p: sum(asks[i].milli * asks[i].count for i in p), default=())
        return tuple(asks[i] for i in phase) or (None,)


def bounds(fleet: Fleet, workload: Workload, load: float) -> Bounds:
    """Return the bounds for a fleet into whose free room come pods like a workload's.

    `load`: the arrivals' compute in percent of the free compute. Of a pod with init containers the dearest phase
    counts; a pod that names cards by UUID counts as if any card would do.

    Raises
    ------
    NoCompute
    """
    kinds, pools = kinds_of(fleet)
    total = sum(pool.cards * pool.room[0] for pool in pools)
    asked = sum(demand.milli * times for demand, times in workload.counts.items())
    if not total or not asked:
        raise NoCompute("No card offers compute." if not total else "No pod asks for compute.")
    classes = classes_of(fleet, workload, load / 100 * total / asked)
    master = _Master(fleet, kinds, pools, classes)
    value = np.array([c.arrivals * c.demand.milli / CARD for c in classes])
    anything, percent = np.zeros(len(classes)), 100 * CARD / total
    return Bounds(
        percent * master.most(value, anything, work_conserving=False),
        percent * master.most(value, anything),
        percent * master.most(value, master.latest()),
    )


# --- what is alike, and how it packs -------------------------------------------------------------------------


def kinds_of(fleet: Fleet) -> tuple[list[Kind], list[Pool]]:
    """Return the kinds of a fleet's nodes by what is free on them, and the pools of their cards."""
    alike: dict[tuple[object, ...], list[int]] = {}
    for row in range(len(fleet)):
        cards = tuple(key for key, _ in _cards(fleet, row))
        alike.setdefault((int(fleet.free.cpu[row]), int(fleet.free.ram[row]), cards), []).append(row)
    kinds, pools = list[Kind](), list[Pool]()
    for rows in alike.values():
        for key, found in groupby(_cards(fleet, rows[0]), key=lambda pair: pair[0]):
            at = [card for _, card in found]
            pools.append(Pool(len(kinds), at[0], len(at) * len(rows), (key[0], key[1], key[2])))
        cpu, ram = (max(int(room[rows[0]]), 0) * len(rows) for room in (fleet.free.cpu, fleet.free.ram))
        kinds.append(Kind(rows[0], cpu, ram))
    return kinds, pools


def _cards(fleet: Fleet, row: int) -> list[tuple[tuple[int, ...], int]]:
    """Return the cards that a node offers, alike ones together: free room, memory, slots and model; the index."""
    free, full = fleet.free, fleet.capacity
    columns = (free.milli, free.mib, free.slots, full.mib, full.slots, fleet.model)
    keys = (tuple(int(column[row, card]) for column in columns) for card in range(fleet.width))
    return sorted((key, card) for card, key in enumerate(keys) if min(key[:3]) >= 0)


def classes_of(fleet: Fleet, workload: Workload, scale: float) -> list[Class]:
    """Return the classes of a workload, `scale` pods arriving for each one counted."""
    found: dict[tuple[Demand, tuple[bool, ...], bool], tuple[Demand, float]] = {}
    for demand, times in workload.counts.items():
        models = tuple(fleet.allowed_models(demand.models if demand.asks else ()).tolist())
        key = (replace(demand, models=(), uuids=()), models, bool(demand.uuids))
        first, arrivals = found.get(key, (replace(demand, uuids=()), 0.0))
        found[key] = (first, arrivals + scale * times)
    return [Class(first, *key[1:], arrivals) for key, (first, arrivals) in found.items()]


def easier(classes: list[Class]) -> Bools:
    """Say for classes c and d, not the same, whether c is known to fit wherever d does [C, C].

    It is if c asks for no more CPU and memory, and for nothing else or for no more than one of d's containers.
    """
    owner = np.array([i for i, c in enumerate(classes) for ask in c.parts if ask], np.int64)
    wanted = [(a.count, a.milli, a.mib, a.percent, a.exclusive, a.whole) for c in classes for a in c.parts if a]
    asks = np.array(wanted, np.int64).reshape(len(wanted), 6)
    node = np.array([(c.demand.cpu_milli, c.demand.ram_mib) for c in classes])
    models = np.array([c.models for c in classes], np.bool_)
    out: Bools = np.zeros((len(classes), len(classes)), np.bool_)
    for i, c in enumerate(classes):
        if c.parts == (None,):
            out[i] = True
        elif len(c.demand.asks) == 1 and not c.pinned:
            out[i, owner[(asks[owner == i] <= asks).all(axis=1)]] = True
            out[i] &= (models[i] | ~models).all(axis=1)
        out[i] &= (node[i] <= node).all(axis=1)
        out[i, i] = False
    return out


def _needed(order: Bools) -> list[tuple[int, int]]:
    """Return the pairs of a preorder that imply all others."""
    equal = order & order.T
    strict = (order & ~equal).astype(np.float32)
    first, second = np.nonzero(equal | ((strict > 0) & (strict @ strict == 0)))
    return list(zip(first.tolist(), second.tolist(), strict=True))


class Packing(NamedTuple):
    """The maximal patterns of a card [patterns, places] and each size's place in them [sizes].

    Not `exact`: there would be too many, so sizes are rounded down to whole parts of the card; some then share a
    place, and one that rounds to nothing has none (-1).
    """

    counts: Ints
    place: Ints
    exact: bool


@lru_cache(maxsize=64)
def packing(room: Size, sizes: tuple[Size, ...]) -> Packing:
    """Return how sizes pack on a card with some room."""
    for grid in (None, *GRIDS):
        small: list[tuple[int, ...]] = [
            size
            if grid is None
            else tuple(grid * part // max(whole, 1) for part, whole in zip(size, room, strict=True))
            for size in sizes
        ]
        places = sorted({size for size in small if any(size)}, reverse=True)
        found = list(_maximal(room if grid is None else (grid,) * 3, np.array(places, np.int64).reshape(-1, 3)))
        if found[-1] is not None:
            break
    counts = [np.bincount(np.array(one, np.int64), minlength=len(places)) for one in found if one is not None]
    place = [places.index(size) if any(size) else -1 for size in small]
    return Packing(np.array(counts, np.int64), np.array(place, np.int64), grid is None)


def _maximal(room: Size, sizes: Ints) -> Iterator[tuple[int, ...] | None]:
    """Yield the multisets of sizes, as indices, to which no size can be added; in the end None if too many."""
    stack: list[tuple[Ints, tuple[int, ...]]] = [(np.array(room), ())]
    for _ in range(MANY):
        if not stack:
            return
        left, chosen = stack.pop()
        fit = np.flatnonzero((sizes <= left).all(axis=1)).tolist()
        if not fit:
            yield chosen
        stack += [(left - sizes[i], (*chosen, i)) for i in fit if not chosen or i >= chosen[-1]]
    yield None


# --- the linear program --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Place:
    """A column w: a class's part (the first one takes the CPU) on a kind and, if it has cards, in a pool of it."""

    owner: int
    part: int
    kind: int
    pool: int | None = None
    count: int = 0
    size: Size = (0, 0, 0)


def _places(fleet: Fleet, kinds: list[Kind], pools: list[Pool], classes: list[Class]) -> Iterator[_Place]:
    """Yield where pods may go, each part of a class by itself."""
    rows = np.array([kind.row for kind in kinds])
    for owner, c in enumerate(classes):
        ok = fits(fleet, c.demand, rows) & node_fits(c.demand, rows, fleet.free)
        for part, ask in enumerate(c.parts):
            if ask is None:
                yield from (_Place(owner, part, kind) for kind in np.flatnonzero(ok).tolist())
                break
            fit = card_fits(fleet, c.demand, want := needs(fleet, ask, rows), rows, fleet.free)
            for at, pool in enumerate(pools):
                here = pool.kind, pool.card
                if ok[pool.kind] and fit[here]:
                    size = (want.milli, int(want.mib[here]), int(want.slots[here]))
                    yield _Place(owner, part, pool.kind, at, ask.count, size)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The rows of a program, one after the other: what they bound and their coefficients."""

    upper: list[float] = field(default_factory=list)
    at_row: list[int] = field(default_factory=list)
    at_column: list[int] = field(default_factory=list)
    value: list[float] = field(default_factory=list)

    def add(self, upper: float, terms: dict[int, float]) -> int:
        """Add a row with a coefficient for each of some columns, and return its index."""
        self.upper.append(upper)
        for column, value in terms.items():
            self.put(len(self.upper) - 1, column, value)
        return len(self.upper) - 1

    def put(self, row: int, column: int, value: float) -> None:
        """Set a coefficient that is not there yet."""
        self.at_row.append(row)
        self.at_column.append(column)
        self.value.append(value)


class _Master:
    """The program with the patterns found so far: columns a, then the moment, then w, then z as they come.

    One matrix serves all bounds: the rows of what is not asked are left open. Values are in cards, or of their
    size, so that the solver's tolerances mean the same to all.
    """

    def __init__(self, fleet: Fleet, kinds: list[Kind], pools: list[Pool], classes: list[Class]) -> None:
        self._classes, self._pools = classes, pools
        self._cards = sum(pool.cards for pool in pools)
        self._places = dict(enumerate(_places(fleet, kinds, pools, classes), len(classes) + 1))
        self._columns = len(classes) + 1 + len(self._places)
        self._chosen: set[tuple[int, int]] = set()  # (pool, pattern) of the columns z
        self._rows = _Rows()
        self._accepted = self._add_acceptance()
        self._add_kinds(kinds)
        self._packed = [self._add_pool(at) for at in range(len(pools))]
        moment, order = len(classes), _needed(easier(classes))
        self._moments = np.array([self._rows.add(0.0, {moment: 1.0, c: -1.0}) for c in range(moment)])
        self._dominance = np.array([self._rows.add(0.0, {hard: 1.0, easy: -1.0}) for easy, hard in order], np.int64)
        self._enter([(at, p) for at, (_, _, found) in enumerate(self._packed) for p in found.argmax(axis=0).tolist()])

    def most(self, value: Floats, low: Floats, *, work_conserving: bool = True) -> float:
        """Return the largest sum of value [C] x a, each class accepted at least as far as `low` says [C]."""
        objective, nobody = np.append(value, 0.0), np.zeros_like(low, np.bool_)
        return self._solve(objective, low, nobody, work_conserving=work_conserving).value

    def latest(self) -> Floats:
        """Return until when each class can be accepted whole if failures shall be late, as N has it [C]."""
        low = np.zeros(len(self._classes))
        waiting = np.isin(np.arange(len(low)), [place.owner for place in self._places.values()])
        _, group = np.unique([c.models for c in self._classes], axis=0, return_inverse=True)
        while waiting.any():
            found = self._solve(np.append(0 * low, self._cards), low, waiting)
            low[waiting] = (1 - GRACE) * found.value / self._cards
            failing = waiting & (np.abs(found.duals[self._moments]) > TOLERANCE * self._cards)
            if not failing.any():  # all are accepted to the end
                break
            waiting &= ~np.isin(group, group[failing])
        return low

    def _add_acceptance(self) -> Ints:
        """Add a row for every part, what is in its places being what is accepted of its class; return them."""
        parts = {
            (owner, i): {owner: -c.arrivals} for owner, c in enumerate(self._classes) for i in range(len(c.parts))
        }
        for column, place in self._places.items():
            parts[place.owner, place.part][column] = 1.0
        return np.array([self._rows.add(0.0, terms) for terms in parts.values()], np.int64)

    def _add_kinds(self, kinds: list[Kind]) -> None:
        """Add two rows for every kind: its CPU and its memory."""
        for k, kind in enumerate(kinds):
            here = {at: p.owner for at, p in self._places.items() if (p.kind, p.part) == (k, 0)}
            self._rows.add(kind.cpu, {at: float(self._classes[c].demand.cpu_milli) for at, c in here.items()})
            self._rows.add(kind.ram, {at: float(self._classes[c].demand.ram_mib) for at, c in here.items()})

    def _add_pool(self, at: int) -> tuple[int, Ints, Ints]:
        """Add a pool's rows; return that of its cards, those of the places in its patterns, and the patterns."""
        pool = self._pools[at]
        here = {column: place for column, place in self._places.items() if place.pool == at}
        packed = packing(pool.room, sizes := tuple(sorted({place.size for place in here.values()})))
        cards = self._rows.add(pool.cards, {})
        holds = np.array([self._rows.add(0.0, {}) for _ in packed.counts[0]], np.int64)
        for column, place in here.items():
            if (i := packed.place[sizes.index(place.size)]) >= 0:
                self._rows.put(int(holds[i]), column, float(place.count))
        if not packed.exact:  # then the sums say something new
            for amount, room in enumerate(pool.room):
                self._rows.add(pool.cards * room, {c: float(p.count * p.size[amount]) for c, p in here.items()})
        return cards, holds, packed.counts

    def _enter(self, wanted: list[tuple[int, int]]) -> bool:
        """Add columns z for the (pool, pattern) pairs that have none; say whether there were such."""
        new = [pair for pair in dict.fromkeys(wanted) if pair not in self._chosen]
        self._chosen.update(new)
        for at, pattern in new:
            cards, holds, found = self._packed[at]
            self._rows.put(cards, self._columns, 1.0)
            for i in np.flatnonzero(found[pattern]):
                self._rows.put(int(holds[i]), self._columns, -float(found[pattern, i]))
            self._columns += 1
        return bool(new)

    def _solve(self, objective: Floats, low: Floats, moments: Bools, *, work_conserving: bool = True) -> Solution:
        """Return the optimum over all patterns; `moments` [C] says whose failures the moment may not come after."""
        rows, ends = self._rows, len(low) + 1
        row_lower, row_upper = np.full(len(rows.upper), -INF), np.array(rows.upper)
        row_lower[self._accepted] = 0.0
        row_upper[self._moments[~moments]] = INF
        if not work_conserving:
            row_upper[self._dominance] = INF
        while True:
            costs, lower, upper = np.zeros(self._columns), np.zeros(self._columns), np.full(self._columns, INF)
            costs[:ends], lower[: ends - 1], upper[:ends] = objective, low, 1.0
            at = (np.array(rows.at_row, np.int64), np.array(rows.at_column, np.int64), np.array(rows.value))
            found = solve(Program(costs, lower, upper, row_lower, row_upper, *at))
            missed, better = self._price(found.duals)
            if missed <= TOLERANCE * self._cards or not self._enter(better):
                return found

    def _price(self, duals: Floats) -> tuple[float, list[tuple[int, int]]]:
        """Return at most how much the patterns left out would add, and each pool's best."""
        missed, better = 0.0, []
        for at, (cards, holds, found) in enumerate(self._packed):
            gain = found @ duals[holds] - duals[cards]
            missed += self._pools[at].cards * max(float(gain.max()), 0.0)
            best = np.argsort(-gain, kind="stable")[:AT_ONCE].tolist()
            better += [(at, p) for p in best if gain[p] > 0]
        return missed, better
