"""What the page shows, as JSON: one piece a node, made anew only where something changed. No I/O, no clock.

A viewer says up to which count it has seen everything and gets what changed since. Counts of another process mean
nothing, so they carry its name.
"""

import asyncio
from collections import defaultdict
from math import inf
from typing import Final

import numpy as np
from msgspec import Struct

from contract.inventory import Gpu, Inventory
from extender import wire
from extender.explain import explain
from extender.node import OVERPROMISED
from extender.page.history import Sample
from extender.pod import Request
from extender.state import ClusterState
from extender.words import in_words
from scoring.model import Demand

SLICE: Final = 100  # nodes between two chances for the verbs
PENDING: Final = 200  # pods that are listed
REASONS: Final = 20  # different demands of them that are explained
WAIT_SECONDS: Final = 5.0  # between two looks at the pods that wait: each demand takes some milliseconds

Shares = list[tuple[str, str, int, int]]  # namespace, pod, MiB, thousandths


class CardView(Struct, array_like=True):
    """A card as the page draws it; `reason`: why it takes nothing. None: not told."""

    uuid: str
    model: str
    mib: int
    milli: int
    reason: str
    used_mib: int | None
    busy: int | None
    foreign_mib: int
    shares: Shares


class NodeView(Struct, array_like=True):
    """A node: why it takes no GPU pod ("" if it does), and its cards."""

    name: str
    closed: str
    cards: list[CardView]


class Waiting(Struct, frozen=True):
    """A pod that waits: what it asks, and why it is not placed."""

    namespace: str
    pod: str
    asks: str
    why: str
    since: str


class Picture:
    """The pieces, and the count of changes at which each was made. `name`: of this process."""

    def __init__(self, state: ClusterState, name: str) -> None:
        self.count = 0
        self._state, self._name = state, name
        self._pieces: list[bytes] = []  # by row of the Fleet
        self._made: list[int] = []
        self._drawn: list[Inventory | None] = []  # what was measured then
        self._changes = 0
        self._pending: list[Waiting] = []
        self._asked: tuple[int, tuple[tuple[str, Request], ...]] = (-1, ())  # of which changes and pods that is
        self._asked_at = -inf
        self._history: list[Sample] = []
        self._lock = asyncio.Lock()

    @property
    def tag(self) -> str:
        """The count, and whose it is."""
        return f"{self._name}-{self.count}"

    async def refresh(self, history: list[Sample], now: float) -> None:
        """Take in what changed since the last time, letting others work in between. `now`: any clock's seconds."""
        async with self._lock:
            changed = await self._nodes()
            changed |= await self._waiting(now)
            if history != self._history:
                self._history, changed = history, True
            self.count += changed

    def since(self, tag: str = "", refusal: str = "") -> bytes:
        """Return the nodes that changed after a tag, all of them if it is none of ours, and all the rest."""
        name, _, count = tag.rpartition("-")
        known = name == self._name and count.isdecimal() and int(count) <= self.count
        least = int(count) if known else -1
        pieces = [piece for piece, made in zip(self._pieces, self._made, strict=True) if made > least]
        return b'{"tag":%b,"whole":%b,"refusal":%b,"pending":%b,"waiting":%d,"history":%b,"nodes":[%b]}' % (
            wire.encode(self.tag),
            b"false" if known else b"true",
            wire.encode(refusal),
            wire.encode(self._pending),
            len(self._state.waiting),
            wire.encode(self._history),
            b",".join(pieces),
        )

    async def _nodes(self) -> bool:
        fleet, state = self._state.fleet, self._state
        written = fleet.changed_since(self._changes)
        self._changes = fleet.changes
        rows = set(range(len(fleet)) if written is None else written.tolist())
        rows |= {
            row
            for row, drawn in enumerate(self._drawn)
            if drawn is not state.inventories.get(fleet.names[row])  # measured anew, with nothing else to tell
        }
        for row in range(len(self._pieces), len(fleet)):
            self._pieces.append(b"")
            self._made.append(0)
            self._drawn.append(None)
            rows.add(row)
        for number, row in enumerate(sorted(rows), 1):
            self._draw(row)
            if number % SLICE == 0:
                await asyncio.sleep(0)
        return bool(rows)

    def _draw(self, row: int) -> None:
        name = self._state.fleet.names[row]
        inventory = self._state.inventories.get(name)
        self._drawn[row] = inventory
        self._pieces[row] = wire.encode(view(self._state, name))
        self._made[row] = self.count + 1

    async def _waiting(self, now: float) -> bool:
        """Explain the pods that have waited longest; the same demand has the same reason."""
        state = self._state
        pods = sorted(state.waiting.values(), key=lambda p: (p.metadata.creation_timestamp or "", p.metadata.uid))
        uids = [pod.metadata.uid for pod in pods[:PENDING]]
        asked = state.fleet.changes, tuple((uid, state.asks[uid]) for uid in uids)
        if asked == self._asked or now < self._asked_at + WAIT_SECONDS:
            return False
        why: dict[tuple[Demand, str | None], str] = {}
        found = []
        for pod in pods[:PENDING]:
            request: Request | None = state.asks.get(pod.metadata.uid)
            if request is None:
                continue  # it was bound meanwhile
            key = request.demand, request.policy
            if key not in why and len(why) < REASONS:
                told = explain(state, pod, request)
                top = [f"{r.nodes} nodes: {r.reason}." for r in told.reasons[:2]] if not told.fits else []
                why[key] = " ".join([*told.said, *top])
                await asyncio.sleep(0)
            meta = pod.metadata
            asks = "; ".join(in_words(request))
            found.append(Waiting(meta.namespace, meta.name, asks, why.get(key, ""), meta.creation_timestamp or ""))
        changed = found != self._pending
        self._asked, self._asked_at, self._pending = asked, now, found
        return changed


def view(state: ClusterState, name: str) -> NodeView:
    """Return what the page shows of a node."""
    inventory, row = state.inventories.get(name), state.fleet.index[name]
    if inventory is None or name not in state.nodes:
        return NodeView(name, state.closed.get(name, ""), [])
    shares: dict[str, Shares] = defaultdict(list)
    for held in state.on_node(name):
        for uuid, share in held.cards.items():
            shares[uuid].append((held.namespace, held.name, share.mib, share.milli))
    mib, milli = (np.asarray(of[row]).tolist() for of in state.fleet.capacity[:2])
    cards = [
        CardView(
            gpu.uuid,
            gpu.model,
            mib[c],
            milli[c],
            _reason(gpu, over=gpu.uuid in state.overpromised.get(name, ())),
            gpu.used_mib,
            gpu.utilization,
            gpu.foreign_mib,
            sorted(shares.get(gpu.uuid, ())),
        )
        for c, gpu in enumerate(inventory.gpus)
    ]
    return NodeView(name, state.closed.get(name, ""), cards)


def _reason(gpu: Gpu, *, over: bool) -> str:
    """Return why a card takes nothing, whatever its node says; "" if it may."""
    if not gpu.healthy or gpu.mig:
        return gpu.reason or ("in MIG mode" if gpu.mig else "unhealthy")
    return OVERPROMISED if over else ""
