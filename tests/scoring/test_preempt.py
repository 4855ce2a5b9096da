"""Which pods go: as little harm as trying every set of them, and never one that need not."""

from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.containers import MOST_STATES
from scoring.fit import fits, node_fits
from scoring.model import WHOLE, Ask, Card, Demand, Fleet, Row, one
from scoring.preempt import MOST_LOOKS, SEVERAL, Looks, Occupant, broken, harm, least_victims
from tests.builders import card, demand, row
from tests.scoring.worlds import SLOTS, demands

GIB = 1024


def without(emptied: Row, staying: list[Occupant]) -> Fleet:
    """Return the node with some occupants on it, a card that is over-promised offering nothing."""
    cards = []
    for at, c in enumerate(emptied.cards):
        taken = [sum(o.cards.get(at, (0, 0, 0))[d] for o in staying) for d in range(3)]
        free = [have - t for have, t in zip((c.mib_free, c.milli_free, c.slots_free), taken, strict=True)]
        mib, milli, slots = free if min(free) >= 0 else [-1, -1, -1]
        holders = tuple((o.tenant, o.private) for o in staying if at in o.cards)
        cards.append(Card(c.uuid, c.model, c.mib, c.milli, c.slots, mib, milli, slots, holders))
    cpu, ram = sum(o.cpu_milli for o in staying), sum(o.ram_mib for o in staying)
    return Fleet([("n", Row(tuple(cards), emptied.cpu, emptied.ram, emptied.cpu_free - cpu, emptied.ram_free - ram))])


def room_for(emptied: Row, asking: Demand, staying: list[Occupant]) -> bool:
    """Say whether the fleet fits a demand beside some occupants: the one answer that filter gives."""
    fleet, rows = without(emptied, staying), np.zeros(1, np.int64)
    return bool(fits(fleet, asking, rows)[0] and node_fits(asking, rows, fleet.free)[0])


def found(
    emptied: Row, asking: Demand, occupants: list[Occupant], priority: int = 10, allowed: tuple[int, ...] = ()
) -> list[str] | None:
    """Return the keys of the victims."""
    victims = least_victims(Fleet([("n", emptied)]), asking, priority, occupants, allowed)
    return None if victims is None else [v.key for v in victims]


def on(key: str, at: int, gib: int, priority: int = 0, **more: object) -> Occupant:
    """Return a pod that holds some GiB of one card."""
    return Occupant(key, priority, {at: (gib * GIB, 0, 1)}, **more)  # type: ignore[arg-type]


# --- by case -------------------------------------------------------------------------------------------------

TWO = row(card(24 * GIB), card(24 * GIB))


def test_one_card_and_not_the_sum_has_to_be_free() -> None:
    """20 GiB beside 9 + 9 on one card and 12 on the other: the one of 12 goes, not two of 9."""
    pods = [on("a", 1, 9), on("b", 1, 9), on("c", 0, 12)]
    assert found(TWO, demand(Ask(mib=20 * GIB)), pods) == ["c"]


def test_the_lower_priority_goes_even_if_more_pods_do() -> None:
    """Two pods of priority 1 are less harm than one of priority 2."""
    pods = [on("a", 0, 9, 1), on("b", 0, 9, 1), on("c", 1, 18, 2)]
    assert found(TWO, demand(Ask(mib=20 * GIB)), pods) == ["a", "b"]


def test_equal_and_higher_priorities_never_go() -> None:
    """With only such pods in the way there is no victim; with one lower pod in the way it alone goes."""
    pods = [on("a", 0, 10, 10), on("b", 1, 10, 11)]
    assert found(TWO, demand(Ask(mib=20 * GIB)), pods) is None
    assert found(TWO, demand(Ask(mib=14 * GIB)), [*pods, on("c", 1, 5, 9)]) == []
    assert found(row(card(24 * GIB)), demand(Ask(mib=14 * GIB)), [pods[0], on("c", 0, 5, 9)]) == ["c"]


def test_a_budget_is_kept_before_priorities_are() -> None:
    """A pod of higher priority goes if the lower one's budget allows no disruption, and not if it allows one."""
    pods = [on("a", 0, 10, 1, budgets=(0,)), on("b", 1, 10, 5)]
    assert found(TWO, demand(Ask(mib=20 * GIB)), pods, allowed=(0,)) == ["b"]
    assert found(TWO, demand(Ask(mib=20 * GIB)), pods, allowed=(1,)) == ["a"]


def test_of_equal_pods_the_younger_goes() -> None:
    """The one that started last is the least harm."""
    pods = [on("old", 0, 10, started=1.0), on("young", 0, 10, started=2.0)]
    assert found(row(card(24 * GIB)), demand(Ask(mib=12 * GIB)), pods) == ["young"]


