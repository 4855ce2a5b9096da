"""The service: routes and lifespan. Decode, ask one function, encode; nothing is decided here.

kube-scheduler takes any status but 200 for a failure and drops its text, so whatever a pod's author should read
travels in a 200. Its decoder crashes on some nulls: replies are typed structs without any.
"""

import asyncio
import gc
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Final, TypeVar

import msgspec
from fastapi import FastAPI, Request, Response
from fastapi.responses import PlainTextResponse
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from extender import looks, wire
from extender.answers import Answers
from extender.bind import Binder, Raced, Refused
from extender.cluster import Unreachable
from extender.controllers import Controller
from extender.leader import NOT_LEADING
from extender.metrics import Metrics
from extender.preempt import preempt
from extender.request import BadDemand
from extender.settings import Settings
from extender.state import EXPECT_SECONDS, ClusterState
from extender.verbs import COOPERATIVE, DECISIVE, filter_nodes
from extender.watch import Watch
from extender.wire import BindingResult, ExtenderArgs, FilterResult, HostPriority, Pod, PreemptResult

T = TypeVar("T")

log = logging.getLogger(__name__)

LEARN_SECONDS: Final = 0.2
PREEMPT_SECONDS: Final = 3.0  # of kube-scheduler's 5: then the nodes that were looked at have to do

NULL: Final = b"null"

NO_POD: Final = "The request has no Pod."
NO_NODES: Final = "The request has neither NodeNames nor Nodes."
NOT_READY: Final = "Tessera is not ready: it has not yet seen all nodes, inventories and pods."
STALE: Final = "Tessera has lost sight of the cluster: the API server does not answer."


class BadBody(Exception):
    """The body is not what the verb takes: HTTP 400, or 413 if it is too large; 503 where another should be asked."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(slots=True)
class Service:
    """The parts that the routes ask."""

    settings: Settings
    state: ClusterState
    binder: Binder
    watch: Watch
    on_ask: Callable[[Pod], None] = lambda _: None  # an embedded cluster learns of a pod by being asked about it
    on_filter: Callable[[Pod, Callable[[], list[str]]], None] = lambda *_: None  # a pod, and the nodes it asks about
    pods: Callable[[], list[Pod]] | None = None  # an embedded cluster has no API server that could show its pods
    metrics: Metrics = field(default_factory=Metrics)
    clock: Callable[[], float] = time.monotonic
    leads: Callable[[], bool] = lambda: True  # the verbs are answered by this replica
    listens: Callable[[], bool] = lambda: True  # it is known which agents are silent
    controllers: Sequence[Controller] = ()
    is_away: Callable[[], bool] = lambda: False  # the circuit to the API server is open
    preempting: dict[str, object] = field(default_factory=dict)  # by UID of the pod, the question that counts
    answers: Answers = field(init=False)

    def __post_init__(self) -> None:
        self.answers = Answers(self.state, DECISIVE if self.settings.scores == "decisive" else COOPERATIVE)

    def refusal(self) -> str:
        """Return why no verb may be answered now, "" if they may."""
        if not self.watch.synced() or not self.listens():
            return NOT_READY
        return STALE if self.watch.outage() > self.settings.stale_seconds else ""

    def filter(self, body: bytes) -> bytes:
        """Answer filter."""
        args = _decoded(wire.args_decoder, body)
        raw = bytes(args.node_names)
        if args.pod is None or (raw == NULL and args.nodes is None):
            return wire.encode(FilterResult(node_names=[], error=NO_NODES if args.pod else NO_POD))
        names = None if raw == NULL else _read(self.answers.names, raw)
        plain = _names(args) if names is None else []
        if refusal := self.refusal():
            return wire.encode(FilterResult(node_names=[], error=refusal))
        self.on_ask(args.pod)
        self.state.expect_no_more(args.pod.metadata.uid)
        self.state.expire(self.clock() - EXPECT_SECONDS)
        self.state.asked(args.pod.metadata.uid)
        self.on_filter(args.pod, names.plain if names is not None else plain.copy)  # which must not keep the body
        with self.state.seen_by(args.pod):
            if names is not None:
                reply, only = self.answers.filter(args.pod, names)
            else:
                reply, only = self._filter_whole(args, args.pod, plain)
            if only:  # kube-scheduler asks nothing more and binds
                self._expect(args.pod, only)
        return reply

    def _filter_whole(self, args: ExtenderArgs, pod: Pod, names: list[str]) -> tuple[bytes, str]:
        result = filter_nodes(self.state, pod, names)
        kept = result.node_names or []
        passed, raw = set(kept), (args.nodes.items if args.nodes else None) or []
        result.nodes = wire.RawNodeList([node for name, node in zip(names, raw, strict=True) if name in passed])
        result.node_names = None
        return wire.encode(result), kept[0] if len(kept) == 1 else ""

    def prioritize(self, body: bytes) -> bytes:
        """Answer prioritize; without an answer every node scores 0, since the reply has no room for an error."""
        args = _decoded(wire.args_decoder, body)
        raw = bytes(args.node_names)
        names = self.answers.of(_names(args)) if raw == NULL else _read(self.answers.names, raw)
        if args.pod is None or self.refusal():
            return wire.encode([HostPriority(name, 0) for name in names.plain()])
        self.on_ask(args.pod)
        self.state.expect_no_more(args.pod.metadata.uid)
        with self.state.seen_by(args.pod):
            reply, best = self.answers.prioritize(args.pod, names)
            self._expect(args.pod, best)
        return reply

    async def preempt(self, body: bytes) -> bytes:
        """Answer preempt; without an answer nobody is evicted, and kube-scheduler asks again."""
        args = _decoded(wire.preempt_decoder, body)
        if args.pod is None or self.refusal():
            return wire.encode(PreemptResult())
        self.on_ask(args.pod)
        uid, end = args.pod.metadata.uid, self.clock() + PREEMPT_SECONDS
        this = self.preempting[uid] = object()
        reply = {}
        try:
            for node, victims in preempt(self.state, args, await self.binder.cluster.budgets()):
                if victims is not None:
                    reply[node] = victims
                await asyncio.sleep(0)  # a hundred nodes take longer than other questions should wait
                # kube-scheduler hangs up after a while, and asks again: then nobody waits for this.
                if self.clock() > end or self.preempting.get(uid) is not this:
                    break
        except Unreachable:
            return wire.encode(PreemptResult())
        finally:
            if self.preempting.get(uid) is this:
                del self.preempting[uid]
        return wire.encode(PreemptResult(reply))

    def _expect(self, pod: Pod, node: str) -> None:
        """Count a pod's likely cards as taken for the questions that come before its bind does."""
        with suppress(BadDemand):
            request = self.state.request_of(pod)
            if request is not None:
                self.state.expect(pod, request, node, self.clock())

    async def bind(self, body: bytes) -> bytes:
        """Answer bind."""
        args = _decoded(wire.binding_decoder, body)
        missing = [key for key, value in msgspec.to_builtins(args).items() if not value]
        if missing:
            return wire.encode(BindingResult(error=f"The request has no {missing[0]}."))
        if refusal := self.refusal():
            return wire.encode(BindingResult(error=refusal))
        try:
            await self.binder.bind(args)
        except Refused as refused:
            self.metrics.binds.labels("raced" if isinstance(refused, Raced) else "refused").inc()
            return wire.encode(BindingResult(error=str(refused)))
        self.metrics.binds.labels("bound").inc()
        return wire.encode(BindingResult())


