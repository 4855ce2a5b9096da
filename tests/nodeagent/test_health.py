"""Which cards are fit for work: what takes one out of service, and what brings it back."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from contract.inventory import Gpu, MigInstance
from nodeagent.health import APPLICATION_XIDS, Health
from nodeagent.reader import Card, Event, EventKind, Reading, Recovery

PROBES, SETTLE, SILENT = 3, 10.0, 10.0
NEW = Card(Gpu("A", memory_mib=1000, used_mib=0), recovery=Recovery.NONE, ecc_uncorrected=0, repair_pending=False)
OLD = replace(NEW, recovery=None)  # a driver that gives no verdicts


def xid(code: int, instance: int | None = None, uuid: str = "A") -> Event:
    return Event(uuid, EventKind.XID, code, instance)


def knowing(gpu: Gpu, benign: frozenset[int] = APPLICATION_XIDS) -> Health:
    """Return what knows a card from an earlier process."""
    health = Health(benign)
    health.recall([gpu])
    return health


def reason(health: Health, card: Card, now: float) -> str:
    """Judge a card and return why it is out of service."""
    (judged,) = health.judge(Reading(cards=(card,)), now).cards
    assert judged.gpu.healthy == (not judged.gpu.reason)
    return judged.gpu.reason


def back_after(health: Health, card: Card, start: float) -> int | None:
    """Return how many readings, a second apart, it takes until the card is in service; None: more than a hundred."""
    return next((n for n in range(1, 101) if not reason(health, card, start + n)), None)


def lost(card: Card) -> Card:
    return replace(card, lost=True, gpu=replace(card.gpu, healthy=False, reason="The card is gone."))


def test_a_good_card() -> None:
    """A card without trouble is in service from the first reading on."""
    assert reason(Health(), NEW, 0) == ""


@pytest.mark.parametrize("code", sorted(APPLICATION_XIDS))
def test_application_errors_are_counted(code: int) -> None:
    """What an application did wrong leaves the card in service."""
    health = Health()
    health.heard(xid(code))
    assert reason(health, OLD, 0) == ""
    assert health.xids == {("A", code): 1}


def test_which_xids_are_benign_is_a_setting() -> None:
    """The list may be another one, or empty."""
    health = Health(frozenset({79}))
    health.heard(xid(79))
    assert reason(health, NEW, 0) == ""
    health.heard(xid(13))
    assert reason(health, NEW, 1) == "XID 13"


@pytest.mark.parametrize("code", [48, 62, 63, 64, 74, 79, 94, 95, 119, 120, 140, 999])
def test_other_xids_take_the_card_out_at_once(code: int) -> None:
    """At the next judgement; it comes back when the driver wants nothing and enough readings were good."""
    health = Health()
    assert reason(health, NEW, 0) == ""
    health.heard(xid(code))
    assert reason(health, NEW, 1).startswith(f"XID {code}")
    assert back_after(health, NEW, 1) == SETTLE


def test_a_fatal_xid_without_verdict_stands() -> None:
    """Where a driver gives no verdict, silence is none; a card that was lost and came back is well."""
    health = Health()
    health.heard(xid(79))
    assert reason(health, OLD, 0) == "XID 79 (the card has fallen off the bus)"
    assert back_after(health, OLD, 0) is None
    assert reason(health, lost(OLD), 200) == "XID 79 (the card has fallen off the bus)"
    assert back_after(health, OLD, 200) == SETTLE


def test_a_card_that_dies_again_is_not_back() -> None:
    """A second XID after it was lost and came back wants a second reset."""
    health = Health()
    for event, card in ((xid(79), OLD), (None, lost(OLD)), (xid(79), OLD)):
        if event:
            health.heard(event)
        assert reason(health, card, 0)
    assert back_after(health, OLD, 0) is None


@pytest.mark.parametrize("event", [xid(79), xid(999), Event("A", EventKind.DOUBLE_BIT_ECC)])
def test_a_new_process_knows_what_an_event_told(event: Event) -> None:
    """A card that only an event took out is out for the next agent too, until what would have ended it does."""
    before = Health()
    before.heard(event)
    (judged,) = before.judge(Reading(cards=(OLD,)), 0).cards
    health = knowing(judged.gpu)
    assert reason(health, OLD, 0) == judged.gpu.reason
    assert back_after(health, OLD, 0) is None
    assert back_after(knowing(judged.gpu), NEW, 0) == PROBES


def test_what_readings_show_is_not_taken_over() -> None:
    """What the card itself tells is read again; an XID that is benign by now is forgiven."""
    for said in ("The card is gone.", "Uncorrectable memory errors", "XID 63 (row remapping event)"):
        told = replace(NEW.gpu, healthy=False, reason=said)
        assert reason(knowing(told, benign=frozenset({63})), OLD, 0) == ""


def test_a_new_process_knows_which_instance_was_told() -> None:
    """The instance stays out, and the card does not."""
    bad, good = MigInstance("M1", gpu_instance=1, healthy=False, reason="XID 95"), MigInstance("M2", gpu_instance=2)
    gpu = replace(NEW.gpu, mig=True, mig_instances=(bad, good))
    now = replace(OLD, gpu=replace(gpu, mig_instances=(replace(bad, healthy=True, reason=""), good)))
    (judged,) = knowing(gpu).judge(Reading(cards=(now,)), 0).cards
    assert judged.gpu.healthy
    assert [each.reason for each in judged.gpu.mig_instances] == ["XID 95", ""]


@pytest.mark.parametrize("action", [action for action in Recovery if action])
def test_the_drivers_verdict(action: Recovery) -> None:
    """What the driver wants done takes the card out, until it wants nothing any more."""
    health = Health()
    assert reason(health, replace(NEW, recovery=action), 0).startswith("The driver says that the card needs ")
    assert back_after(health, replace(NEW, recovery=action), 0) is None
    assert back_after(health, NEW, 100) == SETTLE


@pytest.mark.parametrize("kind", [EventKind.DOUBLE_BIT_ECC, EventKind.UNAVAILABLE])
def test_other_events(kind: EventKind) -> None:
    """A double-bit error and an unavailable card are fatal as well."""
    health = Health()
    health.heard(Event("A", kind))
    assert reason(health, NEW, 0)
    assert back_after(health, NEW, 0) == SETTLE


def test_uncorrectable_errors() -> None:
    """A rise is trouble; old errors are, where the driver does not say that it wants nothing done about them."""
    assert reason(Health(), replace(NEW, ecc_uncorrected=3), 0) == ""
    assert reason(Health(), replace(OLD, ecc_uncorrected=3), 0)
    assert reason(Health(), replace(OLD, repair_pending=True), 0)
    health = Health()
    assert reason(health, replace(NEW, ecc_uncorrected=3), 0) == ""
    assert reason(health, replace(NEW, ecc_uncorrected=4), 1) == "Uncorrectable memory errors"
    assert back_after(health, replace(NEW, ecc_uncorrected=4), 1) == SETTLE


def test_a_silent_card() -> None:
    """A card that hangs goes out of service after a while, under one unchanging reason."""
    health = Health(silent_s=SILENT)
    assert reason(health, replace(NEW, age_s=SILENT), 0) == ""
    assert len({reason(health, replace(NEW, age_s=SILENT + n), n) for n in (1.0, 2.0)}) == 1
    assert back_after(health, NEW, 2) == SETTLE


def test_the_reason_stays_while_a_card_stays_bad() -> None:
    """A dying card says something else every second; what an event tells takes the place of that."""
    health = Health()

    def dying(said: str) -> Card:
        return replace(NEW, gpu=replace(NEW.gpu, healthy=False, reason=said))

    assert {reason(health, dying(said), now) for now, said in enumerate("abab")} == {"a"}
    assert reason(health, NEW, 4) == "a"
    assert reason(health, dying("b"), 5) == "a"
    health.heard(xid(79))
    assert {reason(health, dying(said), 6 + now)[:6] for now, said in enumerate("abab")} == {"XID 79"}
    assert back_after(health, NEW, 9) == SETTLE
    assert reason(health, dying("b"), 100) == "b"


@pytest.mark.parametrize("benign", [APPLICATION_XIDS, frozenset({79})])
def test_which_events_cannot_wait(benign: frozenset[int]) -> None:
    """All but the application's errors, by the same list."""
    health = Health(benign)
    assert [code for code in (31, 48, 79) if health.heard(xid(code))] == [c for c in (31, 48, 79) if c not in benign]
    assert all(health.heard(Event("A", kind)) for kind in EventKind if kind is not EventKind.XID)


