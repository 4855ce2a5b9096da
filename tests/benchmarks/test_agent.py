"""The agent's cost is measured on a real process."""

import pytest

from benchmarks import agent
from benchmarks.agent import CARDS, MOST_RESIDENT_MIB, SLICES, measure


@pytest.mark.parametrize("scene", ["8 cards, busy", "56 MIG slices, busy"])
def test_an_agent_is_measured(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reports and beats once, uses some CPU, and stays within its memory."""
    monkeypatch.setattr(agent, "WARM_SECONDS", 0.0)
    cost = measure(scene, 1.5)
    assert (cost.reports, cost.heartbeats) == (1, 1)
    assert cost.cpu_percent > 0
    assert 10 < cost.resident_mib <= MOST_RESIDENT_MIB
    assert CARDS * (SLICES if "MIG" in scene else 1) * 100 < cost.report_bytes
