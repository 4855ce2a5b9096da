"""Readings are on time and complete, whatever order a driver answers in; the driver here is a script."""

import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from contract.inventory import Gpu
from nodeagent.cards import MOST, Cards, Failed, Seen, Started
from nodeagent.reader import Card, Driver

SOON = 5.0
NAMES = ["A", "B", "C"]
DEPLOY = Path(__file__).parents[2] / "deploy"


class Script:
    """A driver whose cards answer what the test says."""

    def __init__(self) -> None:
        self.slots: list[str | Failed | threading.Event | None] = []
        self.fault: Failed | None = None
        self.asked: list[int] = []

    def start(self) -> Started | Failed:
        return self.fault or Started(Driver("1", "2"), len(self.slots))

    def read_card(self, index: int, before: Mapping[str, Seen]) -> Seen | Failed:
        self.asked.append(index)
        slot = self.slots[index]
        if isinstance(slot, threading.Event):
            slot.wait()
            slot = "B"
        if slot is None:
            raise ValueError("no such bus")
        return slot if isinstance(slot, Failed) else Seen(Card(Gpu(slot, index=index)), handle=None)


Make = Callable[..., tuple[Script, Cards]]


@pytest.fixture
def make() -> Iterator[Make]:
    made: list[Cards] = []

    def one(*known: Gpu) -> tuple[Script, Cards]:
        script = Script()
        made.append(Cards(script))
        made[-1].recall(known, lambda _: True)
        return script, made[-1]

    yield one
    for cards in made:
        cards.close()


SLOTS = st.lists(st.sampled_from([*NAMES, Failed("Lost.", lost=True), Failed("Odd.")]), max_size=4)


@given(st.lists(SLOTS, min_size=1, max_size=6))
def test_any_history(history: list[list[str | Failed]]) -> None:
    """Each card is told once; who answers is healthy, who ever answered is told for ever, nobody is made up."""
    script = Script()
    cards = Cards(script)
    ever: set[str] = set()
    for slots in history:
        script.slots = [*slots]
        answers = [slot for slot in slots if isinstance(slot, str)]
        ever |= set(answers)
        reading = cards.read(SOON)
        told = {card.gpu.uuid: card for card in reading.cards}
        assert len(told) == len(reading.cards)
        assert set(told) == ever
        for name in answers:
            assert told[name].gpu.healthy
            assert not told[name].lost
        if len(set(answers)) == len(answers):  # else the index changed under the reading, and nobody is surely gone
            assert all(not told[name].gpu.healthy for name in ever - set(answers))
    cards.close()


def test_a_card_that_hangs_and_ends(make: Make) -> None:
    """While it hangs it keeps its last facts; a job that hangs is not asked for twice; its end is its answer."""
    script, cards = make()
    script.slots = ["A", "B"]
    before = cards.read(SOON)
    free = threading.Event()
    script.slots = ["A", free]
    threads = set(threading.enumerate())
    for _ in range(3):
        reading = cards.read(0.5)
        assert [card.gpu for card in reading.cards] == [card.gpu for card in before.cards]
        assert [card.age_s > 0 for card in reading.cards] == [False, True]
    assert set(threading.enumerate()) <= threads
    assert sorted(script.asked) == [0, 0, 0, 0, 1, 1]
    free.set()
    assert cards.read(SOON) == before
    assert script.asked.count(1) in (2, 3), "three readings found it busy"


def test_a_card_that_is_always_late(make: Make) -> None:
    """An answer that comes after the deadline is in the next reading, though that one's own comes late too."""
    script, cards = make()
    first, second = threading.Event(), threading.Event()
    script.slots = [first]
    reading = cards.read(1.0)
    assert (reading.faults, reading.awaited) == (("Card 0 does not answer.",), True)
    first.set()
    assert cards._workers[0].done.wait(SOON)
    script.slots = [second]
    reading = cards.read(1.0)
    assert [(card.gpu.uuid, card.age_s) for card in reading.cards] == [("B", 0.0)]
    assert not reading.awaited
    second.set()


def test_a_driver_that_starts_late(make: Make) -> None:
    """Until it answers, that is said; cards of an earlier process are told as they were, and are not lost."""
    script, cards = make(Gpu("A"))
    started = threading.Event()
    script.slots = ["A", "B"]
    script.start = lambda: (started.wait(), Started(Driver("1", "2"), 2))[1]  # type: ignore[method-assign]
    reading = cards.read(0.1)
    assert (reading.faults, reading.awaited) == (("The driver does not answer.",), True)
    assert [(card.gpu.uuid, card.gpu.healthy, card.lost) for card in reading.cards] == [("A", True, False)]
    started.set()
    reading = cards.read(SOON)
    assert (reading.faults, reading.awaited) == ((), False)
    assert [card.gpu.uuid for card in reading.cards] == ["A", "B"]


