"""Linear programs: the only file that calls HiGHS.

A program is arrays, a solution is arrays; what they mean is the caller's. One thread, no output, and the same
answer at every run. Building costs one sort of the coefficients and one copy into the solver.
"""

from dataclasses import dataclass
from typing import Final

import highspy
import numpy as np

from scoring.model import Floats, Ints

INF: Final = highspy.kHighsInf  # the bound that bounds nothing


class Unsolved(ArithmeticError):
    """A linear program without an optimum: infeasible, unbounded, or malformed; the message says which."""


@dataclass(frozen=True, slots=True)
class Program:
    """Maximise `objective` @ x over `lower` <= x <= `upper` and `row_lower` <= A x <= `row_upper`.

    A [rows, columns] is sparse: coefficient `value[i]` at (`at_row[i]`, `at_column[i]`), each place named at most
    once, in any order. `INF` and `-INF` leave a side open.
    """

    objective: Floats  # [columns]
    lower: Floats  # [columns]
    upper: Floats  # [columns]
    row_lower: Floats  # [rows]
    row_upper: Floats  # [rows]
    at_row: Ints  # [coefficients]
    at_column: Ints  # [coefficients]
    value: Floats  # [coefficients]


@dataclass(frozen=True, slots=True)
class Solution:
    """An optimum: its value, x [columns], and `duals` [rows]: what one more unit of a row's bound would add."""

    value: float
    x: Floats
    duals: Floats


class _Silent(highspy.Highs):
    """The solver without the line about itself, which it prints at the first call that its constructor makes."""

    def enableCallbacks(self) -> None:  # noqa: N802
        """Turn output off instead: nobody here is called back."""
        self.setOptionValue("output_flag", False)


def solve(program: Program) -> Solution:
    """Return an optimum of a linear program.

    Raises
    ------
    Unsolved
    """
    solver = _Silent()  # type: ignore[no-untyped-call]
    for option, value in (("threads", 1), ("parallel", "off"), ("random_seed", 0)):
        solver.setOptionValue(option, value)
    if _pass(solver, program) == highspy.HighsStatus.kError:
        raise Unsolved("The linear program is malformed: HiGHS refuses its bounds or its coefficients.")
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        size = f"{len(program.objective)} columns, {len(program.row_lower)} rows"
        raise Unsolved(f"The linear program ({size}) has no optimum: {solver.modelStatusToString(status)}.")
    found = solver.getSolution()
    x, duals = np.array(found.col_value, np.float64), np.array(found.row_dual, np.float64)
    return Solution(float(solver.getInfo().objective_function_value), x, duals)


def _pass(solver: highspy.Highs, program: Program) -> highspy.HighsStatus:
    """Hand a program over, its coefficients by column and within a column by row."""
    columns, rows = len(program.objective), len(program.row_lower)
    order = np.lexsort((program.at_row, program.at_column))
    start = np.zeros(columns + 1, np.int32)
    start[1:] = np.cumsum(np.bincount(program.at_column, minlength=columns))
    return solver.passModel(
        columns,
        rows,
        len(order),
        int(highspy.MatrixFormat.kColwise),
        int(highspy.ObjSense.kMaximize),
        0.0,
        program.objective,
        program.lower,
        program.upper,
        program.row_lower,
        program.row_upper,
        start,
        program.at_row[order].astype(np.int32),
        program.value[order],
        np.zeros(columns, np.int32),
    )
