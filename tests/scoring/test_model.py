"""The nouns of packing: demands that are equal, a Fleet that grows, models that match."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoring.model import CARD, KINDS, PATTERNS, WHOLE, Ask, Card, Demand, Fleet, Row, left, normal_model, one
from tests.builders import card, demand, fleet, row


def test_equal_demands_are_one() -> None:
    """Demands are values: equal ones have one hash."""
    assert demand(Ask(mib=1)) == demand(Ask(mib=1))
    assert hash(demand(Ask(mib=1))) == hash(demand(Ask(mib=1)))
    assert demand(Ask(mib=1)) != demand(Ask(mib=2))
    assert one(Ask(mib=1), 5, 6, ("a",)) == Demand((Ask(mib=1),), ((0,),), 5, 6, ("a",))


def test_what_a_demand_adds_up_to() -> None:
    """Cards are counted over all containers, compute over the dearest phase."""
    phased = Demand((Ask(2, milli=300), Ask(milli=500), Ask(milli=200)), ((0, 2), (1,)))
    assert (phased.cards, phased.milli) == (4, 800)
    assert phased.main == Ask(2, milli=300)
    assert (Demand().cards, Demand().milli, Demand().main) == (0, 0, None)


@pytest.mark.parametrize(
    ("ask", "kind"),
    [(Ask(milli=500), 0), (Ask(2, milli=500), 0)]
    + [
        (Ask(n, 0, 100, CARD, exclusive=True, whole=True), k)
        for n, k in ((1, 1), (2, 2), (3, 3), (4, 3), (8, 4), (64, 4))
    ],
)
def test_classes_of_pods(ask: Ask, kind: int) -> None:
    """Shares are one class; whole cards are classed by their number."""
    assert demand(ask).kind == kind < KINDS


def test_a_fleet_grows_in_both_directions() -> None:
    """Whatever comes later, and however wide, what was there stays."""
    of = Fleet()
    for i in range(20):
        of.put(f"n{i}", row(card(mib=i)))
    of.put("n3", row(*[card(mib=7)] * 9))
    assert (len(of), of.width) == (20, 9)
    assert of.free.mib[:20, 0].tolist() == [0, 1, 2, 7, *range(4, 20)]
    assert of.free.mib[4, 1:].tolist() == [-1] * 8
    of.put("n3", row(card(mib=3)))
    assert of.free.mib[3].tolist() == [3] + [-1] * 8
    assert of.uuids[3] == ("GPU-0",)


def test_a_node_keeps_its_row() -> None:
    """A node written again is the same row, and says what changed since."""
    of = fleet(row(card()), row(card()))
    mark = of.changes
    assert of.put("n1", row()) == 1
    assert of.put("n2", row()) == 2
    of.put("n1", row())
    changed = of.changed_since(mark)
    assert changed is not None
    assert changed.tolist() == [1, 2]
    assert of.changed_since(of.changes) is not None


@pytest.mark.parametrize(
    ("patterns", "allowed"),
    [
        pytest.param(("a100-sxm4-80gb",), [True, False, False, False], id="a whole name"),
        pytest.param(("a100",), [False] * 4, id="no part of a name"),
        pytest.param(("a100*",), [True, True, False, False], id="a glob"),
        pytest.param(("a10", "t4"), [False, False, True, True], id="one of several"),
        pytest.param(("!t4",), [True, True, True, False], id="all but one"),
        pytest.param(("a1*", "!a100*"), [False, False, True, False], id="a glob but for another"),
        pytest.param(("!*",), [False] * 4, id="nothing"),
        pytest.param(("a100-????-80gb",), [True, False, False, False], id="a glob for letters"),
    ],
)
def test_models(patterns: tuple[str, ...], allowed: list[bool]) -> None:
    """Some positive pattern matches, if there are any, and no negative one."""
    models = ["NVIDIA A100-SXM4-80GB", "NVIDIA A100-PCIE-40GB", "NVIDIA A10", "Tesla T4"]
    of = fleet(row(*(card(model=m) for m in models)))
    found = of.eligible(demand(models=patterns), np.arange(1))
    assert found is not None
    assert found[0].tolist() == allowed


def test_models_that_come_later() -> None:
    """A pattern that was asked for once is asked again when there are more models."""
    of = fleet(row(card(model="T4")))
    assert of.allowed_models(("a*",)).tolist() == [False]
    of.put("n1", row(card(model="A10")))
    assert of.allowed_models(("a*",)).tolist() == [False, True]


def test_uuids() -> None:
    """Named cards alone are eligible, together with the models."""
    of = fleet(row(card(uuid="a"), card(uuid="b", model="T4")), row(card(uuid="c")))
    rows = np.arange(2)
    assert of.eligible(demand(), rows) is None
    named = of.eligible(demand(uuids=("b", "c")), rows)
    both = of.eligible(demand(uuids=("a", "b"), models=("t4",)), rows)
    assert named is not None
    assert both is not None
    assert (named.tolist(), both.tolist()) == ([[False, True], [True, False]], [[False, True], [False, False]])


@pytest.mark.parametrize(
    ("name", "normal"),
    [("NVIDIA A10", "a10"), ("Tesla T4", "t4"), (" nvidia H100 80GB HBM3 ", "h100 80gb hbm3"), ("", "")],
)
def test_names_of_models(name: str, normal: str) -> None:
    """Case and the vendor's prefix tell no models apart."""
    assert normal_model(name) == normal


