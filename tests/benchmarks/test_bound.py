"""`tessera-bench bound`: a replay is held against the bounds of the very nodes and pods that it ran on."""

import json
from pathlib import Path

import pytest

from tests.benchmarks.test_options import refused, run
from tests.benchmarks.test_traces import folder

SMALL = ("--nodes", "12")


def replayed(path: Path, *words: str | Path) -> Path:
    """Write the output of a replay."""
    code, said = run("replay", "--policy", "fgd", "--json", *words)
    assert code == 0, said
    path.write_text(said)
    return path


def test_a_replay_meets_the_bounds_of_its_own_instance(tmp_path: Path) -> None:
    """Seed and nodes mean the same to both commands, and what no policy can exceed is not exceeded."""
    file = replayed(tmp_path / "43.json", "--seed", "43", *SMALL)
    code, said = run("bound", "--seed", "43", *SMALL, "--result", file, "--json")
    found = json.loads(said)
    assert (code, found["trace"], found["seed"], found["nodes"]) == (0, "synthetic", 43, 12)
    assert found["results"][0]["allocation"] <= found["work_conserving"]


@pytest.mark.parametrize(
    ("words", "of"),
    [
        (SMALL, "synthetic (12 nodes, seed 42)"),
        (("--seed", "43", "--nodes", "11"), "synthetic (11 nodes, seed 43)"),
    ],
)
def test_a_replay_of_another_instance_is_refused(tmp_path: Path, words: tuple[str, ...], of: str) -> None:
    """Another seed or another number of nodes is another trace."""
    file = replayed(tmp_path / "43.json", "--seed", "43", *SMALL)
    said = refused("bound", *words, "--result", file)
    assert said.endswith(f"43.json is a replay of synthetic (12 nodes, seed 43), not of {of}.")


def test_files_have_the_same_bounds_in_every_order(tmp_path: Path) -> None:
    """A replay by order file or by any seed is one of the same nodes and pods."""
    root = folder(tmp_path)
    where: tuple[str | Path, ...] = ("--trace", root, "--pods", "tiny")
    files = [
        replayed(tmp_path / "order.json", *where, "--order", root / "orders/tiny_1.ord.gz"),
        replayed(tmp_path / "seed.json", *where, "--seed", "5"),
    ]
    code, said = run("bound", *where, *(word for file in files for word in ("--result", file)), "--json")
    assert (code, json.loads(said)["results"][0]["replays"]) == (0, 2)


@pytest.mark.parametrize("value", ["null", '"abc"', '"nan"', "NaN", "Infinity", "-1", "101", "[]"])
def test_an_allocation_that_is_none_is_refused(tmp_path: Path, value: str) -> None:
    """It is a percentage."""
    file = tmp_path / "wrong.json"
    head = '"trace": "synthetic", "seed": 42, "nodes": 12, "policy": "fgd"'
    file.write_text(f'{{{head}, "allocation": {{"130": {value}}}}}')
    assert "wrong.json is no output of tessera-bench replay --json" in refused("bound", *SMALL, "--result", file)


@pytest.mark.parametrize("words", [("--pods", "synthetic"), ("--seed", "1"), ("--nodes", "2")])
def test_a_cluster_takes_no_options_of_traces(words: tuple[str, str]) -> None:
    """They would change nothing."""
    assert "--cluster has its own pods and nodes" in refused("bound", "--cluster", "x.yaml", *words)
