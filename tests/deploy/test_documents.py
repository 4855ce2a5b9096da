"""README and docs/: links lead somewhere, commands are there, and a test runs each, or it stands here why none does.

What can run without a cluster runs here, what needs one in tests/e2e/test_documented.py, in both word for word.
"""

import gzip
import importlib.util
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from typer.testing import CliRunner

from benchmarks import agent, latency
from benchmarks.__main__ import app
from extender.kubectl.__main__ import parser
from tests.benchmarks.test_traces import NODES, PODS
from tests.deploy.rendered import CHART
from tests.deploy.test_deploy import DEPLOY
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.test_documented import COMMANDS

ROOT: Final = DEPLOY.parent
PAGES: Final = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
BIN: Final = Path(sys.executable).parent
PROGRAMS: Final = ("tessera-extender", "tessera-agent", "tessera-bench")
FENCED: Final = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STARTS: Final = ("make", "kubectl", "helm", "python", "docker", "curl", "kill", "uv", "pipx", *PROGRAMS)

# By the module of a program, its extra.
PARTS: Final = {"extender": "extender", "nodeagent": "agent", "benchmarks": "bench", "extender.kubectl": "kubectl"}
# Runs a module's --help as if only some distributions were installed.
ALONE: Final = """
import re, runpy, sys
from importlib.metadata import packages_distributions
module, *names = sys.argv[1:]
for top, owners in packages_distributions().items():
    if not {re.sub("[-_.]+", "-", owner).lower() for owner in owners} & {"tessera-gpu", *names}:
        sys.modules[top] = None
sys.argv = [module, "--help"]
runpy.run_module(module, run_name="__main__", alter_sys=True)
"""

# The test that runs a command, by its first words; what stands in COMMANDS runs on a cluster. Where a command takes
# minutes, it is the same one at its smallest size.
RUN: Final = {
    "curl": "tests/deploy/test_documents.py::test_readme_without_a_gpu",
    "kill": "tests/deploy/test_documents.py::test_readme_without_a_gpu",
    "tessera-extender --cluster": "tests/deploy/test_documents.py::test_readme_without_a_gpu",
    "tessera-extender --help": "tests/deploy/test_documents.py::test_help_lists_the_settings",
    "tessera-agent --help": "tests/deploy/test_documents.py::test_help_lists_the_settings",
    "tessera-bench replay": "tests/deploy/test_documents.py::test_replays",
    "tessera-bench ablation": "tests/benchmarks/test_ablation.py::test_the_command_prints_a_row_for_each",
    "tessera-bench bound": "tests/benchmarks/test_bound.py::test_a_replay_meets_the_bounds_of_its_own_instance",
    "tessera-bench churn": "tests/benchmarks/test_churn.py::test_the_command_prints_one_json_object_a_run",
    "tessera-bench report": "tests/benchmarks/test_report.py::test_the_command_prints_tables_of_a_synthetic_trace",
    "tessera-bench agent": "tests/deploy/test_documents.py::test_measurements_at_their_smallest",
    "tessera-bench latency": "tests/deploy/test_documents.py::test_measurements_at_their_smallest",
    "tessera-bench page": "tests/browser/test_bench.py::test_it_measures_what_is_shown",
    "python -m tests.metrics_page": "tests/deploy/test_documents.py::test_metrics_page",
    "python -m tests.deploy.rendered": "tests/e2e/test_chart.py::test_manifest_is_what_the_chart_makes",
    "python -m tests.e2e.bench_throughput": "tests/e2e/test_documented.py::test_benchmarks_at_their_smallest",
    "python -m tests.e2e.bench_memory": "tests/e2e/test_documented.py::test_benchmarks_at_their_smallest",
    "make demo": "tests/benchmarks/test_demo.py::run",
    "helm template": "tests/e2e/test_chart.py::test_manifest_is_what_the_chart_makes",
    "kubectl get --raw": "tests/e2e/test_kubectl.py::test_top_shows_promised_beside_measured",
    "kubectl tessera": "tests/e2e/test_kubectl.py::test_kubectl_finds_the_plugin",
}
# What no test runs, and why. Of make, `test_make_knows_what_to_do` runs all but the work.
NOT_RUN: Final = {
    "make test": "this is it",
    "make test-long": "half an hour; `make test` runs the same tests with fewer cases",
    "make check": "beside the tests",
    "make browser": "tests by themselves",
    "make e2e": "tests by themselves",
    "make bench": "an hour; its parts are above, at their smallest",
    "make images": "needs a container engine and the base images",
    "make release": "needs the package index; tests/deploy and tests/e2e/test_chart.py make its parts",
    "docker": "needs a container engine and a registry",
    "uv tool install": "needs the package index",
    "pipx install": "needs the package index",
}


def name(page: Path) -> str:
    """Return a page as people call it."""
    return str(page.relative_to(ROOT))


