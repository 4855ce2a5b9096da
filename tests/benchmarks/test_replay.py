"""Replays: deterministic, binned as the published tables are, and equal to them."""

import csv
import os
from pathlib import Path

import pytest

from benchmarks.replay import _Curve, replay
from benchmarks.traces import Node, Trace, load, synthetic
from scoring.model import CARD, Ask, Demand
from scoring.policies import POLICIES
from tests.benchmarks.test_traces import folder
from tests.builders import demand


@pytest.mark.parametrize("policy", sorted(POLICIES))
def test_a_replay_is_the_same_each_time(policy: str) -> None:
    """The same trace, policy and seed give the same result, whatever the machine."""
    trace = synthetic(1, nodes=12)
    one, again = (replay(trace, policy, seed=2).as_json() for _ in range(2))
    timeless = {"seconds": 0, "decision_ms": 0}
    assert one | timeless == again | timeless
    assert one["pods"] == len(trace.arrivals)
    assert 0 < int(str(one["failed_pods"])) < len(trace.arrivals)


@pytest.mark.parametrize("policy", ["bestfit", "fgd"])
def test_a_replay_packs(policy: str) -> None:
    """Little is left idle at 130 % of arrivals, and allocation never falls."""
    result = replay(synthetic(1, nodes=12), policy)
    curve = [result.allocation[k] for k in sorted(result.allocation, key=int)]
    assert curve == sorted(curve)
    assert 85 < curve[-1] <= 100
    assert result.allocation["50"] == pytest.approx(50, abs=1.5)
    assert all(0 <= v <= 100.01 for v in result.fragmentation_ratio.values())


def test_by_hand(tmp_path: Path) -> None:
    """Three cards: 0.3 of one, two whole ones, and a pod without; all fit, and the curve says so."""
    told: list[int] = []
    result = replay(load(folder(tmp_path), "tiny", seed=1), "bestfit", seed=1, progress=told.append)
    assert (result.trace, result.policy, result.seed, result.pods, result.failed_pods) == ("tiny", "bestfit", 1, 3, 0)
    assert (result.allocation["10"], result.allocation["77"]) == (10.0, 76.67)
    assert told == []


def test_a_pod_that_fits_nowhere_has_arrived_and_failed() -> None:
    """A failed pod counts in what has arrived and not in what is allocated."""
    trace = synthetic(1, nodes=2)
    huge = demand(Ask(16, milli=1000))
    result = replay(Trace("x", trace.nodes, (huge, Demand(cpu_milli=1)), (huge,)), "bestfit")
    assert result.failed_pods == 1
    assert set(result.allocation.values()) == {0.0}


def test_before_the_first_pod_the_fleet_is_empty() -> None:
    """Until half a card arrives nothing is allocated, and the one card is no use to pods that want two."""
    shape = demand(Ask(milli=500))
    trace = Trace("x", (Node("n", 8000, 1024, 1, "A10"),), (shape,), (shape, demand(Ask(2, milli=1000))))
    result = replay(trace, "bestfit")
    assert (result.allocation["0"], result.allocation["50"], result.allocation["130"]) == (0.0, 50.0, 50.0)
    assert result.fragmentation_ratio["0"] == result.fragmentation_amount["0"] == 50.0


def test_progress_is_told_every_hundred_pods() -> None:
    """A replay says how far it is."""
    trace, told = synthetic(1, nodes=8), list[int]()
    replay(Trace("x", trace.nodes, trace.arrivals[:1] * 250, trace.history), "spread", progress=told.append)
    assert told == [100, 200]


