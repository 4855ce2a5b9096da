"""Where a pod goes: always where it fits, wherever it fits, and the same whatever was asked before."""

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from scoring.containers import Budget
from scoring.fit import ever_fits, fits
from scoring.model import Ask, Card, Demand, Fleet, Placement, Row
from scoring.place import COLUMNS, UNFIT, Board
from scoring.policies import POLICIES
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row
from tests.scoring.worlds import demands, every_choice, is_right, rows

SURE = sorted(set(POLICIES) - {"random"})
EACH_MODE = ("bestfit", "spread", "random")  # which try the tightest card, distinct ones, all
LOAD = Workload([demand(Ask(mib=4, milli=500)), demand(Ask(2, mib=8, milli=1000)), Demand(cpu_milli=2000)] * 3)


def board_of(of: Fleet, policy: str, *, with_node: bool = True) -> Board:
    """Return a board that has been asked nothing."""
    return Board(of, POLICIES[policy](LOAD, 7), with_node=with_node)


def snapshot(of: Fleet) -> list[list[Any]]:
    """Return everything that a placement may change."""
    who = [[i, c, *map(str, sorted(holders.items()))] for (i, c), holders in sorted(of.holders.items())]
    return [*who, *_amounts(of)]


def _amounts(of: Fleet) -> list[list[int]]:
    return [np.asarray(array[: len(of)]).ravel().tolist() for array in (*of.free, of.hosted)]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(rows(), min_size=1, max_size=3), st.lists(demands(), min_size=1, max_size=3), st.data())
def test_kept_scores_equal_fresh_ones(nodes: list[Row], asked: list[Demand], data: st.DataObject) -> None:
    """After any sequence of take, give_back and put, scores that were kept are scores made anew."""
    kept_fleet = fleet(*nodes)
    policy = data.draw(st.sampled_from(SURE))
    kept = board_of(kept_fleet, policy)
    taken: list[Placement] = []
    for _ in range(data.draw(st.integers(1, 8))):
        what = data.draw(st.sampled_from(["take", "take", "give back", "put"]))
        if what == "take" and (found := kept.best(data.draw(st.sampled_from(asked)))) is not None:
            kept_fleet.take(found)
            taken.append(found)
        elif what == "give back" and taken:
            kept_fleet.give_back(taken.pop())
        elif what == "put":
            taken.clear()
            kept_fleet.put(data.draw(st.sampled_from(["n0", "n1", "new"])), data.draw(rows()))
        for wanted in asked:
            anew = board_of(kept_fleet, policy)
            assert kept.node_scores(wanted).tolist() == anew.node_scores(wanted).tolist()
            best, fresh = kept.best(wanted), anew.best(wanted)
            assert (best and (best.row, best.cards)) == (fresh and (fresh.row, fresh.cards))


@settings(max_examples=250, deadline=None)
@given(
    st.lists(rows(), min_size=1, max_size=2), demands(1) | demands(), st.sampled_from(sorted(POLICIES)), st.booleans()
)
def test_right_and_complete(nodes: list[Row], wanted: Demand, policy: str, with_node: bool) -> None:
    """A choice fits, and there is one wherever trying every way finds one; filter and choose agree."""
    of = fleet(*nodes)
    boards = [board_of(of, name, with_node=with_node) for name in {policy, *EACH_MODE}]
    filtered = fits(of, wanted, np.arange(len(of)))
    for i in range(len(of)):
        possible = any(is_right(of, wanted, i, chosen) for chosen in every_choice(of, wanted, i))
        assert bool(filtered[i]) == possible
        roomy = of.free.cpu[i] >= wanted.cpu_milli and of.free.ram[i] >= wanted.ram_mib
        for board in boards:
            found = board.choose(wanted, i)
            assert (found is not None) == (possible and (bool(roomy) or not with_node))
            assert found is None or (found.row == i and is_right(of, wanted, i, found.cards))


@settings(max_examples=100, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=2), demands(), st.sampled_from(sorted(POLICIES)))
def test_take_and_give_back(nodes: list[Row], wanted: Demand, policy: str) -> None:
    """To take never goes below nothing on the touched cards, and to give back restores everything."""
    of = fleet(*nodes)
    found = board_of(of, policy, with_node=True).best(wanted)
    if found is None:
        return
    before = snapshot(of)
    of.take(found)
    touched = sorted({c for cards in found.cards for c in cards})
    assert all(int(array[found.row, c]) >= 0 for array in of.free[:3] for c in touched)
    assert snapshot(of) != before
    of.give_back(found)
    assert snapshot(of) == before


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    demands(most=1),
    st.sampled_from(SURE),
    st.randoms(use_true_random=False),
)
def test_the_order_of_equal_cards_is_nothing(levels: list[int], wanted: Demand, policy: str, random: object) -> None:
    """Cards of one kind in another order, each with what is on it, give the node the same score."""
    shuffled = list(levels)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    wanted = Demand(wanted.asks, wanted.phases, wanted.cpu_milli, wanted.ram_mib, wanted.models)
    one, other = (
        fleet(row(*(card(8, slots=4, mib_free=2 * n, milli_free=250 * n, slots_free=n) for n in of)))
        for of in (levels, shuffled)
    )
    assert board_of(one, policy).node_scores(wanted).tolist() == board_of(other, policy).node_scores(wanted).tolist()


