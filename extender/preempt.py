"""preempt: who has to go so that a pod gets room on the cards of a node. A question, which writes nothing.

kube-scheduler proposes victims by the node's totals; we keep, exchange or add some so that single cards come free, or
drop the node. Its own reasons stay in force: a victim without cards goes in any case, and so does one that neither
CPU, memory nor the totals explain, for then a port, a volume or an affinity that we do not see does. A reply never
holds a null or a node without victims: the one crashes kube-scheduler, the other ends its preemption.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from extender.pod import Holding, Request
from extender.request import BadDemand
from extender.state import ClusterState
from extender.wire import Budget, MetaPod, MetaVictims, Pod, PreemptArgs
from scoring.fit import fits
from scoring.model import Demand, Fleet, Row
from scoring.preempt import Looks, Occupant, broken, harm, least_victims


def preempt(
    state: ClusterState, args: PreemptArgs, budgets: Sequence[Budget]
) -> Iterator[tuple[str, MetaVictims | None]]:
    """Yield each node, and whom to evict there, the most important first; None: it cannot be cleared for the pod.

    Each node is looked at when it is its turn, and by itself: other questions may be answered in between.
    """
    asked = _asked(args)
    try:
        request = None if args.pod is None else state.request_of(args.pod)
    except BadDemand:
        return
    if args.pod is None or request is None:
        yield from ((node, _reply(uids, count)) for node, (uids, count) in asked.items())
        return
    clearing = Clearing(state, args.pod, request, budgets)
    for node, (uids, count) in asked.items():
        with state.seen_by(args.pod):
            found = clearing.corrected(node, uids, count) if uids else clearing.of(node)
        yield node, None if found is None else _reply(found.uids, found.violations)


def _asked(args: PreemptArgs) -> dict[str, tuple[list[str], int]]:
    """Return the UIDs of each node's proposed victims, and how many break a budget."""
    if args.node_name_to_meta_victims is not None:
        return {
            node: ([pod.uid for pod in of.pods or () if pod is not None], of.violations)
            for node, of in args.node_name_to_meta_victims.items()
            if of is not None
        }
    return {
        node: ([pod.metadata.uid for pod in of.pods or () if pod is not None], of.violations)
        for node, of in (args.node_name_to_victims or {}).items()
        if of is not None
    }


def _reply(uids: Sequence[str], violations: int) -> MetaVictims | None:
    return MetaVictims([MetaPod(uid) for uid in uids], violations) if uids else None


@dataclass(frozen=True, slots=True)
class Victims:
    """Who has to go from one node: UIDs, the most important first; `pods`: those that hold cards."""

    uids: tuple[str, ...]
    violations: int
    pods: tuple[Occupant, ...]


