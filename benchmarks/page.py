"""`tessera-bench page`: how soon the live page shows its cells, and how many frames a second it draws under updates.

A real extender serves a made cluster from a file, and headless Chromium looks at it. First paint is from the start of
the navigation to the frame in which the cells were drawn, whatever had to be asked and sent before. Under updates
every frame brings other shares on some nodes, and the map scrolls: sums, layout and all visible cells are made anew
each time.
"""

import itertools
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from benchmarks import synthetic
from benchmarks.options import fail

MOST_PAINT_SECONDS: Final = 2.0
LEAST_FRAMES: Final = 30.0
READY_SECONDS: Final = 180.0
TENANTS: Final = 12
VIEW: Final = {"width": 1600, "height": 1000}
BROWSERS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")

# Changes the shares of a hundred nodes in every frame and scrolls, for some seconds; returns the frames' times.
UPDATES: Final = """
async ([seconds, many]) => {
  const {take, nodes} = window.tessera, scroller = document.getElementById("scroller"), times = [];
  const end = performance.now() + 1000 * seconds;
  let last = performance.now(), work = 0, turn = 0;
  while (last < end) {
    await new Promise(requestAnimationFrame);
    const started = performance.now();
    times.push(started - last);
    last = started;
    const all = nodes(), changed = [];
    for (let i = 0; i < many; i++) {
      const [name, closed, cards] = all[(turn * many + i) % all.length];
      const shares = [["team-" + turn % 12, "new-" + turn, 8192, 100 + turn % 400]];
      changed.push([name, closed, cards.map((card) => [...card.slice(0, 8), shares])]);
    }
    turn++;
    take({nodes: changed});
    scroller.scrollTop = turn % 100;
    work += performance.now() - started;
  }
  return {times: times.slice(1), work: work / turn};
}
"""


@dataclass(frozen=True, slots=True)
class Shown:
    """What was measured. `cold`: the first viewer, for whom the server makes every node's piece."""

    cards: int
    nodes: int
    state_bytes: int
    cold_paint_s: float
    paint_s: float  # the median of the viewers after that
    frames_per_second: float
    frame_ms_median: float
    frame_ms_p95: float

    @property
    def holds(self) -> bool:
        """Whether both targets are met, cold start included."""
        return self.cold_paint_s <= MOST_PAINT_SECONDS and self.frames_per_second >= LEAST_FRAMES