@settings(max_examples=100, deadline=None)
@given(rows(), demands())
def test_what_fits_now_could_ever_fit(node: Row, wanted: Demand) -> None:
    """Nothing fits a node that would not fit it if it were empty."""
    of = fleet(node)
    here = np.arange(1)
    assert not fits(of, wanted, here)[0] or ever_fits(of, wanted, here)[0]


def test_nobody_to_ask() -> None:
    """A fleet without nodes, or without cards, has no place and no score."""
    none, cardless = Fleet(), fleet(row())
    for policy in POLICIES:
        assert board_of(none, policy).best(demand()) is None
        assert board_of(none, policy).node_scores(demand()).tolist() == []
        assert board_of(cardless, policy).node_scores(demand()).tolist() == [UNFIT]
        assert board_of(cardless, policy).best(demand()) is None


def test_a_pod_without_gpus_needs_only_the_node() -> None:
    """CPU and memory place a pod that wants no card."""
    of = fleet(row(cpu=1000), row(cpu=4000, ram=10))
    for policy in POLICIES:
        board = board_of(of, policy)
        found = board.best(Demand(cpu_milli=2000, ram_mib=10))
        assert found is not None
        assert (found.row, found.cards) == (1, ())
        assert board.best(Demand(cpu_milli=2000, ram_mib=11)) is None


def test_the_first_of_equals_is_the_best() -> None:
    """Ties go to the first node and the first card."""
    of = fleet(row(card(), card()), row(card(), card()))
    for policy in SURE:
        found = board_of(of, policy).best(demand())
        assert found is not None
        assert (found.row, found.cards) == (0, ((0,),))


def test_no_more_answers_are_kept_than_allowed() -> None:
    """The least recently asked demand is forgotten."""
    of = fleet()
    board = Board(of, POLICIES["spread"](LOAD, 0), keep=2)
    for mib in (1, 2, 1, 3):
        board.node_scores(demand(Ask(mib=mib)))
    assert [d.asks[0].mib for d in board._answers] == [1, 3]


def test_answers_about_many_cards_are_kept_in_smaller_number() -> None:
    """A pod of hundreds of cards is one demand, and has as many cells for each node."""
    of = fleet()
    board = Board(of, POLICIES["spread"](LOAD, 0), keep=4)
    for count in (*range(1, 8), *range(60, 65), 1, 2):
        board.node_scores(demand(Ask(mib=1, count=count)))
        cells = sum(answer.chosen.shape[1] for answer in board._answers.values())
        assert len(board._answers) == 1 or cells <= COLUMNS * 4
        assert board._columns == cells + len(board._answers)


def test_a_look_after_very_many_changes() -> None:
    """Scores older than the fleet's memory of changes are made anew."""
    of = fleet()
    board = board_of(of, "bestfit")
    before = board.node_scores(demand()).copy()
    for _ in range(500):
        of.put("n0", row(card(mib_free=5000)))
    assert of.changed_since(1) is None
    assert board.node_scores(demand()).tolist() != before.tolist()


def test_a_placement_charges_the_dearest_phase() -> None:
    """What is taken from a card is what kube-scheduler charges."""
    of = fleet(row(Card("GPU-0", "A10", 100, 1000, 48, 100, 1000, 48)))
    phased = Demand((Ask(mib=20, milli=300), Ask(mib=30, milli=100)), ((0,), (1,)))
    found = board_of(of, "bestfit").best(phased)
    assert found is not None
    of.take(found)
    assert (int(of.free.mib[0, 0]), int(of.free.milli[0, 0]), int(of.free.slots[0, 0])) == (70, 700, 47)


@pytest.mark.parametrize("policy", SURE)
def test_the_same_question_has_the_same_answer(policy: str) -> None:
    """To ask twice is to be told the same."""
    board = board_of(fleet(row(card(), card(mib_free=9000)), row(card())), policy)
    first, second = board.best(demand()), board.best(demand())
    assert first is not None
    assert second is not None
    assert (first.row, first.cards) == (second.row, second.cards)


def test_nodes_that_the_bounded_search_left_out_are_looked_at_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roomiest node is searched first; what was left out is not taken for unfit, but asked about again."""
    monkeypatch.setattr("scoring.containers.MOST_IN_ALL", 1)
    monkeypatch.setattr("scoring.fit.Budget", lambda: Budget(1))
    monkeypatch.setattr("scoring.containers._known", {})
    tight = [row(card(0, milli_free=500 + n), card(0, milli_free=500)) for n in range(5)]
    of = fleet(*tight, row(card(0), card(0)))
    two = Demand((Ask(milli=450), Ask(milli=400)), ((0, 1),))
    board = board_of(of, "bestfit")
    assert np.flatnonzero(np.isfinite(board.node_scores(two))).tolist() == [5]
    assert not board.looked_at_all(two)
    assert [int(np.isfinite(board.node_scores(two)).sum()) for _ in tight] == [2, 3, 4, 5, 6]
    assert board.looked_at_all(two)
