"""The demo: a whole run, counted again by other means, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.demo.batch import FIXED, batch, words
from benchmarks.demo.drive import Failed, Outcome, extender
from benchmarks.demo.example import FILE, Card
from benchmarks.demo.recount import faults
from benchmarks.demo.whole import compare

COMMAND = [sys.executable, "-m", "benchmarks.demo"]
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Run:
    """What one run printed and wrote."""

    printed: str
    outcome: dict[str, Any]

    def pod(self, name: str) -> dict[str, Any]:
        (found,) = (pod for pod in self.outcome["pods"] if pod["name"] == name)
        return dict(found)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """One run of the demo as a reader starts it, with its output in a pipe."""
    file = tmp_path_factory.mktemp("demo") / "out.json"
    done = subprocess.run([*COMMAND, "--json", str(file)], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert (done.returncode, done.stderr) == (0, "")
    return Run(done.stdout, json.loads(file.read_text()))


def example_cards() -> dict[str, dict[str, Any]]:
    """Return the cards of the example cluster's file by UUID, with the node and its overcommit factor."""
    objects = yaml.safe_load(FILE.read_text())["items"]
    factor = {
        node["metadata"]["name"]: float(node["metadata"].get("annotations", {}).get("tessera.gpu/overcommit", "1"))
        for node in objects
        if node["kind"] == "Node"
    }
    return {
        gpu["uuid"]: {**gpu, "node": found["metadata"]["name"], "factor": factor[found["metadata"]["name"]]}
        for found in objects
        if found["kind"] == "GPUNode"
        for gpu in found["status"]["gpus"]
    }


# --- the run -------------------------------------------------------------------------------------------------


def test_the_cards_are_those_of_the_file_with_their_capacity(run: Run) -> None:
    """At least 12 nodes of mixed cards; memory less the reserve, and 1000 thousandths times the factor."""
    said = {card["uuid"]: card for card in run.outcome["cards"]}
    there = example_cards()
    assert said.keys() == there.keys()
    for uuid, gpu in there.items():
        assert said[uuid]["node"] == gpu["node"]
        assert said[uuid]["memory_mib"] == gpu["memoryMiB"] - gpu["reservedMiB"]
        assert said[uuid]["milli"] == round(1000 * gpu["factor"])
    assert len({card["node"] for card in said.values()}) >= 12
    assert len({card["model"] for card in said.values()}) >= 4


def test_every_record_fits_its_card(run: Run) -> None:
    """Even if all containers of a pod ran at once, no card gives more than it has; each is on the pod's node."""
    there = example_cards()
    held: dict[str, Counter[str]] = defaultdict(Counter)
    for pod in run.outcome["pods"]:
        if pod["record"] is None:
            continue
        assert (pod["record"]["node"], pod["record"]["uid"]) == (pod["node"], pod["uid"])
        for grant in (grant for grants in pod["record"]["containers"].values() for grant in grants):
            assert there[grant["gpu"]]["node"] == pod["node"]
            assert there[grant["gpu"]]["healthy"]
            held[grant["gpu"]].update({"mib": grant["mib"], "milli": grant["milli"]})
    for uuid, sums in held.items():
        gpu = there[uuid]
        assert sums["mib"] <= gpu["memoryMiB"] - gpu["reservedMiB"] - gpu.get("foreignMiB", 0)
        assert sums["milli"] <= round(1000 * gpu["factor"])


def test_the_batch_is_large_mixed_and_more_than_the_cluster_holds(run: Run) -> None:
    """At least 200 pods of every kind; most are placed, some wait, and all have a name of their own."""
    pods = run.outcome["pods"]
    assert len(pods) >= 200
    assert len({(pod["namespace"], pod["name"]) for pod in pods}) == len(pods)
    kinds = {pod["name"].rpartition("-")[0] for pod in pods}
    assert kinds >= {"chat", "totals", "notebook", "student", "embedder", "picky", "parallel", "pipeline", "whole"}
    assert sum(1 for pod in pods if pod["record"]) >= 150
    assert {pod["name"] for pod in pods if pod["node"] is None} > {"colossus", "typo"}
    assert all((pod["node"] is None) == (pod["why"] is not None) for pod in pods)
    assert {"segmenter-train-0", "search-6d9c7f5b8-x2k4m", "ingest-0"} <= {pod["name"] for pod in pods}