def page_command(
    nodes: Annotated[int, typer.Option(min=1, help="Nodes of 8 cards.")] = 5000,
    rounds: Annotated[int, typer.Option(min=1, help="Viewers after the first.")] = 3,
    seconds: Annotated[float, typer.Option(min=1, help="How long to update.")] = 8.0,
    many: Annotated[int, typer.Option(min=1, help="Nodes that change in every frame.")] = 100,
    picture: Annotated[Path | None, typer.Option(help="Write a screenshot there.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Measure the live page in headless Chromium; needs a Chromium and playwright."""
    if find_spec("playwright") is None:
        fail("playwright is missing: install it beside tessera-gpu[bench].")
    try:
        browser = chromium()
    except LookupError as error:
        fail(str(error))
    with tempfile.TemporaryDirectory() as folder:
        cluster = Path(folder) / "cluster.yaml"
        write(cluster, nodes)
        with extender(cluster) as url:
            found = measure(url, browser, rounds, seconds, many, picture)
    if as_json:
        print(json.dumps(asdict(found)))
    else:
        _show(found)
    raise SystemExit(0 if found.holds else 1)


def chromium() -> str:
    """Return the path of a Chromium: $TESSERA_CHROMIUM, else the first on PATH.

    Raises
    ------
    LookupError
    """
    given = os.environ.get("TESSERA_CHROMIUM")
    found = given or next(filter(None, map(shutil.which, BROWSERS)), None)
    if found is None:
        raise LookupError(f"there is no Chromium: install one of {', '.join(BROWSERS)}, or set TESSERA_CHROMIUM.")
    return found


def write(path: Path, nodes: int) -> None:
    """Write a half-full cluster of many tenants, with pods that wait for more than there is."""
    with path.open("w") as file:
        made = itertools.chain(synthetic.nodes(nodes), synthetic.inventories(nodes))
        for found in itertools.chain(made, _pods(nodes), _waiting()):
            file.write("---\n" + json.dumps(found) + "\n")


def _pods(nodes: int) -> Iterator[dict[str, Any]]:
    for number, pod in enumerate(synthetic.pods(nodes)):
        pod["metadata"]["namespace"] = f"team-{number * 2654435761 % 4093 % TENANTS}"
        yield pod


def _waiting() -> Iterator[dict[str, Any]]:
    for number in range(5):
        notes = {"tessera.gpu/memory": f"{90 + number}Gi"}
        meta = {"name": f"waiting-{number}", "namespace": "team-1", "annotations": notes}
        spec = {"containers": [{"name": "main", "image": "none"}]}
        yield {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


@contextmanager
def extender(cluster: Path) -> Iterator[str]:
    """Serve a cluster's file with the page, until the block ends; the URL."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    command = [sys.executable, "-m", "extender", "--cluster", str(cluster), "--port", str(port), "--page"]
    environ = {k: v for k, v in os.environ.items() if not k.startswith("TESSERA_")}
    process = subprocess.Popen([*command, "--log-level", "warning"], env=environ)  # noqa: S603
    try:
        url = f"http://127.0.0.1:{port}"
        _wait_until_ready(process, f"{url}/readyz")
        yield url
    finally:
        process.terminate()
        process.wait(10)


def _wait_until_ready(process: "subprocess.Popen[bytes]", url: str) -> None:
    until = time.monotonic() + READY_SECONDS
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):  # noqa: S310  # our own
                return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError("the extender did not become ready")


def measure(url: str, browser: str, rounds: int, seconds: float, many: int, picture: Path | None = None) -> Shown:
    """Return what a browser saw of the page at a URL."""
    from playwright.sync_api import sync_playwright  # of no extra: the other commands do without

    with sync_playwright() as playwright, playwright.chromium.launch(executable_path=browser) as chrome:
        paints = []
        for _ in range(1 + rounds):
            page = chrome.new_context(viewport=VIEW).new_page()  # type: ignore[arg-type]
            page.goto(f"{url}/page")
            paints.append(_first_paint(page))
            if len(paints) <= rounds:
                page.close()
        counts = page.evaluate("[tessera.nodes().length, tessera.nodes().reduce((n, node) => n + node[2].length, 0)]")
        if picture is not None:
            page.screenshot(path=picture)
        frames = page.evaluate(UPDATES, [seconds, many])
    with urllib.request.urlopen(f"{url}/page/state") as reply:  # noqa: S310
        size = len(reply.read())
    times = sorted(frames["times"])
    per_second = 1000 * len(times) / sum(times)
    p95 = times[round(0.95 * (len(times) - 1))]
    cold, *warm = paints
    return Shown(counts[1], counts[0], size, cold, statistics.median(warm), per_second, statistics.median(times), p95)


def _first_paint(page: Any) -> float:
    """Return when the cells were drawn, in seconds from the start of the navigation."""
    for _ in range(600):  # Playwright's own waiting evaluates strings, which the page's policy forbids
        if (at := page.evaluate('performance.getEntriesByName("cells")[0]?.startTime')) is not None:
            return float(at) / 1000
        page.wait_for_timeout(100)
    raise RuntimeError("the page drew nothing in a minute")


def _show(found: Shown) -> None:
    table = Table(title=f"the page at {found.cards:,} cards on {found.nodes:,} nodes")
    for column in ("", "measured", "target"):
        table.add_column(column, justify="left" if not column else "right")
    table.add_row("first paint, first viewer", f"{found.cold_paint_s:.2f} s", f"{MOST_PAINT_SECONDS:g} s at most")
    table.add_row("first paint, later ones (median)", f"{found.paint_s:.2f} s", "")
    table.add_row("frames a second", f"{found.frames_per_second:.0f}", f"{LEAST_FRAMES:g} at least")
    table.add_row("a frame, median and p95", f"{found.frame_ms_median:.0f} and {found.frame_ms_p95:.0f} ms", "")
    table.add_row("whole state", f"{found.state_bytes / 1e6:.1f} MB", "")
    Console().print(table)
