"""What we believe about the cluster: pure, with no clock of its own and no I/O.

Three dicts are the truth: what each node is (`nodes`), what cards it has (`inventories`), and what each pod holds
(`holdings`, by UID). The Fleet is their cache, written one row at a time; any order of events leaves the same
state as a rebuild from nothing.

The life of a pod's share:

    saw_pod (unbound) --reserve--> ASSUMED --saw_pod (bound, with record)--> CONFIRMED --lost_pod, finished--> gone
         |                            |                                          ^
         +--expect--> EXPECTED        +--forget (certainly not done) --> unbound +-- saw_pod (bound by another)
         +--nominated--> NOMINATED

EXPECTED is a hint for the questions that follow: kube-scheduler asks about the next pod before it binds this one.
Nothing that is written depends on it, and it ends at the pod's bind, at the next question about it, or soon.
NOMINATED is room kept on a node that is being cleared for a waiting pod. `seen_by` lifts it for the pod itself and
for pods of higher priority; it is computed with the row, so that it depends on what is and not on what was.
"""

from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Final

from contract.assignment import Assignment
from contract.inventory import BadInventory, Inventory, decode
from contract.names import ASSIGNMENT, Resources
from extender.node import NodeFacts, Rules, node_facts, node_row, offers_more, overpromised, record_of
from extender.nominated import Nominated, kept_for
from extender.pod import FINISHED, Holding, Request, holding_of, holding_to_be, plain_demand, request_of
from extender.request import BadDemand
from extender.wire import AgentLease, GpuNode, Node, Pod
from scoring.model import Fleet, Row
from scoring.place import Board
from scoring.policies import POLICIES, Study
from scoring.workload import Workload

NO_INVENTORY: Final = "no GPU inventory: the node's agent has not reported"
BAD_INVENTORY: Final = "the node's GPU inventory cannot be read"
EXPECT_SECONDS: Final = 1.0  # a bind follows its filter within milliseconds, unless volumes are made first
LATE: Final = 10_000  # pods that are gone, of which an answer may still be under way


