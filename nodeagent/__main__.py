"""The agent's process: settings -> reader, API -> agent -> threads. The only place where the parts meet."""

import gc
import json
import logging
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

try:
    from nodeagent.api import Api
    from nodeagent.conditions import Host
    from nodeagent.health import Health
    from nodeagent.heart import Heart
    from nodeagent.limits import Limits
    from nodeagent.loop import Agent
    from nodeagent.notices import Notices
    from nodeagent.nvml import NvmlReader
    from nodeagent.observe import Bounds, Observer
    from nodeagent.past import recall
    from nodeagent.pods import PodWatch
    from nodeagent.processes import Owners
    from nodeagent.publish import Publisher
    from nodeagent.serve import Server
    from nodeagent.settings import Settings, read
except ModuleNotFoundError as error:
    raise SystemExit(f"tessera-agent: {error.name} is missing: install tessera-gpu[agent].") from error

STOP: Final = (signal.SIGTERM, signal.SIGINT)


def main() -> None:
    """Report until told to stop."""
    settings = read()
    _log_as_json(settings.log_level)
    # Before there are threads, so that one alone is told; a handler would run in the middle of what it has to wake.
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
    api = Api(settings.server, settings.token_file, settings.ca_file)
    watch = PodWatch(api, settings.node)
    agent = _agent(settings, api, watch)
    watch.on_list = agent.soon.set
    try:
        server = Server(settings.host, settings.port, _pages(agent))
    except OSError as error:
        print(f"tessera-agent: cannot listen on {settings.host}:{settings.port}: {error.strerror}.", file=sys.stderr)  # noqa: T201
        raise SystemExit(2) from error
    print(f"tessera-agent: metrics on port {server.server_port}", file=sys.stderr)  # noqa: T201

    def tell() -> None:
        agent.past = recall(api, settings.node, agent.stopping)
        agent.soon.set()
        agent.keep_telling()

    def stop() -> None:
        signal.sigwait(STOP)
        agent.stop()

    parts = (("pods", watch.run), ("tell", tell), ("hear", agent.keep_hearing), ("stop", stop))
    for name, run in parts:
        _thread(name, run)
    gc.freeze()  # what is loaded by now stays
    status = agent.run()
    watch.stop()
    sys.exit(status)


def _agent(settings: Settings, api: Api, watch: PodWatch) -> Agent:
    reader = NvmlReader(cgroup_root=str(settings.cgroup_root))
    observer = Observer(Bounds(settings.over_percent, settings.over_seconds, settings.evict))
    benign = frozenset(int(xid) for xid in settings.benign_xids.split(",") if xid)
    return Agent(
        settings.node,
        reader,
        Health(benign),
        watch.pods,
        Owners(settings.proc),
        Limits(reader, settings.cgroup_root, enforce=settings.enforce),
        observer,
        Heart(api, settings.node, settings.lease_namespace),
        Publisher(api, settings.node),
        Notices(api, settings.node, lasts=observer.lasts, over_s=settings.over_seconds),
        Host.read(settings.proc),
        settings.interval,
        past=None,
    )


def _pages(agent: Agent) -> dict[str, Callable[[], tuple[int, bytes]]]:
    def live() -> tuple[int, bytes]:
        return (200, b"ok\n") if agent.alive() else (503, b"No sample was taken for too long.\n")

    def ready() -> tuple[int, bytes]:
        return (200, b"ok\n") if agent.publisher.writes else (503, b"Nothing was reported yet.\n")

    return {
        "/metrics": lambda: (200, agent.metrics.text()),
        "/livez": live,
        "/readyz": ready,
        "/healthz": live,
    }


def _thread(name: str, run: Callable[[], None]) -> None:
    threading.Thread(target=run, name=name, daemon=True).start()


class _Json(logging.Formatter):
    """One JSON object a line, with the keys that the extender's log has."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        line = {
            "event": record.getMessage(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{record.msecs:03.0f}Z",
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)


def _log_as_json(level: str) -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(_Json())
    logging.basicConfig(level=level.upper(), handlers=[handler])


if __name__ == "__main__":
    main()
