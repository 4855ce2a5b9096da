"""Room that is kept for pods a node is being cleared for: from whom, on which cards, and until when."""

from typing import Any

import pytest

from contract.names import Resources
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState
from extender.verbs import filter_nodes
from extender.wire import Pod
from tests.builders import bound, gpu_node, node
from tests.extender.served import serve
from tests.extender.test_preempt import asking, held, on


def state_of(*pods: Pod, nodes: int = 1, cards: int = 1) -> ClusterState:
    """Return a state of nodes n1, n2, ... with cards of 24 GiB."""
    state = ClusterState(Rules())
    for name in (f"n{i}" for i in range(1, nodes + 1)):
        state.saw_node(node(name))
        state.saw_inventory(gpu_node(name, cards))
    for seen in pods:
        state.saw_pod(seen)
    return state


def nominated(to: str = "n1", priority: int = 10, memory: str = "20Gi", name: str = "high") -> Pod:
    """Return a waiting pod that kube-scheduler clears a node for."""
    made = asking(priority, memory=memory)
    made.metadata.name, made.metadata.uid, made.status.nominated_node_name = name, f"uid-{name}", to
    return made


def passes(state: ClusterState, priority: int, memory: str = "8Gi", name: str = "asker") -> bool:
    """Say whether filter lets a pod of some priority go to n1."""
    made = nominated("", priority, memory, name)
    with state.seen_by(made):
        return filter_nodes(state, made, ["n1"]).node_names == ["n1"]


def test_a_lower_pod_does_not_take_the_room() -> None:
    """8 GiB do not fit beside the 20 GiB that are kept, and 4 GiB do."""
    state = state_of(nominated())
    assert not passes(state, 0)
    assert passes(state, 0, "4Gi")


def test_an_equal_pod_neither_and_a_higher_one_does() -> None:
    """As kube-scheduler counts: pods of the same or a higher priority than the asking one."""
    state = state_of(nominated())
    assert not passes(state, 10)
    assert passes(state, 11)
    assert not passes(state, 0), "the question of the higher pod leaves nothing behind"


def test_the_room_is_the_pods_own() -> None:
    """Its own questions and its bind see it free."""
    state = state_of(high := nominated())
    assert passes(state, 10, "20Gi", "high")
    request = request_of(high, Resources())
    assert request is not None
    assert state.reserve(high, request, "n1") is not None
    assert not passes(state, 0)
    assert passes(state, 0, "4Gi"), "assumed, it counts once"


def test_a_bind_does_not_take_it_either() -> None:
    """A lower pod that passed filter before the nomination is refused at bind; a higher one is bound."""
    state, low, higher = state_of(nominated()), nominated("", 0, "8Gi", "low"), nominated("", 11, "8Gi", "higher")
    request = request_of(low, Resources())
    assert request is not None
    assert state.reserve(low, request, "n1") is None
    assert state.reserve(higher, request, "n1") is not None


def test_what_a_vain_bind_frees_is_noticed() -> None:
    """It drops what was expected of others, and the room of those is room that a waiting pod may have missed."""
    state, likely = state_of(nominated(priority=1, memory="4Gi")), nominated("", 0, "16Gi", "likely")
    huge = nominated("", 5, "30Gi", "huge")
    requests = [request_of(made, Resources()) for made in (likely, huge)]
    assert requests[0] is not None
    assert requests[1] is not None
    state.expect(likely, requests[0], "n1", 0)
    assert "uid-likely" in state.expected
    state.freed.clear()
    assert state.reserve(huge, requests[1], "n1") is None
    assert "uid-likely" not in state.expected
    assert "n1" in state.freed


def test_room_that_is_still_taken_is_kept_as_it_comes_free() -> None:
    """While the victim is leaving, what is free of its card is kept, and what is free of the other card is not."""
    going = held("going", on(0, 16), leaving=True)
    state = state_of(going, held("stays", on(1, 16)), nominated(), cards=2)
    assert state.overpromised == {}, "what is kept is not promised twice"
    assert not passes(state, 0, "9Gi")
    assert passes(state, 0, "8Gi")
    with state.seen_by(low := nominated("", 0, "8Gi", "low")):
        request = request_of(low, Resources())
        assert request is not None
        record = state.reserve(low, request, "n1")
    assert record is not None
    assert record.containers["main"][0].gpu == "GPU-n1-1"


def test_nothing_is_kept_for_a_pod_that_would_not_fit() -> None:
    """Victims that do not leave yet make no room; filter stays as it is."""
    state = state_of(held("stays", on(0, 12)), nominated())
    assert passes(state, 0)


