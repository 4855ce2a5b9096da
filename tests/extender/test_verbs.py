"""filter and prioritize: each reason in its words, nothing null, and the best node strictly ahead."""

import msgspec
import pytest

from extender import verbs
from extender.node import BAD_RECORD, Rules
from extender.pod import request_of
from extender.state import NO_INVENTORY, ClusterState
from extender.verbs import filter_nodes, prioritize
from extender.wire import FilterResult, Pod, encode
from scoring.policies import POLICIES
from tests.builders import Given, bound, container, gpu, gpu_node, node, plain, pod


def state_of(held: dict[str, list[Given]] | None = None, *, sharers: int = 48) -> ClusterState:
    """Return a state of nodes n1 and n2 with two A10 each, on which pods hold what is `held` by name and node n1."""
    state = ClusterState(Rules(sharers=sharers))
    for name in ("n1", "n2"):
        state.saw_node(node(name))
        state.saw_inventory(gpu_node(name, 2))
    for name, cards in (held or {}).items():
        state.saw_pod(bound(pod(name), "n1", cards))
    return state


def both(of: tuple[int, int]) -> list[Given]:
    """Return the same share of both cards of n1."""
    return [("GPU-n1-0", *of), ("GPU-n1-1", *of)]


A, B = "GPU-n1-0", "GPU-n1-1"
TWO_CONTAINERS = plain(
    annotations={"tessera.gpu/memory.a": "20Gi", "tessera.gpu/memory.b": "20Gi", "tessera.gpu/memory.c": "20Gi"},
    containers=[container(n) for n in "abc"],
)

REASONS = [
    ("no such node", state_of(), pod(), "n9", NO_INVENTORY),
    (
        "a closed node",
        state_of({"bad": [("GPU-gone", 1, 1)]}),
        pod(),
        "n1",
        "a pod on the node holds a card that the node does not report",
    ),
    (
        "another model",
        state_of(),
        pod(annotations={"tessera.gpu/model": "T4"}),
        "n1",
        "no card of the requested model or uuid",
    ),
    (
        "a model excluded",
        state_of(),
        pod(annotations={"tessera.gpu/model": "!A1*"}),
        "n1",
        "no card of the requested model or uuid",
    ),
    (
        "another card",
        state_of(),
        pod(annotations={"tessera.gpu/uuid": "GPU-n2-0"}),
        "n1",
        "no card of the requested model or uuid",
    ),
    (
        "larger than the card",
        state_of(),
        pod(memory="25Gi"),
        "n1",
        "the node's cards cannot hold the request even when empty",
    ),
    (
        "more cards than there are",
        state_of(),
        pod(count="3"),
        "n1",
        "the node's cards cannot hold the request even when empty",
    ),
    (
        "containers beyond the node",
        state_of(),
        TWO_CONTAINERS,
        "n1",
        "the node's cards cannot hold the request even when empty",
    ),
    ("no memory left", state_of({"x": both((21000, 0))}), pod(), "n1", "no card with enough free GPU memory"),
    (
        "no compute left",
        state_of({"x": both((0, 600))}),
        pod(utilization="50%"),
        "n1",
        "no card with enough free GPU utilization",
    ),
    ("no slot left", state_of({"x": both((0, 0))}, sharers=1), pod(), "n1", "no card that may take another pod"),
    (
        "no empty card left",
        state_of({"x": both((0, 0))}),
        pod(memory=None, count="1"),
        "n1",
        "no card that may take another pod",
    ),
    (
        "memory on one card, compute on the other",
        state_of({"x": [(A, 21000, 0)], "y": [(B, 0, 600)]}),
        pod(utilization="50%"),
        "n1",
        "no cards with enough free GPU memory and utilization together",
    ),
]


@pytest.mark.parametrize(
    ("state", "asking", "name", "why"), [pytest.param(s, p, n, w, id=i) for i, s, p, n, w in REASONS]
)
def test_each_reason_has_its_words(state: ClusterState, asking: Pod, name: str, why: str) -> None:
    """A node that does not take a pod says why in one fixed sentence, the same at every call."""
    for _ in range(2):
        result = filter_nodes(state, asking, [name])
        assert result.failed_and_unresolvable_nodes == {name: why}
        assert (result.node_names, result.failed_nodes, result.error) == ([], {}, "")


def test_nodes_that_fit_pass_in_their_order() -> None:
    """What fits is answered in the order of the question; what does not is in FailedAndUnresolvableNodes alone."""
    state = state_of({"x": both((21000, 0))})
    result = filter_nodes(state, pod(), ["n9", "n2", "n1", "n2"])
    assert result.node_names == ["n2", "n2"]
    assert set(result.failed_and_unresolvable_nodes) == {"n1", "n9"}


@pytest.mark.parametrize("asking", [pod(), plain(), pod(memory="bad"), pod(memory="99Gi")])
@pytest.mark.parametrize("names", [[], ["n1"], ["n1", "n2", "n9"]])
def test_no_null_where_kube_scheduler_looks(asking: Pod, names: list[str]) -> None:
    """FailedNodes stays empty, every node is in exactly one place, and lists and maps are never null."""
    sent = msgspec.json.decode(encode(filter_nodes(state_of(), asking, names)))
    assert sent["FailedNodes"] == {}
    assert sent["Error"] == ""
    assert sorted([*sent["NodeNames"], *sent["FailedAndUnresolvableNodes"]]) == sorted(names)