def test_the_sharing_example_shares_one_a10_and_is_refused_without_the_factor(run: Run) -> None:
    """One trainer and three inference pods: together at 1.3, two of the three wait at 1.0."""
    names = ("trainer", "inference-0", "inference-1", "inference-2")
    grants = [run.pod(name)["record"]["containers"]["main"] for name in names]
    assert [len(found) for found in grants] == [1, 1, 1, 1]
    assert len({found[0]["gpu"] for found in grants}) == 1
    assert [(found[0]["mib"], found[0]["milli"]) for found in grants] == [(8192, 700)] + [(2048, 200)] * 3
    gpu = example_cards()[grants[0][0]["gpu"]]
    assert (gpu["model"], gpu["factor"]) == ("NVIDIA A10", 1.3)
    waiting = [name for name in names if run.pod(f"plain-{name}")["node"] is None]
    assert waiting == ["inference-1", "inference-2"]
    assert "1 no card with enough free GPU utilization" in run.pod("plain-inference-1")["why"]


def test_what_cannot_be_placed_says_why(run: Run) -> None:
    """Too large for any card, misspelled, and a pod without a GPU that has a node and no record."""
    too_small = "0/14 nodes are available: 14 the node's cards cannot hold the request even when empty."
    assert run.pod("colossus")["why"] == too_small
    assert "14 tessera.gpu/memory is '4Gx'" in run.pod("typo")["why"]
    assert run.pod("etl-0")["node"]
    assert run.pod("etl-0")["record"] is None


def test_everything_is_printed_plainly_where_there_is_no_terminal(run: Run) -> None:
    """Every pod and every node is there, no line is wider than 100, and there are no control codes."""
    for pod in run.outcome["pods"]:
        assert pod["name"] in run.printed
    for node in {card["node"] for card in run.outcome["cards"]}:
        assert node in run.printed
    assert "Whole-card allocation would have needed" in run.printed
    assert max(len(line) for line in run.printed.splitlines()) <= 100
    assert all(char.isprintable() or char == "\n" for char in run.printed)


# --- the recount ---------------------------------------------------------------------------------------------


def first_grant(outcome: dict[str, Any], name: str) -> dict[str, Any]:
    """Return the first grant in a pod's record, to be tampered with."""
    (pod,) = (pod for pod in outcome["pods"] if pod["name"] == name)
    found: dict[str, Any] = next(iter(pod["record"]["containers"].values()))[0]
    return found


def test_the_recount_finds_what_is_wrong(run: Run) -> None:
    """One MiB too much, one thousandth too much, another node's card, a record of another pod, a card alone."""
    assert faults(run.outcome, set()) == []
    card = next(card for card in run.outcome["cards"] if card["node"] == "a10x1-0")
    worse = deepcopy(run.outcome)
    first_grant(worse, "trainer")["mib"] = 1 + card["memory_mib"]
    assert [f"has {card['memory_mib']} MiB to give" in fault for fault in faults(worse, set())] == [True]
    worse = deepcopy(run.outcome)
    first_grant(worse, "trainer")["milli"] += 1
    assert ["has 1300 thousandths to give and promises 1301" in fault for fault in faults(worse, set())] == [True]
    worse = deepcopy(run.outcome)
    first_grant(worse, "trainer")["gpu"] = "GPU-0"
    assert faults(worse, set()) == ["The record of trainer names a card that a10x1-0 does not have."]
    worse = deepcopy(run.outcome)
    first_grant(worse, "trainer")["exclusive"] = True
    assert ["is to be alone" in fault for fault in faults(worse, set())] == [True]
    worse = deepcopy(run.outcome)
    next(pod for pod in worse["pods"] if pod["name"] == "trainer")["record"]["uid"] = "another"
    assert faults(worse, set()) == ["The record of trainer names another node or pod."]


