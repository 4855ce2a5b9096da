"""Replies from prepared pieces: whatever happened before, they say what the plain verbs say."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.answers import Answers
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from extender.verbs import COOPERATIVE, DECISIVE, filter_nodes, prioritize
from extender.wire import HostPriority, Pod, encode
from scoring.containers import Budget
from tests.builders import bound, container, gpu_node, node, plain, pod
from tests.extender.served import serve

NODES = ["n1", "n2", 'odd "ñ\\', "n4"]
LISTS = st.lists(st.sampled_from([*NODES, "n9", "", "\u2028"]), max_size=7)
HELPED = {"tessera.gpu/memory.a": "9Gi", "tessera.gpu/memory.b": "16Gi", "tessera.gpu/utilization.b": "30%"}
PODS = [
    pod("share"),
    pod("half", utilization="50%"),
    pod("two", count="2"),
    pod("whole", memory=None, count="1"),
    pod("t4", annotations={"tessera.gpu/model": "T4"}),
    pod("spread", annotations={"tessera.gpu/policy": "spread"}),
    pod("huge", memory="99Gi"),
    pod("bad", memory="4096"),
    plain("none"),
    plain("several", annotations=HELPED, containers=[container("a"), container("b")]),
]
# What happens between two questions: a pod comes or goes on a node, a node comes or goes or closes, a bind begins.
EVENTS = st.tuples(
    st.sampled_from(["hold", "release", "node", "lost", "close", "reserve", "forget"]),
    st.sampled_from(NODES),
    st.sampled_from(PODS[:4]),
)


def happen(state: ClusterState, what: str, name: str, asking: Pod) -> None:
    """Let one event happen."""
    held = pod(f"held-{name}")
    if what == "hold":
        state.saw_pod(bound(held, name, [(f"GPU-{name}-0", 21000, 600)]))
    elif what == "release":
        state.saw_pod(bound(held, name, phase="Succeeded"))
    elif what == "node":
        state.saw_node(node(name))
        state.saw_inventory(gpu_node(name, 2))
    elif what == "lost":
        state.lost_inventory(name)
    elif what == "close":
        state.saw_node(node(name, overcommit="much"))
    elif what == "reserve":
        request = request_of(asking, state.rules.resources)
        assert request is not None
        state.reserve(asking, request, name)
    else:
        state.forget(asking.metadata.uid)


@given(
    st.lists(st.one_of(EVENTS, st.tuples(st.sampled_from(PODS), LISTS)), min_size=1, max_size=25),
    st.lists(LISTS, min_size=1, max_size=3),
    st.sampled_from([DECISIVE, COOPERATIVE]),
)
def test_they_say_what_the_plain_verbs_say(steps: list, often: list[list[str]], rest: int) -> None:  # type: ignore[type-arg]
    """After any history, and for names seen before or never, both verbs answer as if nothing were prepared."""
    state = ClusterState(Rules())
    for name in NODES[:3]:
        happen(state, "node", name, PODS[0])
    answers = Answers(state, rest)
    for step in steps:
        if len(step) == 3:
            happen(state, *step)
            continue
        asking, listed = step
        for names in (*often, listed):
            same(state, answers, asking, names, rest)


def same(state: ClusterState, answers: Answers, asking: Pod, names: list[str], rest: int) -> None:
    """Ask both ways and compare: filter, and prioritize with all names and with those that filter let pass."""
    plainly = filter_nodes(state, asking, names)
    reply, only = answers.filter(asking, answers.names(encode(names)))
    assert msgspec.json.decode(reply) == msgspec.json.decode(encode(plainly))
    left = plainly.node_names or []
    assert only == (left[0] if len(left) == 1 else "")
    for asked in (names, left):
        scored = prioritize(state, asking, asked, rest)
        reply, best = answers.prioritize(asking, answers.names(encode(asked)))
        assert msgspec.json.decode(reply, type=list[HostPriority]) == scored
        assert best == next((s.host for s in scored if s.score == 10), "")


def test_a_rejection_is_none_while_nodes_are_left_to_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search among many containers is bounded; asked again without any change, it goes on to the last node."""
    monkeypatch.setattr("scoring.containers.MOST_IN_ALL", 1)
    monkeypatch.setattr("scoring.fit.Budget", lambda: Budget(1))
    monkeypatch.setattr("scoring.containers._known", {})
    state = ClusterState(Rules())
    names = [f"m{i}" for i in range(6)]
    for name in names:  # in sum there is room everywhere, and only m0, which is searched last, has it card by card
        happen(state, "node", name, PODS[0])
        taken = (7000, 15300) if name == "m0" else (576, 19576)
        shares = [(f"GPU-{name}-{card}", mib, 0) for card, mib in enumerate(taken)]
        state.saw_pod(bound(pod(f"held-{name}"), name, shares))
    asking, answers, raw = PODS[-1], Answers(state), encode(names)
    asks = [answers.filter(asking, answers.names(raw))[1] for _ in range(8)]
    assert asks[-1] == "m0"
    assert filter_nodes(state, asking, names).node_names == ["m0"]


def test_a_rejected_pod_costs_no_second_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """While nothing changes the same question gets the same bytes without asking the engine; a change is seen."""
    state = ClusterState(Rules())
    happen(state, "node", "n1", PODS[0])
    answers, asking = Answers(state), pod(memory="20Gi", count="2")
    happen(state, "hold", "n1", PODS[0])
    first, _ = answers.filter(asking, answers.names(b'["n1"]'))
    with monkeypatch.context() as without:
        without.setattr(state, "board", lambda _: pytest.fail("the engine was asked"))
        again, _ = answers.filter(asking, answers.names(b'["n1"]'))
    assert (again, b'"NodeNames":[]' in again) == (first, True)
    happen(state, "release", "n1", PODS[0])
    assert answers.filter(asking, answers.names(b'["n1"]'))[1] == "n1"


def test_what_is_remembered_is_bounded() -> None:
    """Many lists and many demands leave a few of each."""
    state = ClusterState(Rules())
    happen(state, "node", "n1", PODS[0])
    answers = Answers(state)
    for i in range(700):
        names = answers.names(encode(["n1"] * (i % 20)))
        answers.filter(pod(memory=f"{i + 1}Mi"), names)
        answers.filter(pod(memory=f"{99 + i}Gi"), names)
        assert len(names.rejected) <= 16
    assert len(answers._lists) <= 8
    assert len(answers._why) <= 512


@pytest.mark.anyio
@pytest.mark.parametrize(("chosen", "second"), [("decisive", 3), ("cooperative", 9)])
async def test_the_setting_of_the_scores(chosen: str, second: int) -> None:
    """Of equally good nodes the first gets 10, and the others as much as the setting leaves them."""
    async with serve(scores=chosen) as served:
        asked = {"Pod": msgspec.to_builtins(pod(memory="1Gi")), "NodeNames": ["t4x4-0", "t4x4-0"]}
        scores = await served.post("prioritize", asked)
    assert [score["Score"] for score in scores] == [10, second]
