"""Room by eviction: for a pod of higher priority that nothing but fragmentation keeps out.

kube-scheduler preempts only for what it sees, and it sees totals. A pod for which the totals of a node suffice and no
card does waits for ever, however unimportant the pods on the cards are. Here the node is chosen on which the least
harm makes room, its victims are evicted through the API server, which keeps disruption budgets, and the room is kept
for the pod until it is bound or a while has passed.

One pod at a time, and never by way of a broken budget. In the mode "dry-run" nobody is evicted and nothing is kept:
Events say what would have been done.
"""

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from extender.cluster import Cluster, Later, NotDone, PerhapsDone, Unreachable
from extender.controllers import Clock, Pace, repeat
from extender.pod import Holding, Request, asks_us
from extender.preempt import Clearing, Victims
from extender.request import BadDemand
from extender.state import ClusterState
from extender.wire import Budget, Meta, Pod
from scoring.fit import ever_fits
from scoring.preempt import Harm, Looks, harm

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.5
GRACE_SECONDS: Final = 2.0  # a rejected pod may fit once binds and deletions under way are seen
KEPT_SECONDS: Final = 60.0  # for which the room stays the pod's: victims may take their time to end
NONE_SECONDS: Final = 30.0  # until a pod for which no node can be cleared is looked at again
AGAIN_SECONDS: Final = 300.0  # until one for which a node was cleared, or would have been, is
LATER_SECONDS: Final = 10.0  # until an eviction that a budget refused is tried again
PER_SECOND: Final = 0.2  # preemptors
NODES: Final = 500  # looked at for one pod at a time: some hundred milliseconds in small pieces
TRIES: Final = 8  # pods looked at in one step
PODS: Final = 64  # of which it is remembered which nodes they were asked about

Names = Callable[[], list[str]]


@dataclass(slots=True)
class _Asked:
    """Which nodes kube-scheduler found good for a pod, since when, and when the pod is to be looked at."""

    names: Names
    due: float


@dataclass(slots=True)
class _Deal:
    """A pod for which a node is being cleared: whom of its victims is still to be evicted, and until when."""

    uid: str
    node: str
    victims: list[Holding]
    until: float
    retry: float = float("-inf")


