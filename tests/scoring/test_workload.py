"""What pods are like: the typical few, most frequent first."""

import pytest

from scoring.model import WHOLE, Ask, Demand
from scoring.workload import Workload
from tests.builders import demand

SMALL, LARGE, CPU = demand(Ask(milli=100)), demand(Ask(milli=500)), Demand(cpu_milli=4000)


def test_an_empty_workload_has_nothing_typical() -> None:
    """Before any pod was seen there is nothing to go by."""
    assert (Workload().seen, len(Workload().typical())) == (0, 0)


def test_the_most_frequent_first() -> None:
    """Frequencies are those among the typical ones, and ties go to the larger demand."""
    typical = Workload([SMALL] * 2 + [LARGE] * 2 + [CPU] * 6).typical(1.0)
    assert typical.freq.tolist() == [0.6, 0.2, 0.2]
    assert (typical.cpu.tolist(), typical.count.tolist(), typical.milli.tolist()) == (
        [4000, 0, 0],
        [0, 1, 1],
        [0, 500, 100],
    )


@pytest.mark.parametrize(("popularity", "kept"), [(0.5, 1), (0.6, 1), (0.61, 2), (0.95, 2), (1.0, 3)])
def test_popularity(popularity: float, kept: int) -> None:
    """The fewest demands are kept that together reach the wanted share of all pods."""
    load = Workload([SMALL] * 60 + [LARGE] * 35 + [CPU] * 5)
    typical = load.typical(popularity)
    assert len(typical) == kept
    assert typical.freq.sum() == pytest.approx(1)


def test_memory_of_the_node_tells_no_demands_apart() -> None:
    """Node memory is in no measure, so demands that differ in it alone are one."""
    load = Workload([demand(Ask(milli=100), ram=1), demand(Ask(milli=100), ram=2)])
    assert len(load.typical(1.0)) == 1
    assert (load.given, load.seen) == (2, 0)


def test_several_containers_count_as_the_hardest() -> None:
    """A pod of several containers is its hardest ask, on as many cards as its dearest phase could need."""
    load = Workload()
    load.add(Demand((Ask(2, milli=300), Ask(milli=500), Ask(mib=9)), ((0, 2), (1,))))
    typical = load.typical()
    assert (typical.milli.tolist(), typical.count.tolist()) == ([300], [3])


def test_everything_that_matters_is_kept() -> None:
    """Memory, percent, exclusivity and models are in the arrays."""
    typical = Workload([demand(WHOLE, models=("a10", "!t4"), cpu=7)]).typical()
    assert (typical.percent.tolist(), typical.exclusive.tolist(), typical.mib.tolist()) == ([100], [True], [0])
    assert (typical.models, typical.cpu.tolist()) == ((("a10", "!t4"),), [7])
