"""What 5,000 agents write, by the rules of the agents themselves: publisher, heart and smoothing on a made clock."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from contract.inventory import Gpu
from nodeagent.api import Api
from nodeagent.conditions import Host, conditions
from nodeagent.heart import Heart
from nodeagent.publish import Publisher
from nodeagent.smooth import Report, Steady
from tests.nodeagent.given import reading
from tests.nodeagent.test_publish import LIMITS, eight_cards

FLEET = 5000
SAMPLE = 10  # agents that are followed second by second
MINUTES = 20
PERFORMANCE = Path(__file__).parents[2] / "docs" / "performance.md"

Use = Callable[[Random, float, Gpu], Gpu]


class Counted(Api):
    """Counts what would be sent."""

    def __init__(self) -> None:
        super().__init__("http://nobody")
        self.sent: list[tuple[str, int]] = []

    def send(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """Count a write, and answer as the API server does."""
        if method != "GET":
            self.sent.append((path, len(json.dumps(body, separators=(",", ":")))))
        return {"metadata": {}}


def idle(draw: Random, second: float, gpu: Gpu) -> Gpu:
    """Nothing runs but a desktop's noise: some MiB and a percent now and then."""
    return replace(gpu, used_mib=draw.randint(0, 20), foreign_mib=0, utilization=draw.choice((0, 0, 0, 1)))


def busy(draw: Random, second: float, gpu: Gpu) -> Gpu:
    """Jobs come and go every ten minutes; utilization jumps all the time; a foreign process shows up once an hour."""
    used, foreign = gpu.used_mib or 0, gpu.foreign_mib
    if draw.random() < 1 / 600:
        used = draw.randint(0, 80_000)
    if draw.random() < 1 / 3600:
        foreign = draw.choice((0, 2000))
    return replace(gpu, used_mib=used, foreign_mib=foreign, utilization=draw.choice((0, 40, 90, 100)))


def written(use: Use) -> dict[str, tuple[int, int]]:
    """Return writes and kB a minute of the whole fleet, for heartbeats and reports."""
    found: dict[str, list[int]] = {"heartbeats": [0, 0], "reports": [0, 0]}
    told = conditions(reading(), Host("6.1", True), LIMITS)
    for number in range(SAMPLE):
        api, draw = Counted(), Random(number)
        now = [0.0]
        heart = Heart(api, "n", "agents", clock=lambda now=now: now[0], wall=lambda: 1.7e9, rng=Random(number))  # type: ignore[misc]
        publisher = Publisher(api, "n", clock=lambda now=now: now[0], wall=lambda: 1.7e9, rng=Random(number))  # type: ignore[misc]
        cards = [replace(gpu, healthy=True, reason="") for gpu in eight_cards().gpus]
        steady = [Steady() for _ in cards]
        first = 0
        for second in range(60 * (MINUTES + 1)):
            now[0] = float(second)
            cards = [use(draw, now[0], gpu) for gpu in cards]
            smooth = tuple(s.card(gpu, gpu.foreign_mib, now[0]) for gpu, s in zip(cards, steady, strict=True))
            publisher.offer(Report(replace(eight_cards(), gpus=smooth), told))
            heart.step()
            publisher.step()
            if second == 59:
                first = len(api.sent)  # the first minute is the start
        for path, size in api.sent[first:]:
            kind = found["heartbeats" if "leases" in path else "reports"]
            kind[0] += 1
            kind[1] += size
    scale = FLEET / SAMPLE / MINUTES
    return {kind: (round(count * scale), round(size * scale / 1000)) for kind, (count, size) in found.items()}


@pytest.fixture(scope="module")
def fleets() -> dict[str, dict[str, tuple[int, int]]]:
    """Return the writes of an idle and of a busy fleet."""
    return {"idle": written(idle), "busy": written(busy)}


def test_heartbeats_are_the_same_whatever_runs(fleets: dict[str, dict[str, tuple[int, int]]]) -> None:
    """Two to two and a half a minute and node, some hundred bytes each."""
    assert fleets["idle"]["heartbeats"] == fleets["busy"]["heartbeats"]
    count, kilobytes = fleets["idle"]["heartbeats"]
    assert 2.0 * FLEET <= count <= 2.5 * FLEET
    assert kilobytes < 0.2 * count


def test_an_idle_fleet_reports_next_to_nothing(fleets: dict[str, dict[str, tuple[int, int]]]) -> None:
    """Only the words that are told again every ten minutes, which etcd does not store."""
    count, _ = fleets["idle"]["reports"]
    assert FLEET / 13 <= count <= FLEET / 8


def test_a_busy_fleet_reports_at_most_once_a_minute_and_node(fleets: dict[str, dict[str, tuple[int, int]]]) -> None:
    """And what others must know at once, which is seldom: below 1.2 a minute, below 4 kB each."""
    count, kilobytes = fleets["busy"]["reports"]
    assert count <= 1.2 * FLEET
    assert kilobytes <= 4.096 * count


def test_the_page_states_these_figures(fleets: dict[str, dict[str, tuple[int, int]]]) -> None:
    """docs/performance.md has the rows that this simulation gives."""
    page = PERFORMANCE.read_text()
    for name, fleet in fleets.items():
        for kind, (count, kilobytes) in fleet.items():
            row = f"| {name} | {kind} | {count:,} | {count / 60:.0f} | {kilobytes:,} |"
            assert row in page, row