def test_memory_that_cannot_be_read() -> None:
    """A failing call for memory is trouble; one for anything else only keeps a bad card from coming back."""
    failing = replace(NEW, gpu=replace(NEW.gpu, used_mib=None), failed=("nvmlDeviceGetMemoryInfo: Unknown Error",))
    assert reason(Health(), failing, 0) == "The driver does not answer for the card's memory."
    health = Health()
    odd = replace(NEW, failed=("nvmlDeviceGetUtilizationRates: Unknown Error",))
    assert reason(health, odd, 0) == ""
    health.heard(xid(79))
    assert reason(health, odd, 1)
    assert back_after(health, odd, 1) is None


def test_an_instance_dies_alone() -> None:
    """An XID of a GPU instance takes that one out; one of the whole card, or of an unknown instance, the card."""
    gpu = replace(
        NEW.gpu, mig=True, mig_instances=(MigInstance("M1", gpu_instance=1), MigInstance("M2", gpu_instance=2))
    )
    card = replace(NEW, gpu=gpu)
    health = Health()
    health.heard(xid(95, instance=2))
    (judged,) = health.judge(Reading(cards=(card,)), 0).cards
    assert judged.gpu.healthy
    assert [each.healthy for each in judged.gpu.mig_instances] == [True, False]
    for n in range(1, 11):
        (judged,) = health.judge(Reading(cards=(card,)), n).cards
    assert [each.reason for each in judged.gpu.mig_instances] == ["", ""]
    health.heard(xid(95, instance=7))
    assert reason(health, card, 20) == "XID 95 (uncontained memory error)"


