"""Enforcing shares of memory: limits of the driver for each cgroup, where it has them; elsewhere use is observed.

A limit goes on the pod's cgroup as soon as that exists, and on each container's, which sees its limit as the size of
the card. It stays until the cgroup goes with its pod, over restarts of the agent; nothing is reserved by it, so it
leaves nothing behind. With `enforce` off, limits that are ours are taken away.
"""

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

from nodeagent.cards import Worker
from nodeagent.conditions import Condition
from nodeagent.pods import HeldPod
from nodeagent.processes import CONTAINER, POD
from nodeagent.reader import LimitRefused, Reader, Reading

log: Final = logging.getLogger(__name__)

SCAN_SECONDS: Final = 2.0
RETRY_SECONDS: Final = 30.0
CONDITION: Final = "MemoryLimitsEnforced"

_KUBERNETES: Final = re.compile("kube|burstable|besteffort|guaranteed")

Key = tuple[Path, str]  # a cgroup's directory, a card


def pod_directories(root: Path) -> dict[str, Path]:
    """Return the cgroup directory of every pod below the root of cgroups, by UID."""
    return dict(_pods_below(root))


def _pods_below(folder: Path) -> Iterator[tuple[str, Path]]:
    for path in _folders(folder):
        if pod := POD.search(path.name):
            yield pod[1].replace("_", "-"), path
        elif _KUBERNETES.search(path.name):
            yield from _pods_below(path)


def _folders(folder: Path) -> list[Path]:
    try:
        return [path for path in folder.iterdir() if path.is_dir()]
    except OSError:  # it went while we looked
        return []


@dataclass(slots=True)
class _Limited:
    """One card, with a thread for the calls: one that hangs holds up neither the samples nor another card.

    `settled`: MiB by cgroup, and when the driver last had it so. `refused`: when, and the driver's sentence.
    """

    worker: Worker = field(default_factory=Worker)
    settled: dict[Path, tuple[int, float]] = field(default_factory=dict)
    refused: dict[Path, tuple[float, str]] = field(default_factory=dict)

    def due(self, wanted: Mapping[Path, int], now: float) -> dict[Path, int]:
        """Forget what is not wanted or is gone, and return what has to be brought into force, or looked at again."""
        self.settled = {folder: has for folder, has in self.settled.items() if folder.is_dir()}
        self.refused = {folder: said for folder, said in self.refused.items() if folder in wanted}
        return {
            folder: mib
            for folder, mib in wanted.items()
            if not (folder in self.refused and now - self.refused[folder][0] < RETRY_SECONDS)
            and not ((has := self.settled.get(folder)) and has[0] == mib and now - has[1] < RETRY_SECONDS)
        }

    def take(self, card: str) -> None:
        """Take what the thread has found since, if anything."""
        found = self.worker.take()
        if not isinstance(found, _Found):
            return
        for folder, (mib, refusal) in found.by_folder.items():
            if refusal is None:
                self.refused.pop(folder, None)
                self.settled[folder] = mib, found.at
            else:
                self.settled.pop(folder, None)
                if folder not in self.refused:
                    log.warning("%s has no memory limit on %s: %s", folder, card, refusal)
                self.refused[folder] = found.at, refusal


@dataclass(frozen=True, slots=True)
class _Found:
    """What came of one job: by cgroup, the MiB and why the driver refused them, if it did."""

    at: float
    by_folder: Mapping[Path, tuple[int, str | None]]


