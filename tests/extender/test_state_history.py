"""Any history leaves the state that a rebuild from the latest objects leaves: the oracle of ClusterState."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from contract.assignment import Assignment
from contract.names import Resources
from extender.node import Rules
from extender.pod import FINISHED, Holding, charge, request_of
from extender.request import BadDemand
from extender.state import NO_INVENTORY, ClusterState
from extender.wire import GpuNode, Node, Pod
from scoring.place import Board
from scoring.policies import POLICIES
from scoring.workload import Workload
from tests.builders import bound, container, gpu, gpu_node, node, plain, pod

NODES = ("n1", "n2", "n3")
RULES = Rules(overcommit=1200, sharers=3, headroom_mib=100)

WHICH = st.integers(0, 9)
NODE = st.builds(
    node,
    st.sampled_from(NODES),
    cpu=st.sampled_from(["8", "64"]),
    overcommit=st.sampled_from([None, None, "1.5", "nonsense"]),
    more=st.sampled_from([{}, {}, {"nvidia.com/gpu": "1"}]),
)


@st.composite
def inventories(draw: st.DrawFn) -> GpuNode:
    """Draw what a node's agent may report: up to three cards in any state, or something that nobody can read."""
    name = draw(st.sampled_from(NODES))
    cards = [
        gpu(
            f"GPU-{name}-{i}",
            index=i,
            healthy=draw(st.sampled_from([True, True, True, False])),
            mig=draw(st.sampled_from([False, False, False, True])),
            foreignMiB=draw(st.sampled_from([0, 0, 5000])),
            memoryMiB=draw(st.sampled_from([24576, 24576, 40960, None])),
        )
        for i in range(draw(st.integers(0, 3)))
    ]
    version = draw(st.sampled_from([gpu_node().api_version] * 5 + ["tessera.gpu/v9"]))
    return gpu_node(name, cards, api_version=version)


@st.composite
def requests(draw: st.DrawFn) -> Pod:
    """Draw one of some pods before it is bound; what a pod of a name asks may differ from draw to draw."""
    name = f"p{draw(st.integers(0, 9))}"
    made: Pod = draw(
        st.sampled_from(
            [
                pod(name, memory="10Gi", requests={"cpu": "500m", "memory": "1Gi"}),
                pod(name, memory="8Gi", utilization="60%"),
                pod(name, memory="25%", count="2"),
                pod(name, memory=None, count="1"),
                pod(name, memory="12Gi", annotations={"tessera.gpu/sharing": "none"}),
                pod(name, memory="2Gi", annotations={"tessera.gpu/sharing": "namespace"}),
                pod(name, memory="2Gi", namespace="other"),
                pod(
                    name,
                    memory=None,
                    annotations={"tessera.gpu/memory.a": "6Gi", "tessera.gpu/memory.b": "9Gi"},
                    containers=[container("a"), container("b")],
                    init=[container("i")],
                ),
                pod(name, memory="nonsense"),
                plain(name, requests={"cpu": "2"}),
            ]
        )
    )
    made.spec.priority = draw(st.sampled_from([None, None, 5]))
    made.status.nominated_node_name = draw(st.sampled_from([None, None, *NODES]))
    return made


@st.composite
def bindings(draw: st.DrawFn) -> Pod:
    """Draw a bound pod: with a record or none, a bad one, another's, one of a lost card; leaving; finished."""
    asking, name = draw(requests()), draw(st.sampled_from(NODES))
    cards = [
        (f"GPU-{name}-{i}", draw(st.sampled_from([0, 4096, 20000])), 400) for i in draw(st.sets(st.integers(0, 3)))
    ]
    phase = draw(st.sampled_from(["Running", "Running", "Running", "Succeeded", "Failed"]))
    how: dict[str, Any] = draw(
        st.sampled_from(
            [
                {"cards": cards},
                {"cards": cards},
                {"cards": cards, "exclusive": True},
                {"cards": {"a": cards, "b": cards}},
                {"cards": cards, "record_node": "elsewhere"},
                {"cards": cards, "record_uid": "another"},
                {"text": "{"},
                {},
            ]
        )
    )
    made = bound(asking, name, phase=phase, **how)
    made.metadata.deletion_timestamp = draw(st.sampled_from([None, None, "2026-11-30T23:00:00Z"]))
    return made


def one_of(uids: Collection[str], which: int) -> str:
    """Return one of some UIDs."""
    return sorted(uids)[which % len(uids)]