def test_the_dearest_phase_counts() -> None:
    """An init container's share is not added to that of the containers which start after it."""
    grants = {name: [{"gpu": "GPU-1", "mib": mib, "milli": 0}] for name, mib in (("a", 60), ("b", 10), ("c", 30))}
    inits = [{"name": "b", "restartPolicy": "Always"}, {"name": "a"}]
    request = {"initContainers": inits, "containers": [{"name": "c"}]}
    record = {"node": "n", "uid": "u", "containers": grants}
    pod = {"name": "p", "uid": "u", "node": "n", "request": request, "record": record}
    card = {"node": "n", "index": 0, "uuid": "GPU-1", "memory_mib": 70, "milli": 1, "foreign_mib": 0, "healthy": True}
    assert faults({"pods": [pod], "cards": [card]}, set()) == []
    assert len(faults({"pods": [pod], "cards": [{**card, "memory_mib": 69}]}, set())) == 1


# --- the batch, and whole cards ------------------------------------------------------------------------------


def test_the_seed_decides_the_batch() -> None:
    """The same seed gives the same pods; another one other UIDs, but always the pods that must be there."""
    assert batch(1, 50) == batch(1, 50)
    assert len(batch(1, FIXED)) == FIXED
    assert not {one.uid for one in batch(1, 50)} & {one.uid for one in batch(2, 50)}


def test_a_request_in_words() -> None:
    """One line tells what a pod asks."""
    said = {one.name.rpartition("-")[0] or one.name: words(one.pod) for one in batch(42, 230)}
    assert (said["etl"], said["colossus"], said["private"]) == ("no GPU", "200Gi", "10Gi 30%, alone")
    assert said["notebook"].endswith("% compute")
    assert said["parallel"].startswith("2 x ")
    assert said["pipeline"].startswith("compile 1Gi, tracker 512Mi 5%, decode 1Gi 10%, detect ")


def test_whole_cards_are_given_once() -> None:
    """Two cards serve two pods of the example, the third waits; a pod that can never run counts for nothing."""
    cards = [Card("a10x1-0", i, f"GPU-{i}", "NVIDIA A10", 22515, 1300, 0, healthy=True) for i in range(3)]
    pods = [Outcome(one, "a10x1-0") for one in batch(1, FIXED) if one.name in {"trainer", "inference-0", "typo"}]
    found = compare([*pods, *pods], cards, {"GPU-2"})
    assert (found.pods, found.placed, found.placed_whole, found.cards_for_all) == (4, 4, 2, 4)


# --- the process ---------------------------------------------------------------------------------------------


def test_the_log_of_an_extender_that_dies_is_shown(tmp_path: Path) -> None:
    """A file that is no cluster ends the extender, whose sentence is passed on."""
    with (
        pytest.raises(Failed, match=r"ended with status 2\.\n.*none\.yaml cannot be read"),
        extender(tmp_path / "none.yaml"),
    ):
        pass


def test_bad_arguments_are_refused(tmp_path: Path) -> None:
    """Too few pods, and a file that cannot be written."""
    few = subprocess.run([*COMMAND, "--pods", "3"], capture_output=True, text=True, cwd=ROOT)
    assert few.returncode == 2
    assert "--pods is 3" in few.stderr
    there = str(tmp_path / "none" / "out.json")
    lost = subprocess.run([*COMMAND, "--pods", "13", "--json", there], capture_output=True, text=True, cwd=ROOT)
    assert (lost.returncode, lost.stderr) == (2, f"demo: {there} cannot be written: No such file or directory.\n")


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are looked up in /proc")
def test_a_demo_that_is_told_to_stop_leaves_no_extender() -> None:
    """SIGTERM in the middle ends the extender, too."""
    demo = subprocess.Popen([*COMMAND], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=ROOT)
    try:
        children = Path(f"/proc/{demo.pid}/task/{demo.pid}/children")
        deadline = time.monotonic() + 30
        while not (found := children.read_text().split()) and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.2)  # the child has been forked; let it become the extender
        demo.send_signal(signal.SIGTERM)
        assert demo.wait(20) == 128 + signal.SIGTERM
    finally:
        demo.kill()
        demo.wait()
    (child,) = found
    with pytest.raises(ProcessLookupError):
        os.kill(int(child), 0)
