"""`tessera-bench latency`: what kube-scheduler waits for, beside what it would wait for at the least.

Three servers answer the same questions, round by round in turn, over one kept-alive connection each: the extender on
a made cluster that is half full; a raw asyncio server that reads and writes as many bytes; and a Go handler that
decodes and encodes them with encoding/json, as the peers do, and schedules nothing. All run on one core, the asker on
another one if there is one. Between two pods a bind changes a node, and the names come in another order each time, as
kube-scheduler's parallel filters leave them.
"""

import itertools
import json
import math
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import IO, Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import synthetic
from extender.cluster.embedded import EmbeddedCluster
from extender.node import Rules
from extender.pod import request_of
from extender.state import ClusterState

HOST: Final = "127.0.0.1"
FLOOR: Final = Path(__file__).parent / "floor"
WORKERS: Final = 16  # kube-scheduler's parallelism
READY_SECONDS: Final = 300.0
VERBS: Final = ("filter", "prioritize", "filter again, rejected", "bind")
REFUSED: Final = {"tessera.gpu/count": str(synthetic.CARDS + 1)}  # fits nowhere


@dataclass(slots=True)
class Times:
    """Seconds to answer and CPU seconds spent, by round."""

    wall: list[list[float]] = field(default_factory=list)
    cpu: list[list[float]] = field(default_factory=list)

    def best(self) -> float:
        """Return the least median of a round, in milliseconds."""
        return 1000 * min(map(statistics.median, self.wall))

    def as_json(self) -> dict[str, float]:
        """Return milliseconds: the best round's and all questions' median, their p99, the best round's mean CPU."""
        every = sorted(t for of_round in self.wall for t in of_round)
        return {
            "best": self.best(),
            "median": 1000 * statistics.median(every),
            "p99": 1000 * every[min(len(every) - 1, round(0.99 * len(every)))],
            "cpu": 1000 * min(map(statistics.mean, self.cpu)),
        }


@dataclass(frozen=True, slots=True)
class _Question:
    """A POST, under which heading its time is noted (none: "") and what the answer looks like."""

    path: str
    into: str
    body: bytes
    fit: int = 0  # names that pass filter
    reply: int = 0  # bytes
    pause: float = 0.0  # seconds since the answer before

    def sent(self) -> bytes:
        """Return the request's bytes."""
        head = f"POST /{self.path} HTTP/1.1\r\nHost: {HOST}\r\nFit: {self.fit}\r\nReply: {self.reply}\r\n"
        length = f"Content-Type: application/json\r\nContent-Length: {len(self.body)}\r\n\r\n"
        return (head + length).encode() + self.body


