"""Bounds that are known by hand, bounds of the published traces, and the command that prints them."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from benchmarks.bound import bound_command, gap_closed
from benchmarks.traces import load
from scoring import bound
from scoring.bound import Bounds, NoCompute, bounds, classes_of, easier, packing
from scoring.model import ABSENT, WHOLE, Ask, Demand, Fleet
from scoring.place import Board
from scoring.policies import POLICIES
from scoring.workload import Workload
from tests.builders import card, demand, fleet, row

TRACES = os.environ.get("TESSERA_TRACES")
CLUSTER = Path(__file__).parents[2] / "deploy" / "examples" / "cluster.yaml"
EIGHT = replace(WHOLE, count=8)


def share(milli: int, *, cpu: int = 1000, mib: int = 0, models: tuple[str, ...] = ()) -> Demand:
    """Return a pod that wants a part of one card's compute."""
    return demand(Ask(milli=milli, mib=mib), cpu=cpu, models=models)


def plain_cards(nodes: int = 3, cards: int = 2) -> Fleet:
    """Return nodes of cards that tell no memory, with CPU for anything."""
    return fleet(*[row(*[card(mib=0) for _ in range(cards)]) for _ in range(nodes)])


def of(there: Fleet, *pods: Demand, at_load: float = 200) -> tuple[float, float, float]:
    """Return B, W and N for pods that are equally frequent."""
    found = bounds(there, Workload(pods), at_load)
    return found.free_rejection, found.work_conserving, found.latest_failure


# --- by hand -------------------------------------------------------------------------------------------------


def test_one_size_leaves_what_it_cannot_fill() -> None:
    """A card holds one share of 600 and loses 400, under every bound."""
    assert of(plain_cards(), share(600)) == pytest.approx((60, 60, 60))


def test_sizes_that_fit_together_fill_a_card() -> None:
    """600 and 400 are a pattern without a loss, and enough of both arrive."""
    assert of(plain_cards(), share(600), share(400)) == pytest.approx((100, 100, 100))


def test_no_more_is_allocated_than_arrives() -> None:
    """At half the load half is the bound."""
    assert of(plain_cards(), share(600), share(400), at_load=50) == pytest.approx((50, 50, 50))


def test_who_places_what_fits_cannot_refuse_the_easier() -> None:
    """At 181 % a whole card and a share of 810 come for each card: B takes the cards only, W half of both."""
    assert of(plain_cards(), demand(WHOLE, cpu=1000), share(810), at_load=181) == pytest.approx((100, 90.5, 90.5))


def test_an_early_failure_that_pays_is_in_w_but_not_in_n() -> None:
    """The share of 600 asks for more CPU, so it is not easier; N has both accepted until half has come."""
    free, conserving, late = of(plain_cards(), demand(WHOLE, cpu=1000), share(600, cpu=2000), at_load=160)
    assert (free, conserving) == pytest.approx((100, 100))
    assert late == pytest.approx(80, abs=0.1)
    assert late > 80


def test_the_first_failure_of_one_group_does_not_hasten_the_next() -> None:
    """T4 is asked for four times over and fails at a quarter; the others are still all accepted."""
    there = fleet(row(card(mib=0, model="T4")), row(card(mib=0, model="A10")))
    found = of(there, *[share(1000, models=("t4",))] * 4, share(1000, models=("a10",)), at_load=250)
    assert found == pytest.approx((100, 100, 100))


def test_a_kind_gives_no_more_cpu_than_it_has() -> None:
    """Four cores for pods of two: two pods of 100 on a card."""
    assert of(fleet(row(card(mib=0), cpu=4000)), share(100, cpu=2000)) == pytest.approx((20, 20, 20))


def test_a_kind_gives_no_more_memory_than_it_has() -> None:
    """1 GiB for pods of a quarter: four pods of 100 on a card."""
    there = fleet(row(card(mib=0), ram=1024))
    assert of(there, replace(share(100), ram_mib=256)) == pytest.approx((40, 40, 40))


def test_pods_without_cards_take_cpu_but_may_be_refused_by_b() -> None:
    """The pod without cards is easier, so W accepts it as far as the other, and both as far as CPU goes."""
    there = fleet(row(card(mib=0), cpu=2000))
    assert of(there, share(500, cpu=1000), Demand(cpu_milli=1000), at_load=100) == pytest.approx((100, 50, 50))


def test_a_pattern_fits_in_memory_and_compute() -> None:
    """6 and 4 of 10 GiB fit together; 6 and 6 do not, whatever their compute."""
    there = fleet(row(card(mib=10_000)))
    assert of(there, share(100, mib=6000), share(900, mib=4000))[0] == pytest.approx(100)
    assert of(there, share(500, mib=6000))[0] == pytest.approx(50)


def test_memory_in_percent_is_of_the_card() -> None:
    """60 % of the memory is one pod a card, on small cards and on large ones."""
    there = fleet(row(card(mib=1000)), row(card(mib=9000)))
    assert of(there, demand(Ask(percent=60, milli=300)))[0] == pytest.approx(30)


