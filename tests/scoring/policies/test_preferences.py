"""What each policy prefers, in instances small enough to see."""

import pytest

from scoring.model import WHOLE, Ask, Demand, Fleet
from scoring.place import Board
from scoring.policies import DEFAULT, POLICIES, learn
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row

HALF = demand(Ask(milli=500))
Where = tuple[int, tuple[tuple[int, ...], ...]]


def best(policy: str, of: Fleet, wanted: Demand, *load: Demand, seed: int = 0) -> Where:
    """Return the node and cards that a policy prefers."""
    board = Board(of, POLICIES[policy](Workload(load), seed))
    found = board.best(wanted)
    assert found is not None
    return found.row, found.cards


USED_AND_IDLE = fleet(row(card(0), card(0)), row(card(0), card(0, milli_free=600, slots_free=47)))


@pytest.mark.parametrize(
    ("policy", "where"),
    [("bestfit", (1, ((1,),))), ("spread", (0, ((0,),))), ("gpupacking", (1, ((1,),)))],
)
def test_a_used_card_or_an_idle_one(policy: str, where: Where) -> None:
    """Packing policies fill the card in use, spread takes the emptiest card of the emptiest node."""
    assert best(policy, USED_AND_IDLE, HALF) == where


def test_best_fit_counts_cpu_and_cards() -> None:
    """Of nodes with equal cards best fit takes the one with less CPU left, whichever is first."""
    assert best("bestfit", fleet(row(card(0), cpu=64_000), row(card(0), cpu=16_000)), HALF)[0] == 1
    assert best("bestfit", fleet(row(card(0), card(0)), row(card(0))), HALF)[0] == 1


def test_spread_looks_at_shares_of_a_node() -> None:
    """Half of one card taken is much of a small node and little of a large one."""
    small_idle, large_used = row(card(0)), row(card(0), card(0, milli_free=500), card(0), card(0))
    assert best("spread", fleet(small_idle, large_used), HALF) == (1, ((0,),))


def test_fgd_keeps_whole_what_others_want() -> None:
    """With whole cards in demand a share goes to the card that is lost to them; a share that fills is best."""
    of = fleet(row(card(0), card(0, milli_free=500, slots_free=47)))
    assert best("fgd", of, HALF, demand(WHOLE)) == (0, ((1,),))


def test_fgd_knows_what_is_typical() -> None:
    """It leaves the remainder that a typical pod can use, and if there is none, the smaller one."""
    of = fleet(row(card(0, milli_free=800, slots_free=47)), row(card(0, milli_free=700, slots_free=47)))
    thirty = demand(Ask(milli=300))
    assert best("fgd", of, thirty, demand(Ask(milli=500)))[0] == 0
    assert best("fgd", of, thirty, demand(Ask(milli=600)))[0] == 1


def test_fgd_without_a_load_takes_the_first_that_fits() -> None:
    """Before any pod was seen every place is as good."""
    assert best("fgd", USED_AND_IDLE, HALF) == (0, ((0,),))


def test_fgd_learns() -> None:
    """After a new look at the load the same question may have another answer."""
    of = fleet(row(card(0, milli_free=800, slots_free=47)), row(card(0, milli_free=700, slots_free=47)))
    load = Workload()
    load.add(demand(Ask(milli=500)))
    policy = POLICIES["fgd"](load, 0)
    board, thirty = Board(of, policy), demand(Ask(milli=300))
    first = board.best(thirty)
    for _ in range(100):
        load.add(demand(Ask(milli=600)))
    kept = board.best(thirty)
    learn(policy, of, load)
    learnt = board.best(thirty)
    assert first is not None
    assert kept is not None
    assert learnt is not None
    assert [first.row, kept.row, learnt.row] == [0, 0, 1]


def test_random_reaches_every_place_and_is_seeded() -> None:
    """Every node and card that fits is drawn sooner or later; the same seed draws the same."""
    of = fleet(row(card(0), card(0)), row(card(0)), row(card(0, milli_free=400)))
    draws = []
    for _ in range(2):
        board = Board(of, POLICIES["random"](Workload(), 5))
        found = [board.best(HALF) for _ in range(60)]
        draws.append([(f.row, f.cards[0][0]) for f in found if f is not None])
    assert draws[0] == draws[1]
    assert set(draws[0]) == {(0, 0), (0, 1), (1, 0)}


def test_dot_product_looks_along_the_demand() -> None:
    """Least free along what is asked is best: a CPU-heavy pod goes where there is less CPU."""
    of = fleet(row(card(0), cpu=120_000), row(card(0), cpu=32_000))
    assert best("dotprod", of, demand(Ask(milli=500), cpu=16_000))[0] == 1


def test_clustering_keeps_classes_together() -> None:
    """A share goes where shares are, a whole card where whole cards are, a new class to an idle node."""
    of = fleet(row(card(0), card(0)), row(card(0), card(0)), row(card(0), card(0)))
    board = Board(of, POLICIES["gpuclustering"](Workload(), 0))
    for row_, wanted in ((0, HALF), (1, demand(WHOLE))):
        found = board.choose(wanted, row_)
        assert found is not None
        of.take(found)
    assert best("gpuclustering", of, HALF)[0] == 0
    assert best("gpuclustering", of, demand(WHOLE))[0] == 1
    assert best("gpuclustering", of, demand(Ask(2, 0, 100, 1000, exclusive=True, whole=True)))[0] == 2


def test_gpu_packing_opens_the_smaller_node() -> None:
    """Cards in use come first, then idle cards of nodes in use, then idle nodes, the small before the large."""
    in_use, small, large = row(card(0, milli_free=100, slots_free=47), card(0)), row(card(0)), row(card(0), card(0))
    assert best("gpupacking", fleet(large, small, in_use), HALF) == (2, ((1,),))
    assert best("gpupacking", fleet(large, small), HALF)[0] == 1


@pytest.mark.parametrize("policy", sorted(set(POLICIES) - {"random"}))
def test_memory_counts_as_compute_does(policy: str) -> None:
    """A policy that sees memory sees it in every node: scores are finite wherever the demand fits."""
    of = fleet(row(card(100), card(100, mib_free=10)), row(card(0)))
    scores = Board(of, POLICIES[policy](Workload([HALF]), 0)).node_scores(demand(Ask(mib=50)))
    assert (scores[0] > -float("inf"), scores[1] > -float("inf")) == (True, False)


def test_the_default_is_one_of_them() -> None:
    """The table has the default, and the published names."""
    assert DEFAULT in POLICIES
    assert {"bestfit", "fgd", "random", "spread"} <= set(POLICIES)