def test_the_order_changes_under_a_reading(make: Make) -> None:
    """When one card answers at two indices, the other one is late and not lost."""
    script, cards = make()
    script.slots = ["A", "B"]
    cards.read(SOON)
    script.slots = ["A", "A"]
    assert [(card.lost, card.age_s > 0) for card in cards.read(SOON).cards] == [(False, False), (False, True)]
    script.slots = ["A"]
    assert [card.lost for card in cards.read(SOON).cards] == [False, True]


def test_an_answer_that_nobody_expects(make: Make) -> None:
    """An exception is that card's trouble, once and again, and no other's."""
    script, cards = make()
    script.slots = ["A", "B"]
    cards.read(SOON)
    script.slots = ["A", None]
    for _ in range(2):
        good, bad = cards.read(SOON).cards
        assert good.gpu.healthy
        assert bad.gpu.reason.startswith("The agent cannot read what the driver says: ")
    script.slots = ["A", "B"]
    assert all(card.gpu.healthy for card in cards.read(SOON).cards)


def test_late_at_an_index_that_changed(make: Make) -> None:
    """Cards change places and one of them is late: it is nobody's loss."""
    script, cards = make()
    script.slots = ["B", "A"]
    cards.read(SOON)
    free = threading.Event()
    script.slots = [free, "B"]
    assert {card.gpu.uuid: card.lost for card in cards.read(0.05).cards} == {"A": False, "B": False}
    free.set()


def test_a_driver_that_hangs_at_the_start(make: Make) -> None:
    """Known cards are neither lost nor well: they are told as they were."""
    script, cards = make(Gpu("A", memory_mib=5))
    free = threading.Event()
    script.start = lambda: free.wait() and Failed("It hung.")  # type: ignore[assignment,method-assign,return-value]
    (card,) = cards.read(0.05).cards
    assert (card.gpu, card.lost, card.age_s > 0) == (Gpu("A", memory_mib=5), False, True)
    free.set()


def test_more_cards_than_a_gpunode_can_have(make: Make) -> None:
    """Who is there is told, and of the others who was there last; the schema of the GPUNode sets the limit."""
    (version,) = yaml.safe_load((DEPLOY / "crd/gpunodes.yaml").read_text())["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]
    assert status["properties"]["gpus"]["maxItems"] == MOST
    script, cards = make(*(Gpu(f"old{n}") for n in range(MOST)))
    script.slots = ["A", "B"]
    assert {"A", "B"} < {card.gpu.uuid for card in cards.read(SOON).cards}
    for number in range(MOST):
        script.slots = [f"new{number}", Failed("Odd.", uuid="B")]
        told = [card.gpu.uuid for card in cards.read(SOON).cards]
        assert len(told) == MOST
        assert {"B", *(f"new{n}" for n in range(max(0, number - MOST + 2), number + 1))} <= set(told)
    assert set(told) == {"B", *(f"new{n}" for n in range(1, MOST))}, "A is gone longest, and new0 after it"


def test_a_card_that_is_not_wanted_is_forgotten_once_it_is_surely_gone(make: Make) -> None:
    """While a card has no name that may be it; one that is held stays, and so does one that was seen."""
    script, cards = make()
    cards.recall([Gpu("A"), Gpu("B"), Gpu("C")], lambda uuid: uuid == "C")
    script.slots = ["A", Failed("Odd.")]
    assert {card.gpu.uuid for card in cards.read(SOON).cards} == {"A", "B", "C"}
    script.slots = ["A", "D"]
    assert {card.gpu.uuid: card.lost for card in cards.read(SOON).cards} == {"A": False, "D": False, "C": True}
    script.slots = ["D"]
    assert {card.gpu.uuid: card.lost for card in cards.read(SOON).cards} == {"A": True, "D": False, "C": True}


def test_a_driver_that_fails(make: Make) -> None:
    """All its cards have its reason."""
    script, cards = make(Gpu("A"))
    script.fault = Failed("There is none.", lost=True)
    reading = cards.read(SOON)
    assert (reading.faults, reading.must_restart) == (("There is none.",), True)
    assert [(card.gpu.healthy, card.gpu.reason, card.lost) for card in reading.cards] == [
        (False, "There is none.", False)
    ]
