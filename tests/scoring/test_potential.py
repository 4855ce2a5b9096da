"""The potential, term by term, and against the measure of fragmentation."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.fit import trials
from scoring.fragmentation import of_nodes
from scoring.load import look
from scoring.model import CARD, Ask, Charge, Demand, Fleet, Placement, Row
from scoring.potential import LEVELS, Load, Potential, Weights
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row
from tests.scoring.worlds import demands, rows

NONE = Weights(0.0, 0.0, 0.0, ())
NO_VALUE = np.zeros((1, LEVELS))
SHARE = demand(Ask(1, milli=500), cpu=4000)


def load_of(of: Fleet, *pods: Demand) -> Load:
    """Return what the potential knows after some pods."""
    sight = look(of, Workload(pods))
    assert sight is not None
    return sight.load


def phi(of: Fleet, load: Load, weights: Weights = NONE, value: np.ndarray = NO_VALUE) -> list[float]:
    """Return the potential of every node."""
    value = np.repeat(value, max(len(of.models), 1), axis=0) if len(value) == 1 else value
    everything = np.arange(len(of))
    none = trials(of, demand(Ask(1, milli=1)), everything[:0], "all")
    return Potential(of, load, weights, value).before_and_after(of, everything, none, 0)[0].tolist()


def test_a_hinge_counts_cards_without_cpu() -> None:
    """Two cards and CPU for one at 4 cores a card: one card is without."""
    of = fleet(row(card(0), card(0), cpu=4000), row(card(0), cpu=4000))
    assert phi(of, load_of(of, SHARE), replace(NONE, hinges=((2.0, 4000.0),))) == [2.0, 0.0]


def test_a_card_is_worth_what_it_has_left() -> None:
    """V is looked up by hundredths left, and taken away; a card that takes nobody is worth nothing."""
    of = fleet(row(card(0), card(0, milli_free=509), card(0, milli_free=400, slots_free=0)))
    value = (np.arange(LEVELS) ** 2.0)[None, :]
    assert phi(of, load_of(of, SHARE), value=value) == [-(100.0**2) - 50.0**2]


def test_the_smaller_part_of_a_card_counts() -> None:
    """With memory and compute, what is left is the scarcer of the two."""
    of = fleet(row(card(1000, mib_free=300)))
    assert phi(of, load_of(of, SHARE), value=np.arange(LEVELS, dtype=np.float64)[None, :]) == [-30.0]


def test_a_host_has_its_price() -> None:
    """Only a node that can take the pod of two cards now earns its price."""
    pair = demand(Ask(2, milli=1000), cpu=8000)
    of = fleet(
        row(card(0), card(0), cpu=8000),
        row(card(0), card(0), cpu=7999),
        row(card(0), card(0, milli_free=9), cpu=9000),
    )
    load = replace(load_of(of, pair), host=np.array([1.5]))
    assert phi(of, load) == [-1.5, 0.0, 0.0]


def test_filled_looks_to_the_end_of_the_node() -> None:
    """Two cards and CPU for three halves: a half card is lost in the end, though nothing is one step ahead."""
    of = fleet(row(card(0), card(0), cpu=12000))
    load = load_of(of, SHARE)
    assert phi(of, load, replace(NONE, fragments=1.0)) == [0.0]
    assert phi(of, load, replace(NONE, filled=1.0)) == [pytest.approx(0.5)]


def test_stranded_cpu_is_what_no_pod_can_use() -> None:
    """CPU on a node without room on its cards serves the CPU-only pods alone, here a half of all."""
    of = fleet(row(card(0, milli_free=0), cpu=8000))
    load = load_of(of, SHARE, Demand(cpu_milli=2000))
    assert load.cpu_per_card == 12000  # (4000 + 2000) / 0.5 cards
    assert phi(of, load, replace(NONE, stranded=1.0)) == [pytest.approx(8 / 12 * 0.5)]


@settings(max_examples=200, deadline=None)
@given(st.lists(rows(), min_size=1, max_size=3), st.lists(demands(), min_size=1, max_size=4))
def test_fragments_are_those_of_the_measure(nodes: list[Row], pods: list[Demand]) -> None:
    """With all other weights 0 the potential is F of the same demands, in cards."""
    of = fleet(*nodes)
    if look(of, Workload(pods)) is None:
        return
    load = load_of(of, *pods)
    measured = of_nodes(of, load.typical, np.arange(len(of))) / CARD
    assert phi(of, load, replace(NONE, fragments=1.0)) == pytest.approx(measured.tolist(), abs=1e-9)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(rows(), min_size=1, max_size=3),
    demands(),
    st.lists(demands() | st.builds(Demand, cpu_milli=st.integers(0, 4000)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_what_a_trial_promises_comes_true(nodes: list[Row], wanted: Demand, pods: list[Demand], seed: int) -> None:
    """The potential after a trial is that of the node once the trial's cards are taken, with every term at work."""
    of, draw = fleet(*nodes), np.random.default_rng(seed)
    if look(of, Workload(pods)) is None:
        return
    load = load_of(of, *pods)
    load = replace(load, host=draw.random(len(load.typical)), cpu_per_card=max(load.cpu_per_card, 1.0))
    value = draw.random((len(of.models), LEVELS))
    weights = Weights(0.3, 0.4, 0.2, ((1.0, 3000.0), (0.5, 700.0)))
    everything = np.arange(len(of))
    potential = Potential(of, load, weights, value)
    ways = trials(of, wanted, everything, "all")
    _, after = potential.before_and_after(of, everything, ways, wanted.cpu_milli)
    for t in range(len(ways)):
        taken = [np.zeros(of.width, np.int64) for _ in range(3)]
        for amount, of_trial in zip(taken, (ways.mib[t], ways.milli[t], ways.slots[t]), strict=True):
            np.add.at(amount, ways.cards[t], of_trial)
        placement = Placement(int(ways.rows[t]), (), Charge(taken[0], taken[1], taken[2], wanted.cpu_milli, 0, None))
        of.take(placement)
        assert after[t] == pytest.approx(phi(of, load, weights, value)[ways.rows[t]], abs=1e-6)
        of.give_back(placement)
