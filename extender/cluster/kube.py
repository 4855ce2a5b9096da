"""The cluster behind an API server: what is written there and what is asked, within a deadline, through one circuit.

`api.py` is the way there, `reading.py` lists and watches. No decision enters here, and nothing is remembered or
tried again: `extender/watch.py` keeps the streams going, `extender/bind.py` knows what a failure means.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from dataclasses import field as dataclass_field
from datetime import UTC, datetime
from random import Random
from typing import Any, Final, Self, TypeVar

from msgspec.json import Decoder

from contract import names
from extender.cluster import (
    Away,
    Binding,
    Later,
    NotDone,
    PerhapsDone,
    Silent,
    Source,
    Unreachable,
)
from extender.cluster.api import TROUBLE, UNSENT, Api, api_of, short
from extender.cluster.binding import body_of, check_annotations
from extender.cluster.circuit import Circuit
from extender.cluster.events import event_of
from extender.cluster.reading import GPUNODES, KINDS, STATUS, KubeSource, Page, told
from extender.wire import Budget, Pod

PATCHES: Final = 4  # under way at the same time
AWAY: Final = "the API server is away; nothing was sent"  # as stable as what reaches a pod has to be

T = TypeVar("T")

_POD: Final = "/api/v1/namespaces/{namespace}/pods/{name}"
_EVENTS: Final = "/api/v1/namespaces/{namespace}/events"
_BUDGETS: Final = "/apis/policy/v1/poddisruptionbudgets"
_budget_page: Final = Decoder(Page[Budget])
_NODE_STATUS: Final = "/api/v1/nodes/{name}/status"
_MERGE: Final = "application/merge-patch+json"
_APPLY: Final = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class _Write:
    """One request that changes something; `what` names it in messages."""

    what: str
    method: str
    path: str
    where: dict[str, str]
    body: dict[str, Any]
    content: str = "application/json"
    query: dict[str, str] = dataclass_field(default_factory=dict)


class _Queued(Away):
    """It never left this process, which tells nothing of the API server."""


class _Unheard(Unreachable):
    """Not an answer came at all."""


class KubeCluster:
    """The cluster behind an API server. See `extender.cluster.Cluster`."""

    def __init__(self, api: Api, deadline: float, binds: int, source: Callable[[str], KubeSource]) -> None:
        self._api, self._deadline, self._source = api, deadline, source
        self.circuit = Circuit()
        self._threads = ThreadPoolExecutor(binds, thread_name_prefix="bind")
        self._patches = ThreadPoolExecutor(PATCHES, thread_name_prefix="patch")  # which no bind waits for
        self._turns = asyncio.Semaphore(PATCHES)

    @classmethod
    def connect(
        cls,
        kubeconfig: str | None = None,
        context: str | None = None,
        *,
        page: int = 500,
        deadline: float = 3.5,
        inactivity: float = 70.0,
        binds: int = 32,
        rng: Random | None = None,
        agents: str = names.AGENTS,
    ) -> Self:
        """Return a cluster, without asking it anything yet.

        Parameters
        ----------
        kubeconfig, context
            A file and one of its contexts. None: what kubectl would take, or, if there is no such file, the
            service account of the pod that this process runs in.
        page
            Objects in one answer to a list.
        deadline
            Seconds in which `bind` and `pod` answer, whatever happens.
        inactivity
            Seconds without a byte after which a watch is begun anew. Bookmarks come every minute, but not for a
            kind of which the API server has seen no event since it started.
        binds
            Requests under way at the same time; more wait, and their wait counts.
        agents
            The namespace of the agents' leases.

        Raises
        ------
        BadConnection
        """
        api, rng = api_of(kubeconfig, context, binds + PATCHES + len(KINDS)), rng or Random()
        return cls(api, deadline, binds, lambda kind: KubeSource(api, kind, page, inactivity, rng, agents))

    def close(self) -> None:
        """Let go of threads and connections; binds under way end by themselves within the deadline."""
        for threads in (self._threads, self._patches):
            threads.shutdown(wait=False, cancel_futures=True)
        self._api.close()

    def sources(self) -> tuple[Source, ...]:
        """Return new streams of nodes, gpunodes, pods and the agents' leases, in this order."""
        return tuple(map(self._source, KINDS))

    async def bind(self, binding: Binding) -> None:
        """Post the Binding once. See `extender.cluster.Cluster.bind`."""
        check_annotations(binding.annotations)
        where = {"namespace": binding.namespace, "name": binding.pod}
        post = _Write("Binding", "POST", f"{_POD}/binding", where, body_of(binding))
        await self._do(self._threads, post)

    async def patch_node_status(self, name: str, body: dict[str, Any]) -> None:
        """Merge into a Node's status. See `extender.cluster.Patcher`."""
        await self._patch(_Write("patch", "PATCH", _NODE_STATUS, {"name": name}, body, _MERGE))

    async def patch_pod(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Merge into a pod. See `extender.cluster.Patcher`."""
        where = {"namespace": namespace, "name": name}
        await self._patch(_Write("patch", "PATCH", _POD, where, body, _MERGE))

    async def apply_gpu_node_status(self, name: str, status: dict[str, Any]) -> None:
        """Make our part of a GPUNode's status be `status`. See `extender.controllers.status.Applier`."""
        body = {"apiVersion": f"{names.GROUP}/{names.VERSION}", "kind": names.KIND, "metadata": {"name": name}}
        query = {"fieldManager": "tessera-extender", "force": "true"}
        path = GPUNODES + "/{name}/status"
        apply = _Write("apply", "PATCH", path, {"name": name}, body | {"status": status}, _APPLY, query)
        await self._patch(apply)

    async def _patch(self, write: _Write) -> None:
        """Do what is no bind. Its time begins with its turn: a queue of our own is no trouble of the API server's."""
        async with self._turns:
            await self._do(self._patches, write)

    async def _do(self, threads: ThreadPoolExecutor, write: _Write) -> None:
        with self._through_the_circuit(Away(AWAY)):
            future = threads.submit(self._send, write, time.monotonic() + self._deadline)
            try:
                await asyncio.wait_for(asyncio.wrap_future(future), self._deadline)
            except TimeoutError as error:
                if future.cancel():
                    raise _Queued(f"No thread was free for the {write.what} within {self._deadline} s.") from error
                raise Silent(f"The {write.what} had no answer within {self._deadline} s.") from error

    @contextmanager
    def _through_the_circuit(self, refusal: Exception) -> Iterator[None]:
        """Raise a refusal while the circuit is open; else tell the circuit how the request ends."""
        start = time.monotonic()
        if not self.circuit.admits(start):
            raise refusal
        try:
            yield
        except _Queued:
            raise
        except (Away, Silent, _Unheard):
            self.circuit.failed(start, time.monotonic())
            raise
        except (NotDone, PerhapsDone, Unreachable):
            self.circuit.answered()
            raise
        self.circuit.answered()

    def _send(self, write: _Write, end: float) -> None:
        left = end - time.monotonic()
        if left <= 0:
            raise _Queued(f"The deadline was over before the {write.what} could be sent.")
        timeout = (left / 2, left)  # half to connect: failing there is certain, and comes before the deadline
        request: dict[str, Any] = {"path_params": write.where, "body": write.body}
        # The API server gives up as well: a write that lands late might meet another leader's.
        request["query_params"] = {"timeout": f"{self._deadline:g}s"} | write.query
        try:
            response = self._api.send(write.method, write.path, timeout, write.content, **request)
            if response.status in (200, 201):
                # The status line is the proof; the body is read so that the connection can be used again.
                with suppress(*TROUBLE):
                    response.drain_conn()
                return
            said = told(response.status, response.data)
        except UNSENT as error:
            raise Away(short(f"The {write.what} could not be sent: {error}")) from error
        except TROUBLE as error:
            raise Silent(short(f"The answer to the {write.what} was lost: {error}")) from error
        if response.status == 429:
            raise Later(said)
        raise (NotDone if 400 <= response.status < 500 else PerhapsDone)(said)

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Post an Eviction. See `extender.cluster.Cluster.evict`."""
        where = {"namespace": namespace, "name": name}
        options = {"preconditions": {"uid": uid}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": where, "deleteOptions": options}
        await self._patch(_Write("eviction", "POST", f"{_POD}/eviction", where, body))

    async def event(self, about: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Post an Event. See `extender.cluster.Cluster.event`."""
        where = {"namespace": about.metadata.namespace}
        body = event_of(about, reason, message, datetime.now(UTC), warning=warning)
        await self._patch(_Write("event", "POST", _EVENTS, where, body))

    async def budgets(self) -> list[Budget]:
        """Return every PodDisruptionBudget. See `extender.cluster.Cluster.budgets`."""
        return await self._look(self._list_budgets)

    def _list_budgets(self) -> list[Budget]:
        budgets: list[Budget] = []
        query: dict[str, Any] = {"limit": 500}
        try:
            while True:
                response = self._api.send("GET", _BUDGETS, (self._deadline, self._deadline), query_params=query)
                if response.status != 200:
                    raise Unreachable(told(response.status, response.data))
                page = _budget_page.decode(response.data)
                budgets += page.items or ()
                if not page.metadata.more:
                    return budgets
                query["continue"] = page.metadata.more
        except TROUBLE as error:
            raise _Unheard(short(f"The disruption budgets: {error}")) from error

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as the API server has it now, or None. See `extender.cluster.Cluster.pod`."""
        return await self._look(lambda: self._get(namespace, name))

    async def _look(self, read: Callable[[], T]) -> T:
        with self._through_the_circuit(Unreachable(AWAY)):
            future = self._threads.submit(read)
            try:
                return await asyncio.wait_for(asyncio.wrap_future(future), self._deadline)
            except TimeoutError as error:
                raise _Unheard(f"The API server did not answer within {self._deadline} s.") from error

    def _get(self, namespace: str, name: str) -> Pod | None:
        where = {"namespace": namespace, "name": name}
        try:
            response = self._api.send("GET", _POD, (self._deadline, self._deadline), path_params=where)
            if response.status == 200:
                pod: Pod = KINDS["pods"].one.decode(response.data)
                return pod
            if response.status == 404 and STATUS.decode(response.data).reason == "NotFound":
                return None
            raise Unreachable(told(response.status, response.data))
        except TROUBLE as error:
            raise _Unheard(short(f"{namespace}/{name}: {error}")) from error
