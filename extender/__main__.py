"""The extender's process: settings -> cluster -> state -> app -> server. The only place where the parts meet."""

import asyncio
import logging
import signal
import socket
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from uuid import uuid4

try:
    import structlog
    import uvicorn
    from starlette.responses import PlainTextResponse
    from starlette.types import ASGIApp, Receive, Scope, Send
except ModuleNotFoundError as error:
    raise SystemExit(f"tessera-extender: {error.name} is missing: install tessera-gpu[extender].") from error

from extender import looks
from extender.admission import build_admission
from extender.app import Service, build
from extender.bind import Binder
from extender.cluster import Cluster
from extender.cluster.api import BadConnection
from extender.cluster.embedded import BadSnapshot, EmbeddedCluster
from extender.cluster.kube import KubeCluster
from extender.cluster.lease import KubeLock
from extender.cluster.vault import KubeVault
from extender.controllers.certificates import SelfSigned
from extender.controllers.evict import Evict
from extender.controllers.nudge import Nudge
from extender.controllers.overpromised import Overpromised
from extender.controllers.silence import Silence
from extender.controllers.status import Status
from extender.controllers.totals import Totals
from extender.leader import LOOKS, Candidate, Follower, Replica, Sight, Telling, catching_up
from extender.settings import Settings, read
from extender.state import ClusterState
from extender.tls import BadTls, Certificates, Files, protocol_for
from extender.watch import Watch
from extender.webhook import Admission

KEEP_ALIVE_SECONDS = 120  # longer than the 90 s for which kube-scheduler and the API server keep an idle connection
SWITCH_SECONDS = 0.0005  # an answer waits so long for a thread that posts or decodes; 5 ms by default
GRACE_SECONDS = 2  # for requests under way; what follows takes two more at most
SERVER: Final[dict[str, Any]] = {"log_config": None, "access_log": False, "timeout_keep_alive": KEEP_ALIVE_SECONDS}
PROBES: Final = ("/livez", "/readyz", "/healthz", "/metrics", *looks.PATHS)

log = logging.getLogger("extender")


def main() -> None:
    """Serve until told to stop."""
    sys.setswitchinterval(SWITCH_SECONDS)
    settings = read()
    _log_as_json(settings.log_level)
    try:
        cluster = _cluster(settings)
        state = ClusterState(settings.rules)
        leadership = _leadership(settings, cluster, state)
        certificates = _certificates(settings)
        given = _given(settings)
    except (BadSnapshot, BadConnection, BadTls) as error:
        print(f"tessera-extender: {error}", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from error
    replica = leadership if isinstance(leadership, Replica) else None
    watcher = Telling(state, replica.saw_pod) if replica else state
    service = Service(
        settings,
        state,
        Binder(state, cluster, delivery=settings.delivery, seconds=settings.bind_seconds),
        Watch(cluster.sources(), watcher),
    )
    if leadership:
        service.leads = leadership.leads
    if replica:
        replica.whole = service.watch.whole
    if isinstance(cluster, EmbeddedCluster):
        service.on_ask, service.pods = cluster.admit, cluster.pods
    if isinstance(cluster, KubeCluster):  # an embedded cluster has nobody who would read what they write
        service.is_away = lambda: cluster.circuit.is_open
        parts = (state, cluster, lambda: not service.refusal() and (leadership is None or leadership.leads()))
        silence = Silence(state, service.watch.synced, service.watch.outage, settings.silent_seconds)
        status = Status(*parts, metrics=service.metrics)
        service.listens = lambda: silence.judged
        service.controllers = (
            Totals(*parts, metrics=service.metrics),
            Nudge(*parts, metrics=service.metrics),
            silence,
            status,
            Overpromised(*parts),
        )
        if settings.evict != "never":
            evict = Evict(*parts, dry_run=settings.evict == "dry-run")
            service.on_filter = evict.asked
            service.controllers = (*service.controllers, evict)
    config = uvicorn.Config(
        build(service),
        http=protocol_for(settings.client_names) if settings.client_names else "auto",
        ssl_context_factory=(lambda *_: certificates.front) if certificates else None,
        timeout_graceful_shutdown=GRACE_SECONDS,
        **SERVER,
    )
    with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
        raise SystemExit(runner.run(_serve(service, config, certificates, leadership, given)))


async def _serve(
    service: Service,
    config: uvicorn.Config,
    certificates: Certificates | None,
    leadership: Replica | Follower | None,
    given: Certificates | None,
) -> int:
    """Serve until told to stop, or until leadership is lost; return the process's exit status."""
    settings, server = service.settings, uvicorn.Server(config)
    listening = _listening(settings.host, settings.port)
    beside = [asyncio.ensure_future(certificates.run())] if certificates else []
    if settings.probe_port is not None:
        aside = _Aside(uvicorn.Config(_probes_of(config.app), lifespan="off", timeout_graceful_shutdown=1, **SERVER))
        beside.append(asyncio.ensure_future(aside.serve([_listening(_everywhere(settings), settings.probe_port)])))
    if settings.webhook_port is not None:
        door = _listening(_everywhere(settings), settings.webhook_port)
        beside.append(asyncio.ensure_future(_admit(service, leadership, given, door)))
    leading = asyncio.ensure_future(leadership.run() if leadership else asyncio.Event().wait())
    leading.add_done_callback(lambda _: setattr(server, "should_exit", True))
    # uvicorn takes the signals over, and raises them again when it has ended: to be told to stop is no failure.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    await server.serve([listening])
    lost = leading.done()
    for task in (leading, *beside):
        task.cancel()
    for error in await asyncio.gather(leading, *beside, return_exceptions=True):
        if isinstance(error, Exception):
            log.error("A part of the service failed.", exc_info=error)
    if isinstance(leadership, Replica):
        await leadership.resign(idle=not (service.binder.running or service.binder.settling))
    return int(lost)


async def _admit(
    service: Service, leadership: Replica | Follower | None, given: Certificates | None, door: socket.socket
) -> None:
    """Serve the webhooks until cancelled, from when there is a certificate: a given one, or one made here."""
    settings = service.settings
    rules = Admission(settings.rules.resources, settings.delivery, settings.scheduler_name, settings.runtime_class)
    app = build_admission(rules, service.metrics)
    with TemporaryDirectory(prefix="tessera-") as folder:
        async with asyncio.TaskGroup() as parts:
            if given is None:
                file = Path(folder, "webhook.pem")
                vault = KubeVault(*_where(settings), settings.pod_namespace, settings.webhook_secret)
                may_act = (lambda: True) if leadership is None else leadership.leads
                made = SelfSigned(vault, settings.dns_names, file, may_act)
                parts.create_task(made.run())
                await made.ready.wait()
                given = Certificates(Files(file, file))
            parts.create_task(given.run())
            front = given.front
            config = uvicorn.Config(
                app, ssl_context_factory=lambda *_: front, lifespan="off", timeout_graceful_shutdown=1, **SERVER
            )
            await _Aside(config).serve([door])


class _Aside(uvicorn.Server):
    """A second server in the process, which ends with the first: that one hears the signals."""

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]
        return nullcontext()


