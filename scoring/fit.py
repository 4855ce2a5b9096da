"""Does a demand fit a node now, and which ways are there to place it? Could it ever fit?

One answer for filter, bind, metrics and replay. Nothing here prefers: that is what policies are for.
"""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from scoring.containers import Amount, Budget, Places, spread_out, together
from scoring.model import Ask, Bools, Demand, Fleet, Ints, Room, left


class Needs(NamedTuple):
    """What one ask takes of each card, if it takes that card (rows x cards; MiB, thousandths, slots)."""

    mib: Ints
    milli: int
    slots: Ints


@dataclass(frozen=True, slots=True)
class Trials:
    """Ways to place one demand, each on one node: T trials that touch K cards each.

    `at` is the position of the trial's node in the rows that were asked about, `column` tells trials of one node
    apart. A card that a trial does not need is card 0 with zero amounts. `open`: nodes that were not looked at, since
    the search among many containers is bounded; ask about them again.
    """

    at: Ints  # [T]
    column: Ints  # [T]
    rows: Ints  # [T]
    cards: Ints  # [T, K] distinct cards that change
    mib: Ints  # [T, K]
    milli: Ints  # [T, K]
    slots: Ints  # [T, K]
    chosen: Ints  # [T, demand.cards] the card of each (container, card) pair
    open: tuple[int, ...] = ()  # rows

    def __len__(self) -> int:
        return len(self.rows)


