"""What the default policy sees of fleet and load."""

import numpy as np
import pytest

from scoring.load import look
from scoring.model import WHOLE, Ask, Demand
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row

HALF = demand(Ask(1, milli=500), cpu=4000)
EIGHT = demand(Ask(2, percent=100, milli=1000, exclusive=True, whole=True), cpu=16000)


def test_nothing_to_see() -> None:
    """Without a GPU pod, and without a card, there is nothing to learn."""
    assert look(fleet(row(card(0))), Workload()) is None
    assert look(fleet(row(card(0))), Workload([Demand(cpu_milli=1)])) is None
    assert look(fleet(row()), Workload([HALF])) is None


def test_what_is_asked() -> None:
    """Three halves and a pair of whole cards: sizes, rates by card, CPU per card."""
    sight = look(fleet(row(card(0), card(0, milli_free=300), cpu=32000)), Workload([HALF] * 3 + [EIGHT]))
    assert sight is not None
    assert sight.sizes.tolist() == [50, 100]
    assert sight.rates.tolist() == [0.6, 0.4]
    assert sight.large_rates.tolist() == [0.2]
    assert sight.cpu_per_card == pytest.approx((3 * 4000 + 16000) / 3.5)
    assert sight.cards_per_slot == pytest.approx(3.5 / 5)
    assert sight.cards_in_use == pytest.approx(0.7)
    assert sight.cpu == 32000
    assert np.flatnonzero(sight.cards).tolist() == [30, 100]


def test_cards_without_cpu_are_no_stock() -> None:
    """A card on a node without CPU cannot be used, and is not counted."""
    sight = look(fleet(row(card(0), cpu=0), row(card(0), cpu=1000)), Workload([HALF]))
    assert sight is not None
    assert sight.cards[100] == 1


def test_memory_makes_a_pod_larger() -> None:
    """A pod takes the larger of its compute and its memory, as a part of the mean card."""
    of = fleet(row(card(1000), card(3000)))
    for ask, size in (
        (Ask(1, mib=1500, milli=100), 75),
        (Ask(1, percent=30, milli=100), 30),
        (Ask(1, milli=400), 40),
    ):
        sight = look(of, Workload([demand(ask)]))
        assert sight is not None
        assert sight.sizes.tolist() == [size]


def test_hosts_are_counted_by_cards_and_cpu() -> None:
    """Four free cards and CPU for one: one host; a used card is none."""
    of = fleet(row(*[card(0)] * 4, cpu=31999), row(*[card(0)] * 4, cpu=64000), row(card(0), card(0, milli_free=999)))
    sight = look(of, Workload([EIGHT]))
    assert sight is not None
    assert sight.hosts(of).tolist() == [3]


def test_a_model_that_more_pods_can_use_is_wanted_more() -> None:
    """Pods of one model's only, beside pods of any: that model is asked for more than the mean."""
    of = fleet(
        row(card(0, model="A10")), row(card(0, model="A10")), row(card(0, model="T4")), row(card(0, model="T4"))
    )
    only = demand(WHOLE, models=("a10",))
    sight = look(of, Workload([only, demand(WHOLE)]))
    assert sight is not None
    a10, t4 = (of.models.index(name) for name in ("a10", "t4"))
    assert sight.wanted[a10] == pytest.approx(0.5)
    assert sight.wanted[t4] == pytest.approx(-0.5)