def _probes_of(app: Any) -> ASGIApp:
    """Return an application that serves probes and metrics of another, and nothing else."""

    async def probes(scope: Scope, receive: Receive, send: Send) -> None:
        known = scope["type"] == "http" and scope["path"] in PROBES
        await (app if known else PlainTextResponse("Only probes, metrics and pages are served here.\n", 404))(
            scope, receive, send
        )

    return probes


def _everywhere(settings: Settings) -> str:
    """Return the address for callers outside of the pod: a kubelet, the API server."""
    return "::" if ":" in settings.host else "0.0.0.0"  # noqa: S104


def _listening(host: str, port: int) -> socket.socket:
    """Return the socket to serve on, or end the process with one sentence."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        print(f"tessera-extender: cannot listen on {host}:{port}: {error.strerror}.", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from error
    return listening


def _cluster(settings: Settings) -> Cluster:
    if settings.cluster is not None:
        return EmbeddedCluster.load(settings.cluster)
    return KubeCluster.connect(*_where(settings), deadline=settings.bind_seconds, agents=settings.agent_namespace)


def _where(settings: Settings) -> tuple[str | None, str | None]:
    """Return the kubeconfig and its context."""
    return str(settings.kubeconfig) if settings.kubeconfig else None, settings.context


def _leadership(settings: Settings, cluster: Cluster, state: ClusterState) -> Replica | Follower | None:
    """Return what decides whether this process leads; None where it is the only one."""
    if settings.lead == "none" or not isinstance(cluster, KubeCluster):
        return None
    seconds = settings.lease_seconds
    sight = Sight(KubeLock(*_where(settings), *settings.lease, seconds=seconds / LOOKS), time.monotonic)
    if settings.lead == "follow":
        pods = next(source for source in cluster.sources() if source.kind == "pods")
        caught_up = catching_up(pods, state.knows)
        return Follower(socket.gethostname(), sight, seconds, settings.bind_seconds, caught_up)
    candidate = Candidate(f"{settings.pod_name}_{uuid4()}", sight, seconds, settings.bind_seconds)
    return Replica(candidate, settings.pod_namespace, settings.pod_name, cluster.patch_pod, seconds)


def _certificates(settings: Settings) -> Certificates | None:
    if settings.tls_cert is None or settings.tls_key is None:
        return None
    return Certificates(Files(settings.tls_cert, settings.tls_key, settings.tls_client_ca))


def _given(settings: Settings) -> Certificates | None:
    """Return the webhooks' certificates if they are files."""
    cert, key = settings.webhook_cert, settings.webhook_key
    if settings.webhook_port is None or settings.webhook_certificates != "files" or cert is None or key is None:
        return None
    return Certificates(Files(cert, key))


def _log_as_json(level: str) -> None:
    """Send every library's log through one formatter, one JSON object a line, to standard error."""
    shared: list[Any] = [
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
    ]
    handler = logging.StreamHandler()
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.JSONRenderer(),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler])


if __name__ == "__main__":
    main()
