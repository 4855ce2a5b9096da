"""What the cluster says, as calls on a watcher: list, watch, and list again where the thread was lost.

    list ──> watch ──> watch ──> ...      each watch begins at the version of the last event or bookmark
      ^        │ 410 Gone, or failures in a row
      └────────┘ after a pause

One thread a kind reads; the event loop alone calls the watcher, in the order of the cluster. What an object
means must not enter here, and nothing is kept of it but what tells a deletion from a later list.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Final, Protocol

from extender.cluster import Event, Gone, Source, Unreachable, Watched
from extender.wire import AgentLease, GpuNode, LeaseMeta, Meta, Node, Pod

BATCH: Final = 200  # objects of a list that the event loop takes in one go: some milliseconds
STEADY_SECONDS: Final = 5.0  # a watch that lasted so long was no failure
SHORTEST_PAUSE: Final = 0.2
LONGEST_PAUSE: Final = 30.0
FAILURES_TO_RELIST: Final = 5  # a version that no server accepts must not be asked for until the end of time
STOP_SECONDS: Final = 1.0

log = logging.getLogger(__name__)

Clock = Callable[[], float]
Sleep = Callable[[float], object]


class Watcher(Protocol):
    """Who is told. Called on the event loop; what is `lost_` has at least its name, namespace and UID."""

    def saw_node(self, node: Node) -> None:
        """A node is there, or is another now."""

    def lost_node(self, name: str) -> None:
        """A node is gone."""

    def saw_inventory(self, gpu_node: GpuNode) -> None:
        """A node's cards are there, or are others now."""

    def lost_inventory(self, name: str) -> None:
        """A node's cards are no longer reported."""

    def saw_pod(self, pod: Pod) -> None:
        """A pod is there, or is another now. A pod of the same name and another UID was lost before."""

    def lost_pod(self, pod: Pod) -> None:
        """A pod is gone."""

    def saw_lease(self, lease: AgentLease) -> None:
        """The agent of a node is there, or has given a sign of life."""

    def lost_lease(self, name: str) -> None:
        """The lease of a node's agent is gone."""


@dataclass(frozen=True, slots=True)
class Change:
    """An object as it is now, or one that is gone, of which perhaps only namespace, name and UID are left."""

    object: Watched
    lost: bool = False


def tell(watcher: Watcher, change: Change) -> None:
    """Make the one call that a change stands for."""
    match change:
        case Change(Node() as node, lost=False):
            watcher.saw_node(node)
        case Change(Node() as node):
            watcher.lost_node(node.metadata.name)
        case Change(GpuNode() as gpu_node, lost=False):
            watcher.saw_inventory(gpu_node)
        case Change(GpuNode() as gpu_node):
            watcher.lost_inventory(gpu_node.metadata.name)
        case Change(Pod() as pod, lost=False):
            watcher.saw_pod(pod)
        case Change(Pod() as pod):
            watcher.lost_pod(pod)
        case Change(AgentLease() as lease, lost=False):
            watcher.saw_lease(lease)
        case Change(AgentLease() as lease):
            watcher.lost_lease(lease.metadata.name)


# --- one kind, in its thread --------------------------------------------------------------------------------

_KINDS: Final[dict[str, Callable[[Meta], Watched]]] = {
    "nodes": Node,
    "gpunodes": GpuNode,
    "pods": Pod,
    "leases": lambda meta: AgentLease(LeaseMeta(meta.name, meta.namespace, meta.uid)),
}
_Key = tuple[str, str]  # namespace, name


@dataclass(frozen=True, slots=True)
class _Known:
    version: str
    uid: str


