"""Read, smooth, tell, remember: one tick after the other, and the telling in a thread of its own.

    tick     reader -> health -> owners, grants -> use -> steady -> the newest report, metrics, limits, notices
    tell     heartbeat, report, notices: whatever is due, each with its own pause after a failure

A tick never waits for the API server, and telling never waits for the driver.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from contract.inventory import Gpu, Inventory
from nodeagent.conditions import Host, conditions
from nodeagent.health import Health
from nodeagent.heart import Heart
from nodeagent.limits import Limits
from nodeagent.metrics import Metrics, View
from nodeagent.notices import Notices
from nodeagent.observe import EVICTED, Observer
from nodeagent.past import Past
from nodeagent.pods import HeldPod
from nodeagent.processes import Owners
from nodeagent.publish import Publisher
from nodeagent.reader import Reader, Reading
from nodeagent.smooth import Report, Steady
from nodeagent.use import CardUse, uses

log: Final = logging.getLogger(__name__)

TELL_SECONDS: Final = 1.0
LEAST_SECONDS: Final = 0.2  # from one sample to the next, whatever happens, once the node is told
DEADLINE: Final = 0.7  # of an interval, for the driver to answer
FIRST_SECONDS: Final = 10.0  # a report waits so long for all cards, and for the pods: without them nothing is foreign
ALIVE_SECONDS: Final = 10.0


@dataclass(slots=True)
class Agent:
    """The parts of one node's agent. The clock is an argument."""

    node: str
    reader: Reader
    health: Health
    pods: Callable[[], Mapping[str, HeldPod] | None]
    owners: Owners
    limits: Limits
    observer: Observer
    heart: Heart
    publisher: Publisher
    notices: Notices
    host: Host
    interval: float = 1.0
    clock: Callable[[], float] = time.monotonic
    past: Past | None = field(default_factory=Past)  # None: not known yet, so there is no report yet
    metrics: Metrics = field(default_factory=Metrics)
    soon: threading.Event = field(default_factory=threading.Event)  # something happened: tick now
    stopping: threading.Event = field(default_factory=threading.Event)
    _wake: threading.Event = field(default_factory=threading.Event)
    _steady: dict[str, Steady] = field(default_factory=dict)
    _started: float | None = None  # when the past was known
    _ticked: float = float("-inf")

    def __post_init__(self) -> None:
        """Where the Lease has gone, the GPUNode may have gone with it: both belong to the Node."""
        self.heart.on_made = self.publisher.retell

    def tick(self) -> Reading:
        """Take one sample, and let everybody know."""
        now = self.clock()
        self._recall(now)
        reading = self.health.judge(self.reader.read(self.interval * DEADLINE), now)
        pods = self.pods()
        pids = {process.pid for card in reading.cards for process in card.processes or ()}
        used = uses(reading, self.owners.of(pids), pods)
        gpus = self._steadied(reading, used, now)
        self.limits.step(reading, pods)
        for notice in self.observer.step(used, _judged(reading), now):
            self.notices.add(notice)
        if self._whole(reading, pods, now):
            inventory = Inventory(self.node, gpus, reading.driver.version, reading.driver.cuda, reading.profiles)
            told = conditions(reading, self.host, self.limits.condition(reading))
            self.publisher.offer(Report(inventory, told))
            self._wake.set()
        self._ticked = self.clock()
        self.metrics.view = self._view(reading, gpus, used, pods, self._ticked - now)
        return reading

    def _recall(self, now: float) -> None:
        """Hand over what the agent before this one told, once it is known; a boot heals what only events told."""
        if self.past is None or self._started is not None:
            return
        self._started, known = now, self.past.gpus
        if self.past.written < self.host.booted:
            self.reader.recall(known, self._held)
        else:
            self.reader.recall(known, lambda _: True)
            self.health.recall(known)

    def _held(self, uuid: str) -> bool:
        """Say whether a pod holds a card, or may: before the pods are listed any card may be held."""
        pods = self.pods()
        return pods is None or any(uuid in pod.granted for pod in pods.values())

    def _whole(self, reading: Reading, pods: Mapping[str, HeldPod] | None, now: float) -> bool:
        """Say whether enough is known for a report; cards and pods are not waited for for ever."""
        if self._started is None:
            return False
        return (pods is not None and not reading.awaited) or now - self._started > FIRST_SECONDS

    def _steadied(self, reading: Reading, used: Mapping[str, CardUse], now: float) -> tuple[Gpu, ...]:
        gpus = []
        for gpu in (card.gpu for card in reading.cards):
            steady = self._steady.setdefault(gpu.uuid, Steady())
            gpus.append(steady.card(gpu, used[gpu.uuid].foreign_mib or 0, now))  # a report has no word for not known
        return tuple(gpus)

    def _view(
        self,
        reading: Reading,
        gpus: tuple[Gpu, ...],
        used: Mapping[str, CardUse],
        pods: Mapping[str, HeldPod] | None,
        seconds: float,
    ) -> View:
        last = self.metrics.view
        return View(
            gpus,
            used,
            None if pods is None else _granted(pods),
            self.observer.counts | {EVICTED: self.notices.evicted},
            dict(self.health.xids),  # threads of HTTP read it while events are counted
            last.ticks + 1,
            last.tick_seconds + seconds,
            sum(1 for card in reading.cards if card.age_s > 0),
            self.publisher.writes,
            self.publisher.failures,
            self.heart.beats,
            self.limits.in_force,
        )

    def run(self) -> int:
        """Tick until stopped; return the process's exit status."""
        while not self.stopping.is_set():
            began = self.clock()
            try:
                if self.tick().must_restart:
                    log.error("The driver was replaced under the agent; a new process has to load it.")
                    self.tell()
                    return 1
            except Exception:  # the node must not fall silent for one odd answer
                log.exception("A sample failed.")
            self.soon.wait(max(0.0, began + self.interval - self.clock()))
            least = min(LEAST_SECONDS, self.interval) if self.publisher.writes else 0.0
            self.stopping.wait(max(0.0, began + least - self.clock()))
            self.soon.clear()
        return 0

    def tell(self) -> None:
        """Tell what is due. The heartbeat comes first: a report without one is taken for written by hand."""
        if self.alive():
            self.heart.step()
        if self.heart.beats:
            self.publisher.step()
        if self.notices.step():
            self._wake.set()  # one at a time: the next heartbeat does not wait for all of them

    def keep_telling(self) -> None:
        """Tell until stopped."""
        while not self.stopping.is_set():
            self._wake.wait(TELL_SECONDS)
            self._wake.clear()
            try:
                self.tell()
            except Exception:  # this thread is the node's only voice
                log.exception("Telling failed.")

    def keep_hearing(self) -> None:
        """Hand the driver's events to who judges health, until stopped."""
        while not self.stopping.is_set():
            try:
                event = self.reader.wait_event(TELL_SECONDS)
            except Exception:  # this thread is the only ear
                log.exception("Waiting for the driver's events failed.")
                event = None
                self.stopping.wait(TELL_SECONDS)
            if event is not None and self.health.heard(event):
                self.soon.set()

    def alive(self) -> bool:
        """Say whether samples are taken: else the heart stops too, and the node's cards are not offered."""
        return self.clock() - self._ticked < max(ALIVE_SECONDS, 5 * self.interval)

    def stop(self) -> None:
        """End all loops."""
        self.stopping.set()
        self.soon.set()
        self._wake.set()


def _judged(reading: Reading) -> set[str]:
    """Return the cards that pods share and that answered: what was seen earlier is no reason to act now."""
    return {card.gpu.uuid for card in reading.cards if not card.gpu.mig and not card.age_s}


def _granted(pods: Mapping[str, HeldPod]) -> dict[str, int]:
    """Return MiB by card."""
    granted: dict[str, int] = {}
    for pod in pods.values():
        for card, mib in pod.granted.items():
            granted[card] = granted.get(card, 0) + mib
    return granted
