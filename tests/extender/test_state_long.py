"""The histories of `test_state_history`, many more: hypothesis draws what may happen, a plain loop lets it happen.

The state is compared with a rebuild after every operation. What fails can be told again: a history follows from its
number.
"""

import time
from collections.abc import Iterator
from random import Random
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import Rule

from tests.extender.test_state_history import History
from tests.long import drawn, times

OPERATIONS: Final = times(3_000, 1_000_000)
DRAWN: Final = times(50, 4_000)  # arguments kept for each rule
LENGTH: Final = (20, 120)  # operations in a history

Operation = tuple[Rule, dict[str, Any]]


def history(rng: Random, pools: list[tuple[Rule, list[dict[str, Any]]]]) -> Iterator[Operation]:
    """Yield one operation after another without end, all rules alike."""
    while True:
        rule, arguments = rng.choice(pools)
        yield rule, rng.choice(arguments)


def follow(rng: Random, pools: list[tuple[Rule, list[dict[str, Any]]]], most: int) -> int:
    """Let one history happen to a state, compared with a rebuild at each step; return how many steps it has."""
    machine, done = History(), 0
    machine.begin()
    length = min(most, rng.randint(*LENGTH))
    for rule, arguments in history(rng, pools):
        if done == length:
            break
        if all(may(machine) for may in rule.preconditions):
            rule.function(machine, **arguments)
            done += 1
            machine.equals_a_rebuild()
            machine.promises_no_more_than_there_is()
    return done


def test_many_histories() -> None:
    """A million operations in `make test-long`."""
    rules = History().rules
    pools = [(rule, drawn(st.fixed_dictionaries(rule.arguments_strategies), DRAWN)) for rule in rules]
    begin, done, histories = time.monotonic(), 0, 0
    while done < OPERATIONS:
        try:
            done += follow(Random(f"history {histories}"), pools, OPERATIONS - done)
        except Exception as error:
            error.add_note(f"In history {histories}.")
            raise
        histories += 1
    print(f"{done} operations in {histories} histories, {time.monotonic() - begin:.0f} s")