class History(RuleBasedStateMachine):
    """Events in any order and repetition, and beside them only the latest object of each."""

    def __init__(self) -> None:
        super().__init__()
        self.state = ClusterState(RULES)
        self.nodes: dict[str, Node] = {}
        self.inventories: dict[str, GpuNode] = {}
        self.pods: dict[str, Pod] = {}
        self.gone: set[str] = set()
        self.assumed: dict[str, tuple[Pod, Assignment, Holding]] = {}
        self.expected: dict[str, tuple[Holding, int]] = {}
        self.promised: dict[str, tuple[str, list[str]]] = {}
        self.silent: set[str] = set()

    @initialize()
    def begin(self) -> None:
        """Two nodes with two good cards are there, or most of what follows would find no room."""
        for name in NODES[:2]:
            self.saw_node(node(name))
            self.saw_inventory(gpu_node(name, 2))

    @rule(seen=NODE)
    def saw_node(self, seen: Node) -> None:
        """A node appears or changes."""
        self.state.saw_node(seen)
        self.nodes[seen.metadata.name] = seen

    @rule(name=st.sampled_from(NODES))
    def lost_node(self, name: str) -> None:
        """A node goes, or one that never was."""
        self.state.lost_node(name)
        self.nodes.pop(name, None)

    @rule(seen=inventories())
    def saw_inventory(self, seen: GpuNode) -> None:
        """A node's agent reports."""
        self.state.saw_inventory(seen)
        self.inventories[seen.metadata.name] = seen

    @rule(name=st.sampled_from(NODES))
    def lost_inventory(self, name: str) -> None:
        """A node's inventory goes."""
        self.state.lost_inventory(name)
        self.inventories.pop(name, None)

    @rule(name=st.sampled_from(NODES), silent=st.booleans())
    def hush(self, name: str, silent: bool) -> None:
        """A node's agent falls silent, or is heard again."""
        self.state.hush(name, silent=silent)
        (self.silent.add if silent else self.silent.discard)(name)

    @rule(seen=requests())
    def saw_unbound_pod(self, seen: Pod) -> None:
        """A pod is created or changes before it is bound; a late sight of a pod that is bound changes nothing."""
        latest = self.pods.get(seen.metadata.uid)
        if latest is not None and latest.status.phase in FINISHED:
            return
        self.state.saw_pod(seen)
        if (latest is None or not latest.spec.node_name) and seen.metadata.uid not in self.gone:
            self.pods[seen.metadata.uid] = seen

    @rule(seen=bindings())
    def saw_bound_pod(self, seen: Pod) -> None:
        """A pod is bound, by us or by others, or has finished."""
        if (was := self.pods.get(seen.metadata.uid)) is not None and was.status.phase in FINISHED:
            return  # the API server lets none come back
        self.state.saw_pod(seen)
        if seen.metadata.uid in self.gone:
            return  # an answer that was under way when the pod went
        self.pods[seen.metadata.uid] = seen
        self.assumed.pop(seen.metadata.uid, None)
        self.expected.pop(seen.metadata.uid, None)

    @rule(number=st.integers(0, 9))
    def lost_pod(self, number: int) -> None:
        """A pod goes, perhaps one that never was."""
        gone = plain(f"p{number}")
        self.state.lost_pod(gone)
        self.gone.add(gone.metadata.uid)
        self.pods.pop(gone.metadata.uid, None)
        self.assumed.pop(gone.metadata.uid, None)
        self.expected.pop(gone.metadata.uid, None)

    @precondition(lambda self: self.state.waiting)
    @rule(which=WHICH, name=st.sampled_from(NODES))
    def reserve(self, which: int, name: str) -> None:
        """A bind begins: cards are chosen and assumed."""
        uid = one_of(self.state.waiting, which)
        if uid in self.assumed:
            return
        waiting = self.state.waiting[uid]
        request = request_of(waiting, Resources())
        assert request is not None
        record = self.state.reserve(waiting, request, name)
        self.expected.pop(uid, None)
        for other in [other for other in self.expected if other not in self.state.expected]:
            assert self.expected.pop(other)[0].node == name, "only what is expected of the same node makes room"
        if record is not None:
            assert record.node == name
            cards, demand = charge(waiting, record.containers), request.demand
            meta = waiting.metadata
            held = Holding(uid, meta.namespace, meta.name, name, cards, demand.cpu_milli, demand.ram_mib)
            held = replace(held, priority=waiting.spec.priority or 0, private=demand.private)
            self.assumed[uid] = (waiting, record, held)

    @rule(asking=requests(), name=st.sampled_from(NODES), now=st.integers(0, 5))
    def expect(self, asking: Pod, name: str, now: int) -> None:
        """A filter or prioritize lets us count on a bind."""
        try:
            request = request_of(asking, Resources())
        except BadDemand:
            return
        if request is None:
            return
        uid = asking.metadata.uid
        self.state.expect(asking, request, name, now)
        self.expected.pop(uid, None)
        if (held := self.state.expected.get(uid)) is not None:
            assert held.node == name
            assert uid not in self.assumed
            assert uid not in self.state.holdings
            self.expected[uid] = (held, now)

    @rule(before=st.integers(0, 6))
    def expire(self, before: int) -> None:
        """The bind that was expected did not come."""
        self.state.expire(before)
        self.expected = {uid: (held, at) for uid, (held, at) in self.expected.items() if at >= before}

    @rule(asking=requests())
    def seen_by(self, asking: Pod) -> None:
        """A question is asked as one pod may ask it; nothing of that stays, and nothing was freed by it."""
        freed = dict(self.state.freed)
        with self.state.seen_by(asking):
            pass
        assert self.state.freed == freed

    @rule(number=st.integers(0, 9))
    def forget(self, number: int) -> None:
        """A bind was certainly not done, or there was none."""
        self.state.forget(f"uid-p{number}")
        self.assumed.pop(f"uid-p{number}", None)

    @rule(
        number=st.integers(0, 9), name=st.sampled_from([*NODES, ""]), victims=st.sets(st.integers(0, 9), max_size=3)
    )
    def nominate(self, number: int, name: str, victims: set[int]) -> None:
        """We begin to clear a node for a waiting pod ourselves, or let go of it."""
        go = [f"uid-p{victim}" for victim in victims]
        self.state.nominate(f"uid-p{number}", name, go)
        if f"uid-p{number}" in self.state.waiting:
            self.promised[f"uid-p{number}"] = name, go

    @precondition(lambda self: self.assumed)
    @rule(which=WHICH)
    def confirm(self, which: int) -> None:
        """The watch shows the pod that we bound, with our record."""
        uid = one_of(self.assumed, which)
        waiting, record, _ = self.assumed.pop(uid)
        shares = {n: [(g.gpu, g.mib, g.milli) for g in grants] for n, grants in record.containers.items()}
        exclusive = any(g.exclusive for grants in record.containers.values() for g in grants)
        assert uid not in self.expected
        before = view(self.state)
        confirmed = bound(waiting, record.node, shares, exclusive=exclusive)
        self.state.saw_pod(confirmed)
        self.pods[uid] = confirmed
        assert view(self.state)["rows"] == before["rows"], "to confirm what was assumed moves nothing"

    @invariant()
    def equals_a_rebuild(self) -> None:
        """The state is that of a rebuild from the latest objects."""
        fresh = ClusterState(RULES)
        for seen in reversed(self.pods.values()):
            fresh.saw_pod(seen)
        for uid, (_, _, held) in self.assumed.items():
            fresh._hold(uid, fresh.assumed, held)
        for uid, (held, _) in self.expected.items():
            fresh._hold(uid, fresh.expected, held)
        self.promised = {uid: of for uid, of in self.promised.items() if uid in self.state.waiting}
        for uid, (name, victims) in self.promised.items():
            fresh.nominate(uid, name, victims)
        for name in self.silent:
            fresh.hush(name, silent=True)
        for gpu_node_ in reversed(self.inventories.values()):
            fresh.saw_inventory(gpu_node_)
        for node_ in self.nodes.values():
            fresh.saw_node(node_)
        assert view(self.state) == view(fresh)

    @invariant()
    def promises_no_more_than_there_is(self) -> None:
        """No card is offered below nothing, and scores that were kept are scores made anew."""
        free = self.state.fleet.free
        assert all(bool((array >= -1).all()) for array in (free.mib, free.milli, free.slots))
        for waiting in self.state.waiting.values():
            request = request_of(waiting, Resources())
            assert request is not None
            kept = self.state.board().node_scores(request.demand)
            anew = Board(self.state.fleet, POLICIES["binpack"](Workload(), 0), with_node=False)
            assert np.array_equal(kept, anew.node_scores(request.demand))


