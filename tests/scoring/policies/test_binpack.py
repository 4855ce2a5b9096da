"""The default policy: when it looks, what it then prefers."""

from scoring.model import Ask, Demand, Fleet
from scoring.place import Board
from scoring.policies import learn
from scoring.policies.bestfit import BestFit
from scoring.policies.binpack import Binpack
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row

HALF = demand(Ask(1, milli=500), cpu=1000)
LARGE = demand(Ask(1, milli=810), cpu=1000)
PAIR = demand(Ask(2, milli=1000), cpu=2000)


def board(of: Fleet, *known: Demand) -> tuple[Board, Workload]:
    """Return a board of the policy that has looked at some pods given as history."""
    workload = Workload(known)
    made = Board(of, Binpack(workload))
    learn(made.policy, of, workload)
    return made, workload


def where(of: Board, wanted: Demand) -> tuple[int, tuple[tuple[int, ...], ...]]:
    """Return node and cards of the best placement."""
    best = of.best(wanted)
    assert best is not None
    return best.row, best.cards


def test_without_anything_known_it_is_best_fit() -> None:
    """No pod seen: the scores are those of best fit."""
    of = fleet(row(card(0), card(0, milli_free=600)), row(card(0, milli_free=500)))
    known, _ = board(of)
    assert known.node_scores(HALF).tolist() == Board(of, BestFit()).node_scores(HALF).tolist()


def test_a_remainder_that_serves_nobody_is_kept_small() -> None:
    """Best fit would fill the tighter card, and leave a tenth; nobody asks for a tenth, but for halves."""
    of = fleet(row(card(0, milli_free=600), cpu=9000), row(card(0), cpu=9000))
    known, _ = board(of, *[HALF] * 9, LARGE)
    assert where(Board(of, BestFit()), HALF)[0] == 0
    assert where(known, HALF)[0] == 0  # 600 - 500: the rest was lost anyhow
    of = fleet(row(card(0, milli_free=990), cpu=9000), row(card(0, milli_free=1000), cpu=9000))
    known, _ = board(of, *[HALF] * 9, LARGE)
    assert where(Board(of, BestFit()), HALF)[0] == 0
    assert where(known, LARGE)[0] == 0  # 990 serves one half as 190 serve none: a whole card keeps its two halves


def test_room_for_a_pair_is_kept_while_hosts_are_few() -> None:
    """A half goes to the lone card although both nodes are empty, since pairs are coming."""
    of = fleet(row(card(0), card(0), cpu=9000), row(card(0), cpu=9000))
    known, _ = board(of, *[HALF] * 5, *[PAIR] * 5)
    assert where(known, HALF)[0] == 1


def test_it_looks_after_so_many_pods() -> None:
    """Without history after 5, then at every doubling, and at last every 600; with history at once, every 600."""
    of = fleet(row(card(0), cpu=9000))
    for history, wanted in (((), [5, 10, 20, 40, 80, 160, 320, 640, 1240, 1840]), ((HALF,), [0, 600, 1200, 1800])):
        workload = Workload(history)
        policy, looked = Binpack(workload), []
        for seen in range(2001):
            if (study := policy.attend(of, workload)) is not None:
                looked.append(seen)
                study()()
            workload.add(HALF)
        assert looked == wanted


def test_only_one_look_at_a_time() -> None:
    """While a look is being worked out there is no other, however many pods come."""
    of, workload = fleet(row(card(0), cpu=9000)), Workload([HALF])
    policy = Binpack(workload)
    study = policy.attend(of, workload)
    assert study is not None
    for _ in range(2000):
        workload.add(HALF)
    assert policy.attend(of, workload) is None
    study()()
    assert policy.attend(of, workload) is not None


def test_a_look_changes_the_epoch_only_when_it_is_in_force() -> None:
    """Kept scores stay good until the outcome of a look is put in force."""
    of, workload = fleet(row(card(0), cpu=9000)), Workload([HALF])
    policy = Binpack(workload)
    study = policy.attend(of, workload)
    assert study is not None
    in_force = study()
    assert policy.epoch == 0
    in_force()
    assert policy.epoch == 1
