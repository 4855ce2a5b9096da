"""`tessera-bench agent`: what one node agent costs its node and the API server, on a driver that is not there.

The agent runs as its own process on the fake libnvidia-ml of the tests, with one sample a second, and tells a server
that takes everything. What a real driver's calls cost is not in the figures; what the agent makes of the answers is.
"""

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks.options import fail

CARDS: Final = 8
SLICES: Final = 7
WARM_SECONDS: Final = 5.0  # until everything was told once
MOST_RESIDENT_MIB: Final = 42.9  # 45 MB
MOST_CPU_PERCENT: Final = 0.3


@dataclass(frozen=True, slots=True)
class Cost:
    """What an agent cost. Memory in MiB, CPU in percent of a core, writes while it ran."""

    scene: str
    seconds: float
    first_report_s: float
    resident_mib: float
    cpu_percent: float
    cpu_ms_per_tick: float
    reports: int
    heartbeats: int
    report_bytes: int


@dataclass
class Sink:
    """An API server that takes everything and has one pod a card."""

    writes: list[tuple[str, int, float]] = field(default_factory=list)  # path, bytes, when

    def server(self) -> ThreadingHTTPServer:
        """Return a server that listens on a free port."""
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if "watch=" in self.path:
                    threading.Event().wait()  # nothing happens
                status = 404 if "gpunodes" in self.path else 200
                self._answer(status, {"metadata": {"resourceVersion": "1"}, "items": []})

            def do_PATCH(self) -> None:
                length = int(self.headers["Content-Length"])
                self.rfile.read(length)
                sink.writes.append((self.path.partition("?")[0], length, time.monotonic()))
                self._answer(200, {})

            def _answer(self, status: int, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
                pass

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        return server


def agent_command(
    seconds: Annotated[float, typer.Option(min=5, help="How long to measure each scene.")] = 30.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    check: Annotated[bool, typer.Option(help="Fail above 45 MB resident or 0.3 % of a core.")] = False,
) -> None:
    """Measure the node agent's memory, CPU and writes, with 8 cards and with 56 MIG slices."""
    costs = [measure(scene, seconds) for scene in ("8 cards, idle", "8 cards, busy", "56 MIG slices, busy")]
    if as_json:
        print(json.dumps([asdict(cost) for cost in costs]))
    else:
        _show(costs)
    if check and any(c.resident_mib > MOST_RESIDENT_MIB or c.cpu_percent > MOST_CPU_PERCENT for c in costs):
        fail(f"the agent takes more than {MOST_RESIDENT_MIB:g} MiB or {MOST_CPU_PERCENT:g} % of a core.")


def measure(scene: str, seconds: float) -> Cost:
    """Run an agent for some seconds on a scene of the fake driver, and return what it cost."""
    sink = Sink()
    with tempfile.TemporaryDirectory() as name, _serving(sink) as port:
        folder = Path(name)
        environment = _node(folder, scene)
        began = time.monotonic()
        with _agent(folder, environment, port) as process:
            while not any(path.endswith("/status") for path, _, _ in sink.writes):
                if time.monotonic() - began > 30 or process.poll() is not None:
                    fail("the agent did not report; is there a C compiler?")
                time.sleep(0.01)
            first = next(at for path, _, at in sink.writes if path.endswith("/status")) - began
            time.sleep(WARM_SECONDS)
            before, start = _cpu_seconds(process.pid), time.monotonic()
            time.sleep(seconds)
            used, passed = _cpu_seconds(process.pid) - before, time.monotonic() - start
            resident = _resident_mib(process.pid)
    reports = [size for path, size, _ in sink.writes if path.endswith("/status")]
    heartbeats = sum("/leases/" in path for path, _, _ in sink.writes)
    share = 100 * used / passed
    return Cost(scene, passed, first, resident, share, 10 * share, len(reports), heartbeats, max(reports))


def _node(folder: Path, scene: str) -> dict[str, str]:
    """Describe the node of a scene, and return the environment in which a process finds its driver."""
    try:
        from tests.nodeagent.fakenvml import Node, card
    except ImportError:
        fail("this runs on the tests' fake driver, which is in the source tree alone: run it there.")
    (folder / "driver").mkdir()
    node = Node(folder / "driver")
    cards = []
    for number in range(CARDS):
        pids = [1000 + SLICES * number + slot for slot in range(SLICES)]
        busy: dict[str, Any] = {}
        if "busy" in scene:
            busy = {"util_gpu": 60, "mem_used": f"{2000 * SLICES}Mi", "proc": [f"{pid} 2000 C 8 1" for pid in pids]}
        if "MIG" in scene:
            busy["mig_mode"] = 1
            busy["mig"] = [f"MIG-{number}-{s} {7 + s} 0 {s} {s} 1 1 16 9984 2000" for s in range(SLICES)]
            busy["proc"] = [f"{pid} 2000 C 0 0 {7 + s} 0" for s, pid in enumerate(pids)]
        cards.append(card(number, nvlink=[f"{link} switch 4" for link in range(4)], **busy))
        for pid in pids:
            (folder / "proc" / str(pid)).mkdir(parents=True, exist_ok=True)
            (folder / "proc" / str(pid) / "cgroup").write_text("0::/user.slice\n")
    node.write(*cards)
    # An image is installed with its bytecode; compiling at the start would count as ten MiB for ever.
    environment = {k: v for k, v in node.environment.items() if k != "PYTHONDONTWRITEBYTECODE"}
    environment["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    subprocess.run([sys.executable, "-c", "import nodeagent.__main__"], env=environment, check=True)
    return environment


@contextmanager
def _serving(sink: Sink) -> Iterator[int]:
    server = sink.server()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port
    finally:
        server.shutdown()


@contextmanager
def _agent(folder: Path, environment: dict[str, str], port: int) -> Iterator[subprocess.Popen[bytes]]:
    (folder / "token").write_text("t")
    command = [sys.executable, "-m", "nodeagent", "--node", "n1", "--server", f"http://127.0.0.1:{port}"]
    command += ["--token-file", str(folder / "token"), "--proc", str(folder / "proc"), "--port", "0"]
    process = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)  # noqa: S603
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of all threads of a process until now."""
    nanoseconds = sum(int(p.read_text().split()[0]) for p in Path(f"/proc/{pid}/task").glob("*/schedstat"))
    if nanoseconds:
        return nanoseconds / 1e9
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident_mib(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def _show(costs: list[Cost]) -> None:
    table = Table(title="The node agent, one sample a second")
    heads = ("scene", "first report s", "resident MiB", "CPU % of a core", "CPU ms a tick", "reports", "heartbeats")
    for head in (*heads, "report bytes"):
        table.add_column(head, justify="left" if head == "scene" else "right")
    for cost in costs:
        table.add_row(
            cost.scene,
            f"{cost.first_report_s:.2f}",
            f"{cost.resident_mib:.1f}",
            f"{cost.cpu_percent:.2f}",
            f"{cost.cpu_ms_per_tick:.2f}",
            str(cost.reports),
            str(cost.heartbeats),
            str(cost.report_bytes),
        )
    Console().print(table)
