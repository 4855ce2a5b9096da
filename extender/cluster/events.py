"""An Event about a pod, as the API server takes it: `kubectl describe pod` shows it there."""

from datetime import datetime
from typing import Any, Final

from extender.wire import Pod

COMPONENT: Final = "tessera-extender"
MOST: Final = 1024  # characters of a message that the API server takes


def event_of(about: Pod, reason: str, message: str, now: datetime, *, warning: bool = False) -> dict[str, Any]:
    """Return the body of a new Event."""
    meta, at = about.metadata, now.strftime("%Y-%m-%dT%H:%M:%SZ")
    pod = {"apiVersion": "v1", "kind": "Pod", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid}
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{meta.name[:200]}.", "namespace": meta.namespace},
        "involvedObject": pod,
        "reason": reason,
        "message": message[:MOST],
        "type": "Warning" if warning else "Normal",
        "source": {"component": COMPONENT},
        "reportingComponent": COMPONENT,
        "firstTimestamp": at,
        "lastTimestamp": at,
        "count": 1,
    }
