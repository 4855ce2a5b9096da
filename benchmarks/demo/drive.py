"""The extender as a process, and one that asks it as kube-scheduler does: filter, prioritize, bind.

Of kube-scheduler's own plugins only NodeAffinity (by host name) and NodeResourcesFit (CPU and memory) are played,
and no other plugin gives a score: the extender's decides, as it does under the shipped configuration. The
extended resources count as advertised everywhere.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from random import Random
from typing import IO, Any, Final, NoReturn

from benchmarks.demo.batch import Wanted
from benchmarks.demo.example import Room

HOST: Final = "127.0.0.1"
START_SECONDS: Final = 30.0
STOP_SECONDS: Final = 10.0
TIMEOUT_SECONDS: Final = 5.0  # kube-scheduler's httpTimeout


class Failed(Exception):
    """The demo cannot go on; the message says why."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where a pod went; `node` is None and `why` tells the reason if it is pending."""

    wanted: Wanted
    node: str | None
    why: str | None = None


# --- the process --------------------------------------------------------------------------------------------


@contextmanager
def extender(cluster: Path) -> Iterator[int]:
    """Run an extender on a cluster file; yield its port on loopback once it is ready, and end it at the end.

    Raises
    ------
    Failed
        It died or did not become ready; the message has its log.
    """
    port = _free_port()
    command = [sys.executable, "-m", "extender", "--cluster", str(cluster), "--host", HOST, "--port", str(port)]
    # The settings are the defaults, whatever the caller's environment says.
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TESSERA_")}
    with tempfile.TemporaryFile() as log, _ended_by_signals():
        process = subprocess.Popen(  # noqa: S603
            [*command, "--log-level", "warning"], env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log
        )
        try:
            _wait_until_ready(process, port, log)
            yield port
            if process.poll() is not None:
                raise Failed(f"The extender ended with status {process.returncode}.\n{_text(log)}")
        except (OSError, HTTPException) as error:
            raise Failed(f"The extender does not answer: {error!r}.\n{_text(log)}") from error
        finally:
            _end(process)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """Let SIGTERM end the demo in an orderly way, so that the extender does not outlive it."""

    def leave(number: int, _: object) -> NoReturn:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int, log: IO[bytes]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise Failed(f"The extender ended with status {process.returncode}.\n{_text(log)}")
        if _ready(port):
            return
        time.sleep(0.05)
    raise Failed(f"The extender was not ready after {START_SECONDS:.0f} s.\n{_text(log)}")


def _ready(port: int) -> bool:
    connection = HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _text(log: IO[bytes]) -> str:
    log.seek(0)
    return log.read().decode(errors="replace").strip()


# --- kube-scheduler -----------------------------------------------------------------------------------------


class Client:
    """One connection to the extender, kept alive. Any status but 200 ends the demo."""

    def __init__(self, port: int) -> None:
        self._connection = HTTPConnection(HOST, port, timeout=TIMEOUT_SECONDS)

    def post(self, verb: str, body: dict[str, Any]) -> Any:
        """Return the extender's answer to a verb."""
        return self._ask("POST", f"/{verb}", json.dumps(body, separators=(",", ":")))

    def pods(self) -> list[dict[str, Any]]:
        """Return every pod of the extender's embedded cluster, with the records that binding wrote."""
        return list(self._ask("GET", "/api/v1/pods")["items"])

    def close(self) -> None:
        """Hang up."""
        self._connection.close()

    def _ask(self, method: str, path: str, body: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"} if body else {}
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        text = reply.read()
        if reply.status != 200:
            raise Failed(f"{method} {path} answers {reply.status}: {text.decode(errors='replace')}")
        return json.loads(text)


class Scheduler:
    """Schedules one pod after the other; `rng` breaks ties, `rooms` is what the nodes have left."""

    def __init__(self, client: Client, rooms: dict[str, Room], rng: Random) -> None:
        self._client, self._rooms, self._rng = client, rooms, rng

    def schedule(self, wanted: Wanted) -> Outcome:
        """Place one pod, or say why it is pending.

        Raises
        ------
        Failed
        """
        names, rejected = self._plugins(wanted)
        if names:
            reply = self._client.post("filter", {"Pod": wanted.pod, "Nodes": None, "NodeNames": names})
            if reply["Error"]:
                raise Failed(f"filter answers: {reply['Error']}")
            names = reply["NodeNames"]
            rejected |= reply["FailedNodes"] | reply["FailedAndUnresolvableNodes"]
        if not names:
            return Outcome(wanted, None, _unschedulable(rejected))
        node = self._best(wanted, names)
        if error := self._bind(wanted, node):
            return Outcome(wanted, None, error)
        self._rooms[node].cpu -= wanted.requested("cpu")
        self._rooms[node].ram -= wanted.requested("memory")
        return Outcome(wanted, node)

    def _plugins(self, wanted: Wanted) -> tuple[list[str], dict[str, str]]:
        """Return the nodes that kube-scheduler's own filters leave, and the reason for each other one."""
        rejected = {}
        cpu, ram = wanted.requested("cpu"), wanted.requested("memory")
        for name, room in self._rooms.items():
            if wanted.selector not in (None, name):
                rejected[name] = "node(s) didn't match Pod's node affinity/selector"
            elif room.cpu < cpu:
                rejected[name] = "Insufficient cpu"
            elif room.ram < ram:
                rejected[name] = "Insufficient memory"
        return [name for name in self._rooms if name not in rejected], rejected

    def _best(self, wanted: Wanted, names: list[str]) -> str:
        """Return the node with the highest score; a single one is not asked about."""
        if len(names) == 1:
            return names[0]
        scored = self._client.post("prioritize", {"Pod": wanted.pod, "Nodes": None, "NodeNames": names})
        most = max(one["Score"] for one in scored)
        return str(self._rng.choice([one["Host"] for one in scored if one["Score"] == most]))

    def _bind(self, wanted: Wanted, node: str) -> str:
        namespace = wanted.pod["metadata"]["namespace"]
        args = {"PodName": wanted.name, "PodNamespace": namespace, "PodUID": wanted.uid, "Node": node}
        return str(self._client.post("bind", args)["Error"])


def _unschedulable(rejected: dict[str, str]) -> str:
    """Return kube-scheduler's sentence: how many nodes there are, and how often each reason holds."""
    reasons = sorted(f"{count} {why.rstrip('.')}" for why, count in Counter(rejected.values()).items())
    return f"0/{len(rejected)} nodes are available: {', '.join(reasons)}."