def build(service: Service) -> FastAPI:
    """Return the application: the verbs under the prefix, probes and metrics at the root."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.watch.start()
        background = [asyncio.ensure_future(_learn(service.state)), asyncio.ensure_future(_settle(service.watch))]
        background += [asyncio.ensure_future(controller.run()) for controller in service.controllers]
        background += [asyncio.ensure_future(run()) for run in beside]
        yield
        for task in background:
            task.cancel()
        await service.watch.stop()

    app = FastAPI(title="Tessera", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    prefix, limit = service.settings.prefix, service.settings.max_body_mib << 20

    verbs: dict[str, Callable[[Scope, Receive], Awaitable[Response]]] = {}

    def verb(name: str, answer: Callable[[bytes], Awaitable[bytes]]) -> None:
        async def answered(scope: Scope, receive: Receive) -> Response:
            started, code = time.perf_counter(), 500
            try:
                body = await read_body(scope, receive, limit)
                if not service.leads():  # asked after the last wait: the answer is for this moment
                    raise BadBody(503, NOT_LEADING)
                reply = await answer(body)
                code = 200
                return Response(reply, media_type="application/json")
            except BadBody as bad:
                code = bad.status
                return Response(wire.encode({"Error": str(bad)}), code, media_type="application/json")
            finally:
                service.metrics.requests.labels(name, code).inc()
                service.metrics.seconds.labels(name).observe(time.perf_counter() - started)

        verbs[f"{prefix}/{name}"] = answered

    verb("filter", _as_async(service.filter))
    verb("prioritize", _as_async(service.prioritize))
    verb("preempt", service.preempt)
    verb("bind", service.bind)
    app.add_middleware(_Verbs, verbs=verbs)
    app.add_exception_handler(HTTPException, _sentence)
    _add_probes(app, service)
    beside = looks.add(app, service.state, service.settings, service.refusal)
    if service.pods is not None:
        _add_pods(app, service.pods)
    return app


async def _sentence(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    told = {405: "takes POST alone." if request.method == "GET" else f"does not take {request.method}."}
    sentence = f"{request.url.path} {told.get(status, 'is not served here.')}"
    return Response(wire.encode({"Error": sentence}), status, media_type="application/json")


async def _settle(watch: Watch) -> None:
    """Once all is listed, spare the garbage collector what stays: to go through it would hold up answers."""
    while not watch.synced():  # noqa: ASYNC110  # threads bring it about
        await asyncio.sleep(LEARN_SECONDS)
    gc.collect()
    gc.freeze()


async def _learn(state: ClusterState) -> None:
    """Finish what policies began to learn, in another thread: a linear program takes longer than a request."""
    while True:
        await asyncio.sleep(LEARN_SECONDS)
        while state.studies:
            try:
                in_force = await asyncio.to_thread(state.studies.pop(0))
                in_force()
            except Exception:  # the policy goes on with what it knew
                log.exception("A policy could not learn.")


def _add_pods(app: FastAPI, pods: Callable[[], list[Pod]]) -> None:
    """Show an embedded cluster's pods where an API server has them: `kubectl get --raw /api/v1/pods` reads them."""

    @app.get("/api/v1/pods")
    async def listed() -> Response:
        shown = {"kind": "PodList", "apiVersion": "v1", "items": pods()}
        return Response(wire.encode(shown), media_type="application/json")


