"""preempt: kube-scheduler's candidates corrected card by card, and never an answer that harms it."""

import asyncio
import itertools
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from extender.app import PREEMPT_SECONDS
from extender.node import Rules
from extender.pod import holding_of, request_of
from extender.preempt import counts, preempt
from extender.state import ClusterState
from extender.wire import (
    Budget,
    BudgetSpec,
    BudgetStatus,
    Meta,
    MetaPod,
    MetaVictims,
    Pod,
    PreemptArgs,
    PreemptResult,
    Selector,
    encode,
    preempt_decoder,
)
from tests.builders import Given, bound, gpu_node, node, plain, pod
from tests.extender.served import serve

GOLDEN = Path(__file__).parents[1] / "golden/wire"
GIB = 1024


def held(
    name: str,
    cards: list[Given] | None = None,
    priority: int = 0,
    on: str = "n1",
    started: str | None = None,
    labels: dict[str, str] | None = None,
    cpu: str | None = None,
    exclusive: bool = False,
    leaving: bool = False,
) -> Pod:
    """Return a bound pod of some priority that holds some cards."""
    asks = pod(name, requests={"cpu": cpu} if cpu else None) if cards else plain(name, requests={"cpu": cpu or "1"})
    made = bound(asks, on, cards, exclusive=exclusive)
    made.spec.priority, made.status.start_time, made.metadata.labels = priority, started, labels
    made.metadata.deletion_timestamp = "2026-11-30T23:00:00Z" if leaving else None
    return made


def on(card: int, gib: int, milli: int = 0, name: str = "n1") -> list[Given]:
    """Return a share of one card."""
    return [(f"GPU-{name}-{card}", gib * GIB, milli)]


def asking(priority: int = 10, **asks: Any) -> Pod:
    """Return the pod that wants room, named `high`."""
    made = pod("high", **({"memory": "20Gi"} | asks))
    made.spec.priority = priority
    return made


def state_of(*pods: Pod, nodes: int = 1, cards: int = 2, cpu: str = "64") -> ClusterState:
    """Return a state of nodes n1, n2, ... with cards of 24 GiB."""
    state = ClusterState(Rules())
    for name in (f"n{i}" for i in range(1, nodes + 1)):
        state.saw_node(node(name, cpu=cpu))
        state.saw_inventory(gpu_node(name, cards))
    for seen in pods:
        state.saw_pod(seen)
    return state


def replied(state: ClusterState, args: PreemptArgs, budgets: list[Budget]) -> bytes:
    """Return the bytes of the reply."""
    found = preempt(state, args, budgets)
    return encode(PreemptResult({name: victims for name, victims in found if victims is not None}))


def answered(
    state: ClusterState,
    high: Pod,
    proposed: dict[str, list[str]],
    budgets: list[Budget] | None = None,
    broken: int = 0,
) -> dict[str, tuple[list[str], int]]:
    """Return the victims by name, and the number of broken budgets, of each node in the reply."""
    asked: dict[str, MetaVictims | None] = {
        n: MetaVictims([MetaPod(f"uid-{name}") for name in names], broken) for n, names in proposed.items()
    }
    reply = replied(state, PreemptArgs(high, None, asked), budgets or [])
    said = json.loads(reply)["NodeNameToMetaVictims"]
    return {n: ([p["UID"].removeprefix("uid-") for p in v["Pods"]], v["NumPDBViolations"]) for n, v in said.items()}


def budget(allowed: int, labels: dict[str, str] | None, **more: Any) -> Budget:
    """Return a disruption budget of the namespace `default`."""
    selector = None if labels is None else Selector(labels, more.get("expressions"))
    return Budget(Meta(name="b", namespace="default"), BudgetSpec(selector), BudgetStatus(allowed))


# --- which victims -------------------------------------------------------------------------------------------


def test_right_victims_are_kept() -> None:
    """What already frees one card is answered as it came."""
    state = state_of(held("a", on(0, 10)), held("b", on(1, 24)))
    assert answered(state, asking(), {"n1": ["a"]}) == {"n1": (["a"], 0)}


def test_a_proposal_that_is_as_good_as_any_is_kept() -> None:
    """Of two equal pods the proposed one goes."""
    state = state_of(held("a", on(0, 20)), held("b", on(1, 20)))
    assert answered(state, asking(), {"n1": ["a"]}) == {"n1": (["a"], 0)}
    assert answered(state, asking(), {"n1": ["b"]}) == {"n1": (["b"], 0)}