class Asked:
    """A server's process and a connection to it."""

    def __init__(self, name: str, pid: int, port: int) -> None:
        self.name, self._pid = name, pid
        self._socket = socket.create_connection((HOST, port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray(1 << 22)
        self.times = {verb: Times() for verb in VERBS}
        self._pending = ("", 0.0)
        self.close = self._socket.close

    def begin(self) -> None:
        """Begin a round."""
        for times in self.times.values():
            times.wall.append([])
            times.cpu.append([])

    def ask(self, question: "_Question") -> bytes:
        """Return the reply to a POST, and note the time that it took."""
        sent = question.sent()
        self.settle(question.into)
        started = time.perf_counter()
        self._socket.sendall(sent)
        reply = self._read()
        if question.into:
            self.times[question.into].wall[-1].append(time.perf_counter() - started)
        return reply

    def settle(self, next_into: str = "") -> None:
        """Note the CPU since the last question, with all that was still to do after its answer."""
        now = time.clock_gettime((~self._pid << 3) | 2)  # how Linux names the CPU clock of another process
        into, before = self._pending
        if into:
            self.times[into].cpu[-1].append(now - before)
        self._pending = next_into, now

    def _read(self) -> bytes:
        view, got, body, end = memoryview(self._buffer), 0, 0, -1
        while end < 0 or got < end:
            count = self._socket.recv_into(view[got:])
            if not count:
                raise ConnectionError(f"{self.name} hung up")
            got += count
            if end < 0 and (at := self._buffer.find(b"\r\n\r\n", 0, got)) >= 0:
                head = bytes(view[:at]).decode().lower()
                if " 200 " not in head.partition("\r\n")[0]:
                    raise ConnectionError(f"{self.name} answered {head}")
                body = at + 4
                end = body + int(head.partition("content-length:")[2].split()[0])
        return bytes(view[body:end])


# --- the servers ---------------------------------------------------------------------------------------------


@contextmanager
def _process(command: list[str], core: int, log: IO[bytes]) -> Iterator["subprocess.Popen[bytes]"]:
    """Run a server on one core, and end it at the end."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")} | {"GOMAXPROCS": "1"}
    process = subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)  # noqa: S603
    try:
        os.sched_setaffinity(process.pid, {core})
        yield process
    finally:
        process.terminate()
        process.wait(10)
        assert process.stdout is not None
        process.stdout.close()


@contextmanager
def _servers(folder: Path, cluster: Path, core: int) -> Iterator[list[Asked]]:
    """Run the extender, the floor, and Go if there is one."""
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("w+b"))
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port = int(probe.getsockname()[1])
        command = [sys.executable, "-m", "extender", "--cluster", str(cluster), "--host", HOST, "--port", str(port)]
        process = stack.enter_context(_process([*command, "--log-level", "warning"], core, log))
        _wait_until_ready(process, port)
        asked = [Asked("Tessera", process.pid, port)]
        for name, run in (("floor", [sys.executable, "-m", "benchmarks.floor.echo"]), ("Go", _go(folder))):
            if run:
                process = stack.enter_context(_process(run, core, log))
                assert process.stdout is not None
                asked.append(Asked(name, process.pid, int(process.stdout.readline())))
        for server in asked:
            stack.callback(server.close)
        yield asked


def _wait_until_ready(process: "subprocess.Popen[bytes]", port: int) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with socket.create_connection((HOST, port), timeout=5) as probe:
                probe.sendall(b"GET /readyz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
                if b" 200 " in probe.recv(64):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError("the extender did not become ready")


def _go(folder: Path) -> list[str]:
    """Return the command of the Go handler, built here; none if there is no Go."""
    beside = Path(sys.executable).with_name("go")
    go = shutil.which("go") or (str(beside) if beside.exists() else None)
    if go is None:
        return []
    program = folder / "floor"
    environ = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOWORK": "off", "GOFLAGS": ""}
    if not program.exists():
        subprocess.run([go, "build", "-o", str(program), "."], cwd=FLOOR, env=environ, check=True)  # noqa: S603
    return [str(program)]


# --- the questions -------------------------------------------------------------------------------------------


class _Round:
    """The questions of one round, which the extender is asked first and the others afterwards."""

    def __init__(self, tessera: Asked) -> None:
        self._tessera = tessera
        self._asked: list[_Question] = []
        self._answered = time.perf_counter()

    def pod(self, pod: dict[str, Any], names: list[str]) -> None:
        """Ask about one pod what kube-scheduler asks: filter, prioritize, bind; then about one that fits nowhere."""
        name = pod["metadata"]["name"]
        passed = json.loads(self._ask("filter", "filter", pod, names))["NodeNames"]
        if passed:
            scores = json.loads(self._ask("prioritize", "prioritize", pod, passed))
            best = max(scores, key=lambda score: score["Score"])["Host"]
            body = {"PodName": name, "PodNamespace": "default", "PodUID": f"uid-{name}", "Node": best}
            if error := json.loads(self._tessera.ask(_Question("bind", "bind", json.dumps(body).encode())))["Error"]:
                raise RuntimeError(error)
        meta = {**pod["metadata"], "name": "refused", "uid": "refused", "annotations": REFUSED}
        for into in ("", VERBS[2]):  # once to be rejected, and once more while nothing has changed
            self._ask("filter", into, {**pod, "metadata": meta}, names)

    def again(self, server: Asked) -> None:
        """Ask another server all the same, with the same pauses."""
        for question in self._asked:
            time.sleep(question.pause)
            server.ask(question)
        time.sleep(0.01)
        server.settle()

    def _ask(self, path: str, into: str, pod: dict[str, Any], names: list[str]) -> bytes:
        question = {"Pod": pod, "Nodes": None, "NodeNames": names}
        asked = _Question(path, into, json.dumps(question, separators=(",", ":")).encode())
        pause = time.perf_counter() - self._answered
        reply = self._tessera.ask(asked)
        self._answered = time.perf_counter()
        if into:
            fit = len(json.loads(reply)["NodeNames"]) if path == "filter" else 0
            self._asked.append(replace(asked, fit=fit, reply=len(reply), pause=pause))
        return reply


def in_parallel(names: list[str], rng: Random) -> list[str]:
    """Return names in an order in which kube-scheduler's parallel filters may leave them.

    Sixteen workers take the nodes in chunks, and append each that passes to one list.
    """
    size = max(1, min(math.isqrt(len(names)), len(names) // WORKERS + 1))
    chunks = (iter(names[at : at + size]) for at in range(0, len(names), size))
    busy, order = list(itertools.islice(chunks, WORKERS)), []
    while busy:
        worker = rng.randrange(len(busy))
        name = next(busy[worker], None)
        if name is not None:
            order.append(name)
        elif (chunk := next(chunks, None)) is not None:
            busy[worker] = chunk
        else:
            del busy[worker]
    return order


def _round(asked: list[Asked], names: list[str], rng: Random, pods: list[str]) -> None:
    for server in asked:
        server.begin()
    prepared = [(synthetic.asking(name, rng), in_parallel(names, rng)) for name in pods]
    questions = _Round(asked[0])
    for pod, shuffled in prepared:
        questions.pod(pod, shuffled)
    time.sleep(0.01)
    asked[0].settle()
    for server in asked[1:]:
        questions.again(server)


# --- the engine alone ----------------------------------------------------------------------------------------


def engine(cluster: Path) -> list[float]:
    """Return the seconds in which the engine scores all nodes for a pod of a known shape, each after a bind.

    The pods are those of the file that are not bound.
    """
    state = ClusterState(Rules())
    # The classes of the API objects belong to the extender: here they are only handed on to it.
    nodes, inventories, pods = (_objects(source.list()[0]) for source in EmbeddedCluster.load(cluster).sources())
    asking = [pod for pod in pods if not pod.spec.node_name]
    for tell, found in ((state.saw_node, nodes), (state.saw_inventory, inventories), (state.saw_pod, pods)):
        for each in found:
            tell(each)
    while state.studies:
        state.studies.pop(0)()()
    times, seen = [], set()
    for pod in asking:
        request = request_of(pod, state.rules.resources)
        assert request is not None
        started = time.perf_counter()
        scores = state.board().node_scores(request.demand)
        if request.demand in seen:
            times.append(time.perf_counter() - started)
        seen.add(request.demand)
        state.reserve(pod, request, state.fleet.names[int(scores.argmax())])
    return times


def _objects(found: list[Any]) -> list[Any]:
    return found


# --- the command ---------------------------------------------------------------------------------------------


def latency_command(
    nodes: Annotated[list[int] | None, typer.Option(min=1, help="Nodes of 8 cards; may be given again.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds, of which the best counts.")] = 5,
    questions: Annotated[int, typer.Option(min=1, help="Pods asked about in a round.")] = 50,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Measure filter, prioritize and bind over HTTP, beside a raw socket server and a Go handler."""
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[0]})
    try:
        results = {}
        for count in nodes or [1000, 5000, 10000]:
            results[count] = _measured(count, rounds, questions, seed, cores[-1])
            if not as_json:
                _show(count, *results[count])
        if as_json:
            print(json.dumps({count: {"verbs": verbs, "engine": alone} for count, (verbs, alone) in results.items()}))
    finally:
        os.sched_setaffinity(0, cores)


