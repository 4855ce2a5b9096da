"""Pods that come and go: the load is the load, pods are the same for all policies, nothing is lost or held twice."""

import json
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks import churn as module
from benchmarks.churn import Offers, churn, churn_command, offers
from benchmarks.report import interval
from benchmarks.traces import BadTrace, Node, Trace, durations, synthetic
from scoring.model import CARD, WHOLE, Ask, Demand, one

CARD_OF_ITS_OWN = one(WHOLE)
HALF = one(Ask(milli=500))
TWO_CARDS = one(Ask(count=2, percent=100, milli=CARD, exclusive=True, whole=True))

SMALL = synthetic(7, nodes=20)

app = typer.Typer()
app.command()(churn_command)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the command's synthetic trace a small one."""
    monkeypatch.setattr(module, "synthetic", lambda seed: synthetic(seed, nodes=20))


def node(gpus: int) -> Trace:
    """Return a trace with one node and no pods."""
    return Trace("one", (Node("n", 64_000, 65_536, gpus, "A"),), (), (CARD_OF_ITS_OWN,))


def given(monkeypatch: pytest.MonkeyPatch, *pods: tuple[float, Demand, float], first: int = 0) -> None:
    """Make these pods arrive: when, what, for how long."""
    at, shapes, lifetimes = zip(*pods, strict=True)
    made = Offers(tuple(shapes), np.array(at), np.arange(len(pods)), np.array(lifetimes), first)
    monkeypatch.setattr(module, "offers", lambda *_, **__: made)


# --- what arrives --------------------------------------------------------------------------------------------


def test_the_same_seed_brings_the_same_pods_at_the_same_times() -> None:
    """Two policies with one seed see one stream of pods, and another seed is another stream."""
    a, b = offers(SMALL, load=0.9, seed=1), offers(SMALL, load=0.9, seed=1)
    other = offers(SMALL, load=0.9, seed=2)
    assert (a.at == b.at).all()
    assert (a.shape == b.shape).all()
    assert (a.lifetime == b.lifetime).all()
    assert (a.shape != other.shape).any()


def test_loads_differ_only_in_how_fast_the_pods_arrive() -> None:
    """Half the load is the same pods at twice the distance."""
    full, half = offers(SMALL, load=1.0, seed=1), offers(SMALL, load=0.5, seed=1)
    assert np.allclose(2 * full.at, half.at)
    assert (full.shape == half.shape).all()


@pytest.mark.parametrize("lifetimes", ["exponential", "lognormal", "own"])
def test_the_offered_gpu_time_is_the_load(lifetimes: str) -> None:
    """GPU time offered per time, over the compute of all cards, is the load asked for."""
    own = [1.0 + i % 5 for i in range(len(SMALL.history))]
    pods = offers(SMALL, load=0.8, seed=3, arrivals=200_000, lifetimes=own if lifetimes == "own" else lifetimes)
    milli = np.array([demand.milli for demand in pods.shapes])[pods.shape]
    offered = (milli * pods.lifetime)[pods.first :].sum() / (pods.at[-1] - pods.at[pods.first]) / SMALL.milli
    assert offered == pytest.approx(0.8, rel=0.03)


@pytest.mark.parametrize("lifetimes", ["lognormal", "own"])
def test_long_tailed_lifetimes_start_with_a_cluster_in_use(lifetimes: str) -> None:
    """Where no warm-up would fill the fleet, it is as full from the first arrival on as the load says."""
    own = [1.0 if i % 100 else 500.0 for i in range(len(SMALL.history))]
    means = [
        churn(
            SMALL,
            "bestfit",
            load=0.5,
            seed=seed,
            warm_up=0,
            arrivals=60,
            lifetimes=own if lifetimes == "own" else lifetimes,
        ).allocation
        for seed in range(8)
    ]
    assert np.mean(means) == pytest.approx(50, abs=6)


def test_a_trace_that_wants_no_card_has_no_load() -> None:
    """A load in GPU time cannot be made of pods without GPU demand."""
    with pytest.raises(BadTrace, match="wants a card"):
        offers(Trace("cpu", SMALL.nodes, (), (Demand(cpu_milli=1),)), load=0.9, seed=1)


def test_unknown_lifetimes_are_refused() -> None:
    """A distribution that is not known is named."""
    with pytest.raises(ValueError, match="'weibull'"):
        offers(SMALL, load=0.9, seed=1, lifetimes="weibull")


# --- what becomes of it --------------------------------------------------------------------------------------


