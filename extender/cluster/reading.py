"""What the API server sends: lists in pages, watches with bookmarks, its own sentences.

Answers stay bytes until msgspec decodes the few fields that Tessera uses: the client's own models take ten
times the time and memory, and refuse a whole list for one odd object.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from random import Random
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.json import Decoder
from urllib3 import HTTPResponse

from contract import names
from extender.cluster import Event, Gone, Unreachable, Watched
from extender.cluster.api import TROUBLE, Api, short
from extender.wire import AgentLease, GpuNode, Node, Pod

CONNECT_SECONDS: Final = 5.0
LIST_SECONDS: Final = 60.0  # between two reads of one page
WATCH_SECONDS: Final = (300, 600)  # at random, or all watches would end and come back together

T = TypeVar("T")


class _ListMeta(Struct, rename={"resource_version": "resourceVersion", "more": "continue"}):
    resource_version: str = ""
    more: str = ""


class Page(Struct, Generic[T]):
    """A part of a list; `more` says where the next one begins."""

    metadata: _ListMeta = field(default_factory=_ListMeta)
    items: list[T] | None = None


class _Event(Struct):
    type: str
    object: msgspec.Raw


class Status(Struct):
    """Why the API server did not do what it was asked."""

    code: int = 0
    reason: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class Kind:
    """Where a kind of object is, and how it is read."""

    path: str
    page: Decoder[Any]
    one: Decoder[Any]


GPUNODES: Final = f"/apis/{names.GROUP}/{names.VERSION}/{names.PLURAL}"
_LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/{agents}/leases"
KINDS: Final = {
    "nodes": Kind("/api/v1/nodes", Decoder(Page[Node]), Decoder(Node)),
    "gpunodes": Kind(GPUNODES, Decoder(Page[GpuNode]), Decoder(GpuNode)),
    "pods": Kind("/api/v1/pods", Decoder(Page[Pod]), Decoder(Pod)),
    "leases": Kind(_LEASES, Decoder(Page[AgentLease]), Decoder(AgentLease)),
}
_event: Final = Decoder(_Event)
STATUS: Final = Decoder(Status)


def told(status: int, body: bytes) -> str:
    """Return the API server's own sentence, cut, or its status code if it sent none."""
    try:
        message = STATUS.decode(body).message
    except msgspec.DecodeError:
        message = ""
    return short(message or f"The API server answered {status}.")


class KubeSource:
    """One kind of object, listed in pages and watched with bookmarks. See `extender.cluster.Source`."""

    def __init__(self, api: Api, kind: str, page: int, inactivity: float, rng: Random, agents: str) -> None:
        self.kind = kind
        self._kind = KINDS[kind]
        self._path = self._kind.path.format(agents=agents)
        self._api, self._page, self._inactivity, self._rng = api, page, inactivity, rng
        self._lock = threading.Lock()
        self._response: HTTPResponse | None = None
        self._closed = False

    def list(self) -> tuple[list[Watched], str]:
        """Return every object, and the resource version that the list is of."""
        objects: list[Watched] = []
        query: dict[str, Any] = {"limit": self._page}
        while True:
            with self._open(query, LIST_SECONDS) as response:
                if response.status != 200:
                    raise Unreachable(told(response.status, response.data))
                page = self._kind.page.decode(response.data)
            objects += page.items or ()
            if not page.metadata.more:
                return objects, page.metadata.resource_version
            query["continue"] = page.metadata.more

    def watch(self, version: str) -> Iterator[Event]:
        """Yield a bookmark of `version` once the server has agreed, then what happened after it."""
        query = {"watch": True, "allowWatchBookmarks": True, "resourceVersion": version}
        query["timeoutSeconds"] = self._rng.randint(*WATCH_SECONDS)
        try:
            with self._open(query, self._inactivity) as response:
                if response.status == 410:
                    raise Gone(told(410, response.data))
                if response.status != 200:
                    raise Unreachable(told(response.status, response.data))
                yield Event("BOOKMARK", None, version)
                for line in _lines(response):
                    yield self._event(line)
        except Unreachable:
            if not self._closed:
                raise

    def _event(self, line: bytes) -> Event:
        read = _event.decode(line)
        if read.type == "ERROR":
            status = STATUS.decode(read.object)
            raise (Gone if status.code == 410 else Unreachable)(told(status.code, bytes(read.object)))
        found = self._kind.one.decode(read.object)
        return Event(read.type, None if read.type == "BOOKMARK" else found, found.metadata.resource_version)

    @contextmanager
    def _open(self, query: dict[str, Any], read_seconds: float) -> Iterator[HTTPResponse]:
        timeout = (CONNECT_SECONDS, read_seconds)
        try:
            response = self._api.send("GET", self._path, timeout, query_params=query)
            try:
                self._hold(response)
                yield response
            finally:
                self._hold(None)
                response.close()
        except TROUBLE as error:
            raise Unreachable(short(f"{self.kind}: {error}")) from error

    def _hold(self, response: HTTPResponse | None) -> None:
        with self._lock:
            self._response = response
            if response is not None and self._closed:
                raise Unreachable(f"{self.kind}: closed.")

    def close(self) -> None:
        """End a list or watch under way, from another thread, and every later one."""
        with self._lock:
            self._closed = True
            if self._response is not None:
                with suppress(ValueError, RuntimeError, OSError):  # it ended by itself a moment ago
                    self._response.shutdown()


def _lines(response: HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from filter(None, lines)
