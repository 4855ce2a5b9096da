"""All cards of a node in one reading that is on time, each under its own name, whatever the driver does.

Every card has a thread, so that one whose call hangs keeps nobody waiting. Cards that were seen stay: one that does
not answer is told by its last reading with an age, one that is gone is lost. No driver is called here.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from queue import SimpleQueue
from threading import Event as Flag
from threading import Lock, Thread
from typing import Any, Final, Protocol

from contract.inventory import Gpu, MigProfile
from nodeagent.reader import Card, Driver, Reading

log: Final = logging.getLogger(__name__)

MOST: Final = 64  # cards that a GPUNode can have; who is gone longest gives way
SWITCH: Final = "switch"  # the other end of a link that every card on the switch can be reached by


@dataclass(frozen=True, slots=True)
class Seen:
    """A card that answered: what goes into the reading, and what helps the next one."""

    card: Card
    handle: Any
    links: frozenset[str] = frozenset()  # PCI bus ids of the other ends, or SWITCH
    profiles: tuple[MigProfile, ...] = ()
    slow_at: float = 0.0  # when what seldom changes was read


@dataclass(frozen=True, slots=True)
class Failed:
    """A card, or a driver, that did not answer; the reason is a sentence."""

    reason: str
    lost: bool = False
    uuid: str = ""  # empty: the card did not even tell who it is


@dataclass(frozen=True, slots=True)
class Started:
    """A driver that answers."""

    driver: Driver
    count: int


UNANSWERED: Final = Started(Driver(), 0)  # what is known of a driver that has not answered yet
GONE: Final = Failed("The card is gone.", lost=True)


class Source(Protocol):
    """A driver. Calls may take any time, and are made from several threads."""

    def start(self) -> Started | Failed:
        """Start the driver if it is not, and count the cards. `lost`: only a new process can start it."""

    def read_card(self, index: int, before: Mapping[str, Seen]) -> Seen | Failed:
        """Read one card; `before` is what was seen last, by UUID."""


class Worker:
    """A thread that does one job at a time. Whoever waits for it may stop waiting, and take the answer later."""

    def __init__(self) -> None:
        self.done = Flag()
        self.done.set()
        self._answers: deque[Any] = deque(maxlen=1)
        self._jobs: SimpleQueue[Callable[[], Any] | None] = SimpleQueue()
        Thread(target=self._work, daemon=True).start()

    def _work(self) -> None:
        while job := self._jobs.get():
            try:
                answer = job()
            except Exception as error:  # this thread is the card's only one
                log.exception("A card or the driver could not be read.")
                answer = Failed(f"The agent cannot read what the driver says: {error}.")
            self._answers.append(answer)
            self.done.set()

    def ask(self, job: Callable[[], Any]) -> None:
        """Begin a job, unless the last one has not ended."""
        if self.done.is_set():
            self.done.clear()
            self._jobs.put(job)

    def take(self) -> Any:
        """Return the newest answer that was not taken yet, or None."""
        return self._answers.pop() if self._answers else None

    def stop(self) -> None:
        """Let the thread end after its job, if that ever ends."""
        self._jobs.put(None)


class Cards:
    """The cards of one source, reading after reading."""

    def __init__(self, source: Source, clock: Callable[[], float] = time.monotonic) -> None:
        self.seen: dict[str, Seen] = {}  # by UUID, the last answer of every card
        self._source, self._clock = source, clock
        self._known: dict[str, Card] = {}  # those that are gone come last, and first who was there last
        self._recalled: set[str] = set()  # that an earlier process saw, and this one did not
        self._wanted: Callable[[str], bool] = lambda _: True
        self._read_at: dict[str, float] = {}
        self._at: dict[int, str] = {}  # who was last seen at an index
        self._started = UNANSWERED
        self._starter = Worker()
        self._workers: list[Worker] = []
        self._lock = Lock()  # one reading at a time

    def recall(self, known: Iterable[Gpu], wanted: Callable[[str], bool]) -> None:
        """Take the cards that an earlier process saw; see `Reader`."""
        with self._lock:
            new = {gpu.uuid: Card(gpu) for gpu in known if gpu.uuid not in self._known}
            self._known = _most(self._known | new)
            self._read_at |= dict.fromkeys(new, self._clock())
            self._recalled, self._wanted = set(new), wanted

    def read(self, deadline_s: float) -> Reading:
        """Read all cards; return within the deadline."""
        with self._lock:
            end = self._clock() + deadline_s
            self._starter.ask(self._source.start)
            self._starter.done.wait(deadline_s / 2)
            started = self._starter.take() or self._started
            if isinstance(started, Failed):
                cards = (_unread(card, Failed(started.reason)) for card in self._known.values())
                return Reading(self._started.driver, _in_order(cards), (), (started.reason,), started.lost)
            self._started = started
            while len(self._workers) < started.count:
                self._workers.append(Worker())
            workers = self._workers[: started.count]
            for index, worker in enumerate(workers):
                worker.ask(_reading_of(self._source, index, self.seen))
            for worker in workers:
                worker.done.wait(max(0.0, end - self._clock()))
            return self._collect(workers)

    def _collect(self, workers: list[Worker]) -> Reading:
        now = self._clock()
        seen: dict[str, Seen] = {}
        failed: dict[str, Failed] = {}
        late = set()
        awaited = self._started is UNANSWERED
        faults = ["The driver does not answer."] if awaited else []
        unsure = not self._starter.done.is_set()  # then a card that is missing need not be lost
        for index, worker in enumerate(workers):
            answer: Seen | Failed | None = worker.take()
            if isinstance(answer, Seen):
                unsure |= answer.card.gpu.uuid in seen  # the order of the index changed meanwhile
                seen[answer.card.gpu.uuid], self._at[index] = answer, answer.card.gpu.uuid
                continue
            uuid = (answer.uuid if answer else "") or self._at.get(index)
            if answer and uuid:
                failed[uuid] = answer
            elif uuid:
                late.add(uuid)
            else:
                awaited |= answer is None
                trouble = f"cannot be read: {answer.reason}" if answer else "does not answer."
                faults.append(f"Card {index} {trouble}")
        self.seen = self.seen | seen
        self._recalled -= seen.keys()
        cards = {uuid: _with_peers(each, self.seen) for uuid, each in seen.items()}
        unsure |= awaited or not late.isdisjoint(cards)  # who is late at an index is somebody else now
        self._read_at |= dict.fromkeys(cards, now)
        gone: dict[str, Card] = {}
        for uuid, last in self._known.items():
            if uuid in cards:
                continue
            if uuid in failed:
                cards[uuid] = _unread(last, failed[uuid])
            elif uuid in late:
                cards[uuid] = replace(last, age_s=now - self._read_at[uuid])
            elif unsure:
                gone[uuid] = replace(last, age_s=now - self._read_at[uuid])
            elif faults or uuid not in self._recalled or self._wanted(uuid):  # it may be a card without a name
                gone[uuid] = _unread(last, GONE)
        self._known = _most(cards | gone)
        profiles = {profile: None for each in seen.values() for profile in each.profiles}
        told = _in_order(self._known.values())
        return Reading(self._started.driver, told, tuple(profiles), tuple(faults), awaited=awaited)

    def close(self) -> None:
        """Let the threads end, but for those that hang."""
        for worker in (self._starter, *self._workers):
            worker.stop()


def _reading_of(source: Source, index: int, before: Mapping[str, Seen]) -> Callable[[], Seen | Failed]:
    return lambda: source.read_card(index, before)


def _most(cards: Mapping[str, Card]) -> dict[str, Card]:
    return dict(islice(cards.items(), MOST))


def _in_order(cards: Iterable[Card]) -> tuple[Card, ...]:
    return tuple(sorted(cards, key=lambda card: (card.gpu.index, card.gpu.uuid)))


def _unread(last: Card, why: Failed) -> Card:
    gpu = replace(last.gpu, healthy=False, reason=why.reason, used_mib=None, utilization=None)
    return Card(gpu, processes=None, lost=why.lost, limits=last.limits)


def _with_peers(seen: Seen, everybody: Mapping[str, Seen]) -> Card:
    """Fill in who is at the other end of the links; who does not answer just now is still there."""
    peers = {
        uuid
        for uuid, other in everybody.items()
        if other.card.gpu.pci_bus_id in seen.links or (SWITCH in seen.links and SWITCH in other.links)
    }
    nvlink = tuple(sorted(peers - {seen.card.gpu.uuid}))
    return replace(seen.card, gpu=replace(seen.card.gpu, nvlink=nvlink))
