"""What is left on a card has the worth of what it can still serve."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scoring.lp import Program, Solution, Unsolved
from scoring.prices import LEVELS, prices


def stock(**cards: int) -> np.ndarray:
    """Return cards by hundredths left, given as h100=10."""
    levels = np.zeros(LEVELS)
    for level, many in cards.items():
        levels[int(level[1:])] = many
    return levels


def of(sizes: dict[int, float], **cards: int) -> tuple[np.ndarray, float]:
    """Return value and horizon for sizes with their frequencies."""
    found = prices(stock(**cards), np.array(list(sizes)), np.array(list(sizes.values())))
    return found.value, found.horizon


def test_one_size_makes_steps() -> None:
    """Where all ask for a half, a card is worth its halves; ten cards serve twenty."""
    value, horizon = of({50: 1.0}, h100=10)
    assert value[[0, 49, 50, 99, 100]].tolist() == [0, 0, 0.5, 0.5, 1]
    assert horizon == pytest.approx(20)


def test_what_nobody_asks_for_is_worth_nothing() -> None:
    """Nineteen hundredths beside a pod of eighty-one serve nobody."""
    value, horizon = of({81: 1.0}, h100=5, h81=2)
    assert value[[19, 80, 81, 100]].tolist() == [0, 0, 1, 1]
    assert horizon == pytest.approx(7)


def test_the_scarce_remainder_is_dear() -> None:
    """Halves can be had anywhere, whole cards only whole: two halves are worth less than a card that is whole."""
    value, _ = of({50: 0.5, 100: 0.5}, h100=4, h50=20)
    assert value[100] == 1
    assert value[50] < 0.5


def test_without_cards_only_the_sizes_count() -> None:
    """When nothing can be placed a card would still be worth what it could take."""
    value, horizon = of({50: 1.0})
    assert value[[49, 50, 100]].tolist() == [0, 0.5, 1]
    assert horizon == 0


def test_a_program_without_a_solution_values_every_hundredth_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    """The policy goes on without prices if the solver gives up."""

    def gives_up(_: Program) -> Solution:
        raise Unsolved("gave up")

    monkeypatch.setattr("scoring.prices.solve", gives_up)
    value, horizon = of({50: 1.0}, h100=1)
    assert value.tolist() == (np.arange(LEVELS) / 100).tolist()
    assert horizon == 0


@settings(max_examples=50, deadline=None)
@given(
    st.dictionaries(st.integers(1, 100), st.integers(1, 9), min_size=1, max_size=5),
    st.dictionaries(st.integers(1, 100), st.integers(1, 50), max_size=8),
)
def test_worth_never_falls_with_what_is_left(sizes: dict[int, int], cards: dict[int, int]) -> None:
    """Nothing is worth 0, a whole card 1, and more is never worth less; two looks agree."""
    levels, total = np.zeros(LEVELS), sum(sizes.values())
    levels[list(cards)] = list(cards.values())
    rates = np.array([times / total for times in sizes.values()])
    found = prices(levels, np.array(list(sizes)), rates)
    assert found.value[0] == 0
    assert found.value[-1] == 1
    assert (np.diff(found.value) >= 0).all()
    assert found.horizon >= 0
    assert prices(levels, np.array(list(sizes)), rates).value.tolist() == found.value.tolist()