def test_a_bad_request_is_the_same_sentence_on_every_node() -> None:
    """kube-scheduler drops the text of an error status, so the sentence travels as the reason of every node."""
    result = filter_nodes(state_of(), pod(memory="4096"), ["n1", "n9"])
    sentence = "tessera.gpu/memory is '4096', which is below 1Mi: was 4096Mi or 4096Gi meant?"
    assert result == FilterResult(node_names=[], failed_and_unresolvable_nodes={"n1": sentence, "n9": sentence})


def test_a_pod_that_asks_nothing_passes_everywhere() -> None:
    """Nodes that we do not know are none of our business then."""
    assert filter_nodes(state_of(), plain(), ["n1", "n9"]).node_names == ["n1", "n9"]


def test_a_pod_whose_bind_is_not_decided_stays_with_its_node() -> None:
    """Until it is known whether an earlier bind was carried out, only its node is a candidate."""
    state = state_of()
    request = request_of(pod(), state.rules.resources)
    assert request is not None
    state.reserve(pod(), request, "n1")
    result = filter_nodes(state, pod(), ["n1", "n2", "n9"])
    assert result.node_names == ["n1"]
    assert set(result.failed_and_unresolvable_nodes.values()) == {verbs.UNDECIDED}


def test_the_example_node_with_a_bad_record() -> None:
    """The reason of a closed node is the state's own."""
    state = state_of()
    state.saw_pod(bound(pod("bad"), "n1", text="?"))
    assert filter_nodes(state, pod(), ["n1"]).failed_and_unresolvable_nodes == {"n1": BAD_RECORD}


# --- prioritize ----------------------------------------------------------------------------------------------


def scores(state: ClusterState, asking: Pod, names: list[str]) -> dict[str, int]:
    """Return the scores by node, having seen that each is a whole number from 0 to 10 in the order asked."""
    answered = prioritize(state, asking, names)
    assert [a.host for a in answered] == names
    assert all(type(a.score) is int and 0 <= a.score <= 10 for a in answered)
    return {a.host: a.score for a in answered}


def test_the_best_node_is_strictly_ahead() -> None:
    """One node gets 10, and every other at most 3, also among equals."""
    state = state_of({"x": [(A, 4096, 300)]})
    assert scores(state, pod(), ["n2", "n1"]) == {"n2": 0, "n1": 10}
    assert scores(state_of(), pod(), ["n2", "n1"]) == {"n2": 10, "n1": 3}


def test_nodes_that_do_not_fit_score_nothing() -> None:
    """An unknown node, a full one and a bad request score 0."""
    state = state_of({"x": both((24000, 0))})
    assert scores(state, pod(), ["n9", "n1", "n2"]) == {"n9": 0, "n1": 0, "n2": 10}
    assert scores(state, pod(memory="bad"), ["n1", "n2"]) == {"n1": 0, "n2": 0}
    assert scores(state, plain(), ["n1", "n2"]) == {"n1": 0, "n2": 0}
    assert scores(state, pod(memory="99Gi"), ["n1", "n2"]) == {"n1": 0, "n2": 0}
    assert scores(state, pod(), []) == {}


@pytest.mark.parametrize(("policy", "best"), [("binpack", "n1"), ("bestfit", "n1"), ("spread", "n2")])
def test_a_pod_may_name_its_policy(policy: str, best: str) -> None:
    """The policy of the pod decides over that of the settings."""
    state = state_of({"x": [(A, 4096, 300)]})
    assert scores(state, pod(annotations={"tessera.gpu/policy": policy}), ["n1", "n2"])[best] == 10


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_every_policy_answers_on_every_state(policy: str) -> None:
    """No policy fails on an empty cluster, on nodes without cards, or for any kind of request."""
    empty, cardless, odd = ClusterState(Rules()), ClusterState(Rules()), state_of()
    cardless.saw_node(node())
    cardless.saw_inventory(gpu_node(gpus=0))
    odd.saw_inventory(gpu_node("n1", [gpu("GPU-n1-0", memoryMiB=None), gpu("GPU-n1-1", index=1, healthy=False)]))
    for state in (empty, cardless, odd, state_of()):
        for asking in (pod(), pod(count="2"), pod(memory=None, count="1"), pod(memory="10%"), TWO_CONTAINERS):
            notes = {**(asking.metadata.annotations or {}), "tessera.gpu/policy": policy}
            named = plain(annotations=notes, containers=asking.spec.containers)
            assert set(scores(state, named, ["n1", "n2"]).values()) <= {0, 1, 2, 3, 10}
            filter_nodes(state, named, ["n1", "n2"])


def test_it_asks_and_changes_nothing() -> None:
    """Neither verb writes to the state."""
    state = state_of({"x": [(A, 4096, 300)]})
    before = state.fleet.changes
    filter_nodes(state, pod(), ["n1", "n2"])
    prioritize(state, pod(), ["n1", "n2"])
    assert (state.fleet.changes, state.assumed, state.waiting) == (before, {}, {})
