"""What is said of pods that use too much, or a card that is not theirs."""

from nodeagent.observe import EVICTED, NOT_GRANTED, OVER, Bounds, Observer
from nodeagent.use import CardUse, PodUse
from tests.nodeagent.given import held


def using(mib: int | None, granted: int | None = 4096) -> dict[str, CardUse]:
    """Return one pod's use of one card."""
    return {"GPU-a": CardUse(0, (PodUse(held("p"), mib, None, granted),))}


class Watched:
    """An observer whose notices are noted by reason."""

    def __init__(self, **bounds: bool) -> None:
        self.observer = Observer(Bounds(5, 30.0, **bounds))
        self.sentences: list[str] = []

    def at(self, now: float, uses: dict[str, CardUse]) -> list[str]:
        """Return the reasons of what is new at this second."""
        notices = self.observer.step(uses, {"GPU-a"}, now)
        self.sentences += [notice.sentence for notice in notices]
        return [notice.reason for notice in notices]


def test_over_use_is_told_once_after_the_window() -> None:
    """Thirty seconds beyond the tolerance, once; again only after it was within."""
    seen, over = Watched(), 4096 * 105 // 100 + 65
    assert [seen.at(t, using(over)) for t in (0.0, 29.9, 30.0, 31.0, 500.0)] == [[], [], [OVER], [], []]
    assert seen.sentences == [f"This pod uses {over} MiB of card GPU-a; it was granted 4096 MiB."]
    assert seen.at(501.0, using(4096)) == []
    assert [seen.at(t, using(over)) for t in (502.0, 531.0, 532.0)] == [[], [], [OVER]]
    assert seen.observer.counts == {OVER: 2, NOT_GRANTED: 0}


def test_a_peak_and_the_tolerance_are_no_over_use() -> None:
    """5 % and 64 MiB beyond a grant are tolerated for ever, more for less than the window."""
    seen, most = Watched(), 4096 * 105 // 100 + 64
    assert [seen.at(t, using(most)) for t in (0.0, 100.0)] == [[], []]
    assert [seen.at(t, using(9000 if t % 20 else 0)) for t in range(100, 200, 5)] == [[]] * 20


def test_a_card_that_was_not_granted_is_a_violation() -> None:
    """It is told after five seconds: the record may be seen later than the process."""
    seen = Watched()
    assert [seen.at(t, using(300, None)) for t in (0.0, 4.0, 5.0, 6.0)] == [[], [], [NOT_GRANTED], []]
    assert "300 MiB of card GPU-a, which was not granted" in seen.sentences[0]
    unknown = Watched()
    assert [unknown.at(t, using(None, None)) for t in (0.0, 5.0)] == [[], [NOT_GRANTED]]


def test_cards_that_are_not_shared_are_not_judged() -> None:
    """Nobody was granted a card in MIG mode, so nobody breaks a grant on it."""
    observer = Observer(Bounds())
    assert [observer.step(using(300, None), set(), t) for t in (0.0, 60.0)] == [[], []]


def test_eviction_only_by_setting() -> None:
    """Over-use evicts where a setting says so; a violation never does."""
    seen = Watched(evict=True)
    assert [seen.at(t, using(9000)) for t in (0.0, 30.0, 31.0)] == [[], [OVER, EVICTED], [EVICTED]]
    assert seen.observer.lasts("uid-p", "GPU-a")
    assert seen.at(32.0, using(4096)) == []
    assert not seen.observer.lasts("uid-p", "GPU-a")
    other = Watched(evict=True)
    assert [other.at(t, using(9000, None)) for t in (0.0, 5.0)] == [[], [NOT_GRANTED]]