Verbs = dict[str, dict[str, dict[str, float]]]  # verb -> server -> figures in milliseconds


def _measured(count: int, rounds: int, questions: int, seed: int, core: int) -> tuple[Verbs, float]:
    rng, errors = Random(seed), Console(stderr=True)
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as stack:
        folder = Path(temporary)
        synthetic.write(folder / "cluster.yaml", count, seed, asking_pods=200)
        alone = 1000 * statistics.median(engine(folder / "cluster.yaml"))
        synthetic.write(folder / "cluster.yaml", count, seed)
        asked = stack.enter_context(_servers(folder, folder / "cluster.yaml", core))
        progress = Progress(console=errors, disable=not errors.is_terminal, transient=True)
        names, pods = [synthetic.node_name(i) for i in range(count)], itertools.count()
        with progress:
            for _ in progress.track(range(rounds + 1), description=f"{count} nodes"):
                _round(asked, names, rng, [f"asking-{next(pods)}" for _ in range(questions)])
        for server in asked:  # the first round is there to warm up
            for times in server.times.values():
                del times.wall[0], times.cpu[0]
        return {
            verb: {s.name: s.times[verb].as_json() for s in asked if s.times[verb].wall[0]} for verb in VERBS
        }, alone


def _show(count: int, verbs: Verbs, alone: float) -> None:
    table = Table(title=f"{count} nodes x {synthetic.CARDS} cards, milliseconds")
    for column in ("verb", "server", "best round", "median", "p99", "CPU", "x floor", "x Go"):
        table.add_column(column, justify="left" if column in ("verb", "server") else "right")
    for verb, servers in verbs.items():
        for name, found in servers.items():
            ratios = [
                f"{found['best'] / servers[other]['best']:.2f}" if name == "Tessera" and other in servers else ""
                for other in ("floor", "Go")
            ]
            figures = [f"{found[key]:.2f}" for key in ("best", "median", "p99", "cpu")]
            table.add_row(verb, name, *figures, *ratios, end_section=name == [*servers][-1])
    console = Console()
    console.print(table)
    console.print(f"The engine alone, all nodes scored for a known shape after a bind: median {alone:.2f} ms.")
    if "Go" not in verbs["filter"]:
        console.print("There is no Go here, so the Go handler is not measured.")