def _add_probes(app: FastAPI, service: Service) -> None:
    @app.api_route("/livez", methods=["GET", "HEAD"])
    async def livez() -> PlainTextResponse:
        return PlainTextResponse("ok\n")

    @app.api_route("/readyz", methods=["GET", "HEAD"])
    @app.api_route("/healthz", methods=["GET", "HEAD"])
    async def readyz() -> PlainTextResponse:
        refusal = service.refusal()
        return PlainTextResponse(f"{refusal or 'ok'}\n", 503 if refusal else 200)

    @app.get("/metrics")
    async def metrics() -> Response:
        state, told = service.state, service.metrics
        told.assumed.set(len(state.assumed))
        told.holding.set(sum(1 for holding in state.holdings.values() if holding.cards))
        told.unaccounted.set(sum(1 for holding in state.holdings.values() if holding.unaccounted))
        told.closed.clear()
        for reason in state.closed.values():
            told.closed.labels(reason).inc()
        told.overpromised.set(sum(map(len, state.overpromised.values())))
        told.outage.set(service.watch.outage())
        told.silence.set(service.watch.silence())
        told.circuit.set(service.is_away())
        told.leads.set(service.leads())
        return Response(told.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _as_async(answer: Callable[[bytes], bytes]) -> Callable[[bytes], Awaitable[bytes]]:
    async def answered(body: bytes) -> bytes:
        return answer(body)

    return answered


class _Verbs:
    """The verbs, in front of the application: its router would cost a small question as much as the answer."""

    def __init__(self, app: ASGIApp, verbs: dict[str, Callable[[Scope, Receive], Awaitable[Response]]]) -> None:
        self._app, self._verbs = app, verbs

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answered = self._verbs.get(scope["path"]) if scope["type"] == "http" else None
        if answered is None:
            await self._app(scope, receive, send)
        elif scope["method"] == "POST":
            await (await answered(scope, receive))(scope, receive, send)
        else:
            await (await _sentence(Request(scope), HTTPException(405)))(scope, receive, send)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return a request's body of at most `limit` bytes. Raises BadBody."""
    too_large = BadBody(413, f"The body is larger than {limit >> 20} MiB.")
    length = dict(scope["headers"]).get(b"content-length", b"0")
    if length.isdigit() and int(length) > limit:
        raise too_large
    pieces, size, more = [], 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BadBody(400, "The body ended too early.")
        pieces.append(message.get("body", b""))
        size += len(pieces[-1])
        more = message.get("more_body", False)
        if size > limit:
            raise too_large
    return b"".join(pieces)


def _decoded(decoder: msgspec.json.Decoder[T], body: bytes) -> T:
    return _read(decoder.decode, body)


def _read(decode: Callable[[bytes], T], body: bytes) -> T:
    try:
        return decode(body)
    except msgspec.ValidationError as error:
        raise BadBody(400, f"The body is not what this verb takes: {error}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadBody(400, f"The body is not JSON: {error}.") from error


def _names(args: ExtenderArgs) -> list[str]:
    nodes = (args.nodes.items if args.nodes else None) or []
    return [_decoded(wire.node_name_decoder, bytes(node)).metadata.name for node in nodes]
