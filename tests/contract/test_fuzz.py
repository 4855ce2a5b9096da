"""Records and inventories that were right, with something wrong in them: read, or refused by name."""

import json
import time
from collections import Counter
from random import Random
from typing import Final

from contract import assignment, inventory
from tests.contract.test_assignment import ASSIGNMENTS
from tests.contract.test_inventory import INVENTORIES
from tests.long import drawn, times
from tests.mutate import mutated

CASES: Final = times(1_000, 200_000)
DRAWN: Final = times(40, 2_000)


def test_records_that_were_right() -> None:
    """Two hundred thousand in `make test-long`; each is a record again, or a BadAssignment."""
    pool = [json.loads(assignment.encode(made)) for made in drawn(ASSIGNMENTS, DRAWN)]
    rng, begin, found = Random("records"), time.monotonic(), Counter[str]()
    for _ in range(CASES):
        text = json.dumps(mutated(rng, rng.choice(pool), pool))
        if rng.randrange(10) == 0:
            text = text[: rng.randrange(len(text))]
        try:
            read = assignment.decode(text)
        except assignment.BadAssignment:
            found["refused"] += 1
        else:
            found["read"] += 1
            assert assignment.decode(assignment.encode(read)) == read
    print(f"{CASES} records, {dict(found)}, {time.monotonic() - begin:.0f} s")
    assert min(found["read"], found["refused"]) > CASES / 20, "the cases are all of one kind"


def test_inventories_that_were_right() -> None:
    """As many; each is an inventory, or a BadInventory."""
    pool = [inventory.encode(made) for made in drawn(INVENTORIES, DRAWN)]
    rng, begin, found = Random("inventories"), time.monotonic(), Counter[str]()
    for _ in range(CASES):
        status = mutated(rng, rng.choice(pool), pool)
        try:
            inventory.decode("n1", status if isinstance(status, dict) else None)
        except inventory.BadInventory:
            found["refused"] += 1
        else:
            found["read"] += 1
    print(f"{CASES} inventories, {dict(found)}, {time.monotonic() - begin:.0f} s")
    assert min(found["read"], found["refused"]) > CASES / 20, "the cases are all of one kind"