def test_two_whole_cards_take_the_two_with_the_least_on_them() -> None:
    """Exclusive cards are emptied of all that is there, and a pod on two cards goes from both."""
    pods = [on("a", 0, 1), Occupant("b", 0, {1: (GIB, 0, 1), 2: (GIB, 0, 1)}), on("c", 3, 1), on("d", 3, 1)]
    node = row(*[card(24 * GIB)] * 4)
    two = Ask(2, 0, WHOLE.percent, WHOLE.milli, exclusive=True, whole=True)
    assert found(node, one(two), pods) == ["b"]


def test_a_node_short_of_cpu_loses_pods_of_other_cards() -> None:
    """The card has room, the node has no CPU: a pod goes for its CPU, wherever its card is."""
    node = Row(TWO.cards, 4000, 4000, 4000, 4000)
    pods = [on("a", 0, 20, 5, cpu_milli=1000), on("b", 0, 4, 0, cpu_milli=3000)]
    assert found(node, demand(Ask(mib=20 * GIB), cpu=3000), pods) == ["b"]


def test_forced_victims_go_in_any_case() -> None:
    """Whoever must go for another reason is a victim, and what he frees is used first."""
    pods = [on("a", 0, 10, 3), on("b", 1, 10, 0)]
    victims = least_victims(Fleet([("n", TWO)]), demand(Ask(mib=20 * GIB)), 10, pods, forced=frozenset("a"))
    assert victims is not None
    assert [v.key for v in victims] == ["a"]


def test_a_hard_question_ends_and_its_answer_is_minimal() -> None:
    """48 pods of different sizes on each of 8 cards: the looks are bounded, and no victim is there in vain."""
    node = row(*[card(81920)] * 8)
    sizes = [(at, 700 + 37 * ((7 * i + at) % 48)) for at in range(8) for i in range(48)]
    pods = [Occupant(f"{at}-{i}", i % 3, {at: (mib, 20, 1)}, float(i)) for i, (at, mib) in enumerate(sizes)]
    looks = Looks()
    victims = least_victims(Fleet([("n", node)]), demand(Ask(count=3, mib=40000)), 10, pods, looks=looks)
    assert victims is not None
    assert looks.left > 0
    keys = {v.key for v in victims}
    for back in keys | {""}:
        staying = [p for p in pods if p.key not in keys or p.key == back]
        assert room_for(node, demand(Ask(count=3, mib=40000)), staying) is (back == "")


def test_containers_cost_looks_by_what_is_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight of them beside 32 pods: a node's search is bounded, and once the looks are over nodes are left out."""
    monkeypatch.setattr("scoring.containers._known", {})
    eight = Demand(tuple(Ask(mib=13900 - 800 * i) for i in range(8)), (tuple(range(8)),))
    pods = [Occupant(str(i), 0, {i % 8: (3000 + 7 * i, 0, 1)}) for i in range(32)]
    looks, nodes = Looks(), 0

    def cleared() -> bool:
        here = row(*(card(24576 - nodes) for _ in range(8)))
        return least_victims(Fleet([("n", here)]), eight, 10, pods, looks=looks) is not None

    while nodes < 100 and cleared():
        nodes += 1
    assert 0 < nodes < 100
    assert -MOST_LOOKS - (SEVERAL + MOST_STATES) * len(pods) < looks.left <= 0


def test_a_question_without_looks_left_still_has_an_answer() -> None:
    """The first answer costs no more looks than there are pods."""
    pods = [on("a", 0, 20, 3), on("b", 1, 20, 0)]
    looks = Looks(0)
    assert least_victims(Fleet([("n", TWO)]), demand(Ask(mib=20 * GIB)), 10, pods, looks=looks) is not None


@pytest.mark.parametrize(
    ("less", "more"),
    [
        ([on("a", 0, 1, 9)], [on("b", 0, 1, 1, budgets=(0,))]),
        ([on("a", 0, 1, 1), on("b", 0, 1, 1)], [on("c", 0, 1, 2)]),
        ([on("a", 0, 1, -5)], [on("b", 0, 1, -5), on("c", 0, 1, -6)]),
        ([on("a", 0, 1, 3), on("b", 0, 1, 1)], [on("c", 0, 1, 3), on("d", 0, 1, 2)]),
        ([on("a", 0, 1, started=2.0)], [on("b", 0, 1, started=1.0)]),
        ([on("a", 0, 1)], [on("b", 0, 1, started=1.0)]),
    ],
    ids=["budgets", "highest priority", "number, of negative priority", "sum", "start", "not started"],
)
def test_harm_is_compared_as_kube_scheduler_does(less: list[Occupant], more: list[Occupant]) -> None:
    """Each criterion decides where those before it are equal."""
    assert harm(less, (0,)) < harm(more, (0,))