def test_events_of_cards_that_are_not_there() -> None:
    """They are counted, and hurt nobody."""
    health = Health()
    health.heard(xid(79, uuid="B"))
    assert reason(health, NEW, 0) == ""
    assert health.xids == {("B", 79): 1}


READ = [NEW, NEW, NEW, OLD, lost(NEW), lost(OLD), replace(NEW, recovery=Recovery.RESET), replace(NEW, age_s=99.0)]


class Histories(RuleBasedStateMachine):
    """Any history of one card, against rules that are said in whole histories and not in states."""

    def __init__(self) -> None:
        super().__init__()
        self.health = Health(probes=PROBES, settle_s=SETTLE, silent_s=SILENT)
        self.now = 0.0
        self.card = NEW
        self.readings: list[tuple[float, Card, bool, str]] = []  # when, which, after a fatal event?, why out
        self.fatal = False

    @rule(code=st.sampled_from([13, 31, 43, 45, 68, 109]))
    def benign(self, code: int) -> None:
        self.health.heard(xid(code))

    @rule(code=st.sampled_from([48, 74, 79]))
    def dies(self, code: int) -> None:
        self.health.heard(xid(code))
        self.fatal = True

    @rule(card=st.sampled_from(READ), times=st.integers(1, 6), step=st.floats(0.1, 6.0))
    def read(self, card: Card, times: int, step: float) -> None:
        for _ in range(times):
            self.now += step
            why = reason(self.health, card, self.now)
            self.readings.append((self.now, card, self.fatal, why))
            self.fatal = False

    @invariant()
    def trouble_is_told_at_once(self) -> None:
        """A reading that shows trouble, or follows a fatal event, is never told as good."""
        for _, card, fatal, why in self.readings:
            if fatal or card not in (NEW, OLD):
                assert why

    @invariant()
    def nothing_comes_back_early(self) -> None:
        """Between trouble and service lie enough good readings, and enough time."""
        trouble, good = None, 0
        for at, card, fatal, why in self.readings:
            if fatal or card not in (NEW, OLD):
                trouble, good = at, 0
                continue
            good += 1
            if trouble is not None and not why:
                assert good >= PROBES
                assert at - trouble >= SETTLE
                trouble = None

    @invariant()
    def good_cards_come_back(self) -> None:
        """After enough good readings under a driver that wants nothing the card is in service."""
        good, since = 0, 0.0
        for at, card, fatal, why in self.readings:
            good, since = (good + 1, since) if card == NEW and not fatal else (0, at)
            if good > PROBES and at - since >= SETTLE:
                assert why == ""

    @invariant()
    def no_trouble_no_reason(self) -> None:
        """A card that never was in trouble never was out of service."""
        if all(card in (NEW, OLD) and not fatal for _, card, fatal, _ in self.readings):
            assert {why for *_, why in self.readings} <= {""}


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=100, stateful_step_count=20, deadline=None)