@pytest.mark.parametrize(
    ("mib_free", "milli_free", "mib", "thousandths"),
    [
        (100, 1000, 100, 1000),
        (25, 1000, 100, 250),
        (100, 300, 100, 300),
        (0, 300, 0, 300),
        (-1, -1, 100, 0),
        (50, 1300, 100, 500),
    ],
)
def test_what_a_card_can_still_give(mib_free: int, milli_free: int, mib: int, thousandths: int) -> None:
    """The scarcer of memory and compute counts; a card of no known memory has compute alone."""
    assert left(np.array([mib_free]), np.array([milli_free]), np.array([mib])).tolist() == [thousandths]


def test_whole_is_a_card() -> None:
    """A whole card is all of its memory, its compute and its slots."""
    assert (WHOLE.percent, WHOLE.milli, WHOLE.exclusive) == (100, CARD, True)


def test_patterns_that_pods_name_are_not_all_remembered() -> None:
    """Each author may write another; those of now are still answered."""
    of = fleet(row(card(model="A10")))
    for i in range(PATTERNS + 10):
        assert of.allowed_models((f"a{i}*",)).tolist() == [i in (1, 10)]
    assert len(of._eligible) <= PATTERNS


ROWS = st.lists(
    st.builds(
        card,
        st.integers(0, 3),
        mib_free=st.integers(0, 3),
        slots_free=st.integers(0, 3),
        model=st.sampled_from("ab"),
        uuid=st.sampled_from("uv"),
    ),
    max_size=3,
)


@given(rows=st.lists(st.tuples(st.sampled_from(["n0", "n1"]), ROWS), min_size=1, max_size=6))
def test_to_write_what_differs_is_to_write_all(rows: list[tuple[str, list[Card]]]) -> None:
    """Whatever a row was before, and however wide the fleet has become since."""
    some, every, was = Fleet(), Fleet(), dict[str, Row]()
    for name, cards in rows:
        held = [replace(c, holders=(("t", False),) * c.slots_free) for c in cards]
        now = Row(tuple(held), len(cards), 2, 1, 1)
        some.put(name, now, was.get(name))
        every.put(name, now)
        was[name] = now
    assert (some.names, some.uuids, some.models) == (every.names, every.uuids, every.models)
    assert some.holders == every.holders
    for a, b in zip(*map(arrays_of, (some, every)), strict=True):
        assert np.array_equal(a, b)


def arrays_of(of: Fleet) -> list[Any]:
    """Return all arrays of a fleet."""
    return [of.model, of.alike, of.hosted, of._tenant, of._private, *of.capacity, *of.free]