def view(state: ClusterState) -> dict[str, Any]:
    """Return a state by names, without the rows of nodes that have no cards and the order of the rest."""
    fleet = state.fleet
    rows: dict[str, Any] = {}
    for name, i in fleet.index.items():
        amounts = [array for room in (fleet.capacity, fleet.free) for array in room[:3]]
        cards = [
            (uuid, fleet.models[fleet.model[i, c]], *(int(array[i, c]) for array in amounts))
            for c, uuid in enumerate(fleet.uuids[i])
        ]
        unused = [array[i, len(cards) :] for array in amounts]
        assert all(bool((a == -1).all()) for a in unused)
        if cards:
            rows[name] = (cards, [int(a[i]) for a in (*fleet.capacity[3:], *fleet.free[3:])])
    why = {name: state.closed.get(name, "" if name in rows else NO_INVENTORY) for name in NODES}
    for name in NODES:
        if why[name] == "" and name not in rows:
            why[name] = NO_INVENTORY
    return {
        "rows": rows,
        "closed": why,
        "overpromised": state.overpromised,
        "holdings": state.holdings,
        "assumed": state.assumed,
        "expected": state.expected,
        "waiting": {uid: _asks(waiting) for uid, waiting in state.waiting.items()},
        "on_node": {name: sorted(h.uid for h in state.on_node(name)) for name in NODES},
    }


def _asks(waiting: Pod) -> Any:
    try:
        return request_of(waiting, Resources())
    except BadDemand as error:
        return str(error)


TestHistory = History.TestCase
TestHistory.settings = settings(
    max_examples=60,
    stateful_step_count=50,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