def test_a_pod_that_fits_nowhere_is_turned_away_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pod comes while the first holds the card; the third comes after, and gets it."""
    given(monkeypatch, (0.0, CARD_OF_ITS_OWN, 2.0), (1.0, CARD_OF_ITS_OWN, 1.0), (3.0, CARD_OF_ITS_OWN, 1.0))
    result = churn(node(1), "bestfit", load=1.0, seed=0)
    assert (result.pods, result.rejected_pods, result.waiting_pods) == (3, 1, 0)
    assert result.rejected_percent == pytest.approx(25)
    assert result.classes["1"].rejected == pytest.approx(1)
    assert result.allocation == pytest.approx(100 * 2 / 3)


def test_a_card_is_free_again_at_the_moment_its_pod_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod that arrives just when another ends finds its room."""
    given(monkeypatch, (0.0, CARD_OF_ITS_OWN, 1.0), (1.0, CARD_OF_ITS_OWN, 1.0))
    assert churn(node(1), "bestfit", load=1.0, seed=0).rejected_pods == 0


def test_pods_of_the_warm_up_hold_room_but_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is measured starts after the warm-up, on the fleet that it left."""
    given(monkeypatch, (0.0, CARD_OF_ITS_OWN, 9.0), (1.0, HALF, 1.0), (2.0, HALF, 1.0), first=1)
    result = churn(node(1), "bestfit", load=1.0, seed=0)
    assert (result.pods, result.rejected_pods, result.rejected_percent) == (2, 2, 100)
    assert result.allocation == pytest.approx(100)
    assert result.classes["share"].offered == pytest.approx(1)


def test_with_a_queue_a_pod_waits_until_one_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second pod starts at 2, when the first ends, and lives from then on; the third finds the card held."""
    given(monkeypatch, (0.0, CARD_OF_ITS_OWN, 2.0), (1.0, CARD_OF_ITS_OWN, 4.0), (5.0, HALF, 1.0))
    result = churn(node(1), "bestfit", load=1.0, seed=0, queue=True)
    assert (result.rejected_pods, result.waiting_pods) == (0, 1)
    assert result.classes["1"].waited == pytest.approx(1)
    assert result.waited_percent == pytest.approx(100 * 1 / 6.5)
    assert result.lost == result.waited_percent


def test_the_queue_is_first_come_first_served_and_large_pods_do_not_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of three who wait for the card that gets free, the large one does not fit, and the older of the others goes."""
    given(
        monkeypatch,
        (0.0, CARD_OF_ITS_OWN, 2.0),
        (0.1, CARD_OF_ITS_OWN, 9.0),
        (1.0, TWO_CARDS, 1.0),
        (1.1, CARD_OF_ITS_OWN, 9.0),
        (1.2, HALF, 9.0),
        (3.0, Demand(cpu_milli=1), 1.0),
    )
    result = churn(node(2), "bestfit", load=1.0, seed=0, queue=True)
    assert result.waiting_pods == 2
    assert result.classes["1"].waited == pytest.approx(0.9)
    assert result.classes["2"].waited == pytest.approx(2 * 2.0)
    assert result.classes["share"].waited == pytest.approx(0.5 * 1.8)


@pytest.mark.parametrize("queue", [False, True])
@pytest.mark.parametrize("policy", ["bestfit", "fgd"])
def test_whoever_leaves_gives_back_what_he_took(policy: str, queue: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """When all who still run have left as well, the fleet is as it was before the first."""
    made: list[module._Cluster] = []

    class Kept(module._Cluster):
        def __init__(self, *args: object, **more: bool) -> None:
            super().__init__(*args, **more)  # type: ignore[arg-type]
            made.append(self)

    monkeypatch.setattr(module, "_Cluster", Kept)
    result = churn(SMALL, policy, load=1.3, seed=5, warm_up=100, arrivals=900, queue=queue)
    assert result.rejected_pods or result.waiting_pods
    (cluster,) = made
    while cluster.leaving:
        cluster._leave()
    assert not cluster.waiting
    assert cluster.used == 0
    for free, capacity in zip(cluster.fleet.free, cluster.fleet.capacity, strict=True):
        assert (free == capacity).all()


def test_a_run_can_be_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same run has the same result, but for the time it took, also when it learns from arrivals."""
    a, b = (churn(SMALL, "fgd", load=1.1, seed=5, warm_up=0, arrivals=500, given=False).as_json() for _ in range(2))
    assert a | {"seconds": 0} == b | {"seconds": 0}