def test_an_exclusive_pod_shares_with_nobody() -> None:
    """It asks for 500 and takes all slots."""
    there = plain_cards()
    assert of(there, demand(Ask(milli=500, exclusive=True)))[0] == pytest.approx(50)


def test_eight_cards_need_a_node_of_eight() -> None:
    """Of two nodes only the larger can host the pod."""
    there = fleet(row(*[card(mib=0)] * 8), row(*[card(mib=0)] * 4))
    assert of(there, demand(EIGHT)) == pytest.approx((100 * 8 / 12,) * 3)


def test_a_pod_may_take_cards_of_two_models_on_one_node() -> None:
    """Two cards of a node that has one of each."""
    there = fleet(row(card(model="A"), card(model="B")))
    assert of(there, demand(replace(WHOLE, count=2)))[0] == pytest.approx(100)


def test_two_containers_pack_as_two_sizes() -> None:
    """A pod of 700 and 300 fills cards, one of 700 and 400 does not."""
    assert of(plain_cards(), demand(Ask(milli=700), Ask(milli=300)))[0] == pytest.approx(100)
    assert of(plain_cards(), demand(Ask(milli=700), Ask(milli=400)))[0] < 90


def test_a_card_that_is_not_offered_does_not_count() -> None:
    """Neither its compute nor its share of the whole."""
    gone = card(mib=0, mib_free=ABSENT, milli_free=ABSENT, slots_free=ABSENT)
    assert of(fleet(row(card(mib=0), gone)), share(600)) == pytest.approx((60, 60, 60))


def test_a_pod_that_fits_nowhere_hastens_nobody() -> None:
    """It fails at once, and N does not wait for it; the shares are a 17th of what is asked, and come twice over."""
    assert of(plain_cards(), share(500), demand(EIGHT), at_load=3400) == pytest.approx((100, 100, 100))


@pytest.mark.parametrize(
    ("there", "pods"),
    [(fleet(row()), [share(500)]), (plain_cards(), [Demand(cpu_milli=1000)]), (plain_cards(), [])],
)
def test_without_compute_there_is_no_bound(there: Fleet, pods: list[Demand]) -> None:
    """No card, no pod that asks for one, no pod at all."""
    with pytest.raises(NoCompute):
        bounds(there, Workload(pods), 130)


# --- the parts -----------------------------------------------------------------------------------------------


def test_what_is_easier() -> None:
    """Less of everything, and any model instead of one; nothing is easier by halves."""
    there = fleet(row(card(model="T4"), card(model="A10")))
    pods = [
        share(500),
        share(600, cpu=500),
        share(600),
        share(600, models=("t4",)),
        demand(Ask(milli=600), Ask(milli=500), cpu=1000),
        Demand(cpu_milli=800),
        replace(share(100), uuids=("GPU-0",)),
    ]
    order = easier(classes_of(there, Workload(pods), 1.0))
    expected = {
        (0, 2),
        (0, 3),
        (0, 4),
        (1, 2),
        (1, 3),
        (1, 4),
        (2, 3),
        (2, 4),
        (5, 0),
        (5, 2),
        (5, 3),
        (5, 4),
        (5, 6),
    }
    assert {(int(c), int(d)) for c, d in np.argwhere(order)} == expected


def test_equal_pods_with_differently_spelled_models_are_one_class() -> None:
    """What counts is which of the fleet's models are allowed."""
    there = fleet(row(card(model="T4"), card(model="A10")))
    spelled = [("t4", "a10"), ("a10", "t4"), (), ("*", "!h100")]
    (only,) = classes_of(there, Workload(share(500, models=models) for models in spelled), 2.0)
    assert only.arrivals == 8


def test_only_maximal_patterns_are_listed() -> None:
    """Of 700, 400 and 300 on a card: 700+300, 400+400 (200 lost), 400+300+300, 300+300+300."""
    found = packing((1000, 0, 10), ((700, 0, 1), (400, 0, 1), (300, 0, 1)))
    assert found.exact
    assert sorted(found.counts.tolist()) == [[0, 0, 3], [0, 1, 2], [0, 2, 0], [1, 0, 1]]


def test_slots_limit_a_pattern() -> None:
    """Three slots: no fourth share, be it ever so small; and an exclusive one takes them all."""
    found = packing((1000, 0, 3), ((100, 0, 1), (200, 0, 3)))
    assert sorted(map(sorted, found.counts.tolist())) == [[0, 1], [0, 3]]


def test_too_many_patterns_are_rounded_and_the_bound_only_rises(monkeypatch: pytest.MonkeyPatch) -> None:
    """With a tiny limit the sizes are rounded down; then the sums still hold."""
    pods = [share(milli) for milli in (810, 550, 470, 320, 160, 50)]
    exact = of(plain_cards(), *pods, at_load=130)
    monkeypatch.setattr(bound, "MANY", 40)
    packing.cache_clear()
    rounded = of(plain_cards(), *pods, at_load=130)
    assert not packing((1000, 0, 48), tuple((pod.milli, 0, 1) for pod in pods)).exact
    packing.cache_clear()
    assert all(e - 1e-6 <= r <= 100 + 1e-6 for e, r in zip(exact, rounded, strict=True))


