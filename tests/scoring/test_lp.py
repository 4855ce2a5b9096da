"""The linear programs that HiGHS is given: the optimum, the duals, silence, and what is said without an optimum."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from scoring.lp import INF, Program, Unsolved, solve


def program() -> Program:
    """Maximise 3x + 2y over x + y <= 4 and x + 3y <= 6, x <= 3: the corner (3, 1)."""
    return Program(
        objective=np.array([3.0, 2.0]),
        lower=np.zeros(2),
        upper=np.array([3.0, INF]),
        row_lower=np.full(2, -INF),
        row_upper=np.array([4.0, 6.0]),
        at_row=np.array([1, 0, 0, 1]),
        at_column=np.array([1, 1, 0, 0]),
        value=np.array([3.0, 1.0, 1.0, 1.0]),
    )


def test_the_optimum_is_found_whatever_the_order_of_the_coefficients() -> None:
    """The corner (3, 1) is worth 11, and another unit of either row shows in the duals."""
    found = solve(replace(program(), row_upper=np.array([4.0, 7.0])))
    assert found.value == pytest.approx(11)
    assert found.x == pytest.approx([3, 1])
    assert found.duals == pytest.approx([2, 0])


def test_a_row_that_bounds_from_below_has_a_negative_dual() -> None:
    """To ask for one more unit of y costs what it takes from x."""
    asked = replace(program(), row_lower=np.array([-INF, 5.5]), row_upper=np.array([3.5, INF]))
    more = replace(asked, row_lower=np.array([-INF, 5.6]))
    assert solve(asked).duals[1] == pytest.approx((solve(more).value - solve(asked).value) / 0.1)
    assert solve(asked).duals[1] < 0


def test_equal_programs_have_equal_solutions() -> None:
    """The same degenerate program gives the same corner every time."""
    flat = replace(program(), objective=np.ones(2), row_upper=np.array([4.0, 12.0]))
    first, second = solve(flat), solve(flat)
    assert (first.x == second.x).all()
    assert (first.duals == second.duals).all()


def test_a_program_without_rows_is_solved() -> None:
    """Only the columns' own sides count then."""
    none = np.array([], np.int64)
    free = Program(np.ones(2), np.zeros(2), np.array([1.0, 2.0]), np.empty(0), np.empty(0), none, none, np.empty(0))
    assert solve(free).value == pytest.approx(3)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"row_lower": np.array([5.0, 0.0])}, "Infeasible"),
        ({"upper": np.full(2, INF), "row_upper": np.full(2, INF)}, "Unbounded"),
        ({"at_row": np.array([1, 0, 0, 7])}, "malformed"),
        ({"at_column": np.array([1, 1, 1, 0])}, "malformed"),
    ],
)
def test_without_an_optimum_the_error_says_why(wrong: dict[str, np.ndarray], words: str) -> None:
    """Infeasible, unbounded and malformed programs are told apart."""
    with pytest.raises(Unsolved, match=words):
        solve(replace(program(), **wrong))


def test_nothing_is_printed() -> None:
    """Not even the line about itself that HiGHS prints once a process."""
    code = "from tests.scoring.test_lp import program; from scoring.lp import solve; solve(program())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
