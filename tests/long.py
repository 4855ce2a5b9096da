"""How much a test with random cases does: little in `make test`, all of it in `make test-long`.

Hypothesis draws well and slowly. Where a million cases are wanted it draws what they are made of.
"""

import os
from typing import Final, TypeVar

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

LONG: Final = bool(os.environ.get("TESSERA_LONG"))

T = TypeVar("T")


def times(usual: int, long: int) -> int:
    """Return how many cases a test tries now."""
    return long if LONG else usual


def drawn(strategy: SearchStrategy[T], count: int) -> list[T]:
    """Return so many values of a strategy, fewer if there are no more; the same ones in every run."""
    found: list[T] = []

    @settings(
        max_examples=count,
        phases=[Phase.generate],
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(strategy)
    def take(value: T) -> None:
        found.append(value)

    take()
    return found
