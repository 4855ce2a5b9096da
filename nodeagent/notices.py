"""What is said about a pod to its owner: events, and an eviction where a setting asks for it."""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Final

from nodeagent.api import Api, Refused, Unreachable
from nodeagent.pods import HeldPod
from nodeagent.publish import MANAGER, Backoff, Clock

log: Final = logging.getLogger(__name__)

WAITING: Final = 64
AGAIN_SECONDS: Final = 3600.0  # before the same is said of the same pod and card again
LEAST_EVICT_SECONDS: Final = 10.0  # an eviction must live until it is told

_Key = tuple[str, str, str]  # a pod's UID, a card, a reason


@dataclass(frozen=True, slots=True)
class Notice:
    """One sentence about a pod and a card, for an event; `evict`: the pod shall go, which its own event tells."""

    pod: HeldPod
    card: str
    reason: str
    sentence: str
    evict: bool = False


class Notices:
    """Sends notices one at a time. `add` is called by who observes, `step` by who tells."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        lasts: Callable[[str, str], bool] = lambda *_: True,
        over_s: float = 30.0,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        rng: Random | None = None,
    ) -> None:
        """Make it.

        Parameters
        ----------
        lasts
            Whether the pod of a UID is still beyond its grant on a card: else it is not evicted.
        over_s
            How long that must last. An eviction that waits twice as long is dropped: who observes asks for it anew.
        """
        self._api, self._node, self._clock, self._wall = api, node, clock, wall
        self._lasts, self._evict_s = lasts, max(2 * over_s, LEAST_EVICT_SECONDS)
        self._backoff = Backoff(clock, rng or Random())
        self._waiting: deque[tuple[float, Notice]] = deque(maxlen=WAITING)  # each with when it was added
        self._quiet: dict[_Key, float] = {}  # until when the same is not taken
        self._done: deque[_Key] = deque()  # evictions that went out, from `step` to `add`
        self.evicted = 0

    def add(self, notice: Notice) -> None:
        """Let a notice go out, unless the same went out within the last hour; the oldest waiting gives way."""
        now, key = self._clock(), _key(notice)
        while self._done:
            self._quiet[self._done.popleft()] = now + AGAIN_SECONDS
        self._quiet = {k: until for k, until in self._quiet.items() if now < until}
        if key not in self._quiet:
            self._quiet[key] = now + (self._evict_s if notice.evict else AGAIN_SECONDS)
            self._waiting.append((now, notice))

    def step(self) -> bool:
        """Send one notice if any waits; say whether another can go at once."""
        while self._backoff.over() and self._waiting:
            added, notice = self._waiting.popleft()
            if not notice.evict or self._wanted(notice, added):
                self._send(notice, added)
                break
        return self._backoff.over() and bool(self._waiting)

    def _send(self, notice: Notice, added: float) -> None:
        try:
            (self._evict if notice.evict else self._post)(notice)
        except Refused as error:  # the pod is gone: saying it again would not help
            log.warning("%s/%s: %s is not told: %s", notice.pod.namespace, notice.pod.name, notice.reason, error)
        except Unreachable:  # or a disruption budget protects the pod for now
            self._waiting.append((added, notice))
            self._backoff.failed()
            return
        self._backoff.done()
        if notice.evict:
            self._done.append(_key(notice))

    def _wanted(self, notice: Notice, added: float) -> bool:
        """Say whether a pod shall still go: what was true when it was asked for may not be any more."""
        return self._clock() - added <= self._evict_s and self._lasts(notice.pod.uid, notice.card)

    def _post(self, notice: Notice) -> None:
        pod, at = notice.pod, datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"generateName": f"{pod.name[:200]}.", "namespace": pod.namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": "Pod",
                "namespace": pod.namespace,
                "name": pod.name,
                "uid": pod.uid,
            },
            "reason": notice.reason,
            "message": notice.sentence,
            "type": "Warning",
            "source": {"component": MANAGER, "host": self._node},
            "firstTimestamp": at,
            "lastTimestamp": at,
            "count": 1,
        }
        self._api.send("POST", f"/api/v1/namespaces/{pod.namespace}/events", event)

    def _evict(self, notice: Notice) -> None:
        pod = notice.pod
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        self._api.send("POST", f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}/eviction", body)
        self.evicted += 1


def _key(notice: Notice) -> _Key:
    return notice.pod.uid, notice.card, notice.reason