@pytest.mark.parametrize(
    "how", ["bound elsewhere", "deleted", "cleared", "nominated elsewhere", "finished", "leaving"]
)
def test_the_room_is_freed(how: str) -> None:
    """As soon as the pod has no need of it, and whoever watches for room is told."""
    state = state_of(high := nominated(), nodes=2)
    state.freed.clear()
    if how == "bound elsewhere":
        state.saw_pod(bound(high, "n2", on(0, 20, name="n2")))
    elif how == "deleted":
        state.lost_pod(high)
    elif how == "finished":
        gone = nominated()
        gone.status.phase = "Failed"
        state.saw_pod(gone)
    elif how == "leaving":  # and held by a finalizer
        leaving = nominated()
        leaving.metadata.deletion_timestamp = "2026-11-30T23:00:00Z"
        state.saw_pod(leaving)
    else:
        state.saw_pod(nominated("" if how == "cleared" else "n2"))
    assert passes(state, 0)
    assert "n1" in state.freed


def test_room_that_we_promise_is_kept_likewise() -> None:
    """Until we let go of it, or the pod waits no more; an update of the pod does not end it."""
    state = state_of(high := nominated(""))
    state.nominate("uid-high", "n1")
    state.saw_pod(nominated(""))
    assert not passes(state, 0)
    state.nominate("uid-high", "")
    assert passes(state, 0)
    state.nominate("uid-high", "n1")
    state.lost_pod(high)
    state.nominate("uid-high", "n1")
    assert passes(state, 0)


def test_the_room_of_those_we_evict_is_kept_before_they_leave() -> None:
    """The first eviction frees room while the second waits for a budget: what is free already is not for others."""
    first, second = (held(f"low-{i}", on(i, 12)) for i in range(2))
    state = state_of(first, second, nominated("", memory="20Gi"), cards=2)
    assert passes(state, 0, "12Gi")
    state.nominate("uid-high", "n1", ["uid-low-1"])
    assert passes(state, 0, "12Gi"), "the card that keeps its pod has room for one more"
    request = request_of(nominated("", 0, "12Gi", "thief"), Resources())
    assert request is not None
    assert state.reserve(nominated("", 0, "12Gi", "thief"), request, "n1") is not None
    assert not passes(state, 0, "12Gi"), "what is free beside the victim is kept"
    state.nominate("uid-high", "")
    assert passes(state, 0, "12Gi")


@pytest.mark.anyio
async def test_the_verbs_honour_it() -> None:
    """Over HTTP: filter turns a lower pod away, and the same pod with a higher priority passes."""
    async with serve() as served:
        low: dict[str, Any] = {"metadata": {"name": "low", "uid": "uid-low", "namespace": "default"}}
        limits = {"nvidia.com/gpu-memory": "8Gi"}
        low["spec"] = {"containers": [{"name": "main", "resources": {"limits": limits}}], "priority": 0}
        name = "l4x1-1"
        reply = await served.post("filter", {"Pod": low, "NodeNames": [name]})
        assert reply["NodeNames"] == [name]
        served.cluster.admit(nominated(name, 10, "80%"))
        await served.until(lambda state: "uid-high" in state.waiting)
        reply = await served.post("filter", {"Pod": low, "NodeNames": [name]})
        assert reply["NodeNames"] == []
        low["spec"]["priority"] = 11
        reply = await served.post("filter", {"Pod": low, "NodeNames": [name]})
        assert reply["NodeNames"] == [name]
        reply = await served.post("preempt", {"Pod": low, "NodeNameToMetaVictims": {}})
        assert reply == {"NodeNameToMetaVictims": {}}


def test_more_important_pods_are_kept_room_first() -> None:
    """Two pods nominated to one card that holds one of them: the higher one's room is kept."""
    state = state_of(nominated(priority=5, memory="10Gi", name="middle"), nominated(priority=10))
    assert passes(state, 0, "4Gi")
    assert not passes(state, 0, "5Gi")
    assert passes(state, 7, "4Gi")


def test_to_lift_room_computes_each_row_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Question after question, until something changes there; and what is written back is what was."""
    state = state_of(nominated(), nodes=2)
    computed: list[str] = []
    compute = ClusterState.row

    def counted(self: ClusterState, name: str, without: Any = ()) -> Any:
        computed.append(name)
        return compute(self, name, without)

    monkeypatch.setattr(ClusterState, "row", counted)
    state.touched.clear()
    for _ in range(3):
        assert passes(state, 11)
        assert not passes(state, 0)
    assert computed == ["n1"]
    assert state.touched == set(), "nobody has to look at what was lifted and put back"
    state.saw_pod(held("more", on(0, 20)))
    assert not passes(state, 11)
    assert computed == ["n1"] * 3
