"""Does it fit? Each dimension by itself, at its very edge."""

from dataclasses import replace

import numpy as np
import pytest

from scoring.fit import charges, ever_fits, fits, trials
from scoring.model import WHOLE, Ask, Card, Demand
from scoring.place import Board
from scoring.policies.bestfit import BestFit
from tests.builders import card, demand, fleet, row

ALL_OF_TWO = Ask(2, WHOLE.mib, WHOLE.percent, WHOLE.milli, WHOLE.exclusive, WHOLE.whole)


@pytest.mark.parametrize(
    ("on", "ask", "fit"),
    [
        pytest.param(card(100), Ask(mib=100), True, id="all of the memory"),
        pytest.param(card(100), Ask(mib=101), False, id="a MiB too many"),
        pytest.param(card(100, mib_free=50), Ask(mib=51), False, id="a MiB more than is free"),
        pytest.param(card(100, milli_free=500), Ask(milli=500), True, id="all of the free compute"),
        pytest.param(card(100, milli_free=500), Ask(milli=501), False, id="a thousandth too many"),
        pytest.param(card(100, milli_free=0), Ask(mib=10), True, id="no compute asked, none left"),
        pytest.param(card(100, slots_free=1), Ask(mib=10), True, id="the last slot"),
        pytest.param(card(100, slots_free=0), Ask(), False, id="no slot left, however little is asked"),
        pytest.param(card(100, slots_free=47), Ask(exclusive=True), False, id="alone, but somebody is there"),
        pytest.param(card(100), Ask(exclusive=True), True, id="alone on an empty card"),
        pytest.param(card(100, slots=0, slots_free=0), Ask(exclusive=True), False, id="alone on a card of no slots"),
        pytest.param(card(101, mib_free=51), Ask(percent=50), True, id="half, rounded up, is free"),
        pytest.param(card(101, mib_free=50), Ask(percent=50), False, id="half, rounded up, is not free"),
        pytest.param(card(100, mib_free=10), Ask(mib=20, percent=10), False, id="the larger of MiB and percent"),
        pytest.param(card(0), Ask(mib=1), False, id="unknown memory, memory asked"),
        pytest.param(card(0), Ask(mib=1, percent=25), False, id="unknown memory, percent of memory asked"),
        pytest.param(card(0), Ask(percent=50, milli=500), True, id="unknown memory, compute asked"),
        pytest.param(card(0), WHOLE, True, id="unknown memory, a whole card asked"),
        pytest.param(card(100), WHOLE, True, id="a whole empty card"),
        pytest.param(card(100, mib_free=99), WHOLE, False, id="a whole card that lacks a MiB to somebody foreign"),
        pytest.param(card(100, 1300), WHOLE, True, id="a whole overcommitted card"),
        pytest.param(
            card(100, 1300, milli_free=1000, slots_free=47), WHOLE, False, id="room by overcommitment alone"
        ),
        pytest.param(card(mib_free=-1, milli_free=-1, slots_free=-1), Ask(), False, id="a card that is not offered"),
        pytest.param(card(), Ask(2), False, id="two cards of one"),
    ],
)
def test_one_ask_on_one_card(on: Card, ask: Ask, fit: bool) -> None:
    """A card takes an ask if it has enough of everything."""
    assert bool(fits(fleet(row(on)), demand(ask), np.arange(1))[0]) == fit


def test_cards_are_looked_at_one_by_one() -> None:
    """What two cards have together helps nobody; two asks of one container need two cards."""
    of = fleet(row(card(100), card(60)))
    assert [bool(fits(of, demand(Ask(2, mib=m)), np.arange(1))[0]) for m in (60, 61)] == [True, False]
    assert [bool(fits(of, demand(Ask(2, percent=p)), np.arange(1))[0]) for p in (100,)] == [True]


def test_nodes_are_answered_in_the_order_asked() -> None:
    """The answer is by position in the question, also when a node is asked about twice."""
    of = fleet(row(card(10)), row(card(100)), row())
    assert fits(of, demand(Ask(mib=50)), np.array([1, 0, 2, 1])).tolist() == [True, False, False, True]


def test_what_could_ever_fit() -> None:
    """What an empty card could hold counts, also if the card is not offered now."""
    of = fleet(row(card(100, mib_free=-1, milli_free=-1, slots_free=-1)))
    assert ever_fits(of, demand(Ask(mib=100)), np.arange(1)).tolist() == [True]
    assert ever_fits(of, demand(Ask(mib=101)), np.arange(1)).tolist() == [False]