# --- the trace's own lifetimes -------------------------------------------------------------------------------


def test_durations_run_from_scheduling_or_creation_to_deletion(tmp_path: Path) -> None:
    """A pod that was never scheduled counts from its creation."""
    file = tmp_path / "pods" / "openb_pod_list_x.csv"
    file.parent.mkdir()
    file.write_text("name,creation_time,deletion_time,scheduled_time\na,1,10,4\nb,1,10,\n")
    assert durations(tmp_path, "x") == (6, 9)


def test_a_list_without_times_has_no_durations(tmp_path: Path) -> None:
    """The message names the file and what it lacks."""
    file = tmp_path / "pods" / "openb_pod_list_x.csv"
    file.parent.mkdir()
    file.write_text("name,cpu_milli\na,1\n")
    with pytest.raises(BadTrace, match=r"openb_pod_list_x\.csv .*deletion_time"):
        durations(tmp_path, "x")


@pytest.mark.parametrize(
    ("times", "says"),
    [
        ("0,9,10", "p for -1 seconds"),
        ("0,nan,5", "p for nan seconds"),
        ("0,inf,5", "p for inf seconds"),
        ("0,5,5", "has no pod that ran at all"),
    ],
)
def test_times_that_cannot_be(tmp_path: Path, times: str, says: str) -> None:
    """A pod does not end before it starts, or never; and one of them must have run."""
    file = tmp_path / "pods" / "openb_pod_list_x.csv"
    file.parent.mkdir()
    file.write_text(f"name,creation_time,deletion_time,scheduled_time\np,{times}\n")
    with pytest.raises(BadTrace, match=rf"openb_pod_list_x\.csv .*{says}\."):
        durations(tmp_path, "x")


# --- the command ---------------------------------------------------------------------------------------------


def run(*more: str) -> tuple[int, str]:
    """Run the command on two policies, two seeds and a load above what fits."""
    policies = ("--policy", "bestfit", "--policy", "fgd")
    sizes = ("--warm-up", "100", "--arrivals", "150", "--seeds", "2", "--load", "1.3", "--jobs", "1")
    result = CliRunner().invoke(app, [*policies, *sizes, *more], env={"TESSERA_TRACES": None})
    return result.exit_code, result.output


@pytest.mark.usefixtures("small")
def test_the_command_shows_each_policy_with_its_paired_difference() -> None:
    """The table says what is rejected, and for all but FGD how that differs from FGD."""
    code, text = run()
    assert code == 0
    lines = [line.split() for line in text.splitlines()]
    (bestfit,) = (line for line in lines if line[:2] == ["1.30", "bestfit"])
    (fgd,) = (line for line in lines if line[:2] == ["1.30", "fgd"])
    assert "±" in bestfit
    assert "±" not in fgd


@pytest.mark.usefixtures("small")
def test_the_command_prints_one_json_object_a_run() -> None:
    """Four runs, four lines, each with its policy, seed and classes."""
    code, text = run("--json", "--queue", "--lifetimes", "lognormal")
    runs = [json.loads(line) for line in text.splitlines()]
    assert code == 0
    assert [(r["policy"], r["seed"]) for r in runs] == [("bestfit", 42), ("bestfit", 43), ("fgd", 42), ("fgd", 43)]
    assert all(r["queue"] and r["lifetimes"] == "lognormal" and "share" in r["classes"] for r in runs)


@pytest.mark.usefixtures("small")
def test_what_is_asked_for_twice_runs_once() -> None:
    """A policy or a load that is named twice is one row, paired with FGD's as ever."""
    code, text = run("--policy", "bestfit", "--load", "1.3", "--json")
    assert (code, len(text.splitlines())) == (0, 4)


@pytest.mark.parametrize("wrong", [("--policy", "best"), ("--lifetimes", "weibull"), ("--lifetimes", "trace")])
def test_the_command_refuses_what_it_does_not_know(wrong: tuple[str, str]) -> None:
    """An unknown policy or distribution, or lifetimes of a trace without any, is a usage error."""
    code, _ = run(*wrong)
    assert code == 2


def test_the_interval_is_students() -> None:
    """Three values have two degrees of freedom: 4.303 standard errors."""
    mean, half = interval([1.0, 2.0, 3.0])
    assert mean == 2
    assert half == pytest.approx(4.303 / 3**0.5)
    assert interval([1.0]) == (1, np.inf)