class ClusterState:
    """Nodes, inventories and holdings, and the Fleet made from them."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.nodes: dict[str, NodeFacts] = {}
        self.inventories: dict[str, Inventory | None] = {}  # None: there is one, but it cannot be read
        self.holdings: dict[str, Holding] = {}
        self.assumed: dict[str, Holding] = {}
        self._records: dict[str, Assignment] = {}  # of the assumed
        self.expected: dict[str, Holding] = {}
        self._expected_at: dict[str, float] = {}
        self.leases: dict[str, AgentLease] = {}  # of the agents, by node
        self.silent: set[str] = set()  # nodes whose agents are, in the eyes of who has a clock
        self.waiting: dict[str, Pod] = {}  # pods that ask us and are not bound, by UID
        self.unwatched: set[str] = set()  # UIDs of pods that were read, and that the watch has not shown yet
        self.asks: dict[str, Request] = {}  # what they ask
        self.nominated = Nominated()
        self.closed: dict[str, str] = {}  # why nodes that are there take no GPU pod
        self.overpromised: dict[str, tuple[str, ...]] = {}  # cards (UUIDs) that cannot give what is held, by node
        self.fleet = Fleet()
        self.workload = Workload()
        self._on_node: dict[str, set[str]] = {}
        self._boards: dict[str, Board] = {}
        self._counted: set[str] = set()
        self._placed: set[str] = set()  # of the counted
        self._gone: OrderedDict[str, None] = OrderedDict()  # UIDs never come back, but late answers about them do
        self.board()
        self._rows: dict[str, tuple[Row, str]] = {}  # as last written
        self._late: set[str] | None = None  # rows that wait for the end of an event
        self.touched: set[str] = set()  # nodes of which anything changed, for who takes names out
        # Nodes with a card that offers more than before, and the Fleet's count of changes then; likewise.
        self.freed: dict[str, int] = {}
        self.untold: dict[str, None] = {}  # as touched, in that order, for who tells what is promised
        # Rows of nodes where room is kept, by the pods for which that is lifted; until anything changes there.
        self._seen: dict[str, dict[frozenset[str], tuple[Row, str]]] = {}
        self.last_asked: dict[str, int] = {}  # waiting pods that filter was asked about, and that count then
        self.studies: list[Study] = []  # what policies began to learn and somebody has to finish

    # --- events -----------------------------------------------------------------------------------------------

    def saw_node(self, node: Node) -> None:
        """Take in a Node as it is now."""
        facts = node_facts(node, self.rules)
        if self.nodes.get(node.metadata.name) != facts:
            self.nodes[node.metadata.name] = facts
            self._refresh(node.metadata.name)

    def lost_node(self, name: str) -> None:
        """Take in that a Node is gone; what pods hold there stays, should it come back."""
        if self.nodes.pop(name, None) is not None:
            self._refresh(name)

    def saw_inventory(self, gpu_node: GpuNode) -> None:
        """Take in what a node's agent reported."""
        name = gpu_node.metadata.name
        try:
            inventory = decode(name, gpu_node.status, gpu_node.api_version)
        except BadInventory:
            inventory = None
        if name not in self.inventories or self.inventories[name] != inventory:
            self.inventories[name] = inventory
            self._refresh(name)

    def lost_inventory(self, name: str) -> None:
        """Take in that a node's inventory is gone: its cards are not offered, what is held stays held."""
        if self.inventories.pop(name, ...) is not ...:
            self._refresh(name)

    def saw_lease(self, lease: AgentLease) -> None:
        """Take in a sign of life of a node's agent."""
        self.leases[lease.metadata.name] = lease

    def lost_lease(self, name: str) -> None:
        """Take in that an agent's lease is gone; one that lives makes another."""
        self.leases.pop(name, None)

    def hush(self, name: str, *, silent: bool) -> None:
        """Offer no card of a node while its agent is silent; what is held there stays held."""
        if silent != (name in self.silent):
            (self.silent.add if silent else self.silent.discard)(name)
            self._refresh(name)

    def saw_pod(self, pod: Pod) -> None:
        """Take in a pod as it is now: waiting, holding, or finished."""
        uid = pod.metadata.uid
        self.unwatched.discard(uid)
        if uid in self._gone:
            return
        request = None if pod.status.phase in FINISHED else _request(pod, self.rules.resources)
        new = self._count(pod, request)
        if pod.spec.node_name:
            self._holds_only(uid, holding_of(pod, self.rules.resources))
        elif uid not in self.holdings:  # no pod is unbound again: this sight is older than what we know
            self._wait(pod, request)
        if new:  # what policies make of it comes last: whatever it is, what the pod holds is known
            self._attend()

    def read_pod(self, pod: Pod) -> None:
        """Take in a pod that was read. The end of one that the watch has never shown, no watch will tell."""
        uid = pod.metadata.uid
        shown = uid not in self.unwatched and (uid in self.waiting or uid in self.holdings)
        self.saw_pod(pod)
        if not shown and uid not in self._gone:
            self.unwatched.add(uid)

    def lost_pod(self, pod: Pod) -> None:
        """Take in that a pod is gone, and with it all that it held."""
        uid = pod.metadata.uid
        self.unwatched.discard(uid)
        self._gone[uid] = None
        if len(self._gone) > LATE:
            self._gone.popitem(last=False)
        self._counted.discard(uid)
        self._holds_only(uid, None)

    # --- bind -------------------------------------------------------------------------------------------------

    def reserve(self, pod: Pod, request: Request, node: str) -> Assignment | None:
        """Choose cards on a node and assume that the pod gets them; None: it does not fit there now."""
        self.expect_no_more(pod.metadata.uid)
        with self.seen_by(pod):
            record = self._choose(pod, request, node)
            if record is None:
                for other in [uid for uid in self._on_node.get(node, ()) if uid in self.expected]:
                    self.expect_no_more(other)
                record = self._choose(pod, request, node)
        if record is not None:
            self._records[pod.metadata.uid] = record
            self._hold(pod.metadata.uid, self.assumed, holding_to_be(pod, request, record))
        return record

    def expect(self, pod: Pod, request: Request, node: str, now: float) -> None:
        """Count on it that kube-scheduler binds a pod to a node next; `now` is any clock's seconds."""
        uid = pod.metadata.uid
        self.expect_no_more(uid)
        record = None if uid in self.assumed or uid in self.holdings else self._choose(pod, request, node)
        if record is not None:
            self._expected_at[uid] = now
            self._hold(uid, self.expected, holding_to_be(pod, request, record))

    def asked(self, uid: str) -> None:
        """Note that filter answers about a pod from the Fleet as it is now."""
        if uid not in self._gone and uid not in self.holdings:
            self.last_asked[uid] = self.fleet.changes

    def expect_no_more(self, uid: str) -> None:
        """Drop what was expected of a pod."""
        self._expected_at.pop(uid, None)
        self._hold(uid, self.expected, None)

    def expire(self, before: float) -> None:
        """Drop what was expected of pods before some second."""
        for uid in [uid for uid, at in self._expected_at.items() if at < before]:
            self.expect_no_more(uid)

    def assumed_record(self, uid: str) -> Assignment | None:
        """Return the record that a pod's undecided bind would have written."""
        return self._records.get(uid) if uid in self.assumed else None

    def forget(self, uid: str) -> None:
        """Take back an assumption: the pod was certainly not bound by it."""
        self._hold(uid, self.assumed, None)

    def _choose(self, pod: Pod, request: Request, node: str) -> Assignment | None:
        row = self.fleet.index.get(node)
        placement = None if row is None else self.board(request.policy).choose(request.demand, row)
        return None if placement is None else record_of(self.fleet, pod.metadata.uid, request, placement)

    # --- nominated pods ---------------------------------------------------------------------------------------

    def nominate(self, uid: str, node: str, victims: Collection[str] = ()) -> None:
        """Keep room on a node for a waiting pod for which we evict others (UIDs) ourselves; "": no longer."""
        if (pod := self.waiting.get(uid)) is not None:
            self._refresh_all(self.nominated.promise(pod, node, victims))

    @contextmanager
    def seen_by(self, pod: Pod) -> Iterator[None]:
        """Show what is free to one pod: room kept for itself and for pods of lower priority counts as free."""
        before = {}
        for node in self.nominated.lift(pod):
            if (row := self._rows.get(node)) is not None:
                before[node] = row
                self._put(node, self._lifted(node))
        try:
            yield
        finally:
            self.nominated.lifted = frozenset()
            for node, row in before.items():
                if node in self._seen:
                    self._put(node, row)
                else:  # something changed there meanwhile
                    self._refresh(node)

    def _lifted(self, node: str) -> tuple[Row, str]:
        """Return a node's row as it is seen by whom some room kept there is lifted for."""
        rows = self._seen.setdefault(node, {})
        who = self.nominated.lifted_on(node)
        if who not in rows:
            rows[who] = self.row(node)
        return rows[who]

    # --- questions --------------------------------------------------------------------------------------------

    def board(self, policy: str | None = None) -> Board:
        """Return the scores by a policy, the configured one by default."""
        name = policy or self.rules.policy
        if name not in self._boards:
            made = POLICIES[name](self.workload, self.rules.seed)
            self._boards[name] = Board(self.fleet, made, with_node=False)
        return self._boards[name]

    def on_node(self, name: str) -> Iterable[Holding]:
        """Return what pods hold on a node: confirmed, assumed, expected."""
        for uid in self._on_node.get(name, ()):
            yield self.holdings.get(uid) or self.assumed.get(uid) or self.expected[uid]

    def knows(self, pod: Pod) -> bool:
        """Say whether what a pod holds of cards, by this sight of it, is counted here."""
        uid, text = pod.metadata.uid, (pod.metadata.annotations or {}).get(ASSIGNMENT)
        holds = text is not None and bool(pod.spec.node_name) and pod.status.phase not in FINISHED
        return not holds or uid in self.holdings or uid in self._gone

    def row(self, name: str, without: Collection[str] = ()) -> tuple[Row, str]:
        """Return a node as the Fleet has it, and why it takes no GPU pod ("" if it does). Pure.

        `without`: UIDs of pods that count as gone.
        """
        held = [h for h in self.on_node(name) if h.uid not in without]
        for pod, request in self.nominated.on(name, self.rules.resources):
            if pod.metadata.uid not in self.assumed and pod.metadata.uid not in self.expected:
                victims = self.nominated.victims(pod.metadata.uid)
                cleared, _ = self._row(name, [h for h in held if not h.leaving and h.uid not in victims])
                held.append(kept_for(pod, request, name, cleared))
        return self._row(name, held)

    def _row(self, name: str, held: list[Holding]) -> tuple[Row, str]:
        facts, inventory = self.nodes.get(name), self.inventories.get(name)
        cpu_taken, ram_taken = sum(h.cpu_milli for h in held), sum(h.ram_mib for h in held)
        if facts is None or inventory is None:
            node = facts or NodeFacts()
            why = BAD_INVENTORY if name in self.inventories and facts else NO_INVENTORY
            return Row((), node.cpu, node.ram, node.cpu - cpu_taken, node.ram - ram_taken), why
        return node_row(facts, inventory, held, self.rules, silent=name in self.silent)

    def request_of(self, pod: Pod) -> Request | None:
        """Return what a pod asks of us; of one that the watch has shown in this version it is known.

        Raises
        ------
        BadDemand
        """
        known, meta = self.waiting.get(pod.metadata.uid), pod.metadata
        if known is not None and meta.resource_version and known.metadata.resource_version == meta.resource_version:
            return self.asks[meta.uid]
        return request_of(pod, self.rules.resources)

    # --- inside -----------------------------------------------------------------------------------------------

    def _holds_only(self, uid: str, holding: Holding | None) -> None:
        """Make this the one thing that a pod holds, which waits no more; each row is written once."""
        late: set[str] = set()
        self._late = late
        try:
            self._wait_no_more(uid)
            self.last_asked.pop(uid, None)
            self._hold(uid, self.holdings, holding)
            self._hold(uid, self.assumed, None)
            self.expect_no_more(uid)
            self._learn_of(uid, holds=holding is not None)
        finally:
            self._late = None
            self._refresh_all(late)

    def _hold(self, uid: str, where: dict[str, Holding], holding: Holding | None) -> None:
        """Make `where[uid]` be `holding`, and refresh the nodes that this changes."""
        was = where.get(uid)
        if was == holding:
            return
        if holding is None:
            del where[uid]
            if where is self.assumed:
                self._records.pop(uid, None)
        else:
            where[uid] = holding
        now = self.holdings.get(uid) or self.assumed.get(uid) or self.expected.get(uid)
        for node in {h.node for h in (was, holding, now) if h is not None}:
            here = self._on_node.setdefault(node, set())
            if now is not None and now.node == node:
                here.add(uid)
            else:
                here.discard(uid)
                if not here:
                    del self._on_node[node]
            self._refresh(node)
        if kept := self.nominated.node(uid):  # what is kept there for the pod is kept no longer, or again
            self._refresh(kept)

    def _wait(self, pod: Pod, request: Request | None) -> None:
        if request is not None:
            self.waiting[pod.metadata.uid], self.asks[pod.metadata.uid] = pod, request
            self._refresh_all(self.nominated.saw(pod))
        else:
            self._wait_no_more(pod.metadata.uid)

    def _wait_no_more(self, uid: str) -> None:
        if self.waiting.pop(uid, None) is not None:
            del self.asks[uid]
            self._refresh_all(self.nominated.lost(uid))

    def _refresh_all(self, nodes: Iterable[str]) -> None:
        for node in nodes:
            self._refresh(node)

    def _count(self, pod: Pod, request: Request | None) -> bool:
        """Count a pod once, and say whether it is new: one that asks for GPUs, or that sits on a node with cards."""
        if pod.metadata.uid in self._counted or pod.status.phase in FINISHED:
            return False
        if request is None and pod.spec.node_name not in self.inventories:
            return False
        self._counted.add(pod.metadata.uid)
        self.workload.add(plain_demand(pod) if request is None else request.demand.anonymous)
        return True

    def _attend(self) -> None:
        """Let the policies look at what was counted."""
        for board in self._boards.values():
            study = board.policy.attend(self.fleet, self.workload)
            if study is not None:
                self.studies.append(study)

    def _learn_of(self, uid: str, *, holds: bool) -> None:
        """Tell the workload that a counted pod was placed, or that it left."""
        if holds and uid in self._counted and uid not in self._placed:
            self._placed.add(uid)
            self.workload.start()
        elif not holds and uid in self._placed:
            self._placed.remove(uid)
            self.workload.end()

    def _refresh(self, name: str) -> None:
        if self._late is not None:
            self._late.add(name)
            return
        self.touched.add(name)
        self.untold.setdefault(name)
        self._seen.pop(name, None)
        if name not in self.fleet.index and name not in self.inventories:
            return  # a node without cards takes no row until it has some
        was, now = self._rows.get(name), self.row(name)
        if self._put(name, now) and (was is None or offers_more(now[0], was[0])):
            self.freed[name] = self.fleet.changes
        if now[1] and (name in self.nodes or name in self.inventories):
            self.closed[name] = now[1]
        else:
            self.closed.pop(name, None)
        if over := self._overpromised(name, now[0]):
            self.overpromised[name] = over
        else:
            self.overpromised.pop(name, None)

    def _overpromised(self, name: str, row: Row) -> tuple[str, ...]:
        """Return a node's cards that cannot give what is confirmed and assumed; room that is kept is no promise."""
        facts, inventory = self.nodes.get(name), self.inventories.get(name)
        if facts is None or inventory is None or all(card.slots_free >= 0 or not card.holders for card in row.cards):
            return ()  # a card that is offered can give what is held of it
        held = [h for uid in self._on_node.get(name, ()) if (h := self.holdings.get(uid) or self.assumed.get(uid))]
        return overpromised(facts, inventory, held, self.rules)

    def _put(self, name: str, now: tuple[Row, str]) -> bool:
        """Write a row if it is another; return whether it is."""
        was = self._rows.get(name)
        if now == was:
            return False
        self._rows[name] = now
        self.fleet.put(name, now[0], was and was[0])
        return True


def _request(pod: Pod, resources: Resources) -> Request | None:
    try:
        return request_of(pod, resources)
    except BadDemand:
        return None