class Reflector:
    """One source as changes without a gap: `emit(changes, listed)`; listed says that a list is complete."""

    def __init__(
        self,
        source: Source,
        emit: Callable[[list[Change], bool], None],
        *,
        clock: Clock = time.monotonic,
        rng: Random | None = None,
        sleep: Sleep | None = None,
    ) -> None:
        self.source = source
        self.lists = 0
        self.watches = 0
        self.heard = clock()  # when the cluster last said anything
        self.broken: float | None = self.heard  # since when no watch is open
        self._emit, self._clock, self._rng = emit, clock, rng or Random()
        self._stopping = threading.Event()
        self._sleep: Sleep = sleep or self._stopping.wait
        self._known: dict[_Key, _Known] = {}
        self._version: str | None = None
        self._failures = 0

    def stop(self) -> None:
        """End `run`, from another thread."""
        self._stopping.set()
        self.source.close()

    def run(self) -> None:
        """List and watch until `stop`, with a pause after each failure."""
        while not self._stopping.is_set():
            ended_well = self._turn()
            if ended_well or self._stopping.is_set():
                continue
            self._failures += 1
            if self._failures % FAILURES_TO_RELIST == 0:
                self._version = None
            longest = min(LONGEST_PAUSE, SHORTEST_PAUSE * 2.0 ** min(self._failures - 1, 16))
            self._sleep(longest * self._rng.uniform(0.5, 1.0))

    def _turn(self) -> bool:
        """List if need be, then watch until the watch ends. Return whether the next may begin at once."""
        try:
            if self._version is None:
                self._version = self._list()
            return self._watch(self._version)
        except Gone as error:
            self._version = None
            log.info("The last version of %s is gone, so they are listed again: %s", self.source.kind, error)
        except Unreachable as error:
            # One failure is a reconnect, as happens every day; two in a row are trouble.
            level = logging.WARNING if self._failures else logging.INFO
            log.log(level, "Lost sight of %s: %s", self.source.kind, error)
        except Exception:  # this thread is the only eye on its kind: it must not end
            log.exception("Reading %s failed.", self.source.kind)
        finally:
            if self.broken is None:
                self.broken = self._clock()
        return False

    def _list(self) -> str:
        self.lists += 1
        objects, version = self.source.list()
        self.heard = self._clock()
        now = {_key(found): _known(found) for found in objects}
        gone = [(key, old) for key, old in self._known.items() if key not in now or now[key].uid != old.uid]
        changes = [self._lost(key, old) for key, old in gone]
        changes += [Change(found) for found in objects if self._known.get(_key(found)) != _known(found)]
        self._known = now
        self._emit(changes, True)
        return version

    def _watch(self, version: str) -> bool:
        self.watches += 1
        opened: float | None = None
        moved = False
        try:
            for event in self.source.watch(version):
                self.heard, self.broken = self._clock(), None
                opened = self.heard if opened is None else opened
                moved = moved or event.version != version
                self._take(event)
        finally:
            steady = moved or (opened is not None and self._clock() - opened > STEADY_SECONDS)
            if steady:
                self._failures = 0
        return steady

    def _take(self, event: Event) -> None:
        if event.object is not None and (changes := self._changes(event.kind, event.object)):
            self._emit(changes, False)
        self._version = event.version or self._version

    def _changes(self, kind: str, found: Watched) -> list[Change]:
        key, new = _key(found), _known(found)
        old = self._known.get(key)
        replaced = old is not None and old.uid != new.uid
        if kind == "DELETED":
            if old is None or replaced:
                return []
            del self._known[key]
            return [Change(found, lost=True)]
        self._known[key] = new
        return [self._lost(key, old), Change(found)] if old is not None and replaced else [Change(found)]

    def _lost(self, key: _Key, old: _Known) -> Change:
        meta = Meta(namespace=key[0], name=key[1], uid=old.uid)
        return Change(_KINDS[self.source.kind](meta), lost=True)


def _key(found: Watched) -> _Key:
    return found.metadata.namespace, found.metadata.name


def _known(found: Watched) -> _Known:
    return _Known(found.metadata.resource_version, found.metadata.uid)


# --- all kinds, for the event loop --------------------------------------------------------------------------


class Watch:
    """All sources of a cluster, told to one watcher on the event loop that `start` was called in."""

    def __init__(
        self,
        sources: Iterable[Source],
        watcher: Watcher,
        *,
        clock: Clock = time.monotonic,
        rng: Random | None = None,
        sleep: Sleep | None = None,
    ) -> None:
        self._watcher, self._clock = watcher, clock
        self._reflectors = [
            Reflector(source, partial(self._post, source.kind), clock=clock, rng=rng, sleep=sleep)
            for source in sources
        ]
        self._threads: list[threading.Thread] = []
        self._delivered: set[str] = set()
        self._halfway: set[str] = set()  # kinds of which a list is being told
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop

    def start(self) -> None:
        """Begin to read, inside the running event loop."""
        self._loop = asyncio.get_running_loop()
        for reflector in self._reflectors:
            name = f"watch-{reflector.source.kind}"
            self._threads.append(threading.Thread(target=reflector.run, name=name, daemon=True))
            self._threads[-1].start()

    async def stop(self) -> None:
        """End every watch; afterwards the watcher is told nothing more."""
        self._stopped = True
        for reflector in self._reflectors:
            reflector.stop()
        await asyncio.to_thread(self._join)

    def _join(self) -> None:
        end = time.monotonic() + STOP_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))

    def synced(self) -> bool:
        """Return whether the watcher has been told the whole first list of every kind."""
        return len(self._delivered) == len(self._reflectors)

    def whole(self) -> bool:
        """Return whether what the watcher was told is a state that the cluster had: no list is told in part."""
        return not self._halfway

    def silence(self) -> float:
        """Return the seconds since the kind heard least recently was heard; a minute is nothing unusual."""
        return self._clock() - min(reflector.heard for reflector in self._reflectors)

    def outage(self) -> float:
        """Return the seconds for which some kind has had no open watch; 0 while all are open and quiet."""
        now = self._clock()
        return max(now - broken if (broken := r.broken) is not None else 0.0 for r in self._reflectors)

    def relists(self) -> dict[str, int]:
        """Return, for each kind, how often it was listed after the first time."""
        return {r.source.kind: max(0, r.lists - 1) for r in self._reflectors}

    def reconnects(self) -> dict[str, int]:
        """Return, for each kind, how often a watch was begun after the first time."""
        return {r.source.kind: max(0, r.watches - 1) for r in self._reflectors}

    def _post(self, kind: str, changes: list[Change], listed: bool) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody listens any more
            if listed:
                self._loop.call_soon_threadsafe(self._halfway.add, kind)
            for at in range(0, len(changes), BATCH):
                self._loop.call_soon_threadsafe(self._deliver, changes[at : at + BATCH])
            if listed:
                self._loop.call_soon_threadsafe(self._halfway.discard, kind)
                self._loop.call_soon_threadsafe(self._delivered.add, kind)

    def _deliver(self, changes: list[Change]) -> None:
        for change in changes:
            if self._stopped:
                return
            try:
                tell(self._watcher, change)
            except Exception:  # one object that cannot be understood must not hide the others
                log.exception("Telling of %s %s failed.", type(change.object).__name__, change.object.metadata.name)