def commands(page: Path) -> Iterator[list[str]]:
    """Yield the words of every command of a page: in blocks, and in inline code. One word alone is a name."""
    text = page.read_text().replace("\\\n", " ")
    prose = FENCED.sub("", text)
    blocks = [block for language, block in FENCED.findall(text) if not language]
    blocks += re.findall(r"(?:^    .*\n)+", prose, re.MULTILINE)
    inline = [re.sub(r"\s+", " ", code) for code in re.findall(r"`([^`]+)`", prose)]
    for line in [line for block in blocks for line in lines(block)] + inline:
        line = line.strip().removeprefix(".venv/bin/").partition("  #")[0].removesuffix(" &")
        if " " in line and line.startswith(tuple(f"{start} " for start in STARTS)):
            yield shlex.split(line)


def lines(block: str) -> list[str]:
    """Return the commands of a block: what follows a `$ ` if there is any, else each line, with what it quotes."""
    asked = re.findall(r"^\s*\$ (.*)$", block, re.MULTILINE)
    return asked or re.findall(r"^(?:[^'\n]|'[^']*')+$", block, re.MULTILINE)


def entry(words: list[str]) -> str:
    """Return the longest of the first words of a command that RUN or NOT_RUN have; "" for none."""
    starts = (" ".join(words[:i]) for i in range(len(words), 0, -1))
    return next((start for start in starts if start in RUN or start in NOT_RUN), "")


EVERY: Final = [pytest.param(w, id=f"{name(page)}: {' '.join(w)}") for page in PAGES for w in commands(page)]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    """Files exist, and so do the headings that links name."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if heading:
            assert heading in anchors(file), target


def anchors(page: Path) -> set[str]:
    """Return what a heading can be linked by."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_there_are_commands() -> None:
    """The pages are read rightly: README alone has a dozen."""
    assert len(list(commands(PAGES[0]))) >= 12


def test_every_command_is_run() -> None:
    """By a test, or there is a reason; and nothing is run or excused that no page names."""
    found = [words for page in PAGES for words in commands(page)]
    on_a_cluster = {tuple(shlex.split(command)) for command in COMMANDS}
    others = [words for words in found if tuple(words) not in on_a_cluster]
    assert [" ".join(words) for words in others if not entry(words)] == []
    assert on_a_cluster - set(map(tuple, found)) == set()
    assert (RUN.keys() | NOT_RUN.keys()) - set(map(entry, others)) == set()


@pytest.mark.parametrize("test", sorted(set(RUN.values())))
def test_who_runs_them_is_there(test: str) -> None:
    """Under that name."""
    path, _, function = test.partition("::")
    assert f"def {function}(" in (ROOT / path).read_text()


@pytest.mark.parametrize("words", EVERY)
def test_commands_are_there(words: list[str]) -> None:
    """Targets, programs, flags, modules, files and values exist."""
    check = {"make": make, "helm": helm, "python": module, "kubectl": kubectl}
    check.get(words[0], program if words[0] in PROGRAMS else files)(words)


def make(words: list[str]) -> None:
    """Check that a target is in the Makefile."""
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for word in words[1:]:
        assert "=" in word or word in targets


def module(words: list[str]) -> None:
    """Check that a module can be run."""
    assert importlib.util.find_spec(words[2])


def kubectl(words: list[str]) -> None:
    """Check that what is applied is in the tree, and that the plugin takes its command lines."""
    if words[1] == "tessera" and len(words) > 2:
        parser().parse_args(words[2:])
    elif "port-forward" not in words:
        files(words)


def files(words: list[str]) -> None:
    """Check that what is applied is in the tree."""
    for word in words:
        if word.startswith("deploy/"):
            assert (ROOT / word).exists()


def program(words: list[str]) -> None:
    """Check the flags of our own programs."""
    sub = words[1:2] if words[0] == "tessera-bench" and len(words) > 1 and words[1][0] != "-" else []
    for flag in (word for word in words if word.startswith("--")):
        assert flag.partition("=")[0] in help_of(words[0], *sub)
    files(words)


@cache
def help_of(*words: str) -> str:
    """Return what a program says about its flags."""
    command = [str(BIN / words[0]), *words[1:], "--help"]
    plain = {key: value for key, value in os.environ.items() if key not in ("GITHUB_ACTIONS", "FORCE_COLOR")}
    return subprocess.run(command, capture_output=True, text=True, check=True, env=plain).stdout


def helm(words: list[str]) -> None:
    """Check that the chart is there, and every value that is set."""
    files(words)
    known = yaml.safe_load((CHART / "values.yaml").read_text())
    for i, word in enumerate(words):
        if word == "--set":
            assert value_of(known, words[i + 1].partition("=")[0].split("."))


def value_of(known: Any, path: list[str]) -> bool:
    """Say whether values have this path; below settings everything is the schema's to judge."""
    for part in path:
        if part == "settings":
            return True
        if not isinstance(known, dict) or part not in known:
            return False
        known = known[part]
    return True