@dataclass(slots=True)
class Clearing:
    """What it takes to clear nodes for one pod. Ask inside `state.seen_by` of that pod."""

    state: ClusterState
    pod: Pod
    request: Request
    budgets: Sequence[Budget]
    looks: Looks = field(default_factory=Looks)

    @property
    def priority(self) -> int:
        """The pod's."""
        return self.pod.spec.priority or 0

    @property
    def allowed(self) -> list[int]:
        """How many disruptions each budget still allows."""
        return [budget.status.disruptions_allowed for budget in self.budgets]

    def totals_suffice(self, node: str) -> bool:
        """Say whether by its totals the node has what the pod asks: kube-scheduler sees no reason to preempt."""
        left = _Sums.of(self.state.row(node)[0], self.state.on_node(node), ())
        return _Sums.of_demand(self.request.demand).fit(left)

    def of(self, node: str) -> Victims | None:
        """Return the least harmful victims on a node, none if it has room already; None: it cannot be cleared."""
        return self._found(node, self.request.demand, (), (), 0)

    def here(self, node: str) -> Victims | None:
        """Return whom to evict where only fragmentation denies room; None: nobody, or not without a breach."""
        with self.state.seen_by(self.pod):
            found = self.of(node) if self.totals_suffice(node) else None
        return found if found is not None and found.uids and not found.violations else None

    def corrected(self, node: str, proposed: Sequence[str], violations: int) -> Victims | None:
        """Return the victims that kube-scheduler should have proposed; None: the node cannot be cleared."""
        known = {h.uid: h for h in self.state.on_node(node)}
        if any(known[uid].priority >= self.priority for uid in proposed if uid in known):
            return None
        movable = {h.uid for h in self._movable(node)}
        others = [uid for uid in proposed if uid not in movable]
        mine = [known[uid] for uid in proposed if uid in movable]
        left = _Sums.of(self.state.row(node, without=proposed)[0], known.values(), proposed)
        totals = _Sums.of_demand(self.request.demand)
        forced = [h.uid for h in mine if totals.fit(left.less(_Sums.of_holding(h)))]
        demand = replace(
            self.request.demand,
            cpu_milli=min(self.request.demand.cpu_milli, left.cpu),
            ram_mib=min(self.request.demand.ram_mib, left.ram),
        )
        unseen = max(violations - broken([self._occupant(h, {}) for h in mine], self.allowed), 0)
        return self._found(node, demand, others, forced, unseen, [h.uid for h in mine])

    def _found(
        self,
        node: str,
        demand: Demand,
        others: Sequence[str],
        forced: Sequence[str],
        unseen: int,
        proposed: Collection[str] = (),
    ) -> Victims | None:
        """Return `others` and the least victims beside them; the proposed ones if they are as good as any."""
        leaving = [h.uid for h in self.state.on_node(node) if h.leaving]
        movable = self._movable(node)
        gone = {*others, *leaving}
        emptied, closed = self.state.row(node, without={*gone, *(h.uid for h in movable)})
        if closed or not emptied.cards:
            return None
        at = {card.uuid: i for i, card in enumerate(emptied.cards)}
        occupants = [self._occupant(h, at) for h in movable]
        fleet, keep = Fleet([(node, emptied)]), frozenset(forced)
        best = least_victims(fleet, demand, self.priority, occupants, self.allowed, keep, self.looks)
        if best is None:
            return None
        told = [o for o in occupants if o.key in proposed]
        if proposed and harm(told, self.allowed) <= harm(best, self.allowed) and self._room(node, demand, gone, told):
            best = tuple(told)
        elif not self._room(node, demand, gone, best):
            return None  # the containers' search says so, and filter would
        uids = sorted([*others, *(o.key for o in best)], key=self._importance)
        return Victims(tuple(uids), unseen + broken(best, self.allowed), best)

    def _room(self, node: str, demand: Demand, gone: set[str], victims: Iterable[Occupant]) -> bool:
        """Say whether filter would find room on the node once some are gone."""
        row, _ = self.state.row(node, without=gone | {v.key for v in victims})
        enough = row.cpu_free >= demand.cpu_milli and row.ram_free >= demand.ram_mib
        return enough and bool(fits(Fleet([(node, row)]), demand, np.zeros(1, np.int64))[0])

    def _movable(self, node: str) -> list[Holding]:
        """Return the pods on a node that hold cards and may be victims."""
        return [
            h
            for h in self.state.on_node(node)
            if h.cards and not h.leaving and h.priority < self.priority and h.uid in self.state.holdings
        ]

    def _occupant(self, holding: Holding, at: dict[str, int]) -> Occupant:
        all_slots = self.state.rules.sharers
        cards = {
            at[uuid]: (share.mib, share.milli, max(all_slots, share.slots) if share.exclusive else share.slots)
            for uuid, share in holding.cards.items()
            if uuid in at
        }
        of = tuple(i for i, budget in enumerate(self.budgets) if counts(budget, holding))
        took = holding.cpu_milli, holding.ram_mib
        who = holding.namespace, holding.private or self.state.rules.boundary
        return Occupant(holding.uid, holding.priority, cards, holding.started, *took, of, *who)

    def _importance(self, uid: str) -> tuple[int, float, str]:
        holding = self.state.holdings.get(uid) or self.state.assumed.get(uid)
        return (1 << 31, 0.0, uid) if holding is None else (-holding.priority, holding.started, uid)


class _Sums(NamedTuple):
    """What kube-scheduler's own account knows of a node, or of a pod: totals of all cards, CPU and memory."""

    mib: int
    milli: int
    slots: int
    cpu: int
    ram: int

    @classmethod
    def of(cls, row: Row, held: Iterable[Holding], gone: Collection[str]) -> "_Sums":
        """Return what is free of a node by totals once some of those who hold something are gone."""
        full = (sum(c.mib for c in row.cards), sum(c.milli for c in row.cards), sum(c.slots for c in row.cards))
        left = cls(*full, row.cpu_free, row.ram_free)
        for holding in held:
            if holding.uid not in gone:
                left = left.less(cls.of_holding(holding)._replace(cpu=0, ram=0))
        return left

    @classmethod
    def of_holding(cls, holding: Holding) -> "_Sums":
        """Return what a pod holds."""
        of = holding.cards.values()
        cards = (sum(s.mib for s in of), sum(s.milli for s in of), sum(s.slots for s in of))
        return cls(*cards, holding.cpu_milli, holding.ram_mib)

    @classmethod
    def of_demand(cls, demand: Demand) -> "_Sums":
        """Return what a pod asks; memory in percent has no total."""
        asks = [[demand.asks[i] for i in phase] for phase in demand.phases]
        mib = max((sum(ask.mib * ask.count for ask in of) for of in asks), default=0)
        slots = max((sum(ask.count for ask in of) for of in asks), default=0)
        return cls(mib, demand.milli, slots, demand.cpu_milli, demand.ram_mib)

    def less(self, other: "_Sums") -> "_Sums":
        """Return what is left."""
        return _Sums(*(a - b for a, b in zip(self, other, strict=True)))

    def fit(self, left: "_Sums") -> bool:
        """Say whether this much is left."""
        return all(a <= b for a, b in zip(self, left, strict=True))


def counts(budget: Budget, holding: Holding) -> bool:
    """Say whether a budget counts a pod. An empty selector counts every pod of the namespace, none counts nobody."""
    selector = budget.spec.selector
    if selector is None or budget.metadata.namespace != holding.namespace:
        return False
    labels = holding.labels or {}
    if any(labels.get(key) != value for key, value in (selector.match_labels or {}).items()):
        return False
    return all(_holds(labels, rule) for rule in selector.match_expressions or ())


def _holds(labels: dict[str, str], rule: dict[str, Any]) -> bool:
    key, values = rule.get("key"), rule.get("values") or ()
    match rule.get("operator"):
        case "In":
            return labels.get(str(key)) in values
        case "NotIn":
            return labels.get(str(key)) not in values
        case "Exists":
            return key in labels
        case _:
            return key not in labels