@pytest.mark.parametrize(
    ("ask", "cards"),
    [
        pytest.param(Ask(mib=10), [2], id="a share goes to the card with the least left"),
        pytest.param(Ask(mib=30), [1], id="that still fits"),
        pytest.param(Ask(2, mib=10), [1, 2], id="two shares to the two with the least left"),
        pytest.param(WHOLE, [0], id="a whole card is the first empty one"),
        pytest.param(ALL_OF_TWO, [0, 3], id="whole cards are the first empty ones"),
    ],
)
def test_which_cards_are_tried(ask: Ask, cards: list[int]) -> None:
    """Where not every card is tried, those with the least left are, the lowest index on ties."""
    of = fleet(
        row(card(100), card(100, mib_free=50, slots_free=40), card(100, mib_free=20, slots_free=40), card(100))
    )
    ways = trials(of, demand(ask), np.arange(1), "tightest")
    assert (len(ways), ways.chosen.tolist()) == (1, [cards])


def test_every_card_is_tried() -> None:
    """A share may be tried on every card that fits; whole cards are all the same."""
    of = fleet(row(card(100), card(10), card(100)), row(card(100)))
    rows = np.arange(2)
    ways = trials(of, demand(Ask(mib=50)), rows, "all")
    assert list(zip(ways.at.tolist(), ways.cards[:, 0].tolist(), strict=True)) == [(0, 0), (0, 2), (1, 0)]
    assert len(trials(of, demand(WHOLE), rows, "all")) == 2


def test_one_card_of_each_kind_is_tried() -> None:
    """Of equal cards the first stands for all, but only for those that the pod may have."""
    of = fleet(row(card(100), card(100), card(100, mib_free=60), card(100, model="T4"), card(100)))
    assert trials(of, demand(Ask(mib=50)), np.arange(1), "distinct").cards[:, 0].tolist() == [0, 2, 3]
    named = demand(Ask(mib=50), uuids=("GPU-1", "GPU-4"))
    assert trials(of, named, np.arange(1), "distinct").cards[:, 0].tolist() == [1]


def test_what_several_containers_take() -> None:
    """Every card that a pod touches is charged its dearest phase, each amount by itself."""
    of = fleet(row(card(100), card(100)))
    phased = Demand((Ask(mib=10, milli=100), Ask(2, mib=5, milli=300), Ask(percent=50)), ((0, 1), (1, 2)))
    assert charges(of, phased, 0, ((0,), (0, 1), (1,))) == {0: (15, 400, 2), 1: (55, 300, 2)}


def test_a_container_without_a_phase_of_its_own_fits_by_itself() -> None:
    """Two containers that never run together may each have all of the card."""
    of = fleet(row(card(100)))
    one_by_one = Demand((Ask(mib=100), Ask(mib=100)), ((0,), (1,)))
    assert fits(of, one_by_one, np.arange(1)).tolist() == [True]
    assert fits(of, demand(Ask(mib=100), Ask(mib=100)), np.arange(1)).tolist() == [False]


@pytest.mark.parametrize(
    ("who", "holders", "fit"),
    [
        pytest.param(("red", False), (("blue", False),), True, id="nobody minds"),
        pytest.param(("red", False), (("blue", True),), False, id="who is there minds"),
        pytest.param(("red", False), (("red", True),), True, id="its own tenant minds"),
        pytest.param(("red", True), (("blue", False),), False, id="it minds"),
        pytest.param(("red", True), (("red", False),), True, id="it minds, among its own"),
        pytest.param(("red", True), (("red", False), ("blue", False)), False, id="it minds, among others too"),
        pytest.param(("red", True), (), True, id="an idle card"),
        pytest.param(("", False), (("red", True),), False, id="a pod without tenant is nobody's own"),
        pytest.param(("green", False), (("red", True),), False, id="a tenant that nobody has seen"),
    ],
)
def test_who_may_share_a_card(who: tuple[str, bool], holders: tuple[tuple[str, bool], ...], fit: bool) -> None:
    """A private pod shares cards with pods of its own tenant alone; empty, the card would fit anybody."""
    taken = replace(card(16, milli_free=500), holders=holders)
    of = fleet(row(taken))
    wanted = replace(demand(Ask(milli=200)), tenant=who[0], private=who[1])
    assert fits(of, wanted, np.arange(1)).tolist() == [fit]
    assert ever_fits(of, wanted, np.arange(1)).tolist() == [True]


def test_a_card_is_for_all_again_once_its_private_pod_is_gone() -> None:
    """What take writes, give_back takes away."""
    of = fleet(row(card(16)))
    red, blue = (replace(demand(Ask(milli=200)), tenant=name, private=name == "red") for name in ("red", "blue"))
    board = Board(of, BestFit())
    placed = board.best(red)
    assert placed is not None
    of.take(placed)
    assert board.best(blue) is None
    assert board.best(red) is not None
    of.give_back(placed)
    assert board.best(blue) is not None
