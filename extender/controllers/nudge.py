"""The nudge: a pod that was turned away and fits now is asked about again, within a second.

kube-scheduler asks again by itself at every event of Kubernetes that could help. Two kinds it misses: it asked
before our watch knew of the event, and found us of yesterday's opinion; or there is no such event, because a card
recovered, an inventory came, or a share that only we counted on was dropped. An annotation with a number that
grows is an event of the pod itself, and wakes that pod alone.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import islice
from typing import Final

import numpy as np

from contract.names import RETRY
from extender.cluster import NotDone, Patcher, PerhapsDone
from extender.controllers import Clock, Pace, repeat
from extender.metrics import Metrics
from extender.state import EXPECT_SECONDS, ClusterState
from extender.wire import Pod
from scoring.containers import Budget
from scoring.fit import fits, trials
from scoring.model import Demand, Fleet, Ints, Placement
from scoring.place import Board, charge_of

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.2
GRACE_SECONDS: Final = 0.2  # kube-scheduler's own retry comes sooner
PATIENCE_SECONDS: Final = 1.0  # for which a woken pod's room is kept from others
LONGEST_PAUSE: Final = 60.0
ASKS: Final = 200  # in one step: some milliseconds ...
STATES: Final = 100  # ... and so many of the searches among the containers of one pod: some tens of them
SEARCHES: Final = 20  # passes of a round that had to leave something out: other rooms wait for its end
ROOMS: Final = 200  # looked at in one step, or an ask takes long
FORGIVEN: Final = 8  # looked at in one step: each is asked about on every node
PER_SECOND: Final = 50.0


@dataclass(frozen=True, slots=True)
class _Room:
    """A node with a card that offers more: the Fleet's count of changes then, and when that was first noticed."""

    stamp: int
    noticed: float


class Turn(Enum):
    """Whether a pod is to be woken now, was just woken and keeps its room, or had its chance: others have theirs."""

    NOW = auto()
    UNDER_WAY = auto()
    OVER = auto()


@dataclass(slots=True)
class _Woken:
    """How often a pod was woken for room that it still does not use, and when last."""

    times: int
    at: float

    def pause(self) -> float:
        """Return the seconds until it may be woken again: it waits for something else than cards."""
        return min(LONGEST_PAUSE, 2.0**self.times)


@dataclass(slots=True)
class _Round:
    """One look at all pods that missed some rooms, which may take several passes."""

    rooms: dict[str, int]  # the stamp of each when the round began
    hopeless: set[Hashable] = field(default_factory=set)  # what fits none of them
    over: set[str] = field(default_factory=set)  # pods that were asked about since, or had their chance
    wanted: set[str] = field(default_factory=set)  # nodes whose room somebody may still use
    searches: int = 0  # passes that had to leave something out