def test_a_victim_on_the_wrong_card_is_exchanged() -> None:
    """By the sum one pod of 9 GiB would do; on a single card only the one of 12 does."""
    state = state_of(held("a", on(1, 9)), held("b", on(1, 9)), held("c", on(0, 12)))
    assert answered(state, asking(), {"n1": ["b"]}) == {"n1": (["c"], 0)}


def test_victims_are_added_until_one_card_is_free() -> None:
    """Two pods of 12 GiB on one card must go where one would do by the sum."""
    state = state_of(held("a", on(0, 12)), held("b", on(0, 12)), held("c", on(1, 24), priority=10))
    assert answered(state, asking(), {"n1": ["a"]}) == {"n1": (["a", "b"], 0)}


def test_fewer_victims_replace_more() -> None:
    """Two pods of 4 GiB do by the sum and on the card; one of 16 GiB and the same priority is less harm."""
    state = state_of(held("a", on(0, 4)), held("b", on(0, 4)), held("c", on(0, 16)), held("d", on(1, 24), 10))
    assert answered(state, asking(memory="8Gi"), {"n1": ["a", "b"]}) == {"n1": (["c"], 0)}


def test_a_node_on_which_no_card_can_be_freed_is_dropped() -> None:
    """Pods of higher and of equal priority stay: the node with them is not in the reply, and the other one is."""
    low = [held("a", on(0, 12)), held("x", on(0, 12, name="n2"), on="n2"), held("y", on(1, 24, name="n2"), on="n2")]
    state = state_of(*low, held("b", on(0, 12), 10), held("c", on(1, 24), 11), nodes=2)
    assert answered(state, asking(), {"n1": ["a"], "n2": ["x"]}) == {"n2": (["x"], 0)}


def test_a_proposed_victim_of_the_same_priority_drops_the_node() -> None:
    """Whoever proposes it, it is not evicted."""
    state = state_of(held("a", on(0, 12), 10), held("b", on(1, 12), 0))
    assert answered(state, asking(), {"n1": ["a"]}) == {}


def test_no_answer_is_empty_or_null() -> None:
    """A node where nobody has to go, or that is unknown or closed, is dropped, not answered with an empty list."""
    state = state_of(held("a", on(0, 4)), held("bad", [("GPU-gone", 1, 1)], 11, on="n2"), nodes=2)
    asked = {"n1": [], "n2": ["x"], "n9": ["a"], "n3": []}
    assert answered(state, asking(), asked) == {}
    args = preempt_decoder.decode(b'{"Pod":{},"NodeNameToMetaVictims":{"n1":null,"n2":{"Pods":[null]}}}')
    assert replied(state, args, []) == b'{"NodeNameToMetaVictims":{}}'


def test_an_empty_candidate_gets_its_victims() -> None:
    """Newer schedulers pass candidates without victims: we name them or drop the node."""
    state = state_of(held("a", on(0, 12)), held("b", on(1, 12), 10))
    assert answered(state, asking(), {"n1": []}) == {"n1": (["a"], 0)}


def test_victims_that_the_scheduler_has_its_own_reasons_for_stay_victims() -> None:
    """A pod without cards goes in any case, and so does one that no total explains: a port or an affinity does."""
    state = state_of(held("cpu"), held("port", on(1, 1)), held("a", on(0, 12)), held("b", on(1, 12)))
    assert answered(state, asking(), {"n1": ["port", "cpu"]}) == {"n1": (["a", "cpu", "port"], 0)}


def test_as_much_cpu_comes_free_as_was_proposed() -> None:
    """The exchange of a victim for one on another card must not bring less CPU than the pod needs."""
    pods = [held("a", on(0, 20), 1, cpu="1"), held("b", on(1, 20), 2, cpu="4"), held("c", on(1, 1), 0, cpu="1")]
    high = asking(requests={"cpu": "4"})
    assert answered(state_of(*pods, cpu="6"), high, {"n1": ["b"]}) == {"n1": (["b"], 0)}
    assert answered(state_of(*pods, cpu="64"), high, {"n1": ["b"]}) == {"n1": (["a"], 0)}


def test_pods_that_are_leaving_are_not_evicted_again() -> None:
    """What they free counts as free; if that is enough, nobody has to go."""
    going = held("going", on(0, 12), leaving=True)
    state = state_of(going, held("a", on(0, 4)), held("b", on(1, 20), 1))
    assert answered(state, asking(), {"n1": []}) == {}
    assert answered(state, asking(memory="23Gi"), {"n1": ["b"]}) == {"n1": (["a"], 0)}


