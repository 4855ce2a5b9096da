"""What a card with so much left is worth to the pods to come: prices from a linear program.

The program asks how long the pods to come could be served if every card were cut at will: it maximises theta, the
number of pods that arrive before the first kind can no longer be placed. Cards with h hundredths left are a stock;
placing a pod of s hundredths turns one into a card with h - s left:

    maximise theta
    for each level h:  taken from h  <=  cards at h  +  left over at h by placing on larger ones
    for each size s:   placed        >=  theta * frequency of s

The duals of the second rows are the prices of the sizes. A card is worth the most that a set of pods which fits it
pays; whole cards are worth 1.
"""

from dataclasses import dataclass

import numpy as np

from scoring.lp import INF, Program, Unsolved, solve
from scoring.model import Floats, Ints

LEVELS = 101  # 0 to 100 hundredths of a card


@dataclass(frozen=True, slots=True)
class Prices:
    """`value` [LEVELS] of a card by what it has left, a whole one 1; `horizon`: how many more cards' worth of pods
    (in pods times the cards each needs) can be placed before some size cannot."""

    value: Floats
    horizon: float


def prices(cards: Floats, sizes: Ints, rates: Floats) -> Prices:
    """Return the value of what a card has left.

    Parameters
    ----------
    cards
        How many cards have so many hundredths left [LEVELS].
    sizes, rates
        Sizes of pods in hundredths of a card, each once, and how often each is asked for; rates sum to 1.
    """
    try:
        solution = solve(_program(cards, sizes, rates))
    except Unsolved:
        return Prices(np.arange(LEVELS) / (LEVELS - 1), 0.0)
    value = _best_set(sizes, -solution.duals[LEVELS - 1 :])
    if value[-1] <= 0:
        value = np.arange(LEVELS) / (LEVELS - 1)
    return Prices(value / value[-1], float(solution.x[-1]))


def _program(cards: Floats, sizes: Ints, rates: Floats) -> Program:
    """Columns: one a (size, level from it on), then theta. Rows: levels 1 to 100, then sizes."""
    size_of = np.concatenate([np.full(LEVELS - s, k) for k, s in enumerate(sizes)])
    level = np.concatenate([np.arange(s, LEVELS) for s in sizes])
    rest = level - sizes[size_of]
    column, theta = np.arange(len(level)), len(level)
    keeps = rest > 0
    demand = np.arange(len(sizes)) + LEVELS - 1
    return Program(
        objective=np.append(np.zeros(theta), 1.0),
        lower=np.zeros(theta + 1),
        upper=np.full(theta + 1, INF),
        row_lower=np.append(np.full(LEVELS - 1, -INF), np.zeros(len(sizes))),
        row_upper=np.append(cards[1:], np.full(len(sizes), INF)),
        at_row=np.concatenate([level - 1, rest[keeps] - 1, demand[size_of], demand]),
        at_column=np.concatenate([column, column[keeps], column, np.full(len(sizes), theta)]),
        value=np.concatenate([np.ones(theta), -np.ones(keeps.sum()), np.ones(theta), -rates]),
    )


def _best_set(sizes: Ints, price: Floats) -> Floats:
    """Return for each level the most that a set of pods which fits it pays [LEVELS]."""
    value = np.zeros(LEVELS)
    for level in range(1, LEVELS):
        fitting = sizes <= level
        paid = price[fitting] + value[level - sizes[fitting]]
        value[level] = max(value[level - 1], paid.max(initial=0.0))
    return value
