"""Waiting for what a running cluster will show sooner or later."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

PAUSE_SECONDS = 0.05


def wait_until(question: Callable[[], T], what: str, seconds: float = 120.0) -> T:
    """Ask until the answer is true, and return that answer.

    Raises TimeoutError naming `what` after `seconds`. An exception of the
    question itself ends the waiting at once.
    """
    deadline = time.monotonic() + seconds
    while not (answer := question()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"after {seconds:g} s still not so: {what}")
        time.sleep(PAUSE_SECONDS)
    return answer
