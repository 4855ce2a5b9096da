"""`tessera-bench`: the command line of the offline and measuring parts."""

import json
import os
import sys
from pathlib import Path
from typing import Annotated

try:
    import typer
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Table

    from benchmarks.ablation import ablation_command
    from benchmarks.agent import agent_command
    from benchmarks.bound import bound_command
    from benchmarks.churn import churn_command
    from benchmarks.latency import latency_command
    from benchmarks.options import SEED, BadOption, Nodes, Pods, TraceFolder, fail, known_policies, trace_of
    from benchmarks.page import page_command
    from benchmarks.replay import Result, replay
    from benchmarks.report import report_command
    from benchmarks.traces import BadTrace, Trace
    from scoring.policies import DEFAULT, POLICIES
except ModuleNotFoundError as error:
    raise SystemExit(f"tessera-bench: {error.name} is missing: install tessera-gpu[bench].") from error

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def _commands() -> None:
    """Replay traces through Tessera's packing engine, and measure it."""


@app.command("replay")
def replay_command(
    trace: TraceFolder = None,
    pods: Pods = None,
    policy: Annotated[str, typer.Option(help=f"One of {', '.join(sorted(POLICIES))}.")] = DEFAULT,
    order: Annotated[Path | None, typer.Option(help="Arrival order (.ord.gz).")] = None,
    seed: Annotated[
        int | None, typer.Option(min=0, help=f"Arrival order by seed; default {SEED} without --order.")
    ] = None,
    nodes: Nodes = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Offer a trace's pods to a policy and show allocation, failures and fragmentation by arrived load."""
    if order is not None and seed is not None:
        fail("give --order or --seed, not both.")
    if order is None and seed is None:
        seed = SEED
    try:
        known_policies([policy])
        found = trace_of(trace, pods, seed=seed, nodes=nodes, order=order)
    except (BadOption, BadTrace) as error:
        fail(str(error))
    result = _with_progress(found, policy, seed)
    if as_json:
        print(json.dumps(result.as_json()))
    else:
        _show(result)


def _with_progress(trace: Trace, policy: str, seed: int | None) -> Result:
    errors = Console(stderr=True)
    with Progress(console=errors, disable=not errors.is_terminal, transient=True) as progress:
        task = progress.add_task(f"{trace.name}, {policy}", total=len(trace.arrivals))
        return replay(trace, policy, seed=seed, progress=lambda done: progress.update(task, completed=done))


def _show(result: Result) -> None:
    table = Table(title=f"{result.trace}, {result.policy}, seed {result.seed}")
    for column in ("arrived %", "allocated %", "fragmented % of idle", "fragmented % of all"):
        table.add_column(column, justify="right")
    for arrived, allocated in result.allocation.items():
        if int(arrived) % 10 == 0:
            ratio, amount = result.fragmentation_ratio[arrived], result.fragmentation_amount[arrived]
            table.add_row(arrived, f"{allocated:.2f}", f"{ratio:.2f}", f"{amount:.2f}")
    console = Console()
    console.print(table)
    console.print(f"{result.pods} pods, {result.failed_pods} failed, {result.seconds:.1f} s")
    console.print(f"{result.decision_ms:.2f} ms a decision, in the median")


app.command("churn")(churn_command)
app.command("bound")(bound_command)
app.command("report")(report_command)
app.command("latency")(latency_command)
app.command("agent")(agent_command)
app.command("page")(page_command)
app.command("ablation")(ablation_command)


def main() -> None:
    """Run the command line; a reader that hangs up is no error."""
    try:
        app()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    main()