def test_whole_cards_are_emptied() -> None:
    """Two whole cards take two cards with nothing on them; one exclusive pod counts as all of a card."""
    pods = [held(name, on(i, 4, 500), 1 + (name == "b")) for i, name in ((0, "a"), (1, "b"), (2, "c"), (2, "d"))]
    state = state_of(*pods, held("e", on(3, 4, 1000), 1, exclusive=True), cards=4)
    assert answered(state, asking(memory=None, count="2"), {"n1": ["c", "d"]}) == {"n1": (["a", "e"], 0)}


def test_highest_priority_comes_first() -> None:
    """kube-scheduler takes the first victim for the most important one."""
    pods = [held("a", on(0, 8), 1), held("b", on(0, 8), 3), held("c", on(0, 8), 2), held("d", on(1, 24), 10)]
    assert answered(state_of(*pods), asking(memory="24Gi"), {"n1": ["a"]}) == {"n1": (["b", "c", "a"], 0)}


def test_younger_pods_go_before_older_ones() -> None:
    """Of equal pods on one card the one that started last goes."""
    old, young = (held(n, on(0, 12), started=f"2026-11-30T2{t}:00:00Z") for n, t in (("old", 1), ("young", 2)))
    state = state_of(old, young, held("x", on(1, 24), 10))
    assert answered(state, asking(memory="12Gi"), {"n1": []}) == {"n1": (["young"], 0)}


# --- disruption budgets --------------------------------------------------------------------------------------


def test_budgets_are_broken_as_little_as_possible_and_counted() -> None:
    """A protected pod stays if another card will do, and is counted if none does."""
    safe = {"app": "safe"}
    pods = [held("a", on(0, 20), 0, labels=safe), held("b", on(1, 20), 5)]
    assert answered(state_of(*pods), asking(), {"n1": ["a"]}, [budget(0, safe)], 1) == {"n1": (["b"], 0)}
    assert answered(state_of(*pods), asking(), {"n1": ["a"]}, [budget(1, safe)]) == {"n1": (["a"], 0)}
    only = state_of(pods[0], held("c", on(1, 24), 10))
    assert answered(only, asking(), {"n1": ["a"]}, [budget(0, safe)], 1) == {"n1": (["a"], 1)}


def test_a_breach_by_a_pod_without_cards_stays_counted() -> None:
    """kube-scheduler told that one of its victims breaks a budget, and it is none of ours."""
    state = state_of(held("cpu"), held("a", on(0, 20)), held("b", on(1, 20), 10))
    assert answered(state, asking(), {"n1": ["a", "cpu"]}, broken=1) == {"n1": (["a", "cpu"], 1)}


@pytest.mark.parametrize(
    ("selector", "expected"),
    [
        (None, False),
        ({}, True),
        ({"app": "a"}, True),
        ({"app": "b"}, False),
        ([{"key": "app", "operator": "In", "values": ["a", "c"]}], True),
        ([{"key": "app", "operator": "NotIn", "values": ["a"]}], False),
        ([{"key": "tier", "operator": "NotIn", "values": ["x"]}], True),
        ([{"key": "app", "operator": "Exists"}], True),
        ([{"key": "app", "operator": "DoesNotExist"}], False),
    ],
)
def test_a_budget_counts_pods_as_its_selector_says(selector: Any, expected: bool) -> None:
    """Labels and expressions, as everywhere in Kubernetes; another namespace is not counted."""
    counted = holding_of(held("a", on(0, 1), labels={"app": "a"}), Rules().resources)
    assert counted is not None
    rules = selector if isinstance(selector, list) else None
    made = budget(0, None if selector is None else {} if rules else selector, expressions=rules)
    assert counts(made, counted) is expected
    made.metadata.namespace = "other"
    assert counts(made, counted) is False


# --- the wire ------------------------------------------------------------------------------------------------


def golden(name: str) -> Any:
    """Return one of the recorded-like bodies."""
    return json.loads((GOLDEN / f"{name}.json").read_text())


@pytest.mark.parametrize("asked", ["preempt-names", "preempt-nodes"])
def test_both_forms_of_the_question_have_the_same_answer(asked: str) -> None:
    """By UID or as whole pods, with nodeCacheCapable or without: the reply is by UID, in these very bytes."""
    state = state_of(held("lo-a", on(1, 9)), held("lo-b", on(1, 9)), held("lo-c", on(0, 12)))
    args = preempt_decoder.decode((GOLDEN / f"{asked}.json").read_bytes())
    assert args.pod is not None
    assert args.pod.spec.priority == 1000
    reply = b'{"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"uid-lo-c"}],"NumPDBViolations":0}}}'
    assert replied(state, args, []) == reply


