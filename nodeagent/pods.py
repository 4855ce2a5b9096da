"""The pods of this node: which cards each was granted, and which of its containers is which.

A list and a watch of this node's pods alone. While the API server is away the last pods that were seen count.
"""

import logging
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final

from contract.assignment import BadAssignment, decode
from contract.names import ASSIGNMENT
from nodeagent.api import Api, Refused, Unreachable

log: Final = logging.getLogger(__name__)

PAGE: Final = 50  # objects in one answer: a list of all would be the largest thing that the agent ever holds
WATCH_SECONDS: Final = (300, 600)  # at random, or all agents would come back together
INACTIVITY: Final = 70.0  # bookmarks come every minute
PAUSES: Final = (0.5, 30.0)
STEADY_SECONDS: Final = 30.0  # a watch that lasted so long was no failure
FAILURES_TO_LIST: Final = 5  # a version that no server accepts must not be asked for until the end of time
SHORT_SECONDS: Final = 1.0  # a watch that ended sooner is not asked for again at once
MIRROR: Final = "kubernetes.io/config.mirror"  # what the kubelet names a static pod's cgroup after
_HASH: Final = re.compile("[0-9a-f]{32}")  # never a UID, whoever wrote it

Mib = int
Grants = Mapping[str, Mib]  # by card


@dataclass(frozen=True, slots=True)
class HeldPod:
    """A pod of this node that has not finished.

    `granted`: MiB by card that the pod as a whole may use, as the extender charges it. `by_container`: by container
    name. `names`: container name by the runtime's id. Both are empty for a pod without a readable record.
    """

    namespace: str
    name: str
    uid: str
    granted: Grants = field(default_factory=dict)
    by_container: Mapping[str, Grants] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    every: int = 0  # containers in its spec


def pod_in(raw: Mapping[str, Any], node: str) -> HeldPod | None:
    """Return what a pod's JSON says; None if it has finished or is another node's."""
    meta, spec, status = (raw.get(part) or {} for part in ("metadata", "spec", "status"))
    if spec.get("nodeName") != node or status.get("phase") in ("Succeeded", "Failed"):
        return None
    notes, uid = meta.get("annotations") or {}, str(meta.get("uid"))
    mirror = str(notes.get(MIRROR))
    by_container: dict[str, Grants] = {}
    try:
        record = decode(notes[ASSIGNMENT]) if ASSIGNMENT in notes else None
    except BadAssignment:
        record = None  # the extender closes the node and says why; here nothing is granted
    if record is not None and (record.node, record.uid) == (node, uid):
        by_container = {name: {g.gpu: g.mib for g in grants} for name, grants in record.containers.items()}
    inits, mains = spec.get("initContainers") or [], spec.get("containers") or []
    told = [
        item
        for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses")
        for item in status.get(key) or ()
    ]
    return HeldPod(
        str(meta.get("namespace")),
        str(meta.get("name")),
        mirror if _HASH.fullmatch(mirror) else uid,
        _charge(by_container, inits, mains),
        by_container,
        {str(item["containerID"]).rpartition("/")[2]: str(item["name"]) for item in told if item.get("containerID")},
        len(inits) + len(mains),
    )


def _charge(by_container: Mapping[str, Grants], inits: list[Any], mains: list[Any]) -> Grants:
    """Return MiB by card: the containers with their sidecars, or an init container with the sidecars before it."""
    most: dict[str, Mib] = {}
    beside: dict[str, Mib] = {}

    def add(to: dict[str, Mib], name: str) -> dict[str, Mib]:
        for gpu, mib in by_container.get(name, {}).items():
            to[gpu] = to.get(gpu, 0) + mib
        return to

    def peak(of: dict[str, Mib]) -> None:
        for gpu, mib in of.items():
            most[gpu] = max(most.get(gpu, 0), mib)

    for container in inits:
        sidecar = container.get("restartPolicy") == "Always"
        peak(add(beside if sidecar else dict(beside), container["name"]))
    for container in mains:
        add(beside, container["name"])
    peak(beside)
    return most


