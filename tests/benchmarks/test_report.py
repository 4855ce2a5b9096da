"""The report: what was run is kept, tables say what was measured, and the same runs give the same page."""

from collections.abc import Sequence
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from benchmarks import options
from benchmarks import report as module
from benchmarks.options import BadOption, one_name_each, seeds_of
from benchmarks.replay import Result, replay
from benchmarks.report import (
    BEGIN,
    END,
    Task,
    limits_of,
    markdown,
    published,
    report_command,
    run_all,
    write,
)
from benchmarks.traces import BadTrace, synthetic
from scoring.bound import Bounds
from scoring.policies.bestfit import BestFit
from scoring.policies.fgd import Fgd

app = typer.Typer()
app.command()(report_command)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the synthetic trace a small one."""
    monkeypatch.setattr(module, "synthetic", lambda seed: synthetic(seed, nodes=12))


def ran(
    policy: str, allocated: float, *, seed: int = 42, trace: str = "default", failed: int = 0, cards: int = 1000
) -> Result:
    """Return a run that ends with so many percent of the cards allocated."""
    curve = {str(k): min(float(k), allocated) for k in range(131)}
    return Result(trace, policy, seed, 125, cards, 9, failed, 0.1, curve, curve, curve)


def row(text: str, policy: str) -> list[str]:
    """Return the cells of a policy's row in the long table."""
    (line,) = (line for line in text.splitlines() if f"| {policy} | " in line and " / " in line)
    return [cell.strip() for cell in line.strip("|").split("|")]


# --- what is kept --------------------------------------------------------------------------------------------


def test_a_report_that_was_interrupted_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is in the cache is not run again; what is missing is, and the order stays that of the tasks."""
    tasks = [Task(None, "synthetic", "bestfit", seed) for seed in (3, 1, 2)]
    first = run_all(tasks[1:], tmp_path, 1)
    made: list[int] = []

    def counting(trace: object, policy: str, *, seed: int) -> Result:
        made.append(seed)
        return replay(trace, policy, seed=seed)  # type: ignore[arg-type]

    monkeypatch.setattr(module, "replay", counting)
    runs = run_all(tasks, tmp_path, 1)
    assert made == [3]
    assert runs[1:] == first
    assert [run.seed for run in runs] == [3, 1, 2]


@pytest.mark.parametrize("content", ["", "{", "null", "{}", "\xff"])
def test_a_kept_replay_that_is_damaged_is_named(tmp_path: Path, content: str) -> None:
    """The sentence says which file to delete."""
    task = Task(None, "synthetic", "bestfit", 1)
    (tmp_path / task.key()).write_bytes(content.encode("latin-1"))
    with pytest.raises(BadOption, match=f"{task.key()} is damaged; delete it"):
        run_all([task], tmp_path, 1)


def test_a_key_names_all_that_the_result_depends_on(tmp_path: Path) -> None:
    """Policy, seed and each file of the trace are in the key, and the same task has the same key."""
    (tmp_path / "pods").mkdir()
    pods = tmp_path / "pods" / "openb_pod_list_x.csv"
    pods.write_text("a")
    task = Task(tmp_path, "x", "bestfit", 42)
    before = task.key()
    assert before == Task(tmp_path, "x", "bestfit", 42).key()
    assert before.startswith("x_bestfit_42_")
    digests = {before[-21:], Task(tmp_path, "x", "fgd", 42).key()[-21:]}
    module._sum_of.cache_clear()
    pods.write_text("b")
    assert task.key()[-21:] not in digests
    assert len(digests) == 2


def test_a_policy_depends_on_what_it_imports_and_not_on_other_policies() -> None:
    """The modules behind a key are those that the policy's module imports, directly or not."""
    bestfit, fgd = (set(module._imported((c.__module__,))) for c in (BestFit, Fgd))
    assert {"scoring.policies.bestfit", "scoring.policies.policy", "scoring.fit", "scoring.containers"} <= bestfit
    assert "scoring.fragmentation" in fgd - bestfit
    assert "scoring.policies.fgd" not in bestfit
    assert not any(name.startswith("numpy") for name in fgd)


# --- what the tables say -------------------------------------------------------------------------------------


