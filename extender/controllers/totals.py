"""Totals: what kube-scheduler sees of a node's cards, as capacity and allocatable of three extended resources.

They are what the hardware can give, whatever runs there and however it feels: a lowered allocatable makes a
restarted kubelet fail running pods. A kubelet that registers anew sets them to zero; then they are written again.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from contract.inventory import Inventory
from extender.cluster import NotDone, Patcher, PerhapsDone
from extender.controllers import Clock, Pace, repeat
from extender.metrics import Metrics
from extender.node import NOTHING, Amounts, Rules
from extender.quantity import MIB
from extender.state import ClusterState

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 0.2
SWEEP_SECONDS: Final = 60.0
ECHO_SECONDS: Final = 5.0  # a watch tells of our own write well before
LONGEST_PAUSE: Final = 60.0
PER_SECOND: Final = 50.0
ENDLESS: Final = (1 << 62, 1 << 62, 1 << 62)
LOOKS: Final = 200  # nodes looked at in one step: some milliseconds


def wanted(state: ClusterState, name: str) -> dict[str, str | None] | None:
    """Return what a node should advertise, by resource, if it does not yet; None removes one. Pure.

    Nothing is lowered below what is promised on the node, nor removed while a pod of ours is there.
    """
    facts, resources = state.nodes.get(name), state.rules.resources
    if facts is None:
        return None
    names = (resources.memory, resources.utilization, resources.share)
    if name not in state.inventories:
        gone = facts.advertised == (NOTHING, NOTHING) or _has_ours(state, name)
        return None if gone else dict.fromkeys(names)
    inventory = state.inventories[name]
    if inventory is None or not inventory.gpus:
        return None  # it cannot be read, or its driver is away: that is no smaller machine
    full = _hardware(inventory, facts.overcommit, state.rules)
    floor = _promised(state, name)
    now = [max(told or 0 for told in pair) for pair in zip(*facts.advertised, strict=True)]
    amounts = tuple(max(f, min(n, p)) for f, n, p in zip(full, now, floor, strict=True))
    if facts.advertised == (amounts, amounts):
        return None
    return dict(zip(names, map(str, amounts), strict=True))


def _hardware(inventory: Inventory, overcommit: int | None, rules: Rules) -> tuple[int, int, int]:
    """Return bytes, percent and places of all cards, healthy or not."""
    mib = sum(max((gpu.memory_mib or 0) - gpu.reserved_mib - rules.headroom_mib, 0) for gpu in inventory.gpus)
    cards, factor = len(inventory.gpus), rules.overcommit if overcommit is None else overcommit
    return mib * MIB, cards * factor // 10, rules.sharers * cards


def _promised(state: ClusterState, name: str) -> tuple[int, int, int]:
    """Return bytes, percent and places promised on a node; ENDLESS if a pod's record does not tell them."""
    held = list(state.on_node(name))
    if any(h.unaccounted or h.problem for h in held):
        return ENDLESS
    shares = [share for h in held for share in h.cards.values()]
    return (
        sum(share.mib for share in shares) * MIB,
        -(-sum(share.milli for share in shares) // 10),
        sum(share.slots for share in shares),
    )


def _has_ours(state: ClusterState, name: str) -> bool:
    return any(h.cards or h.unaccounted or h.problem for h in state.on_node(name))


@dataclass(slots=True)
class _Due:
    """When a node may be looked at, how often in a row its write failed, and what it said before a write."""

    at: float
    failures: int = 0
    before: tuple[Amounts, Amounts] | None = None


@dataclass(slots=True)
class Totals:
    """Writes every node's totals at a bounded pace. `may_act`: this replica leads, and has seen everything."""

    state: ClusterState
    cluster: Patcher
    may_act: Callable[[], bool]
    clock: Clock = time.monotonic
    pace: Pace = field(default_factory=lambda: Pace(PER_SECOND, PER_SECOND))
    metrics: Metrics = field(default_factory=Metrics)
    _due: dict[str, _Due] = field(default_factory=dict)
    _swept: float = float("-inf")

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Write what is due now."""
        if not self.may_act():
            return
        now = self.clock()
        self._collect(now)
        due = [name for name, due in self._due.items() if due.at <= now or self._echoed(name, due)]
        for name in due[:LOOKS]:
            amounts = wanted(self.state, name)
            if amounts is None:
                del self._due[name]
            elif self.pace.take(self.clock()):
                await self._write(name, amounts)
            else:
                return

    def _echoed(self, name: str, due: _Due) -> bool:
        """Say whether the watch has told of a node since it was written."""
        facts = self.state.nodes.get(name)
        return due.before is not None and (facts is None or facts.advertised != due.before)

    def _collect(self, now: float) -> None:
        if now - self._swept >= SWEEP_SECONDS:
            self._swept = now
            self.state.touched.update(self.state.nodes)
        for name in self.state.touched:
            self._due.setdefault(name, _Due(now))
        self.state.touched.clear()

    async def _write(self, name: str, amounts: dict[str, str | None]) -> None:
        body: dict[str, Any] = {"status": {"capacity": amounts, "allocatable": amounts}}
        due, before = self._due[name], self.state.nodes[name].advertised
        try:
            await self.cluster.patch_node_status(name, body)
        except (NotDone, PerhapsDone) as error:
            self.metrics.writes.labels("totals", "failed").inc()
            due.failures, due.before = due.failures + 1, None
            due.at = self.clock() + min(LONGEST_PAUSE, 2.0 ** (due.failures - 1))
            log.warning("The totals of node %s are not written yet: %s", name, error)
        else:
            self.metrics.writes.labels("totals", "done").inc()
            # It stays due until the watch shows what was written, or shows that somebody undid it.
            due.failures, due.at, due.before = 0, self.clock() + ECHO_SECONDS, before
            log.info("Node %s advertises %s.", name, amounts)