@pytest.mark.parametrize(("module", "extra"), PARTS.items())
def test_without_its_extra_a_program_says_which_one_to_install(module: str, extra: str) -> None:
    """The package brings every program, whichever extra was asked for."""
    bare = [sys.executable, "-S", "-m", module]  # -S: the standard library alone
    done = subprocess.run(bare, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert re.fullmatch(rf".+: \w+ is missing: install tessera-gpu\[{extra}\]\.\n", done.stderr)


@pytest.mark.parametrize(("module", "extra"), PARTS.items())
def test_a_program_needs_nothing_but_its_extra(module: str, extra: str) -> None:
    """It says how it is used where nothing else is there."""
    command = [sys.executable, "-c", ALONE, module, *brought(extra)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage:" in done.stdout.lower()


def brought(extra: str) -> set[str]:
    """Return the distributions that an extra brings, by uv.lock."""
    locked = {one["name"]: one for one in tomllib.loads((ROOT / "uv.lock").read_text())["package"]}
    todo, found = [("tessera-gpu", extra)], set[tuple[str, str]]()
    while todo:
        distribution, part = one = todo.pop()
        if one not in found:
            found.add(one)
            by_part = {"": locked[distribution].get("dependencies", [])}
            by_part |= locked[distribution].get("optional-dependencies", {})
            todo += [(need["name"], extra) for need in by_part[part] for extra in ("", *need.get("extra", ()))]
    return {distribution for distribution, _ in found}


@pytest.mark.skipif(not (shutil.which("bash") and shutil.which("curl")), reason="README's block takes both")
def test_readme_without_a_gpu() -> None:
    """The service serves the example cluster, is ready, shows metrics and the page, and ends: README's own lines."""
    text = PAGES[0].read_text()
    (block,) = [block for _, block in FENCED.findall(text) if "tessera-extender --cluster" in block]
    (page,) = re.findall(r"[Oo]pen <(http://.*?)>", text)
    (end,) = re.findall(r"End it with `(.*?)`", text)
    with HeldPort() as port:
        block = block.replace(".venv/bin", str(BIN)).replace(" --page", f" --page --port {port.number}")
        script = f"trap '{end} 2> /dev/null || true' EXIT\n{block}\ncurl --fail {page}\n{end}\nwait || true\n"
        script = script.replace("http://127.0.0.1:8580", f"http://{port}")
        done = subprocess.run(
            ["bash", "-emc", script], cwd=ROOT, capture_output=True, text=True, timeout=90, check=False
        )
    assert done.returncode == 0, done.stderr
    for shown in ("ok", "tessera_holding_pods", "<!doctype html>"):
        assert shown in done.stdout


@pytest.mark.parametrize("program", ["tessera-extender", "tessera-agent"])
def test_help_lists_the_settings(program: str) -> None:
    """Each with its flag."""
    assert help_of(program).count("  --") > 15


@pytest.mark.parametrize("words", [p for p in EVERY if p.values[0][:2] == ["tessera-bench", "replay"]])  # type: ignore[index]
def test_replays(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the synthetic trace, and on a folder that is laid out as the page says."""
    for folder in ("nodes", "pods"):
        (tmp_path / folder).mkdir()
    (tmp_path / "nodes/openb_node_list_gpu_node.csv").write_text(NODES)
    (tmp_path / "pods/openb_pod_list_default.csv").write_text(PODS)
    (tmp_path / "FILE.ord.gz").write_bytes(gzip.compress(b"P a b\nP c\nN n2 n1\n"))
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(app, [word.replace("DIR", ".") for word in words[1:]], env={"TESSERA_TRACES": None})
    assert done.exit_code == 0, done.output
    assert ('"allocation": {' if "--json" in words else "allocated %") in done.output


@pytest.mark.parametrize(
    "words",
    [
        ("agent", "--json"),
        ("latency", "--nodes", "20", "--rounds", "1", "--questions", "3"),
    ],
    ids=lambda words: words[0],
)
def test_measurements_at_their_smallest(words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Minutes at their own size. Of the agent half a second a scene, and latency without the handler in Go."""
    whole = agent.measure
    monkeypatch.setattr(agent, "WARM_SECONDS", 0.0)
    monkeypatch.setattr(agent, "measure", lambda scene, _: whole(scene, 0.5))
    monkeypatch.setattr(latency, "_go", lambda _: [])
    done = CliRunner().invoke(app, list(words))
    assert done.exit_code == 0
    assert {"agent": "56 MIG slices, busy", "latency": "bind"}[words[0]] in done.output


def test_metrics_page() -> None:
    """It prints the page as it is."""
    made = subprocess.run([sys.executable, "-m", "tests.metrics_page"], cwd=ROOT, capture_output=True, check=True)
    assert made.stdout == (ROOT / "docs/metrics.md").read_bytes()


@pytest.mark.parametrize("words", [p for p in EVERY if p.values[0][0] == "make"])  # type: ignore[index]
def test_make_knows_what_to_do(words: list[str]) -> None:
    """A dry run of each target says what it would do."""
    done = subprocess.run([*words, "-n"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout
