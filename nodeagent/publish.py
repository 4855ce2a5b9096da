"""The node's report to the API server: the GPUNode's status, by server-side apply, when a change is worth telling.

Only the newest report is kept, so an API server that is away for an hour costs nothing but the wait. A report is
remembered as told once the API server has said so, never before.
"""

import logging
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from random import Random
from typing import Any, Final

from contract.inventory import API_VERSION, Inventory, encode
from contract.names import GROUP, KIND, PLURAL, VERSION
from nodeagent.api import APPLY, Api, Refused, Unreachable
from nodeagent.conditions import as_status
from nodeagent.smooth import Report, worth_telling

log: Final = logging.getLogger(__name__)

MANAGER: Final = "tessera-agent"
PATH: Final = f"/apis/{GROUP}/{VERSION}/{PLURAL}"
LONGEST_PAUSE: Final = 30.0
RETELL_SECONDS: Final = 600.0  # the same words again, which etcd does not store, in case the object was touched
LOOK_SECONDS: Final = 60.0  # without a write: whether the object is still there

Clock = Callable[[], float]


def owner_of(api: Api, node: str) -> list[dict[str, Any]]:
    """Return the owner reference to a Node: what is the node's goes when the node does.

    Raises
    ------
    Refused, Unreachable
    """
    uid = api.send("GET", f"/api/v1/nodes/{node}")["metadata"]["uid"]
    return [{"apiVersion": "v1", "kind": "Node", "name": node, "uid": uid}]


def last_told(api: Api, node: str, query: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return a node's GPUNode as it is now, empty if there is none.

    Raises
    ------
    Refused, Unreachable
    """
    try:
        return api.send("GET", f"{PATH}/{node}", query=query) or {}
    except Refused as error:
        if error.status != 404:
            raise
        return {}


def written_at(gpunode: Mapping[str, Any]) -> float | None:
    """Return when an agent last changed a GPUNode, in seconds since 1970; None: it does not say."""
    fields = (gpunode.get("metadata") or {}).get("managedFields") or ()
    times = [each["time"] for each in fields if each.get("manager") == MANAGER and each.get("time")]
    return max((datetime.fromisoformat(time).timestamp() for time in times), default=None)


def summary(inventory: Inventory) -> dict[str, Any]:
    """Return the cards summed up for `kubectl get gpunodes`, whose columns cannot count."""
    gpus = inventory.gpus
    out: dict[str, Any] = {"cards": len(gpus), "healthy": f"{sum(gpu.healthy for gpu in gpus)}/{len(gpus)}"}
    if models := sorted({gpu.model for gpu in gpus if gpu.model}):
        out["model"] = ", ".join(models)[:512]
    known = [
        (gpu.used_mib, gpu.memory_mib) for gpu in gpus if gpu.used_mib is not None and gpu.memory_mib is not None
    ]
    if known:
        used, total = (round(sum(mib) / 1024) for mib in zip(*known, strict=True))
        out["memory"] = f"{used}/{total} GiB"
    if busy := [gpu.utilization for gpu in gpus if gpu.utilization is not None]:
        out["utilization"] = f"{round(sum(busy) / len(busy))}%"
    return out


class Backoff:
    """When a thing that failed may be tried again: after longer and longer, never all agents together."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self._clock, self._rng = clock, rng
        self.failures = 0
        self._until = float("-inf")

    def over(self) -> bool:
        """Say whether it may be tried now."""
        return not self.left()

    def left(self) -> float:
        """Return the seconds until then."""
        return max(0.0, self._until - self._clock())

    def failed(self) -> None:
        """Wait longer than the last time."""
        self.failures += 1
        longest = min(LONGEST_PAUSE, 2.0 ** min(self.failures - 1, 10))
        self._until = self._clock() + longest * self._rng.uniform(0.5, 1.0)

    def done(self) -> None:
        """Forget all failures."""
        self.failures, self._until = 0, float("-inf")


class Publisher:
    """Tells one node's reports. `offer` is called by who reads, `step` and `retell` by who tells."""

    def __init__(
        self,
        api: Api,
        node: str,
        *,
        clock: Clock = time.monotonic,
        wall: Clock = time.time,
        rng: Random | None = None,
    ) -> None:
        self._api, self._node, self._clock, self._wall = api, node, clock, wall
        self._rng = rng or Random()
        self._backoff = Backoff(clock, self._rng)
        self._latest: Report | None = None
        self._told: Report | None = None
        self._told_at = self._retell_at = self._look_at = float("-inf")
        self._pace = 1.0  # agents that told together do not look and tell again together
        self._status: dict[str, Any] | None = None  # as the API server last had it from us
        self.writes = 0
        self.failures = 0

    def offer(self, report: Report) -> None:
        """Take the newest report; an older one that was not told yet is dropped."""
        self._latest = report

    def retell(self) -> None:
        """Let the last words be told again at the next step: the GPUNode may be gone."""
        self._retell_at = float("-inf")

    def step(self) -> None:
        """Tell what is worth telling now; a failure is logged, and tried again later with what is newest then."""
        report, now = self._latest, self._clock()
        if report is None or not self._backoff.over():
            return
        if worth_telling(self._told, report, now - self._told_at):
            self._try(report, self._made(report) if self._status is not None else None)
        elif self._told is not None:
            if now >= self._look_at and self._gone():
                self.retell()
            if now >= self._retell_at:
                self._try(self._told, self._status)

    def _gone(self) -> bool:
        """Say whether the API server knows that the GPUNode is not there; it answers from memory and asks no etcd."""
        self._look_at = self._clock() + LOOK_SECONDS * self._pace
        try:
            return not last_told(self._api, self._node, {"resourceVersion": "0"})
        except (Unreachable, Refused) as error:
            log.warning("Whether the GPUNode is still there is not known: %s", error)
            return False

    def _try(self, report: Report, status: dict[str, Any] | None) -> None:
        try:
            if status is None:
                self._status = (
                    last_told(self._api, self._node).get("status") or {}
                )  # conditions keep their times over a restart
                status = self._made(report)
            self._write(status)
        except (Unreachable, Refused) as error:
            self.failures += 1
            self._backoff.failed()
            log.warning("The report is not told yet: %s", error)
            return
        now, self._pace = self._clock(), self._rng.uniform(0.8, 1.2)
        if report is not self._told:
            self._told_at = now
        self._told, self._status = report, status
        self._retell_at, self._look_at = now + RETELL_SECONDS * self._pace, now + LOOK_SECONDS * self._pace
        self._backoff.done()

    def _made(self, report: Report) -> dict[str, Any]:
        at = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        before = (self._status or {}).get("conditions") or ()
        told = {"summary": summary(report.inventory), "conditions": as_status(report.conditions, before, at)}
        return encode(report.inventory) | told

    def _write(self, status: dict[str, Any]) -> None:
        try:
            self._apply("/status", {}, {"status": status})
        except Refused as error:
            if error.status != 404:
                raise
            self._apply("", {"ownerReferences": owner_of(self._api, self._node)}, {})
            self._apply("/status", {}, {"status": status})
        self.writes += 1

    def _apply(self, part: str, metadata: dict[str, Any], more: dict[str, Any]) -> None:
        body = {"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": self._node} | metadata} | more
        query = {"fieldManager": MANAGER, "force": "true"}
        self._api.send("PATCH", f"{PATH}/{self._node}{part}", body, content=APPLY, query=query)