class Limits:
    """Keeps the limits of all granted pods as they should be. All but the driver's calls happen in `step`."""

    def __init__(
        self,
        reader: Reader,
        root: Path = Path("/sys/fs/cgroup"),
        *,
        enforce: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._reader, self._root, self._enforce, self._clock = reader, root, enforce, clock
        self._cards: dict[str, _Limited] = {}
        self._pods: Mapping[str, HeldPod] | None = None
        self._scanned = float("-inf")
        self._missing: dict[str, float] = {}  # pods that run without a directory here, and since when

    @property
    def in_force(self) -> int:
        """How many limits of ours the driver has."""
        return sum(len(card.settled) for card in self._cards.values()) if self._enforce else 0

    def step(self, reading: Reading, pods: Mapping[str, HeldPod] | None) -> None:
        """Begin to set what is missing, on the cards that can be limited; take what came of it since."""
        now = self._clock()
        for uuid, limited in self._cards.items():
            limited.take(uuid)
        can = {card.gpu.uuid: card for card in reading.cards if card.limits and not card.gpu.mig and not card.lost}
        for uuid in self._cards.keys() - can.keys():  # it may come back without its limits
            self._cards.pop(uuid).worker.stop()
        if pods is None or (pods is self._pods and now - self._scanned < SCAN_SECONDS):
            return
        self._pods, self._scanned = pods, now
        there = pod_directories(self._root) if can and pods else {}
        self._missing = {uid: self._missing.get(uid, now) for uid in _without(there, pods)} if can else {}
        wanted: dict[str, dict[Path, int]] = {uuid: {} for uuid in self._cards}
        for (folder, uuid), mib in _wanted(pods, there):
            if mib and uuid in can:
                wanted.setdefault(uuid, {})[folder] = mib
        for uuid, folders in wanted.items():
            if uuid not in self._cards:
                self._cards[uuid] = _Limited()
            due = self._cards[uuid].due(folders, now)
            if due and not can[uuid].age_s:  # a card that does not answer a sample will not answer this
                self._cards[uuid].worker.ask(partial(self._bring, uuid, due, now))

    def _bring(self, card: str, wanted: Mapping[Path, int], at: float) -> _Found:
        """Make limits be in force, or be gone if limits are off; in the card's own thread."""
        return _Found(at, {folder: (mib, self._refusal(card, folder, mib)) for folder, mib in wanted.items()})

    def _refusal(self, card: str, folder: Path, mib: int) -> str | None:
        target = mib if self._enforce else None
        there = self._reader.memory_limit(card, str(folder))
        has = None if there is None else there.hard_mib
        if has == target or not (self._enforce or has == mib):
            return None
        try:
            self._reader.set_memory_limit(card, str(folder), target)
        except LimitRefused as error:
            return str(error)
        log.info("Memory limit of %s on %s: %s MiB.", folder, card, target)
        return None

    def condition(self, reading: Reading) -> Condition:
        """Return whether shares of memory are enforced on this node, and why not."""
        cards = [card for card in reading.cards if not card.lost and not card.gpu.mig]
        if not self._enforce:
            return CONDITION, "False", "Off", "Memory limits are off by a setting; use is observed."
        if not any(card.limits for card in cards):
            return CONDITION, "False", "NotSupported", "The driver has no memory limits; use is observed."
        if not all(card.limits for card in cards):
            return CONDITION, "False", "SomeCards", "Some cards have no memory limits; their use is observed."
        if self._pods is None:
            return CONDITION, "False", "NoPods", "The node's pods could not be listed; use is observed."
        for limited in self._cards.values():
            for _, said in limited.refused.values():
                return CONDITION, "False", "Refused", said[:300]
        if lost := sum(self._scanned - since >= SCAN_SECONDS for since in self._missing.values()):
            said = f"Pods that run, but whose cgroup is not found below {self._root}: {lost}. Use is observed."
            return CONDITION, "False", "NoCgroup", said[:300]
        return CONDITION, "True", "Limits", "Each container's memory is limited to its grant."


def _wanted(pods: Mapping[str, HeldPod], folders: Mapping[str, Path]) -> Iterator[tuple[Key, int]]:
    for uid, pod in pods.items():
        if not pod.granted or uid not in folders:
            continue
        yield from (((folders[uid], card), mib) for card, mib in pod.granted.items())
        for inside in _folders(folders[uid]):
            if container := CONTAINER.search(inside.name):
                yield from (((inside, card), mib) for card, mib in _of_container(pod, container[1]).items())


def _without(folders: Mapping[str, Path], pods: Mapping[str, HeldPod]) -> Iterator[str]:
    """Yield the pods that run and should have a directory: those with a grant or, where none is found, all of them.

    The agent is such a pod itself, so a wrong root shows before the first grant.
    """
    for uid, pod in pods.items():
        if pod.names and uid not in folders and (not folders or any(pod.granted.values())):
            yield uid


def _of_container(pod: HeldPod, container: str) -> Mapping[str, int]:
    """Return what the container of a runtime's id was granted.

    A pod's status names the ids some time after its containers run. Where the pod has one container, nobody needs
    to wait: the only other id is the sandbox's, which uses no card.
    """
    name = pod.names.get(container)
    if name is None and pod.every == 1 and len(pod.by_container) == 1:
        name = next(iter(pod.by_container))
    return pod.by_container.get(name or "", {})
