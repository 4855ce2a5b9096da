"""The options of all commands: what cannot be done is refused with one sentence and status 2."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from benchmarks.__main__ import app
from tests.benchmarks.test_traces import folder


def run(*words: str | Path) -> tuple[int, str]:
    """Run tessera-bench without a folder of traces in the environment; return its status and what it said."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"TESSERA_TRACES": None})
    return done.exit_code, done.output


def refused(*words: str | Path) -> str:
    """Return the one line with which a command is refused."""
    code, said = run(*words)
    assert code == 2, said
    (line,) = said.splitlines()
    assert line.startswith("tessera-bench: ")
    return line


@pytest.mark.parametrize("load", ["0", "-1", "nan", "inf"])
def test_a_load_is_a_finite_number_above_0(load: str) -> None:
    """No pods arrive at a load of 0, and not a number of them at nan."""
    assert "is not a finite number above 0" in refused("churn", "--load", "0.9", "--load", load)


@pytest.mark.parametrize("command", ["churn", "report", "ablation"])
def test_no_processes_run_nothing(command: str) -> None:
    """Every command that runs replays side by side says so."""
    assert "--jobs 0" in refused(command, "--jobs", "0")


@pytest.mark.parametrize("command", ["report", "ablation"])
def test_seeds_that_are_none(command: str) -> None:
    """A range that ends before it begins has nothing to run."""
    assert "'51-42'" in refused(command, "--seeds", "51-42")


@pytest.mark.parametrize("command", ["replay", "bound", "churn", "report", "ablation"])
def test_pods_need_the_folder_that_lists_them(command: str) -> None:
    """Numbers of the synthetic trace never stand under another name."""
    assert "without --trace there are no pods but synthetic" in refused(command, "--pods", "cpu050")


@pytest.mark.parametrize("command", ["replay", "bound"])
def test_the_nodes_of_a_folder_are_given(tmp_path: Path, command: str) -> None:
    """--nodes would change nothing there."""
    assert "--nodes" in refused(command, "--trace", folder(tmp_path), "--pods", "tiny", "--nodes", "5")


def test_a_folder_leaves_the_synthetic_trace_to_be_asked_for(tmp_path: Path) -> None:
    """By its name, as in a report, with nodes of its own."""
    words = ("--pods", "synthetic", "--nodes", "3", "--policy", "bestfit", "--json")
    code, said = run("replay", "--trace", folder(tmp_path), *words)
    assert (code, json.loads(said)["trace"], json.loads(said)["nodes"]) == (0, "synthetic", 3)


def test_an_order_needs_a_folder() -> None:
    """It names pods, and the synthetic ones have no names."""
    assert "--order" in refused("replay", "--order", "x.ord.gz")
