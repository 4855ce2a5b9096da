"""Small worlds for property tests: fleets, demands, and the one check that needs no cleverness."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from hypothesis import strategies as st

from scoring.model import WHOLE, Ask, Card, Demand, Fleet, Row

SLOTS = 3
UUIDS = [f"GPU-{i}" for i in range(4)]


@st.composite
def cards(draw: st.DrawFn, i: int) -> Card:
    """Draw a card in any state: of two sizes, of no memory, over-promised or absent."""
    mib = draw(st.sampled_from([0, 8, 8, 16]))
    milli = draw(st.sampled_from([1000, 1000, 1500]))
    model = draw(st.sampled_from(["A10", "T4"]))
    if draw(st.integers(0, 5)) == 0:
        return Card(UUIDS[i], model, mib, milli, SLOTS, -1, -1, -1)
    if draw(st.booleans()):
        return Card(UUIDS[i], model, mib, milli, SLOTS, mib, milli, SLOTS)
    free = draw(st.integers(0, mib)), draw(st.sampled_from([0, 200, 500, 999, 1000])), draw(st.integers(0, SLOTS - 1))
    holders = draw(st.sampled_from([(), (), (("red", False),), (("red", True),), (("red", False), ("blue", False))]))
    return Card(UUIDS[i], model, mib, milli, SLOTS, *free, holders)


@st.composite
def rows(draw: st.DrawFn) -> Row:
    """Draw a node of up to four cards, often several of them just alike."""
    made = [draw(cards(i)) for i in range(draw(st.integers(0, 4)))]
    like = [draw(st.integers(0, i)) for i in range(len(made))]
    alike = tuple(replace(made[j], uuid=UUIDS[i]) for i, j in enumerate(like))
    return Row(alike, 4000, 4, 1000 * draw(st.integers(0, 4)), draw(st.integers(0, 4)))


@st.composite
def asks(draw: st.DrawFn) -> Ask:
    """Draw what a container may want."""
    count = draw(st.integers(1, 2))
    kind = draw(st.sampled_from(["share", "share", "percent", "alone", "whole"]))
    if kind == "whole":
        return Ask(count, 0, WHOLE.percent, WHOLE.milli, exclusive=True, whole=True)
    milli = draw(st.sampled_from([0, 200, 500, 1000]))
    if kind == "percent":
        return Ask(count, draw(st.integers(0, 1)), draw(st.sampled_from([10, 50, 100])), milli)
    return Ask(count, draw(st.integers(0, 9)), 0, milli, exclusive=kind == "alone")


@st.composite
def demands(draw: st.DrawFn, most: int = 3) -> Demand:
    """Draw a pod of up to `most` GPU containers, in one phase or several."""
    wanted = tuple(draw(st.lists(asks(), min_size=1, max_size=most)))
    everything = tuple(range(len(wanted)))
    split = draw(st.integers(0, len(wanted) - 1))
    phases = (everything,) if draw(st.booleans()) else ((*everything[split:],), (*everything[: split + 1],))
    models = draw(st.sampled_from([(), (), (), ("a10",), ("!t*",)]))
    uuids = draw(st.sampled_from([(), (), (UUIDS[0], UUIDS[2]), (UUIDS[1], UUIDS[3])]))
    cpu, ram = draw(st.sampled_from([0, 0, 1000, 3000])), draw(st.integers(0, 2))
    tenant, private = draw(st.sampled_from([("", False), ("", False), ("red", False), ("red", True), ("blue", True)]))
    return Demand(wanted, phases, cpu, ram, models, uuids, tenant, private)


def is_right(fleet: Fleet, demand: Demand, row: int, chosen: tuple[tuple[int, ...], ...]) -> bool:
    """Say whether a choice of cards respects everything that was asked, by adding up card by card."""
    names = fleet.uuids[row]
    for ask, of in zip(demand.asks, chosen, strict=True):
        if len(set(of)) != ask.count or any(c >= len(names) for c in of):
            return False
        for c in of:
            model = fleet.models[fleet.model[row, c]]
            if demand.uuids and names[c] not in demand.uuids:
                return False
            if (demand.models == ("a10",) and model != "a10") or (demand.models == ("!t*",) and model == "t4"):
                return False
            others = fleet.holders.get((row, c), ())
            if any(tenant != demand.tenant and (private or demand.private) for tenant, private in others):
                return False
    return all(_fits(fleet, demand, row, chosen, phase, c) for phase in demand.phases for c in range(len(names)))


def _fits(
    fleet: Fleet, demand: Demand, row: int, chosen: tuple[tuple[int, ...], ...], phase: tuple[int, ...], card: int
) -> bool:
    capacity, free = fleet.capacity, fleet.free
    here = [demand.asks[i] for i in phase if card in chosen[i]]
    mib = sum(max(ask.mib, -(-int(capacity.mib[row, card]) * ask.percent // 100)) for ask in here)
    all_slots = max(int(capacity.slots[row, card]), 1)
    slots = all_slots if any(ask.exclusive for ask in here) and all_slots > 1 else len(here)
    return not here or (
        mib <= free.mib[row, card]
        and sum(ask.milli for ask in here) <= free.milli[row, card]
        and slots <= free.slots[row, card]
    )


def every_choice(fleet: Fleet, demand: Demand, row: int) -> Iterator[tuple[tuple[int, ...], ...]]:
    """Yield every way to give each ask its number of cards of a node."""
    width = len(fleet.uuids[row])
    yield from product(*(combinations(range(width), ask.count) for ask in demand.asks))