@pytest.mark.parametrize("seed", range(6))
def test_no_replay_exceeds_b(seed: int) -> None:
    """Random pods with memory and CPU on random cards, placed by FGD: never more than B for just these pods."""
    draw = random.Random(seed)
    there = fleet(
        *[row(*[card(mib=draw.choice((8000, 16000)))] * draw.choice((1, 2, 4)), cpu=9000) for _ in range(5)]
    )
    pods = [
        share(
            draw.choice((100, 300, 500, 810, 1000)), mib=draw.choice((500, 3000, 7000)), cpu=draw.choice((500, 2000))
        )
        for _ in range(draw.choice((15, 40)))
    ]
    total = int(there.capacity.milli.clip(0).sum())
    limit = bounds(there, Workload(pods), 100 * sum(pod.milli for pod in pods) / total)
    board, used = Board(there, POLICIES["fgd"](Workload(pods), 0)), 0
    for pod in pods:
        if (placement := board.best(pod)) is not None:
            there.take(placement)
            used += pod.milli
    assert 100 * used / total <= limit.free_rejection + 1e-6
    assert limit.latest_failure - 1e-6 <= limit.work_conserving <= limit.free_rejection + 1e-6


# --- published traces ----------------------------------------------------------------------------------------


@pytest.mark.skipif(not TRACES, reason="TESSERA_TRACES names no folder of traces")
@pytest.mark.parametrize(
    ("pods", "expected"),
    [("default", Bounds(99.89, 96.45, 96.43)), ("gpushare100", Bounds(91.61, 91.61, 88.58))],
)
def test_the_bounds_of_openb(pods: str, expected: Bounds) -> None:
    """What an independent program found at 130 %, to two digits."""
    trace = load(Path(TRACES or ""), pods)
    found = bounds(trace.fleet(), Workload(trace.history), 130)
    assert found.free_rejection == pytest.approx(expected.free_rejection, abs=0.01)
    assert found.work_conserving == pytest.approx(expected.work_conserving, abs=0.01)
    assert found.latest_failure == pytest.approx(expected.latest_failure, abs=0.02)


# --- the command ---------------------------------------------------------------------------------------------

app = typer.Typer()
app.command()(bound_command)


def run(*words: str | Path) -> str:
    """Run the command without a folder of traces and return what it printed."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"TESSERA_TRACES": None})
    assert done.exit_code == 0, done.output
    return done.output


def result(folder: Path, policy: str, allocation: float, trace: str = "synthetic") -> Path:
    """Write what a replay would print, as far as the command reads it."""
    path = folder / f"{policy}-{allocation}.json"
    made = {"trace": trace, "seed": 42, "nodes": 200, "policy": policy, "allocation": {"130": allocation}}
    path.write_text(json.dumps(made))
    return path


def test_the_gap_that_is_closed() -> None:
    """From 90 to 94 of 98 is half the way; from the bound there is none."""
    assert gap_closed(94, 90, 98) == pytest.approx(0.5)
    assert gap_closed(88, 90, 98) == pytest.approx(-0.25)
    assert gap_closed(99, 98, 98) is None


def test_the_command_compares_replays_with_fgd(tmp_path: Path) -> None:
    """The mean of a policy's replays against that of FGD's."""
    files = [result(tmp_path, *one) for one in (("fgd", 94.0), ("fgd", 96.0), ("mine", 96.5))]
    said = json.loads(run("--json", *(word for file in files for word in ("--result", file))))
    fgd, mine = said["results"]
    assert (fgd["replays"], fgd["allocation"], fgd["gap_closed"]) == (2, 95.0, 0.0)
    assert mine["gap_closed"] == pytest.approx(1.5 / (said["work_conserving"] - 95))
    assert "mine" in run("--result", files[0], "--result", files[2])


@pytest.mark.parametrize("text", ["", "[]", '{"trace": "default", "policy": "fgd", "allocation": {"130": 95}}'])
def test_a_file_that_is_no_such_result_is_refused(tmp_path: Path, text: str) -> None:
    """Not JSON, not a result, and a result of another trace."""
    path = tmp_path / "wrong.json"
    path.write_text(text)
    done = CliRunner().invoke(app, ["--result", str(path)], env={"TESSERA_TRACES": None})
    assert done.exit_code == 2
    assert "wrong.json" in done.output


def test_a_cluster_is_bounded_by_its_cards_and_its_pods() -> None:
    """The example's cards have memory, and its running pods are what comes again."""
    said = json.loads(run("--cluster", CLUSTER, "--json"))
    assert said["trace"] == "cluster.yaml"
    assert 0 < said["latest_failure"] <= said["work_conserving"] + 1e-6 <= said["free_rejection"] + 2e-6 <= 100.001


def test_a_cluster_that_cannot_be_read_is_refused() -> None:
    """One sentence, and status 2."""
    done = CliRunner().invoke(app, ["--cluster", "nowhere.yaml"])
    assert (done.exit_code, "nowhere.yaml cannot be read" in done.output) == (2, True)
