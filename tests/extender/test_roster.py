"""Names to rows without objects: what a dictionary would say, or that the list has to be decoded."""

import json

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from extender.roster import UNKNOWN, Roster

NAMES = st.text(st.sampled_from("ab.-0ñ語 ,:[]{}'\"\\\u2028\U0001f600"), max_size=40)


@given(st.lists(st.sets(NAMES, max_size=12), max_size=4), st.lists(NAMES, max_size=9))
@example([{"a" * 7}, {"a" * 8, "a" * 9}, {"a" * 64}], ["a" * 8, "a" * 65, "a" * 64, "a" * 9, "a" * 7, ""])
def test_as_a_dictionary_says(added: list[set[str]], asked: list[str]) -> None:
    """Whatever was added in whatever parts, each name has its row, and others have none."""
    roster, index = Roster(), dict[str, int]()
    for names in added:
        new = [name for name in names if name not in index]
        index |= {name: len(index) + i for i, name in enumerate(new)}
        roster.add(new)
    asked = [*asked, *index, *asked]
    rows = roster.rows(msgspec.json.encode(asked))
    if rows is None:
        assert not asked or any(c in name for name in asked for c in '"\\')
    else:
        assert rows.tolist() == [index.get(name, UNKNOWN) for name in asked]


def _lists_and_objects(of: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    return st.one_of(st.lists(of, max_size=4), st.dictionaries(NAMES, of, max_size=3))


@given(st.recursive(st.one_of(NAMES, st.integers(0, 9), st.none()), _lists_and_objects))
@example({"a": "b"})
@example(["a", "b", ["c"], {"d": "e"}, "f"])
def test_any_json_is_read_rightly_or_not_at_all(found: object) -> None:
    """What is no list of names, or has spaces between them, is never taken for one."""
    roster = Roster()
    roster.add(["a", "b"])
    for raw in (json.dumps(found), json.dumps(found, separators=(",", ":")), f" {json.dumps(found)}"):
        rows = roster.rows(raw.encode())
        if rows is not None:
            assert isinstance(found, list)
            assert len(rows) == len(found)
            assert all(isinstance(name, str) for name in found)


def test_many_names_that_are_nearly_alike() -> None:
    """Ten thousand names of a cloud are told apart, those in the table and those that are not."""
    names = [f"gpu-{i:05d}.zone-a.cluster.example.internal" for i in range(10_000)]
    roster = Roster()
    roster.add(names[:5_000])
    rows = roster.rows(json.dumps(names[::-1], separators=(",", ":")).encode())
    assert rows is not None
    assert rows.tolist() == [UNKNOWN] * 5_000 + [*range(4_999, -1, -1)]


def test_a_name_too_long_for_kubernetes_is_not_found() -> None:
    """Such a name has no row, and no other is taken for it."""
    roster = Roster()
    roster.add(["x" * 300, "y"])
    rows = roster.rows(json.dumps(["x" * 256, "x" * 300, "y", ""], separators=(",", ":")).encode())
    assert rows is not None
    assert rows.tolist() == [UNKNOWN, UNKNOWN, 1, UNKNOWN]
