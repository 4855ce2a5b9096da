"""Which card each container gets: exact, compared with trying everything."""

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.containers import EXACT_UP_TO, Amount, spread_out
from scoring.model import Ask, Demand


def is_right(
    demand: Demand, wants: list[list[Amount]], free: list[Amount], chosen: tuple[tuple[int, ...], ...]
) -> bool:
    """Say whether no phase takes more of a card than it has."""
    for phase, card in product(demand.phases, range(len(free))):
        now = [wants[i][card] for i in phase if card in chosen[i]]
        most = max((slots for _, _, slots in now), default=0)
        slots = most if most > 1 else len(now)  # who takes all slots is exclusive, and shares them with its own pod
        taken = (sum(a[0] for a in now), sum(a[1] for a in now), slots)
        if now and any(some > have for some, have in zip(taken, free[card], strict=True)):
            return False
    return True


@st.composite
def cases(draw: st.DrawFn) -> tuple[Demand, list[list[Amount]], list[Amount], list[int]]:
    """Draw up to four containers, four cards, and phases that cover all of the containers."""
    many, width = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    amounts = st.tuples(st.integers(0, 5), st.integers(0, 5), st.integers(1, 2))
    wants = [
        [draw(amounts)] * width if draw(st.booleans()) else [draw(amounts) for _ in range(width)] for _ in range(many)
    ]
    free = [draw(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(1, 3))) for _ in range(width)]
    asks = tuple(Ask(draw(st.integers(1, 2))) for _ in range(many))
    indices = range(many)
    phases = draw(st.lists(st.sets(st.sampled_from(indices), min_size=1), min_size=1, max_size=3))
    rest = set(indices) - set().union(*phases)
    covering = tuple(tuple(sorted(phase)) for phase in ([*phases, rest] if rest else phases))
    usable = draw(st.permutations(draw(st.lists(st.sampled_from(range(width)), unique=True))))
    return Demand(asks, covering), wants, free, usable


def spread(
    demand: Demand, wants: list[list[Amount]], free: list[Amount], usable: list[int]
) -> tuple[tuple[int, ...], ...] | None:
    """Return each ask's cards by their index on the node."""
    found = spread_out(demand, [(free[c], tuple(want[c] for want in wants)) for c in usable])
    return None if found is None else tuple(tuple(usable[at] for at in of_ask) for of_ask in found)


@settings(max_examples=400, deadline=None)
@given(cases())
def test_exact_against_brute_force(case: tuple[Demand, list[list[Amount]], list[Amount], list[int]]) -> None:
    """A way is found if and only if trying every way finds one; what is found is right."""
    demand, wants, free, usable = case
    found = spread(demand, wants, free, usable)
    every = product(*(combinations(sorted(usable), ask.count) for ask in demand.asks))
    if found is None:
        assert not any(is_right(demand, wants, free, chosen) for chosen in every)
    else:
        assert [len(set(of)) for of in found] == [ask.count for ask in demand.asks]
        assert all(card in usable for of in found for card in of)
        assert is_right(demand, wants, free, found)


def equal(want: Amount, cards: int) -> list[Amount]:
    """Return the same want on each of so many cards."""
    return [want] * cards


def together(*counts: int) -> Demand:
    """Return a demand whose containers run together."""
    return Demand(tuple(Ask(n) for n in counts), (tuple(range(len(counts))),))


def test_containers_share_a_card_if_they_fit() -> None:
    """The first card in the given order takes as many as it can."""
    wants = [equal((4, 100, 1), 2), equal((4, 100, 1), 2)]
    assert spread(together(1, 1), wants, [(8, 1000, 9), (8, 1000, 9)], [1, 0]) == ((1,), (1,))


def test_a_choice_is_undone() -> None:
    """The large container gets the large card, though the small one would fit there first."""
    wants = [equal((3, 0, 1), 2), equal((8, 0, 1), 2)]
    assert spread(together(1, 1), wants, [(8, 0, 9), (4, 0, 9)], [0, 1]) == ((1,), (0,))


def test_phases_do_not_add_up() -> None:
    """An init container and the main one may each take the whole card."""
    wants = [equal((8, 0, 1), 1), equal((8, 0, 1), 1)]
    one_by_one = Demand((Ask(), Ask()), ((0,), (1,)))
    assert spread(one_by_one, wants, [(8, 0, 1)], [0]) == ((0,), (0,))
    assert spread(together(1, 1), wants, [(8, 0, 1)], [0]) is None


def test_one_container_on_several_cards() -> None:
    """The cards of one container are distinct."""
    wants = [equal((2, 0, 1), 3), equal((2, 0, 1), 3)]
    assert spread(together(3, 1), wants, [(8, 0, 9)] * 3, [0, 1, 2]) == ((0, 1, 2), (0,))
    assert spread(together(4, 1), wants, [(8, 0, 9)] * 3, [0, 1, 2]) is None


@pytest.mark.parametrize("many", [EXACT_UP_TO, EXACT_UP_TO + 1, 40])
def test_many_containers(many: int) -> None:
    """Many containers are placed, and quickly, exactly or not."""
    wants = [equal((1, 10, 1), 9)] * many
    found = spread(together(*[1] * many), wants, [(5, 1000, 48)] * 8, list(range(8)))
    assert found is not None
    assert max([card for (card,) in found].count(c) for c in range(8)) == 5
    assert spread(together(*[1] * many), wants, [(4, 1000, 48)] * (many // 4 - 1), list(range(many // 4 - 1))) is None
