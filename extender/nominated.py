"""Pods that a node is being cleared for: who they are, and what is kept for them there.

kube-scheduler evicts pods of lower priority for a pod, notes the node in the pod's status, and asks again once they
are gone. Until then the room that is already free, and that comes free card by card, must not go to a pod of lower
priority. Nothing else is decided here, and nothing is remembered that the waiting pods do not say.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress

import numpy as np

from contract.names import Resources
from extender.pod import Holding, Request, Share, request_of
from extender.request import BadDemand
from extender.wire import Pod
from scoring.fit import trials
from scoring.model import Fleet, Row


class Nominated:
    """Waiting pods with a node that is kept for them. The changes return the nodes whose rows they alter."""

    def __init__(self) -> None:
        self.lifted: frozenset[str] = frozenset()  # UIDs whose room counts as free for the question under way
        self._pods: dict[str, Pod] = {}
        self._promised: dict[str, str] = {}  # by ourselves, not by kube-scheduler
        self._victims: dict[str, frozenset[str]] = {}  # UIDs of whom we evict for a pod
        self._node: dict[str, str] = {}
        self._on: dict[str, set[str]] = {}

    def saw(self, pod: Pod) -> set[str]:
        """Take in a waiting pod as it is now."""
        uid = pod.metadata.uid
        if pod.metadata.deletion_timestamp:  # a finalizer may hold it for long, and nobody schedules it
            return self.lost(uid)
        if not pod.status.nominated_node_name and uid not in self._node:
            return set()
        self._pods[uid] = pod
        return self._settle(uid, pod.status.nominated_node_name or self._promised.get(uid, ""))

    def promise(self, pod: Pod, node: str, victims: Collection[str] = ()) -> set[str]:
        """Keep a node for a waiting pod although kube-scheduler does not; "": no longer. `victims`: UIDs."""
        uid = pod.metadata.uid
        self._pods[uid], self._promised[uid], self._victims[uid] = pod, node, frozenset(victims)
        return self._settle(uid, pod.status.nominated_node_name or node)

    def lost(self, uid: str) -> set[str]:
        """Take in that a pod does not wait any more."""
        self._pods.pop(uid, None)
        self._promised.pop(uid, None)
        self._victims.pop(uid, None)
        return self._settle(uid, "")

    def victims(self, uid: str) -> frozenset[str]:
        """Return the pods that we evict for a pod, by UID: their room is its own before they are seen to leave."""
        return self._victims.get(uid, frozenset())

    def node(self, uid: str) -> str:
        """Return the node that is kept for a pod, "" if none is."""
        return self._node.get(uid, "")

    def lift(self, pod: Pod) -> list[str]:
        """Let the room kept for a pod itself and for those of lower priority count as free."""
        if not self._node:
            return []
        uid, priority = pod.metadata.uid, pod.spec.priority or 0
        self.lifted = frozenset(u for u, p in self._pods.items() if u == uid or (p.spec.priority or 0) < priority)
        return sorted({self._node[u] for u in self.lifted})

    @contextmanager
    def lifting(self, pod: Pod) -> Iterator[None]:
        """Lift that room for what is computed in the block; no row is written."""
        self.lift(pod)
        try:
            yield
        finally:
            self.lifted = frozenset()

    def lifted_on(self, node: str) -> frozenset[str]:
        """Return the pods whose room on a node counts as free for the question under way."""
        return self.lifted.intersection(self._on.get(node, ()))

    def on(self, node: str, resources: Resources) -> Iterator[tuple[Pod, Request]]:
        """Yield the pods for which room is kept on a node, and what they ask; the most important first."""
        pods = [self._pods[uid] for uid in self._on.get(node, ()) if uid not in self.lifted]
        for pod in sorted(pods, key=lambda p: (-(p.spec.priority or 0), p.metadata.uid)):
            with suppress(BadDemand):
                if (request := request_of(pod, resources)) is not None:
                    yield pod, request

    def _settle(self, uid: str, node: str) -> set[str]:
        was = self._node.pop(uid, "")
        self._on.get(was, set()).discard(uid)
        if node:
            self._node[uid] = node
            self._on.setdefault(node, set()).add(uid)
        else:
            self._pods.pop(uid, None)
        if not self._on.get(was, True):
            del self._on[was]
        return {name for name in (was, node) if name}


def kept_for(pod: Pod, request: Request, node: str, cleared: Row) -> Holding:
    """Return what is kept of a node for a pod, where `cleared` is the node once those who are leaving are gone.

    Cards alone: kube-scheduler itself keeps CPU and memory for the pod. Nothing is kept while it would not fit.
    """
    fleet, cards = Fleet([(node, cleared)]), {}
    ways = trials(fleet, request.demand, np.zeros(1, np.int64), cards="tightest")
    if len(ways):
        for card, mib, milli, slots in zip(ways.cards[0], ways.mib[0], ways.milli[0], ways.slots[0], strict=True):
            if slots > 0:
                cards[fleet.uuids[0][card]] = Share(int(mib), int(milli), int(slots))
    meta = pod.metadata
    private = request.demand.private
    return Holding(meta.uid, meta.namespace, meta.name, node, cards, priority=pod.spec.priority or 0, private=private)
