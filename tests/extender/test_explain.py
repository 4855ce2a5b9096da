"""explain: every node's reason as filter says it, summed up, and the card that comes nearest."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.explain import Explanation, explain
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from extender.verbs import NO_MEMORY, TOO_SMALL, WRONG_MODEL, filter_nodes
from extender.wire import Pod
from extender.words import in_words
from tests.builders import bound, container, gpu, gpu_node, node, pod

RULES = Rules()


def state_of(*pods: Pod, nodes: int = 2, **cards: Any) -> ClusterState:
    """Return a state of nodes n0, n1, ... with two A10s each, and the pods."""
    state = ClusterState(RULES)
    for n in range(nodes):
        state.saw_node(node(f"n{n}"))
        state.saw_inventory(gpu_node(f"n{n}", [gpu(f"GPU-{n}-{i}", index=i, **cards) for i in range(2)]))
    for one in pods:
        state.saw_pod(one)
    return state


def told(state: ClusterState, asking: Pod) -> Explanation:
    """Return what is explained of a pod."""
    request = request_of(asking, state.rules.resources)
    assert request is not None
    return explain(state, asking, request)


def holder(name: str, card: str, mib: int, milli: int = 0) -> Pod:
    """Return a pod that holds a part of a card."""
    return bound(pod(name, memory=f"{mib}Mi"), f"n{card[4]}", [(card, mib, milli)])


def test_a_pod_that_fits_is_told_so() -> None:
    """With no reason and no card that comes nearest."""
    found = told(state_of(), pod(memory="8Gi"))
    assert (found.fits, found.nodes, found.reasons, found.nearest) == (2, 2, [], None)
    assert found.said == ["2 of 2 nodes with cards take it now, by their cards."]


def test_what_is_missing_is_a_number() -> None:
    """The nearest card, what is free there, what is wanted, and the difference."""
    full = [holder(f"p{i}", f"GPU-{i // 2}-{i % 2}", mib) for i, mib in enumerate((20000, 18000, 16000, 20000))]
    found = told(state_of(*full), pod(memory="10000Mi"))
    assert [(r.reason, r.nodes, r.examples) for r in found.reasons] == [(NO_MEMORY, 2, ["n0", "n1"])]
    assert found.nearest is not None
    assert (found.nearest.gpu, found.nearest.free_mib, found.nearest.want_mib) == ("GPU-1-0", 8576, 10000)
    assert found.said[-1] == "GPU-1-0 on n1 comes nearest with 8.4Gi and 100% free: it lacks 1.4Gi of memory."
    assert "the free room is in fragments" in found.said[1]


def test_compute_may_be_what_is_missing() -> None:
    """In percent of the card."""
    full = [holder(f"p{i}", f"GPU-{i // 2}-{i % 2}", 1024, 800 + 10 * i) for i in range(4)]
    found = told(state_of(*full), pod(memory="1Gi", utilization="40%"))
    assert found.said[-1].endswith("it lacks 20% of compute.")


def test_what_never_fits_has_no_nearest_card() -> None:
    """A card that is too small even when empty does not come near."""
    found = told(state_of(), pod(memory="40Gi"))
    assert (found.reasons[0].reason, found.nearest) == (TOO_SMALL, None)


def test_cards_of_other_models_do_not_come_near() -> None:
    """However much is free on them."""
    found = told(state_of(), pod(memory="4Gi", annotations={"tessera.gpu/model": "H100*"}))
    assert (found.reasons[0].reason, found.nearest) == (WRONG_MODEL, None)


def test_of_several_cards_the_last_one_counts() -> None:
    """One of two is free already; what the other lacks is told."""
    found = told(state_of(holder("a", "GPU-0-0", 20000), nodes=1), pod(memory="8Gi", count="2"))
    assert found.nearest is not None
    assert found.nearest.gpu == "GPU-0-0"


def test_a_whole_card_lacks_room() -> None:
    """A card with a small pod on it is not empty."""
    found = told(
        state_of(*(holder(f"p{i}", f"GPU-0-{i}", 1) for i in range(2)), nodes=1), pod(memory=None, count="1")
    )
    assert found.nearest is not None
    assert "it lacks" in found.said[-1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 24576), st.integers(0, 1000)), max_size=12), st.data())
def test_the_reasons_are_filters(shares: list[tuple[int, int, int]], data: st.DataObject) -> None:
    """Whatever runs: node by node the word that filter would say, and the counts add up."""
    pods = [holder(f"p{i}", f"GPU-{c // 2}-{c % 2}", mib, milli) for i, (c, mib, milli) in enumerate(shares)]
    state = state_of(*pods, nodes=3)
    memory = data.draw(st.sampled_from(["1Gi", "12Gi", "23Gi", "30Gi", "50%"]))
    asking = pod("asking", memory=memory, utilization=data.draw(st.sampled_from([None, "30%", "90%"])))
    found = told(state, asking)
    assert found.why == filter_nodes(state, asking, ["n0", "n1", "n2"]).failed_and_unresolvable_nodes
    assert sum(reason.nodes for reason in found.reasons) + found.fits == found.nodes == 3
    if found.nearest is not None:
        assert found.nearest.node in found.why


@pytest.mark.parametrize(
    ("asking", "words"),
    [
        (pod(memory="8Gi"), ["main: 8Gi of memory on 1 card"]),
        (pod(memory="512Mi", utilization="25%"), ["main: 512Mi of memory and 25% of the compute on 1 card"]),
        (pod(memory="25%", count="2"), ["main: 25% of the memory on each of 2 cards"]),
        (pod(memory=None, utilization="40%"), ["main: 40% of the memory and 40% of the compute on 1 card"]),
        (pod(memory=None, count="4"), ["main: 4 whole cards"]),
        (
            pod(memory="1Gi", annotations={"tessera.gpu/sharing": "none", "tessera.gpu/policy": "spread"}),
            ["main: 1Gi of memory on 1 card that nobody shares", "packed by spread"],
        ),
        (
            pod(memory="1Gi", annotations={"tessera.gpu/sharing": "namespace", "tessera.gpu/model": "A10, !T4"}),
            ["main: 1Gi of memory on 1 card", "of the models a10, !t4", "beside pods of its own namespace alone"],
        ),
        (
            pod(
                memory="1Gi",
                annotations={"tessera.gpu/memory.helper": "2Gi", "tessera.gpu/uuid": "GPU-b,GPU-a"},
                containers=[container(), container("helper")],
            ),
            ["main: 1Gi of memory on 1 card", "helper: 2Gi of memory on 1 card", "of the cards GPU-a, GPU-b"],
        ),
    ],
)
def test_a_request_in_words(asking: Pod, words: list[str]) -> None:
    """Each container, then what holds for all."""
    request = request_of(asking, RULES.resources)
    assert request is not None
    assert in_words(request) == words