def needs(fleet: Fleet, ask: Ask, rows: Ints) -> Needs:
    """Return what an ask would take of each card of some nodes."""
    size = (len(rows), fleet.width)
    mib = np.full(size, ask.mib, np.int64)
    if ask.percent:
        share = -(-np.maximum(fleet.capacity.mib[rows], 0) * ask.percent // 100)
        mib = np.maximum(mib, share)
    slots = np.maximum(fleet.capacity.slots[rows], 1) if ask.exclusive else np.ones(size, np.int64)
    return Needs(mib, ask.milli, slots)


def card_fits(fleet: Fleet, demand: Demand, want: Needs, rows: Ints, room: Room) -> Bools:
    """Say which cards (rows x cards) have what one ask takes, by itself."""
    ok: Bools = (room.slots[rows] >= want.slots) & (room.milli[rows] >= want.milli) & (room.mib[rows] >= want.mib)
    allowed = fleet.eligible(demand, rows) if room is fleet.capacity else usable(fleet, demand, rows)
    return ok if allowed is None else ok & allowed


def usable(fleet: Fleet, demand: Demand, rows: Ints) -> Bools | None:
    """Say which cards (rows x cards) a demand may have now, if there is room; None: all of them."""
    masks = [mask for mask in (fleet.eligible(demand, rows), fleet.joinable(demand, rows)) if mask is not None]
    return np.logical_and.reduce(masks) if masks else None


def node_fits(demand: Demand, rows: Ints, room: Room) -> Bools:
    """Say which nodes have the CPU and memory."""
    return (room.cpu[rows] >= demand.cpu_milli) & (room.ram[rows] >= demand.ram_mib)


def fits(fleet: Fleet, demand: Demand, rows: Ints, budget: Budget | None = None) -> Bools:
    """Say which nodes' cards fit a demand now; of several containers, as far as the search's budget goes."""
    ok = _each_fits(fleet, demand, rows, fleet.free)
    if len(demand.asks) > 1:
        at = np.flatnonzero(ok)
        which, places, _ = _spread(fleet, demand, rows[at], budget)
        ok[at] = np.array([found is not None for found in places], np.bool_)[which] if len(at) else ok[at]
    return ok


def ever_fits(fleet: Fleet, demand: Demand, rows: Ints) -> Bools:
    """Say which nodes' cards would fit each container of a demand by itself if nothing ran there."""
    return _each_fits(fleet, demand, rows, fleet.capacity)


def _each_fits(fleet: Fleet, demand: Demand, rows: Ints, room: Room) -> Bools:
    ok = np.ones(len(rows), np.bool_)
    for ask in demand.asks:
        ok &= card_fits(fleet, demand, needs(fleet, ask, rows), rows, room).sum(axis=1) >= ask.count
    if len(demand.asks) > 1:
        ok &= _enough_in_all(fleet, demand, rows, room)
    return ok


def _enough_in_all(fleet: Fleet, demand: Demand, rows: Ints, room: Room) -> Bools:
    """Say which nodes' cards together have what each phase takes at the least."""
    ok = np.ones(len(rows), np.bool_)
    there = room.slots[rows] >= 1
    mib = np.stack([_least(needs(fleet, ask, rows).mib, there) * ask.count for ask in demand.asks])
    for phase in demand.phases:
        milli = sum(demand.asks[i].milli * demand.asks[i].count for i in phase)
        ok &= mib[list(phase)].sum(axis=0) <= np.where(there, room.mib[rows], 0).sum(axis=1)
        ok &= milli <= np.where(there, room.milli[rows], 0).sum(axis=1)
    return ok


def _least(mib: Ints, there: Bools) -> Ints:
    return np.where(there, mib, np.iinfo(np.int64).max >> 16).min(axis=1, initial=np.iinfo(np.int64).max >> 16)


def trials(fleet: Fleet, demand: Demand, rows: Ints, cards: Literal["tightest", "distinct", "all"]) -> Trials:
    """Return the ways to place a demand on some nodes, as far as their cards go.

    A share of one card: each card that fits if `cards` is "all", the first of each kind of equal ones if
    "distinct", the one with the least left if "tightest". Several cards: those with the least left; whole cards:
    the first empty ones. Lowest index on ties. Several containers: the one way that `containers.spread_out` finds.
    """
    if not demand.asks:
        at = np.arange(len(rows))
        empty = np.empty((len(rows), 0), np.int64)
        return Trials(at, np.zeros_like(at), rows, empty, empty, empty, empty, empty)
    if len(demand.asks) > 1:
        return _trials_of_several(fleet, demand, rows)
    (ask,) = demand.asks
    want = needs(fleet, ask, rows)
    ok = card_fits(fleet, demand, want, rows, fleet.free)
    if cards != "tightest" and ask.count == 1 and not ask.whole:
        at, column = np.nonzero(ok & ~_twins(fleet, rows, ok) if cards == "distinct" else ok)
        chosen = column[:, None]
    else:
        at = np.flatnonzero(ok.sum(axis=1) >= ask.count)
        column, chosen = np.zeros_like(at), _first(fleet, ask, rows[at], ok[at])
    return Trials(
        at,
        column,
        rows[at],
        chosen,
        want.mib[at[:, None], chosen],
        np.full(chosen.shape, want.milli, np.int64),
        want.slots[at[:, None], chosen],
        chosen,
    )


def _twins(fleet: Fleet, rows: Ints, ok: Bools) -> Bools:
    """Say which cards (rows x cards) are just like one of a lower index on their node that is `ok`."""
    free = fleet.free
    # One number for all but memory: below 2^14 thousandths and 2^10 slots are free on any card.
    state = (fleet.alike[rows] << 24) + (free.slots[rows] << 14) + free.milli[rows]
    twin: Bools = (
        (state[:, :, None] == state[:, None, :]) & ok[:, None, :] & np.tri(fleet.width, k=-1, dtype=np.bool_)
    )
    mib = free.mib[rows]
    if mib.any():
        twin &= mib[:, :, None] == mib[:, None, :]
    return np.logical_or.reduce(twin, axis=2)


def _first(fleet: Fleet, ask: Ask, rows: Ints, ok: Bools) -> Ints:
    """Return each node's `count` cards to take, in the order of their index."""
    if ask.whole:
        rank = np.where(ok, 0, 1)
    else:
        have = left(fleet.free.mib[rows], fleet.free.milli[rows], fleet.capacity.mib[rows])
        rank = np.where(ok, have, np.iinfo(np.int64).max)
    if ask.count == 1 and fleet.width:  # argmin refuses to look at no cards at all
        return rank.argmin(axis=1)[:, None]
    return np.sort(rank.argsort(axis=1, kind="stable")[:, : ask.count], axis=1)


def _spread(
    fleet: Fleet, demand: Demand, rows: Ints, budget: Budget | None = None
) -> tuple[Ints, list[Places | None], Bools]:
    """Return the kind of each node [R], for each kind the cards of each ask, or None if there is no way, and which
    kinds nobody looked at.

    Nodes whose cards are alike are one kind, so that many equal nodes cost one search; the roomiest come first.
    """
    free, capacity = fleet.free, fleet.capacity
    parts = [free.mib[rows], free.milli[rows], free.slots[rows], capacity.mib[rows], capacity.slots[rows]]
    allowed = usable(fleet, demand, rows)
    if allowed is not None:
        parts.append(allowed.astype(np.int64))
    _, first, which = np.unique(np.hstack(parts), axis=0, return_index=True, return_inverse=True)
    kinds, budget = rows[first], budget or Budget()
    want = [needs(fleet, ask, kinds) for ask in demand.asks]
    order = left(free.mib[kinds], free.milli[kinds], capacity.mib[kinds]).argsort(axis=1, kind="stable")
    places: list[Places | None] = [None] * len(kinds)
    open_ = np.zeros(len(kinds), np.bool_)
    for k in np.argsort(-np.maximum(free.milli[kinds], 0).sum(axis=1), kind="stable"):
        row, skipped = kinds[k], budget.skipped
        there = [int(c) for c in order[k] if free.slots[row, c] > 0 and (allowed is None or allowed[first[k], c])]
        cards = [
            (
                (int(free.mib[row, c]), int(free.milli[row, c]), int(free.slots[row, c])),
                tuple((int(w.mib[k, c]), w.milli, int(w.slots[k, c])) for w in want),
            )
            for c in there
        ]
        found = spread_out(demand, cards, budget)
        open_[k] = budget.skipped > skipped
        if found is not None:
            places[k] = tuple(tuple(sorted(there[at] for at in ask)) for ask in found)
    return which.ravel(), places, open_


def _trials_of_several(fleet: Fleet, demand: Demand, rows: Ints) -> Trials:
    at = np.flatnonzero(_each_fits(fleet, demand, rows, fleet.free))
    which, places, open_ = _spread(fleet, demand, rows[at])
    unseen = tuple(rows[at[open_[which]]].tolist())
    amounts = np.zeros((4, len(places), demand.cards), np.int64)  # card, MiB, thousandths, slots
    chosen = np.zeros((len(places), demand.cards), np.int64)
    for k, cards in enumerate(places):
        if cards is not None:
            row = int(rows[at[np.argmax(which == k)]])
            for column, (card, taken) in enumerate(charges(fleet, demand, row, cards).items()):
                amounts[:, k, column] = card, *taken
            chosen[k] = [c for of_ask in cards for c in of_ask]
    fitting = np.array([places[k] is not None for k in which], np.bool_)
    at, which = at[fitting], which[fitting]
    cards_, mib, milli, slots = amounts[:, which]
    return Trials(at, np.zeros_like(at), rows[at], cards_, mib, milli, slots, chosen[which], unseen)


def charges(fleet: Fleet, demand: Demand, row: int, cards: tuple[tuple[int, ...], ...]) -> dict[int, Amount]:
    """Return what a placement takes of each card it touches: MiB, thousandths, slots of the dearest phase.

    Each amount is charged as kube-scheduler charges a pod: the larger of all containers with the sidecars, and
    of each init container with the sidecars before it.
    """
    rows = np.array([row])
    want = [needs(fleet, ask, rows) for ask in demand.asks]
    taken: dict[int, Amount] = {}
    for phase in demand.phases:
        now: dict[int, list[Amount]] = {}
        for i in phase:
            for c in cards[i]:
                now.setdefault(c, []).append((int(want[i].mib[0, c]), want[i].milli, int(want[i].slots[0, c])))
        for c, amounts in now.items():
            mib, milli, slots = together(amounts)
            was = taken.get(c, (0, 0, 0))
            taken[c] = (max(was[0], mib), max(was[1], milli), max(was[2], slots))
    return taken