def test_the_share_of_the_gap_is_from_fgd_to_the_bound_and_cards_are_counted_against_fgd() -> None:
    """95 % with FGD, 96 % here, at most 97 % or 96.5 %: half of the way, or two thirds; and 10 of 1,000 cards."""
    text = markdown(
        [ran("fgd", 95.0, failed=7), ran("binpack", 96.0)], limits={"default": Bounds(99.0, 97.0, 96.5)}, known={}
    )
    assert row(text, "binpack")[2:] == ["90.00 / 96.00 / 96.00", "", "0", "50 %", "67 %", "+10 / +10"]
    assert row(text, "fgd")[2:] == ["90.00 / 95.00 / 95.00", "", "7", "", "", ""]
    assert "| default | 95.00 | 96.00 | 97.00 | 96.50 |" in text


def test_a_row_is_the_mean_of_its_seeds() -> None:
    """Two seeds, one row; a trace without a bound closes no gap."""
    runs = [ran("fgd", 92.0), *(ran("bestfit", value, seed=seed) for value, seed in ((91.0, 42), (92.0, 43)))]
    cells = row(markdown(runs, limits={}, known={}), "bestfit")
    assert cells[2] == "90.00 / 91.50 / 91.50"
    assert cells[5:] == ["", "", "-5 / -5"]


def test_a_synthetic_trace_is_held_against_the_mean_of_its_seeds_bounds(tmp_path: Path) -> None:
    """Every seed draws other nodes and pods, so each has its own bounds."""
    tasks = [Task(None, "synthetic", policy, seed) for policy in ("bestfit", "fgd") for seed in (42, 43)]
    found = limits_of(tasks, 1)["synthetic"]
    a, b = (task.bounds() for task in tasks[:2])
    assert a is not None
    assert b is not None
    assert a.work_conserving != b.work_conserving
    assert found.work_conserving == pytest.approx((a.work_conserving + b.work_conserving) / 2)
    assert found.latest_failure == pytest.approx((a.latest_failure + b.latest_failure) / 2)
    policies = ("--policy", "bestfit", "--policy", "fgd")
    _, text = run(tmp_path, "--seeds", "42-43", *policies)
    (line,) = (line for line in text.splitlines() if line.startswith("| synthetic | ") and " / " not in line)
    assert line.endswith(f"| {found.work_conserving:.2f} | {found.latest_failure:.2f} |")


def test_cards_are_those_of_each_seed() -> None:
    """10 % of 1,000 cards and 20 % of 100: 100 and 20, 60 in the mean."""
    runs = [
        ran(policy, allocated, seed=seed, cards=cards)
        for seed, cards, more in ((42, 1000, 10.0), (43, 100, 20.0))
        for policy, allocated in (("fgd", 70.0), ("bestfit", 70.0 + more))
    ]
    assert row(markdown(runs, limits={}, known={}), "bestfit")[7] == "+60 / +60"


@pytest.mark.parametrize("wrong", ["x", "", "nan"])
def test_a_published_figure_that_is_no_number_is_refused(tmp_path: Path, wrong: str) -> None:
    """The sentence names the file."""
    (tmp_path / "published").mkdir()
    file = tmp_path / module.PUBLISHED
    file.write_text(f"workload,sc_policy,seed,90,100,130\nopenb_pod_list_default,06-FGD,42,90,{wrong},96\n")
    with pytest.raises(BadTrace, match=r"discrete\.csv has a row that is no published result"):
        published(tmp_path, [42])
    file.write_text("workload,sc_policy,seed,90,100,130\nx\n")
    with pytest.raises(BadTrace, match=r"discrete\.csv has a row that is no published result"):
        published(tmp_path, [42])


def test_published_figures_stand_beside_ours(tmp_path: Path) -> None:
    """The published mean is of the seeds that ran, found by our names of trace and policy."""
    (tmp_path / "published").mkdir()
    head = "workload,sc_policy,tune,seed,total_gpus,90,100,130\n"
    lines = [f"openb_pod_list_default,06-FGD,1.3,{seed},6212,90,{95 + seed - 42},96\n" for seed in (42, 43, 44)]
    (tmp_path / module.PUBLISHED).write_text(head + "".join(lines))
    known = published(tmp_path, [42, 43])
    assert known == {("default", "fgd"): "90.00 / 95.50 / 96.00"}
    assert row(markdown([ran("fgd", 95.0)], limits={}, known=known), "fgd")[3] == "90.00 / 95.50 / 96.00"
    assert published(tmp_path / "nowhere", [42]) == {}