def test_a_budget_is_broken_by_as_many_pods_as_exceed_it() -> None:
    """Two of three pods may go: three break it once."""
    assert [broken([on(str(i), 0, 1, budgets=(1,)) for i in range(n)], (0, 2)) for n in range(4)] == [0, 0, 0, 1]


def test_a_private_pod_shares_with_its_own_tenant_alone() -> None:
    """Whoever may not meet it goes or keeps the card; on a card of its own tenant it needs nobody gone."""
    private = replace(demand(Ask(mib=4 * GIB)), tenant="a", private=True)
    others = [on("b", 0, 4, 2, tenant="b"), on("c", 1, 4, 1, tenant="b")]
    assert found(TWO, private, others) == ["c"]
    assert found(TWO, private, [others[0], replace(others[1], tenant="a")]) == []
    assert found(TWO, demand(Ask(mib=4 * GIB)), [replace(o, private=True) for o in others]) == ["c"]


def test_a_card_that_offers_nothing_takes_nothing_from_the_others() -> None:
    """Two containers that fit on one card exactly need nobody gone from the others."""
    half = Ask(mib=12 * GIB)
    apart = Demand((half, half), ((0, 1), (0,)), tenant="a", private=True)
    assert found(TWO, apart, [on("b", 0, 1, tenant="b")]) == []
    over = [on("high", 0, 30, 20), on("low", 1, 1)]
    assert found(TWO, replace(apart, private=False), over) == ["low"]


# --- against every set ---------------------------------------------------------------------------------------


@st.composite
def scenes(draw: st.DrawFn) -> tuple[Row, list[Occupant], tuple[int, ...]]:
    """Draw a node of up to three cards, up to six pods on them, and two budgets."""
    width = draw(st.integers(1, 3))
    slots = draw(st.sampled_from([SLOTS, SLOTS, 8]))
    cards = tuple(
        Card(f"GPU-{i}", draw(st.sampled_from(["A10", "T4"])), 16, 1000, slots, *free)
        for i in range(width)
        for free in [draw(st.sampled_from([(16, 1000, slots)] * 4 + [(10, 600, slots), (-1, -1, -1)]))]
    )
    amount = st.tuples(st.integers(0, 9), st.sampled_from([0, 200, 500]), st.sampled_from([1, 1, 1, slots]))
    pods = [
        Occupant(
            str(i),
            draw(st.integers(-1, 2)),
            draw(st.dictionaries(st.integers(0, width - 1), amount, max_size=2)),
            float(draw(st.integers(0, 2))),
            draw(st.sampled_from([0, 0, 500, 2000])),
            0,
            draw(st.sampled_from([(), (), (0,), (1,), (0, 1)])),
            draw(st.sampled_from(["", "", "red", "blue"])),
        )
        for i in range(draw(st.integers(0, 6)))
    ]
    for i, one_ in enumerate(pods):
        alone = all(o.tenant == one_.tenant for o in pods if set(o.cards) & set(one_.cards))
        pods[i] = replace(one_, private=alone and draw(st.booleans()))
    cpu = draw(st.sampled_from([4000, 8000]))
    return Row(cards, cpu, 4, cpu, 4), pods, (draw(st.integers(0, 1)), draw(st.integers(0, 2)))


@settings(max_examples=400, deadline=None)
@given(scenes(), demands(), st.sets(st.sampled_from("012345")))
def test_exact_against_every_set(
    scene: tuple[Row, list[Occupant], tuple[int, ...]], asking: Demand, forced: set[str]
) -> None:
    """The victims are the least harm of all sets that make room; each one but the forced is needed; none is equal."""
    emptied, pods, allowed = scene
    lower = [p for p in pods if p.priority < 2]
    must = frozenset(p.key for p in lower if p.key in forced)
    fleet, looks = Fleet([("n", emptied)]), Looks()
    victims = least_victims(fleet, asking, 2, pods, allowed, must, looks)
    ways = [
        gone
        for n in range(len(lower) + 1)
        for gone in combinations(lower, n)
        if must <= {v.key for v in gone} and room_for(emptied, asking, [p for p in pods if p not in gone])
    ]
    if victims is None:
        assert not ways
        return
    assert ways
    assert harm(victims, allowed) == min(harm(gone, allowed) for gone in ways)
    assert {v.key for v in victims} <= {v.key for v in lower}
    assert [v.priority for v in victims] == sorted((v.priority for v in victims), reverse=True)
    assert room_for(emptied, asking, [p for p in pods if p not in victims])
    for back in victims:
        if back.key not in must:
            assert not room_for(emptied, asking, [p for p in pods if p not in victims or p == back])
