"""The record of a decision: what is written is read again, and what cannot be read is refused in one sentence."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.assignment import Assignment, BadAssignment, Grant, annotations, decode, encode

GOLDEN = Path(__file__).parents[1] / "golden/annotations.json"
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=10)
AMOUNT = st.integers(0, 2**53 - 1)
GRANTS = st.lists(st.builds(Grant, NAMES, AMOUNT, AMOUNT, st.booleans()), unique_by=lambda g: g.gpu, max_size=4)
ASSIGNMENTS = st.builds(
    Assignment, NAMES, NAMES, st.dictionaries(NAMES, GRANTS.map(tuple), max_size=4), st.booleans()
)

EXAMPLE = Assignment(
    "n1",
    "06a943c5-9f33-a34b-b592-4aaf72cd2995",
    {
        "trainer": (Grant("GPU-1", 8192, 700), Grant("GPU-2", 8192, 700)),
        "helper": (Grant("GPU-1", 40960, 1000, exclusive=True),),
        "a-container-with-a-name-of-the-sixty-three-characters-there-are": (Grant("GPU-2", 1, 0),),
    },
)


def record(**changes: Any) -> str:
    """Return a good record with some fields changed; `...` leaves one out."""
    raw = {
        "v": 1,
        "node": "n1",
        "uid": "u",
        "containers": {"main": [{"gpu": "GPU-1", "mib": 1, "milli": 2}]},
    } | changes
    return json.dumps({key: value for key, value in raw.items() if value is not ...})


def with_grant(**changes: Any) -> str:
    """Return a record whose only grant has some fields changed."""
    return record(containers={"main": [{"gpu": "GPU-1", "mib": 1, "milli": 2} | changes]})


@given(ASSIGNMENTS)
def test_roundtrip(assignment: Assignment) -> None:
    """What is encoded is decoded to the same, containers in the same order."""
    again = decode(encode(assignment))
    assert again == assignment
    assert list(again.containers) == list(assignment.containers)


def test_golden_annotations() -> None:
    """The annotations of a pod are those of the golden file, to the byte."""
    assert annotations(EXAMPLE) == json.loads(GOLDEN.read_text())


def test_unknown_fields_are_accepted() -> None:
    """A later release of the same major version may say more."""
    more = json.loads(record())
    more["later"] = 1
    more["containers"]["main"][0]["later"] = {}
    assert decode(json.dumps(more)) == Assignment("n1", "u", {"main": (Grant("GPU-1", 1, 2),)})


CARDLESS = "The assignment of container main has a card without a uuid."
LACKS = "The assignment lacks its node, uid or containers."


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        pytest.param("", "The assignment is not JSON.", id="empty"),
        pytest.param("{", "The assignment is not JSON.", id="cut"),
        pytest.param("[" * 100_000, "The assignment is not JSON.", id="deep"),
        pytest.param("[]", "The assignment has version None; this release reads version 1.", id="a list"),
        pytest.param(
            record(v=...), "The assignment has version None; this release reads version 1.", id="no version"
        ),
        pytest.param(
            record(v=2), "The assignment has version 2; this release reads version 1.", id="a later version"
        ),
        pytest.param(
            record(v="1"), "The assignment has version '1'; this release reads version 1.", id="a text version"
        ),
        pytest.param(
            record(v=True), "The assignment has version True; this release reads version 1.", id="a true version"
        ),
        pytest.param(record(node=...), LACKS, id="no node"),
        pytest.param(record(uid=7), LACKS, id="a number for a uid"),
        pytest.param(record(containers=[]), LACKS, id="a list of containers"),
        pytest.param(
            record(containers={"main": {}}), "The assignment of container main is not a list of cards.", id="no list"
        ),
        pytest.param(record(containers={"main": ["GPU-1"]}), CARDLESS, id="a card that is a text"),
        pytest.param(with_grant(gpu=""), CARDLESS, id="a card without a name"),
        pytest.param(
            with_grant(mib="8192"),
            "The assignment of container main has mib '8192', not a whole number from 0.",
            id="memory as a text",
        ),
        pytest.param(
            with_grant(milli=-1),
            "The assignment of container main has milli -1, not a whole number from 0.",
            id="compute below nothing",
        ),
        pytest.param(
            with_grant(milli=0.5),
            "The assignment of container main has milli 0.5, not a whole number from 0.",
            id="a part of a thousandth",
        ),
        pytest.param(
            with_grant(mib=True),
            "The assignment of container main has mib True, not a whole number from 0.",
            id="memory that is true",
        ),
        pytest.param(
            with_grant(mib=2**53),
            "The assignment of container main has mib 9007199254740992, not a whole number from 0.",
            id="more memory than any number holds",
        ),
        pytest.param(
            record(containers={"main": [{"gpu": "GPU-1", "mib": 1, "milli": 2}] * 2}),
            "The assignment of container main names a card twice.",
            id="a card twice",
        ),
    ],
)
def test_what_cannot_be_read(text: str, sentence: str) -> None:
    """A record that cannot be read is refused with one sentence."""
    with pytest.raises(BadAssignment) as refused:
        decode(text)
    assert str(refused.value) == sentence


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda of: st.lists(of, max_size=3) | st.dictionaries(st.sampled_from(["v", "gpu", "mib", "x"]), of, max_size=3),
    max_leaves=8,
)


@given(
    st.text() | JSON.map(json.dumps) | st.dictionaries(st.text(max_size=3), JSON).map(lambda c: record(containers=c))
)
def test_nothing_else_is_raised(text: str) -> None:
    """Whatever the annotation says, it is a record or a BadAssignment."""
    with suppress(BadAssignment):
        assert decode(text).uid is not None
