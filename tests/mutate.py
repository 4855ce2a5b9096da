"""JSON that was right, with something wrong in it: ten times as quick as to draw what is wrong from nothing."""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from random import Random
from typing import Any, Final

ODD: Final[tuple[Any, ...]] = (None, True, 0, -1, 2**63, 1.5, "", "0", "\0", "é" * 70, [], {}, [None], {"": None})
CHANGES: Final = (1, 1, 1, 2, 3)  # of one value


def mutated(rng: Random, value: Any, spare: Sequence[Any]) -> Any:
    """Return a JSON value like another, in which up to three parts are odd, gone, repeated, renamed, or a spare's."""
    made = {"": deepcopy(value)}
    for _ in range(rng.choice(CHANGES)):
        where, key = rng.choice(list(_parts(made)))
        kind = rng.randrange(3)
        if kind == 0:
            where[key] = deepcopy(rng.choice(ODD))
        elif kind == 1:
            there, other = rng.choice(list(_parts({"": rng.choice(spare)})))
            where[key] = deepcopy(there[other])
        elif isinstance(where, list):
            where[key : key + 1] = [where[key]] * rng.choice((0, 2))
        elif where is not made:
            where[key * 2] = where.pop(key)
    return made[""]


def _parts(of: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place in a JSON value: what holds it, and its key there."""
    for key, value in list(of.items() if isinstance(of, dict) else enumerate(of)):
        yield of, key
        if isinstance(value, dict | list):
            yield from _parts(value)
