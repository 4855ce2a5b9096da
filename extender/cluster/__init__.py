"""The cluster as the extender needs it: what is watched, and the few things that are written.

`kube.py` is the API server, `embedded.py` a YAML file; both satisfy `Cluster`.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

from extender.wire import AgentLease, Budget, GpuNode, Node, Pod

Watched = Node | GpuNode | Pod | AgentLease


class NotDone(Exception):
    """The write was certainly not carried out; the message is the cluster's reason, in one sentence."""


class Later(NotDone):
    """Certainly not done, and allowed later: a disruption budget or a busy cluster is in the way (HTTP 429)."""


class Away(NotDone):
    """Certainly not done, because the cluster could not be reached in time: not a word of it was sent."""


class PerhapsDone(Exception):
    """The write may have been carried out: no answer tells. Only a look at the object does."""


class Silent(PerhapsDone):
    """Perhaps done, and not an answer came at all: the cluster is away, or the way to it is."""


@dataclass(frozen=True, slots=True)
class Binding:
    """A pod, the node it goes to, and the annotations that travel in the same transaction."""

    namespace: str
    pod: str
    uid: str
    node: str
    annotations: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Event:
    """One line of a watch. `kind`: ADDED, MODIFIED, DELETED, or BOOKMARK, whose object is None."""

    kind: str
    object: Watched | None
    version: str


class Gone(Exception):
    """The resource version is too old to watch from: list again (HTTP 410)."""


class Unreachable(Exception):
    """The cluster did not answer, or not as it should: try again later."""


@dataclass(frozen=True, slots=True)
class Lease:
    """What a Lease says: its holder ("" is nobody), for how many seconds after each change; and its version."""

    holder: str
    seconds: int
    version: str


@dataclass(frozen=True, slots=True)
class Kept:
    """A certificate with its key and the CAs to trust it by, in PEM, and the pair that follows if there is one.

    `version`: of the Secret that it was read from; "" if there is none yet.
    """

    cert: bytes
    key: bytes
    bundle: bytes
    next_cert: bytes = b""
    next_key: bytes = b""
    version: str = ""


class Source(Protocol):
    """One kind of object, listed and watched. Blocking: it is called from a thread of its own."""

    kind: str  # "nodes", "gpunodes", "pods" or "leases"

    def list(self) -> tuple[list[Watched], str]:
        """Return every object, and the resource version that the list is of.

        Raises
        ------
        Unreachable
        """

    def watch(self, version: str) -> Iterator[Event]:
        """Yield what happened after `version` until the server ends the watch.

        The first event is a BOOKMARK of `version` itself: the watch is open.

        Raises
        ------
        Gone, Unreachable
        """

    def close(self) -> None:
        """End a watch under way, from another thread."""


class Cluster(Protocol):
    """What the extender may ask and do."""

    def sources(self) -> tuple[Source, ...]:
        """Return what is watched: nodes, gpunodes, pods, and the agents' leases if there are any, in this order."""

    async def bind(self, binding: Binding) -> None:
        """Bind a pod, with its annotations, in one transaction; return only with proof.

        Raises
        ------
        NotDone, PerhapsDone
        """

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the cluster has it now, or None if there is none.

        Raises
        ------
        Unreachable
        """

    async def budgets(self) -> list[Budget]:
        """Return every PodDisruptionBudget.

        Raises
        ------
        Unreachable
        """

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Evict a pod, if it is the one of this UID and its disruption budgets allow it now.

        Raises
        ------
        Later, NotDone, PerhapsDone
        """

    async def event(self, about: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Write an Event about a pod.

        Raises
        ------
        NotDone, PerhapsDone
        """


class Patcher(Protocol):
    """What merges into objects of a cluster. A file has nobody who would read it."""

    async def patch_node_status(self, name: str, body: dict[str, Any]) -> None:
        """Merge `body` into a Node's status; None removes a key.

        Raises
        ------
        NotDone, PerhapsDone
        """

    async def patch_pod(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Merge `body` into a pod; a UID in its metadata is a precondition.

        Raises
        ------
        NotDone, PerhapsDone
        """
