"""The agent's heartbeat: a Lease of the node's own, renewed every 30 s, so that nothing large is written for it."""

import logging
import time
from collections.abc import Callable
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from nodeagent.api import MERGE, Api, Refused, Unreachable
from nodeagent.publish import MANAGER, Backoff, Clock, owner_of

log: Final = logging.getLogger(__name__)

BEAT_SECONDS: Final = 30.0
JITTER: Final = 0.2
SILENT_SECONDS: Final = 90


class Heart:
    """Renews the Lease of one node in the agents' namespace."""

    def __init__(
        self,
        api: Api,
        node: str,
        namespace: str,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        rng: Random | None = None,
    ) -> None:
        self._api, self._node, self._clock, self._wall = api, node, clock, wall
        self._leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._rng = rng or Random()
        self._backoff = Backoff(clock, self._rng)
        self._due = float("-inf")
        self.beats = 0
        self.on_made: Callable[[], object] = lambda: None  # who tells again what may be gone like the Lease

    def step(self) -> None:
        """Beat if it is time; a failure is logged and tried again soon."""
        if self._clock() < self._due or not self._backoff.over():
            return
        try:
            self._beat()
        except (Unreachable, Refused) as error:
            self._backoff.failed()
            log.warning("The heartbeat failed: %s", error)
            return
        self._backoff.done()
        self.beats += 1
        self._due = self._clock() + BEAT_SECONDS * self._rng.uniform(1 - JITTER, 1.0)

    def _beat(self) -> None:
        query = {"fieldManager": MANAGER}
        spec = {
            "holderIdentity": self._node,
            "leaseDurationSeconds": SILENT_SECONDS,
            "renewTime": datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        }
        try:
            self._api.send("PATCH", f"{self._leases}/{self._node}", {"spec": spec}, content=MERGE, query=query)
        except Refused as error:
            if error.status != 404:
                raise
            metadata: dict[str, Any] = {"name": self._node, "ownerReferences": owner_of(self._api, self._node)}
            lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
            self._api.send("POST", self._leases, lease, query=query)
            self.on_made()