def test_bins_by_hand() -> None:
    """A value belongs to the nearest whole percent, an empty bin takes its neighbours' mean, or the last one."""
    curve = _Curve(2, 2)
    for arrived, value in ((0.2, 1.0), (0.4, 2.0), (1.6, 4.004), (2.4, 6.0), (5.5, 9.0), (6.5, 11.0)):
        curve.add(arrived, value)
    # Halves go to the even percent, as numpy's and Python's rounding has it: 5.5 and 6.5 are both 6.
    assert list(curve.binned(8).values()) == [1.5, 3.25, 5.0, 5.0, 5.0, 10.0, 10.0, 10.0, 10.0]
    assert _Curve(2, 2, 7.0).binned(1) == {"0": 7.0, "1": 7.0}


@pytest.mark.parametrize(("seed", "nodes"), [(43, 40), (1, 1)])
def test_a_small_trace_has_every_percent(seed: int, nodes: int) -> None:
    """Where a single pod is more than a percent, nothing arrives at some of them."""
    result = replay(synthetic(seed, nodes), "bestfit", seed=seed)
    for curve in (result.allocation, result.fragmentation_ratio, result.fragmentation_amount):
        assert list(curve) == [str(percent) for percent in range(131)]
    assert (result.nodes, result.cards) == (nodes, synthetic(seed, nodes).milli // CARD)


# --- the published curves ------------------------------------------------------------------------------------

VARIABLE = "TESSERA_TRACES"


REFERENCES = {
    "bestfit": "05-BestFit",
    "dotprod": "02-DotProd",
    "fgd": "06-FGD",
    "gpuclustering": "03-GpuClustering",
    "gpupacking": "04-GpuPacking",
}
CURVES = {
    "allocation": "analysis_allo_discrete.csv",
    "fragmentation_amount": "analysis_frag_discrete.csv",
    "fragmentation_ratio": "analysis_frag_ratio_discrete.csv",
}


def published(root: Path, file: str, trace: str, seed: int, policy: str) -> dict[str, float]:
    """Return a published curve, by percent arrived."""
    with (root / "published" / file).open(newline="") as lines:
        for row in csv.DictReader(lines):
            if (row["workload"], row["seed"], row["sc_policy"]) == (f"openb_pod_list_{trace}", str(seed), policy):
                return {k: float(v) for k, v in row.items() if k and k.isdigit() and v}
    raise LookupError(policy)


@pytest.mark.skipif(
    not os.environ.get(VARIABLE) and os.environ.get("CI") != "true",
    reason=f"{VARIABLE} does not name the folder of the openb traces",
)
@pytest.mark.parametrize(("trace", "seed"), [("default", 42), ("gpuspec33", 48)])
@pytest.mark.parametrize("policy", REFERENCES)
def test_the_published_curves(policy: str, trace: str, seed: int) -> None:
    """Allocation and fragmentation equal the published ones at every percent."""
    root = Path(os.environ.get(VARIABLE, f"{VARIABLE} is not set"))
    assert root.is_dir(), f"{VARIABLE} must name the folder of the openb traces, but it is {str(root)!r}"
    result = replay(load(root, trace, seed=seed), policy, seed=seed)
    for curve, file in CURVES.items():
        wanted, found = published(root, file, trace, seed, REFERENCES[policy]), getattr(result, curve)
        assert len(wanted) > 100
        for percent, value in wanted.items():
            assert found[percent] == pytest.approx(value, abs=0.0100001), f"{curve} at {percent} %"


@pytest.mark.skipif(not os.environ.get(VARIABLE), reason=f"{VARIABLE} does not name the folder of the openb traces")
@pytest.mark.parametrize(("trace", "seed"), [("cpu250", 42), ("gpuspec10", 47), ("gpushare100", 49)])
def test_the_published_fgd_to_the_last_bit(trace: str, seed: int) -> None:
    """Runs in which one bit of one frequency changes a placement."""
    root = Path(os.environ[VARIABLE])
    wanted = published(root, CURVES["allocation"], trace, seed, REFERENCES["fgd"])
    found = replay(load(root, trace, seed=seed), "fgd", seed=seed).allocation
    assert {k: abs(found[k] - v) for k, v in wanted.items() if abs(found[k] - v) > 0.0100001} == {}