@dataclass(slots=True)
class Evict:
    """Clears nodes at a bounded pace. `may_act`: this replica leads, and has seen everything."""

    state: ClusterState
    cluster: Cluster
    may_act: Callable[[], bool]
    dry_run: bool = True
    clock: Clock = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(PER_SECOND, 1))
    _asked: OrderedDict[str, _Asked] = field(default_factory=OrderedDict)
    _deal: _Deal | None = None
    _tries: int = 0  # in vain, one after another

    def asked(self, pod: Pod, names: Names) -> None:
        """Note the nodes about which filter is asked: all that but for the cards could take the pod."""
        if not asks_us(pod, self.state.rules.resources):
            return
        known = self._asked.get(pod.metadata.uid)
        self._asked[pod.metadata.uid] = _Asked(names, known.due if known else self.clock() + GRACE_SECONDS)
        self._asked.move_to_end(pod.metadata.uid)
        if len(self._asked) > PODS:
            self._asked.popitem(last=False)

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Go on with the pod for which a node is being cleared, or begin with the most important one that is due."""
        if not self.may_act():
            return
        now = self.clock()
        if self._deal is not None:
            await self._go_on(self._deal, now)
            return
        due = self._due(now)
        if not due or not self.pace.take(now):
            return
        try:
            budgets = await self.cluster.budgets()
        except Unreachable as error:
            log.warning("Nobody is evicted while the disruption budgets are not known: %s", error)
            return
        for pod in due[:TRIES]:
            if await self._begin(pod, budgets, now):
                return

    def _due(self, now: float) -> list[Pod]:
        """Return the pods that were turned away and are due, the most important first."""
        waiting = self.state.waiting
        for uid in [uid for uid in self._asked if uid not in waiting and now >= self._asked[uid].due]:
            del self._asked[uid]
        due = [waiting[uid] for uid, asked in self._asked.items() if uid in waiting and now >= asked.due]
        order = sorted(due, key=lambda p: (-(p.spec.priority or 0), p.metadata.creation_timestamp or ""))
        return [pod for pod in order if self._may_preempt(pod)]

    def _may_preempt(self, pod: Pod) -> bool:
        """Say whether a pod waits for cards alone, as far as it tells, and may make others go."""
        uid = pod.metadata.uid
        under_way = uid in self.state.assumed or uid in self.state.expected
        elsewhere = pod.status.nominated_node_name or pod.metadata.deletion_timestamp or pod.spec.scheduling_gates
        return not under_way and not elsewhere and pod.spec.preemption_policy != "Never"

    async def _begin(self, pod: Pod, budgets: Sequence[Budget], now: float) -> bool:
        """Find the node to clear for a pod and begin; say whether there is one."""
        asked = self._asked[pod.metadata.uid]
        asked.due = now + NONE_SECONDS
        try:
            request = self.state.request_of(pod)
        except BadDemand:
            return False
        best = await self._least(pod, request, asked.names(), budgets) if request else None
        if best is None or pod.metadata.uid not in self.state.waiting:
            return False
        asked.due = now + AGAIN_SECONDS
        node, victims = best
        # Those that a budget counts come first: if one is refused, nobody has gone in vain.
        goes = [self.state.holdings[o.key] for o in sorted(victims.pods, key=lambda o: not o.budgets)]
        if self.dry_run:
            for victim in goes:
                await self._tell(victim, pod, node, would=True)
            await self._say(pod, "RoomByEviction", f"Would evict {_list(goes)} from {node}.")
            return True
        self.state.nominate(pod.metadata.uid, node, [victim.uid for victim in goes])
        self._deal = _Deal(pod.metadata.uid, node, goes, now + KEPT_SECONDS)
        await self._say(pod, "RoomByEviction", f"Evicting {_list(goes)} from {node}.")
        await self._go_on(self._deal, now)
        return True

    async def _least(
        self, pod: Pod, request: Request, names: Sequence[str], budgets: Sequence[Budget]
    ) -> tuple[str, Victims] | None:
        """Return the node on which the least harm makes room; None if there is none, or one has room already."""
        state, best = self.state, None
        rows = np.array([state.fleet.index[name] for name in names if name in state.fleet.index], np.int64)
        with state.seen_by(pod):
            if np.isfinite(state.board(request.policy).node_scores(request.demand)[rows]).any():
                return None
        rows = rows[ever_fits(state.fleet, request.demand, rows)]
        clearing = Clearing(state, pod, request, budgets)
        for name in [state.fleet.names[row] for row in np.roll(rows, -NODES * self._tries)[:NODES].tolist()]:
            victims = clearing.here(name)
            if victims is not None and (best is None or _harm(clearing, victims) < _harm(clearing, best[1])):
                best = name, victims
            await asyncio.sleep(0)  # filter and bind do not wait for all of this
        self._tries = 0 if best else self._tries + 1
        clearing.looks = Looks()  # of its own, whatever the others took
        again = clearing.here(best[0]) if best else None  # a moment has passed
        return (best[0], again) if best and again else None

    async def _go_on(self, deal: _Deal, now: float) -> None:
        """Evict whoever is still to go, and end with the pod's own end of waiting or of patience."""
        pod = self.state.waiting.get(deal.uid)
        if pod is None or now >= deal.until:
            self.state.nominate(deal.uid, "")
            self._deal = None
            return
        while deal.victims and now >= deal.retry:
            victim = deal.victims[0]
            if victim.uid in self.state.holdings and not await self._evict(victim, pod, deal):
                deal.retry = now + LATER_SECONDS
                return
            deal.victims.pop(0)

    async def _evict(self, victim: Holding, pod: Pod, deal: _Deal) -> bool:
        """Evict a pod; False: not now."""
        try:
            await self.cluster.evict(victim.namespace, victim.name, victim.uid)
        except Later as error:
            log.info("Pod %s/%s is not evicted yet: %s", victim.namespace, victim.name, error)
            return False
        except (NotDone, PerhapsDone) as error:  # it is gone, or going; if not, the pod is looked at again
            log.warning("The eviction of pod %s/%s failed: %s", victim.namespace, victim.name, error)
            return True
        await self._tell(victim, pod, deal.node)
        return True

    async def _tell(self, victim: Holding, pod: Pod, node: str, *, would: bool = False) -> None:
        for_whom = f"{pod.metadata.namespace}/{pod.metadata.name} of priority {pod.spec.priority or 0}"
        text = f"{'Would be evicted' if would else 'Evicted'} from {node} to make room on its cards for {for_whom}."
        about = Pod(Meta(name=victim.name, namespace=victim.namespace, uid=victim.uid))
        await self._say(about, "PreemptedOnCard", text, warning=not would)

    async def _say(self, about: Pod, reason: str, text: str, *, warning: bool = False) -> None:
        log.info("%s/%s: %s", about.metadata.namespace, about.metadata.name, text)
        try:
            await self.cluster.event(about, reason, text, warning=warning)
        except (NotDone, PerhapsDone) as error:
            log.warning("An event could not be written: %s", error)


def _harm(clearing: Clearing, victims: Victims) -> Harm:
    return harm(victims.pods, clearing.allowed)


def _list(victims: Sequence[Holding]) -> str:
    return ", ".join(sorted(f"{v.namespace}/{v.name}" for v in victims))