@dataclass(slots=True)
class Nudge:
    """Wakes pods at a bounded pace. `may_act`: this replica leads, and has seen everything."""

    state: ClusterState
    cluster: Patcher
    may_act: Callable[[], bool]
    clock: Clock = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(PER_SECOND, PER_SECOND))
    metrics: Metrics = field(default_factory=Metrics)
    _rooms: dict[str, _Room] = field(default_factory=dict)
    _woken: dict[str, _Woken] = field(default_factory=dict)
    _round: _Round | None = None

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Wake whom it is time to wake."""
        if self.may_act():
            await asyncio.gather(*map(self._wake, self.due(self.clock())))

    def due(self, now: float) -> list[Pod]:
        """Return the pods to wake now, and count on it that they are."""
        self.state.expire(now - EXPECT_SECONDS)  # filter does so too, but perhaps nobody asks
        for name, stamp in self.state.freed.items():
            self._rooms[name] = _Room(stamp, self._rooms[name].noticed if name in self._rooms else now)
        self.state.freed.clear()
        self._forget(Budget(STATES))
        ripe = [name for name, room in self._rooms.items() if now - room.noticed >= GRACE_SECONDS][:ROOMS]
        if not ripe:
            return []
        if self._round is None:
            self._round = _Round({name: self._rooms[name].stamp for name in ripe})
        return [*self._kept(ripe, now), *self._pass(self._round, now, Budget(STATES))]

    def _kept(self, ripe: list[str], now: float) -> list[Pod]:
        """Return the pods that room is kept for on some nodes, who missed that it is there by now."""
        state, chosen = self.state, []
        for name in ripe:
            for pod, request in list(state.nominated.on(name, state.rules.resources)):
                uid = pod.metadata.uid
                if state.last_asked.get(uid, -1) >= self._rooms[name].stamp or uid in state.assumed:
                    continue
                with state.nominated.lifting(pod):  # to write rows for each of many such pods would take seconds
                    row, _ = state.row(name)
                fit = fits(Fleet([(name, row)]), request.demand, np.zeros(1, np.int64))[0]
                if fit and self._turn(uid, now) is Turn.NOW and self.pace.take(now):
                    self._woken[uid] = _Woken(1, now)
                    chosen.append(pod)
        return chosen

    def _forget(self, budget: Budget) -> None:
        """Let go of pods that are no longer waiting, and forgive those which nothing but cards keeps waiting."""
        for uid in [uid for uid in self._woken if uid not in self.state.asks]:
            del self._woken[uid]
        everywhere = np.arange(len(self.state.fleet))
        for uid in list(self._woken)[:FORGIVEN]:
            woken, skipped = self._woken.pop(uid), budget.skipped
            if (
                fits(self.state.fleet, self.state.asks[uid].demand, everywhere, budget).any()
                or budget.skipped > skipped
            ):
                self._woken[uid] = woken  # and is looked at again when all others were

    def _pass(self, round_: _Round, now: float, budget: Budget) -> list[Pod]:
        """Place the pods that missed some room there, one after another, as if they came; return those to wake.

        If that takes more than ASKS asks, or the budget of searches, the next passes go on with the others, and rooms
        are kept until then.
        """
        fleet, guarded, asks = self.state.fleet, self.state.fleet.guarded, 0
        chosen: list[Pod] = []
        taken: list[Placement] = []
        rows, stamps = self._rows(round_.rooms), np.array([self._rooms[name].stamp for name in round_.rooms])
        try:
            for asked, pod in self._missed(int(stamps.max())):
                uid, request = pod.metadata.uid, self.state.asks[pod.metadata.uid]
                key = _key(request.demand, guarded=guarded)
                if key in round_.hopeless or uid in round_.over or _spent(budget, request.demand):
                    continue
                if asks == ASKS:
                    return chosen
                asks, skipped = asks + 1, budget.skipped
                fit = fits(fleet, request.demand, rows, budget)
                if not fit.any():
                    round_.hopeless.update({key} if budget.skipped == skipped else ())
                    continue
                fit &= stamps > asked
                turn = self._turn(uid, now)
                if turn is Turn.OVER or not fit.any():
                    round_.over.add(uid)
                    round_.wanted.update(fleet.names[row] for row in rows[fit][:1])
                    continue
                placement = _best(self.state.board(request.policy), request.demand, rows[fit])
                if placement is None:
                    continue
                round_.wanted.add(fleet.names[placement.row])
                if turn is Turn.NOW:
                    if not self.pace.take(now):
                        return chosen  # and keep every room
                    chosen.append(pod)
                    before = self._woken.get(uid)
                    self._woken[uid] = _Woken(before.times + 1 if before else 1, now)
                fleet.take(placement)
                taken.append(placement)
        finally:
            for placement in reversed(taken):
                fleet.give_back(placement)
        if not budget.skipped:
            self._end(round_)
        else:
            self._go_on(round_)
        return chosen

    def _go_on(self, round_: _Round) -> None:
        """Let the next pass begin anew, which knows what was searched; after some, other rooms have their turn."""
        round_.searches += 1
        if round_.searches >= SEARCHES:
            round_.wanted.update(round_.rooms)
            self._end(round_)

    def _end(self, round_: _Round) -> None:
        """Forget the rooms that nobody can use; the others come behind those that no round has looked at."""
        for name, stamp in round_.rooms.items():
            room = self._rooms.pop(name)
            if name in round_.wanted or room.stamp != stamp:
                self._rooms[name] = room
        self._round = None

    def _turn(self, uid: str, now: float) -> Turn:
        woken = self._woken.get(uid)
        if woken is None or now - woken.at >= woken.pause():
            return Turn.NOW
        return Turn.UNDER_WAY if now - woken.at < PATIENCE_SECONDS else Turn.OVER

    def _missed(self, newest: int) -> list[tuple[int, Pod]]:
        """Return the pods asked about before the newest room was there, the most important and oldest first.

        With each comes the count of changes when it was asked about last; -1: before our time, and in vain.
        """
        state, missed = self.state, []
        for uid, pod in state.waiting.items():
            asked = state.last_asked.get(uid, -1)
            if asked >= newest or pod.metadata.deletion_timestamp or uid in state.assumed or uid in state.expected:
                continue
            if asked >= 0 or _is_unschedulable(pod):
                missed.append((asked, pod))
        return sorted(missed, key=lambda pair: _order(pair[1]))

    def _rows(self, names: Iterable[str]) -> Ints:
        return np.array([self.state.fleet.index[name] for name in names], np.int64)

    async def _wake(self, pod: Pod) -> None:
        meta = pod.metadata
        said = (meta.annotations or {}).get(RETRY, "")
        number = int(said) + 1 if said.isascii() and said.isdecimal() and len(said) < 10 else 1
        body = {"metadata": {"uid": meta.uid, "annotations": {RETRY: str(number)}}}
        try:
            await self.cluster.patch_pod(meta.namespace, meta.name, body)
        except (NotDone, PerhapsDone) as error:
            self.metrics.writes.labels("retry", "failed").inc()
            log.info("Pod %s/%s could not be woken: %s", meta.namespace, meta.name, error)
        else:
            self.metrics.writes.labels("retry", "done").inc()


def _spent(budget: Budget, demand: Demand) -> bool:
    """Say whether a demand needs a search that there is no budget for."""
    if len(demand.asks) < 2 or budget.left > 0:
        return False
    budget.skipped += 1
    return True


def _key(demand: Demand, *, guarded: bool) -> Hashable:
    """Return what of a demand decides whether cards fit it: CPU and memory are kube-scheduler's to know."""
    who = (demand.tenant, demand.private) if demand.private or guarded else ()
    return demand.asks, demand.phases, demand.models, demand.uuids, who


def _best(board: Board, demand: Demand, rows: Ints) -> Placement | None:
    """Return the best placement on some nodes by a board's policy, without a look at all others."""
    ways = trials(board.fleet, demand, rows, cards=board.policy.cards)
    if not len(ways):
        return None
    best = int(board.policy.score(board.fleet, demand, rows, ways).argmax())
    flat, row = iter(ways.chosen[best].tolist()), int(ways.rows[best])
    cards = tuple(tuple(sorted(islice(flat, ask.count))) for ask in demand.asks)
    return Placement(row, cards, charge_of(board.fleet, demand, row, cards))


def _order(pod: Pod) -> tuple[int, str, str]:
    return -(pod.spec.priority or 0), pod.metadata.creation_timestamp or "", pod.metadata.uid


def _is_unschedulable(pod: Pod) -> bool:
    """Say whether kube-scheduler has found that a pod can go nowhere."""
    return any(c.type == "PodScheduled" and c.reason == "Unschedulable" for c in pod.status.conditions or ())