class PodWatch:
    """The pods of one node, by UID, kept up in a thread of its own."""

    def __init__(
        self, api: Api, node: str, *, clock: Callable[[], float] = time.monotonic, rng: Random | None = None
    ) -> None:
        self._api, self._node, self._clock, self._rng = api, node, clock, rng or Random()
        self._pods: dict[str, HeldPod] | None = None
        self._keys: dict[str, str] = {}  # metadata.uid -> uid, which differ for a static pod
        self._version = ""
        self._stopping = threading.Event()
        self.on_list: Callable[[], object] = lambda: None  # who waits for the first list

    def pods(self) -> Mapping[str, HeldPod] | None:
        """Return the pods by UID as now known, never changed afterwards; None before they were first listed."""
        return self._pods

    def stop(self) -> None:
        """End `run` when its watch next says something, from another thread."""
        self._stopping.set()

    def run(self) -> None:
        """List and watch until `stop`, with a longer pause after each failure."""
        failures = 0
        while not self._stopping.is_set():
            started = self._clock()
            try:
                if not self._version:
                    self._list()
                began = self._clock()
                self._follow()
                if self._clock() - began < SHORT_SECONDS:
                    raise Unreachable("The watch ended at once.")
                failures = 0
            except (Unreachable, Refused) as error:
                failures = 1 if self._clock() - started > STEADY_SECONDS else failures + 1
                if isinstance(error, Refused) or failures % FAILURES_TO_LIST == 0:
                    self._version = ""
                log.log(logging.WARNING if failures > 1 else logging.INFO, "Lost sight of the node's pods: %s", error)
                pause = min(PAUSES[1], PAUSES[0] * 2.0 ** min(failures, 10))
                self._stopping.wait(pause * self._rng.uniform(0.5, 1.0))
            except Exception:  # the only eye on the pods must not close
                log.exception("Reading the node's pods failed.")
                self._version = ""
                self._stopping.wait(PAUSES[1])

    def _query(self) -> dict[str, Any]:
        return {"fieldSelector": f"spec.nodeName={self._node}"}

    def _list(self) -> None:
        found: dict[str, HeldPod] = {}
        query = self._query() | {"limit": PAGE}
        while True:
            page = self._api.send("GET", "/api/v1/pods", query=query)
            self._keys = {} if not found else self._keys
            for raw in page.get("items") or ():
                self._put(found, raw)
            if not (more := page["metadata"].get("continue")):
                break
            query["continue"] = more
        self._pods, self._version = found, str(page["metadata"]["resourceVersion"])
        self.on_list()

    def _follow(self) -> None:
        query = self._query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": self._rng.randint(*WATCH_SECONDS),
        }
        for event in self._api.watch("/api/v1/pods", query, INACTIVITY):
            if self._stopping.is_set():
                return
            raw = event.get("object") or {}
            if event.get("type") == "ERROR":
                raise Refused(int(raw.get("code") or 0), str(raw.get("message") or "The watch ended with an error."))
            if event.get("type") != "BOOKMARK":
                self._take(str(event.get("type")), raw)
            self._version = str(raw["metadata"]["resourceVersion"])

    def _take(self, kind: str, raw: Mapping[str, Any]) -> None:
        now = dict(self._pods or {})
        now.pop(self._keys.pop(str(raw["metadata"].get("uid")), ""), None)
        if kind != "DELETED":
            self._put(now, raw)
        self._pods = now  # another dict: who reads the old one is not disturbed

    def _put(self, pods: dict[str, HeldPod], raw: Mapping[str, Any]) -> None:
        if (pod := pod_in(raw, self._node)) is not None:
            pods[pod.uid] = pod
            self._keys[str(raw["metadata"].get("uid"))] = pod.uid
