"""Who may sit on a card with whom: the pod's word, the cluster's boundary, and filter's reason."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.assignment import Assignment, annotations, encode
from contract.names import ASSIGNMENT
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from extender.verbs import OTHERS, filter_nodes
from extender.wire import Pod
from tests.builders import gpu_node, node, pod


def state_of(*, boundary: bool = False, cards: int = 1) -> ClusterState:
    """Return a state of one node."""
    state = ClusterState(Rules(boundary=boundary))
    state.saw_node(node("n1"))
    state.saw_inventory(gpu_node("n1", cards))
    return state


def asking(name: str, namespace: str, sharing: str = "any") -> Pod:
    """Return a pod that asks for 2 GiB of a card."""
    return pod(name, memory="2Gi", namespace=namespace, annotations={"tessera.gpu/sharing": sharing})


def placed(state: ClusterState, wanted: Pod) -> Assignment | None:
    """Bind a pod to n1 as the extender and the watch do, and return its record."""
    request = request_of(wanted, state.rules.resources)
    assert request is not None
    record = state.reserve(wanted, request, "n1")
    if record is not None:
        wanted.metadata.annotations = {**(wanted.metadata.annotations or {}), **annotations(record)}
        wanted.spec.node_name = "n1"
        state.saw_pod(wanted)
    return record


@pytest.mark.parametrize(
    ("boundary", "first", "second", "joins"),
    [
        (False, asking("a", "red"), asking("b", "blue"), True),
        (False, asking("a", "red", "namespace"), asking("b", "blue"), False),
        (False, asking("a", "red"), asking("b", "blue", "namespace"), False),
        (False, asking("a", "red", "namespace"), asking("b", "red"), True),
        (False, asking("a", "red", "none"), asking("b", "red"), False),
        (True, asking("a", "red"), asking("b", "blue"), False),
        (True, asking("a", "red"), asking("b", "red"), True),
    ],
)
def test_who_joins_whom(boundary: bool, first: Pod, second: Pod, joins: bool) -> None:
    """On a cluster of one card."""
    state = state_of(boundary=boundary)
    assert placed(state, first) is not None
    result = filter_nodes(state, second, ["n1"])
    assert result.node_names == (["n1"] if joins else [])
    if not joins and first.metadata.annotations.get("tessera.gpu/sharing") != "none":  # type: ignore[union-attr]
        assert result.failed_and_unresolvable_nodes == {"n1": OTHERS}
    assert (placed(state, second) is not None) == joins


def test_the_promise_outlives_the_annotation() -> None:
    """What was promised is in the record: to change the annotation later opens no card."""
    state = state_of()
    first = asking("a", "red", "namespace")
    record = placed(state, first)
    assert record is not None
    assert record.private
    first.metadata.annotations = {ASSIGNMENT: encode(record)}
    state.saw_pod(first)
    assert filter_nodes(state, asking("b", "blue"), ["n1"]).node_names == []


PODS = st.builds(
    asking,
    st.uuids().map(str),
    st.sampled_from(["red", "blue", "green"]),
    st.sampled_from(["any", "any", "namespace", "none"]),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(PODS, st.booleans()), max_size=14), st.booleans())
def test_a_boundary_is_never_broken(pods: list[tuple[Pod, bool]], boundary: bool) -> None:
    """Whatever comes and goes, nobody sits with a neighbour whom one of the two did not want."""
    state = state_of(boundary=boundary, cards=3)
    for i, (wanted, one_leaves) in enumerate(pods):
        placed(state, wanted)
        if one_leaves:
            state.lost_pod(pods[i // 2][0])
    on_card: dict[str, list[Any]] = {}
    for holding in state.holdings.values():
        for uuid in holding.cards:
            on_card.setdefault(uuid, []).append(holding)
    for together in on_card.values():
        if boundary or any(h.private for h in together):
            assert len({h.namespace for h in together}) == 1


def test_tenants_share_an_answer_while_nobody_minds() -> None:
    """Kept scores are per demand; who asks makes another one only where it matters."""
    state = state_of()
    board = state.board()
    for name in "abc":
        filter_nodes(state, asking(name, name), ["n1"])
    assert len(board._answers) == 1
    placed(state, asking("p", "red", "namespace"))
    assert np.isfinite(board.node_scores(request_of(asking("q", "red"), state.rules.resources).demand)).all()  # type: ignore[union-attr]
    assert not np.isfinite(board.node_scores(request_of(asking("q", "b"), state.rules.resources).demand)).any()  # type: ignore[union-attr]
