"""Who uses more than was granted, and who uses a card that was not granted: what is said of it, and when. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from nodeagent.notices import Notice
from nodeagent.use import CardUse, PodUse

OVER: Final = "GPUMemoryOverGrant"
NOT_GRANTED: Final = "GPUNotGranted"
EVICTED: Final = "GPUMemoryEviction"
SETTLE_SECONDS: Final = 5.0  # a process may be seen before its pod's record is
SLACK_MIB: Final = 64


@dataclass(frozen=True, slots=True)
class Bounds:
    """Beyond its grant by so many percent (and 64 MiB), for longer than so many seconds; then evict or not."""

    tolerance_percent: int = 5
    window_s: float = 30.0
    evict: bool = False


class Observer:
    """Judges use by pod, second by second."""

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._since: dict[tuple[str, str, str], float] = {}
        self._said: set[tuple[str, str, str]] = set()
        self.counts = dict.fromkeys((OVER, NOT_GRANTED), 0)

    def step(self, uses: Mapping[str, CardUse], shared: set[str], now: float) -> list[Notice]:
        """Return what is new to say, and who shall go as long as that is so.

        `shared`: the cards that Tessera gives out, and that were read just now.
        """
        judged = {(u.pod.uid, card, reason): u for card, u, reason in self._breaches(uses) if card in shared}
        self._since = {key: self._since.get(key, now) for key in judged}
        self._said &= judged.keys()  # again only after it has ended
        notices: list[Notice] = []
        for key, use in judged.items():
            _, card, reason = key
            window = self._bounds.window_s if reason == OVER else SETTLE_SECONDS
            if now - self._since[key] < window:
                continue
            if key not in self._said:
                self._said.add(key)
                self.counts[reason] += 1
                notices.append(Notice(use.pod, card, reason, _sentence(use, card)))
            if reason == OVER and self._bounds.evict:
                notices.append(Notice(use.pod, card, EVICTED, "", evict=True))
        return notices

    def lasts(self, uid: str, card: str) -> bool:
        """Say whether a pod was beyond its grant on a card at the last step."""
        return (uid, card, OVER) in self._since

    def _breaches(self, uses: Mapping[str, CardUse]) -> Iterator[tuple[str, PodUse, str]]:
        for card, use in uses.items():
            for by_pod in use.pods:
                if by_pod.granted_mib is None:
                    yield card, by_pod, NOT_GRANTED
                elif by_pod.granted_mib and (by_pod.used_mib or 0) > self._allowed(by_pod.granted_mib):
                    yield card, by_pod, OVER

    def _allowed(self, mib: int) -> float:
        return mib * (100 + self._bounds.tolerance_percent) / 100 + SLACK_MIB


def _sentence(use: PodUse, card: str) -> str:
    used = "some memory" if use.used_mib is None else f"{use.used_mib} MiB"
    if use.granted_mib is None:
        return f"A process of this pod uses {used} of card {card}, which was not granted to the pod."
    return f"This pod uses {used} of card {card}; it was granted {use.granted_mib} MiB."