def test_pods_without_gpu_demand_pass_unchanged() -> None:
    """The victims of a pod that asks nothing of us are kube-scheduler's own affair."""
    state = state_of(held("a", on(0, 12), 50))
    high = plain("high")
    assert answered(state, high, {"n1": ["a", "stranger"], "n9": ["b"], "n2": []}, broken=1) == {
        "n1": (["a", "stranger"], 1),
        "n9": (["b"], 1),
    }


def test_a_pod_with_a_bad_request_evicts_nobody() -> None:
    """It could not be bound anyway."""
    assert answered(state_of(held("a", on(0, 12))), asking(memory="nonsense"), {"n1": ["a"]}) == {}


# --- whatever is asked ---------------------------------------------------------------------------------------


@st.composite
def clusters(draw: st.DrawFn) -> list[Pod]:
    """Draw pods on the two cards of n1, never more than there is."""
    pods, free = [], [24, 24]
    for i in range(draw(st.integers(0, 7))):
        card, gib = draw(st.integers(0, 1)), draw(st.integers(1, 12))
        if gib <= free[card]:
            free[card] -= gib
            pods.append(held(f"p{i}", on(card, gib), draw(st.integers(8, 11)), leaving=draw(st.integers(0, 5)) == 0))
    return pods


@settings(max_examples=300, deadline=None)
@given(clusters(), st.sets(st.integers(0, 8)), st.sampled_from(["2Gi", "13Gi", "20Gi", "24Gi"]))
def test_every_reply_makes_room_and_spares_the_equal(pods: list[Pod], proposed: set[int], memory: str) -> None:
    """After the victims the pod fits; all are lower, bound there, named once; asked again, the answer is the same."""
    state, high = state_of(*pods), asking(memory=memory)
    names = [p.metadata.name for p in pods if int(p.metadata.name[1:]) in proposed and (p.spec.priority or 0) < 10]
    found = answered(state, high, {"n1": names})
    assert answered(state, high, {"n1": names}) == found
    if not found:
        return
    victims, _ = found["n1"]
    assert victims
    assert len(set(victims)) == len(victims)
    by_name = {p.metadata.name: p for p in pods}
    assert all((by_name[v].spec.priority or 0) < 10 for v in victims)
    for name in [*victims, *(n for n, p in by_name.items() if p.metadata.deletion_timestamp)]:
        state.lost_pod(by_name[name])
    request = request_of(high, state.rules.resources)
    assert request is not None
    assert state.board().node_scores(request.demand)[0] > float("-inf")


@settings(max_examples=300, deadline=None)
@given(
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=3), lambda x: st.lists(x, max_size=2))
)
def test_odd_bodies_are_refused_or_answered_without_a_null(odd: Any) -> None:
    """Whatever stands where victims belong: a decoding error, or a reply that kube-scheduler can read."""
    body = golden("preempt-names")
    for where in ({"n1": odd}, {"n1": {"Pods": odd}}, {"n1": {"Pods": [odd]}}, odd):
        body["NodeNameToMetaVictims"] = where
        try:
            args = preempt_decoder.decode(json.dumps(body).encode())
        except msgspec.ValidationError:
            continue
        assert b"null" not in replied(state_of(), args, [])


def test_the_clusters_boundary_makes_every_neighbour_a_victim() -> None:
    """With `boundary: namespace` a small pod of another namespace keeps a card from being shared, and has to go."""
    state = ClusterState(Rules(boundary=True))
    state.saw_node(node("n1"))
    state.saw_inventory(gpu_node("n1", 1))
    low = held("low", on(0, 1))
    low.metadata.namespace = "other"
    state.saw_pod(low)
    assert answered(state, asking(memory="2Gi"), {"n1": []}) == {"n1": (["low"], 0)}


@pytest.mark.anyio
async def test_a_question_ends_with_its_time_or_with_the_next_one_about_the_pod() -> None:
    """kube-scheduler hangs up and asks again: what nobody waits for is not gone on with."""
    proposed = {f"n{i}": {"Pods": [{"UID": "x"}]} for i in range(9)}
    asking = {"metadata": {"name": "p", "uid": "u", "namespace": "default"}}
    body = json.dumps({"Pod": asking, "NodeNameToMetaVictims": proposed}).encode()

    def told(reply: bytes) -> int:
        return len(json.loads(reply)["NodeNameToMetaVictims"])

    async with serve() as served:
        service = served.service
        assert told(await service.preempt(body)) == 9
        both = await asyncio.gather(service.preempt(body), service.preempt(body))
        assert list(map(told, both)) == [1, 9]
        service.clock = itertools.count(0, PREEMPT_SECONDS + 1).__next__
        assert told(await service.preempt(body)) == 1
        assert service.preempting == {}