def test_an_alias_does_not_run_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two names of one class, the one that is the class's stays."""
    table = {"tight": lambda *_: BestFit(), "bestfit": lambda *_: BestFit(), "frag": lambda w, _: Fgd(w)}
    monkeypatch.setattr(options, "POLICIES", table)
    assert one_name_each() == ["bestfit", "frag"]


# --- the page ------------------------------------------------------------------------------------------------


def page(folder: Path) -> Path:
    """Return a page with the marks between other text."""
    file = folder / "packing.md"
    file.write_text(f"# Packing\n\n{BEGIN}\nold\n{END}\n\nThe end.\n")
    return file


def test_a_report_replaces_what_is_between_the_marks_and_nothing_else(tmp_path: Path) -> None:
    """The text around the marks stays, what was between them is gone, and every figure named is there."""
    file = page(tmp_path)
    write([ran("fgd", 95.0), ran("bestfit", 93.0)], file, limits={}, known={})
    text = file.read_text()
    assert text.startswith(f"# Packing\n\n{BEGIN}\n")
    assert text.endswith(f"{END}\n\nThe end.\n")
    assert "old" not in text
    figures = [line.split("(")[1].rstrip(")") for line in text.splitlines() if line.startswith("![")]
    assert figures == [f"figures/packing-{name}.svg" for name in ("default", "bars", "cards")]
    assert all((tmp_path / figure).exists() for figure in figures)


def test_the_same_runs_draw_the_same_bytes(tmp_path: Path) -> None:
    """Figures carry no date and no random names, so that only a change of results changes them."""
    runs = [ran("fgd", 95.0), ran("bestfit", 93.0), ran("bestfit", 94.0, seed=43)]
    drawn: list[dict[str, bytes]] = []
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        write(runs, page(tmp_path / name), limits={}, known={})
        drawn.append({f.name: f.read_bytes() for f in (tmp_path / name).rglob("*.*")})
    assert drawn[0] == drawn[1]


@pytest.mark.parametrize("text", ["no marks", f"{BEGIN} only", f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_a_page_without_one_pair_of_marks_is_refused(tmp_path: Path, text: str) -> None:
    """Nothing is written to a page where the place of the report is not clear."""
    file = tmp_path / "page.md"
    file.write_text(text)
    with pytest.raises(BadOption, match="once"):
        write([ran("fgd", 95.0)], file, limits={}, known={})
    assert file.read_text() == text
    assert not (tmp_path / "figures").exists()


# --- the command ---------------------------------------------------------------------------------------------


def run(folder: Path, *more: str) -> tuple[int, str]:
    """Run the command without trace files."""
    given: Sequence[str] = ("--jobs", "1", "--cache", str(folder / "cache"), *more)
    result = CliRunner().invoke(app, list(given), env={"TESSERA_TRACES": None})
    return result.exit_code, result.output


def test_the_command_prints_tables_of_a_synthetic_trace(tmp_path: Path) -> None:
    """The quick mode needs no files, and without a page the tables are printed."""
    policies = ("--policy", "bestfit", "--policy", "fgd")
    code, text = run(tmp_path, "--pods", "synthetic", "--seeds", "1", *policies)
    assert code == 0
    assert row(text, "bestfit")[5].endswith(" %")
    assert len(list((tmp_path / "cache").iterdir())) == 2


@pytest.mark.parametrize(
    "wrong",
    [
        ("--policy", "best"),
        ("--seeds", "x-y"),
        ("--into", "nowhere.md"),
        ("--trace", "nowhere"),
        ("--pods", "default"),
    ],
)
def test_the_command_refuses_before_it_runs_anything(tmp_path: Path, wrong: tuple[str, str]) -> None:
    """An unknown policy, no list of seeds, no page, no traces: a usage error, and an empty cache."""
    code, _ = run(tmp_path, *wrong)
    assert code == 2
    assert not (tmp_path / "cache").exists()


def test_a_cache_that_cannot_be_one_is_refused(tmp_path: Path) -> None:
    """A file is no folder, nor can it hold one."""
    (tmp_path / "cache").write_text("")
    for more in ((), ("--cache", str(tmp_path / "cache" / "below"))):
        code, text = run(tmp_path, "--seeds", "1", "--policy", "bestfit", *more)
        assert (code, "cannot be a cache folder" in text) == (2, True)


def test_seeds_are_ranges_and_lists() -> None:
    """Ranges include their ends, and no seed counts twice."""
    assert seeds_of("42-44,7,43") == [42, 43, 44, 7]
    with pytest.raises(BadOption, match="ends before it begins"):
        seeds_of("7,51-42")
