"""The measure of fragmentation, branch by branch, in numbers that can be added up by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.fit import trials
from scoring.fragmentation import before_and_after, of_nodes
from scoring.model import WHOLE, Ask, Charge, Demand, Placement, Row
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row
from tests.scoring.worlds import demands, rows


def share(milli: int, count: int = 1, *, cpu: int = 0, mib: int = 0, models: tuple[str, ...] = ()) -> Demand:
    """Return a typical demand."""
    return demand(Ask(count, mib=mib, milli=milli), cpu=cpu, models=models)


def of_two(*typical: Demand, cpu: int = 8000) -> float:
    """Return F of a node whose two cards, of no known memory, have 1000 and 300 thousandths left."""
    node = row(card(0), card(0, milli_free=300), cpu=cpu)
    return float(of_nodes(fleet(node), Workload(typical).typical(1.0), np.arange(1))[0])


@pytest.mark.parametrize(
    ("typical", "lost"),
    [
        pytest.param(share(1000, 2, cpu=9000), 1300, id="lacks both CPU and cards: everything"),
        pytest.param(share(1000, 2, cpu=1000), 1300, id="lacks cards: everything"),
        pytest.param(share(500, cpu=9000), 1300, id="lacks CPU: everything"),
        pytest.param(share(500, cpu=8000), 300, id="satisfied: what is left on cards too small for it"),
        pytest.param(share(300), 0, id="satisfied on every card: nothing"),
        pytest.param(Demand(cpu_milli=8000), 1300, id="wants no card: everything"),
        pytest.param(Demand(cpu_milli=9000), 1300, id="wants no card and lacks CPU: everything"),
        pytest.param(share(300, models=("t4",)), 1300, id="no card of its models: everything"),
        pytest.param(share(300, models=("!t4",)), 0, id="a card of its models: as without"),
        pytest.param(demand(WHOLE), 300, id="whole cards: what is left on the others"),
    ],
)
def test_each_branch(typical: Demand, lost: int) -> None:
    """One typical demand, one reason."""
    assert of_two(typical) == lost


def test_the_mean_by_frequency() -> None:
    """Several typical demands count by how often they come."""
    assert of_two(share(500), share(500), share(500), Demand(cpu_milli=1)) == pytest.approx(0.75 * 300 + 0.25 * 1300)


@pytest.mark.parametrize(
    ("mib_free", "milli_free", "lost"),
    [
        pytest.param(250, 1000, 250, id="memory is the scarcer: it is what is left, and too little"),
        pytest.param(1000, 200, 200, id="compute is the scarcer, and too little"),
        pytest.param(500, 500, 0, id="both are just enough"),
        pytest.param(0, 1000, 0, id="a card without memory has nothing left to lose"),
    ],
)
def test_both_dimensions_of_a_card(mib_free: int, milli_free: int, lost: int) -> None:
    """A card counts with the scarcer of its memory and its compute, and fits with both."""
    node = row(card(1000), card(1000, mib_free=mib_free, milli_free=milli_free))
    typical = Workload([share(500, mib=500)]).typical()
    assert of_nodes(fleet(node), typical, np.arange(1)).tolist() == [lost]


@pytest.mark.parametrize("gone", [{"slots_free": 0}, {"slots_free": -1, "milli_free": -1, "mib_free": -1}])
def test_a_card_that_takes_nobody_has_nothing_to_lose(gone: dict[str, int]) -> None:
    """What nobody could be given, for want of a slot or of health, is not fragmentation."""
    node = row(card(1000), card(1000, **gone))  # type: ignore[arg-type]
    assert of_nodes(fleet(node), Workload([share(1000)]).typical(), np.arange(1)).tolist() == [0]


def test_an_exclusive_demand_needs_an_empty_card() -> None:
    """A card with somebody on it is lost to a pod that wants to be alone."""
    node = row(card(0), card(0, slots_free=47))
    assert of_nodes(fleet(node), Workload([demand(WHOLE)]).typical(), np.arange(1)).tolist() == [1000]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(rows(), min_size=1, max_size=3),
    st.lists(demands(), min_size=1, max_size=3),
    st.lists(demands() | st.builds(Demand, cpu_milli=st.integers(0, 4000)), min_size=1, max_size=4),
)
def test_what_a_trial_promises_comes_true(nodes: list[Row], asked: list[Demand], load: list[Demand]) -> None:
    """F after a trial is F of the node once the trial's cards are taken; F never is below nothing or above all."""
    of, typical = fleet(*nodes), Workload(load).typical(1.0)
    everything = np.arange(len(of))
    for wanted in asked:
        ways = trials(of, wanted, everything, "all")
        before, after = before_and_after(of, typical, everything, ways, wanted.cpu_milli)
        assert before.tolist() == of_nodes(of, typical, everything).tolist()
        assert ((before >= 0) & (before <= 1500.001 * of.width)).all()
        for t in range(len(ways)):
            taken = [np.zeros(of.width, np.int64) for _ in range(3)]
            for amount, of_trial in zip(taken, (ways.mib[t], ways.milli[t], ways.slots[t]), strict=True):
                np.add.at(amount, ways.cards[t], of_trial)
            charge = Charge(taken[0], taken[1], taken[2], wanted.cpu_milli, 0, None)
            placement = Placement(int(ways.rows[t]), (), charge)
            of.take(placement)
            assert after[t] == pytest.approx(of_nodes(of, typical, ways.rows[t : t + 1])[0], abs=1e-6)
            of.give_back(placement)
