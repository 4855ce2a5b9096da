"""The outcome for a reader: the example, every card, every pod, what waits and why, and the comparison."""

import io
import sys
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from rich.console import Console
from rich.table import Table

from benchmarks.demo.batch import FACTOR_NODE, NAMESPACE, PLAIN_NODE, TRIO
from benchmarks.demo.recount import Json, charges
from benchmarks.demo.whole import Comparison

WIDTH: Final = 100  # columns where there is no terminal
BAR: Final = 16
SHOWN: Final = 3  # names of pods that wait for the same reason; the table of all pods has the rest


def console() -> Console:
    """Return where to print: plain text of a fixed width if standard output is no terminal."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a bar that cannot be encoded must not end the demo
    width = None if sys.stdout.isatty() else WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def show(out: Console, outcome: Json, found: Comparison) -> None:
    """Print everything."""
    for heading, table in (
        ("Every pod", _pods(outcome)),
        ("Every card, of what it offers; x: used from outside", _cards(outcome)),
        ("Waiting", _waiting(outcome)),
    ):
        out.rule(heading, align="left", style="dim")
        out.print(table)
    out.rule("The sharing example", align="left", style="dim")
    for part in _example(outcome):
        out.print(part)
    out.rule("Beside whole cards", align="left", style="dim")
    for line in _summary(outcome, found):
        out.print(line)


def _table(*columns: str, right: tuple[str, ...] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


# --- pods ---------------------------------------------------------------------------------------------------


def _pods(outcome: Json) -> Table:
    table = _table("pod", "asks", "node", "cards", "holds of a card")
    index = {card["uuid"]: card["index"] for card in outcome["cards"]}
    for pod, held in _with_shares(outcome):
        cards = ",".join(str(i) for i in sorted(index[uuid] for uuid in held))
        shares = {f"{mib} MiB {milli / 10:g}%" for mib, milli in held.values()}
        table.add_row(pod["name"], pod["request"]["words"], pod["node"] or "-", cards, " / ".join(sorted(shares)))
    return table


def _with_shares(outcome: Json) -> Iterator[tuple[Json, dict[str, tuple[int, int]]]]:
    """Yield each pod with the MiB and the thousandths that it holds of each of its cards."""
    shares: dict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for uuid, pods in charges(outcome["pods"]).items():
        for uid, (mib, milli, _) in pods.items():
            shares[uid][uuid] = (mib, milli)
    for pod in outcome["pods"]:
        yield pod, shares[pod["uid"]]


def _waiting(outcome: Json) -> Table:
    table = _table("pods", "why", right=("pods",))
    reasons: dict[str, list[str]] = defaultdict(list)
    for pod in outcome["pods"]:
        if pod["node"] is None:
            reasons[pod["why"]].append(pod["name"])
    for why, names in sorted(reasons.items(), key=lambda item: -len(item[1])):
        more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
        table.add_row(str(len(names)), f"{why} ({', '.join(names[:SHOWN])}{more})")
    return table


# --- cards --------------------------------------------------------------------------------------------------


def _cards(outcome: Json) -> Table:
    table = _table("node", "card", "model", "memory", "compute", "pods", right=("card", "pods"))
    before = ""
    for card in outcome["cards"]:
        model = card["model"].removeprefix("NVIDIA ")
        memory = _bar(card["promised_mib"], card["memory_mib"], card["foreign_mib"])
        compute = _bar(card["promised_milli"], card["milli"])
        if not card["healthy"]:
            memory, compute = "not healthy: not offered", ""
        node = "" if card["node"] == before else card["node"]
        table.add_row(node, str(card["index"]), model, memory, compute, str(card["pods"]))
        before = card["node"]
    return table


def _bar(used: int, capacity: int, foreign: int = 0) -> str:
    """Return a bar and a percentage; `x` is used by nobody that is known, and not offered."""
    full = round(BAR * used / capacity)
    unknown = min(round(BAR * foreign / capacity), BAR - full)
    return f"{'█' * full}{'░' * (BAR - full - unknown)}{'x' * unknown} {100 * used / capacity:3.0f}%"


# --- sentences ----------------------------------------------------------------------------------------------


def sharing(outcome: Json) -> bool:
    """Say whether the trainer and its three inference pods are on one card."""
    pods = {pod["name"]: held for pod, held in _with_shares(outcome) if pod["namespace"] == NAMESPACE}
    cards = [tuple(pods[name]) for name in ("trainer", *TRIO)]
    return len(cards[0]) == 1 and len(set(cards)) == 1


def _example(outcome: Json) -> Iterator[str | Table]:
    """Yield what became of the trainer and its three inference pods, at either factor."""
    cards = {card["node"]: card for card in outcome["cards"]}
    for node, prefix in ((FACTOR_NODE, ""), (PLAIN_NODE, "plain-")):
        card, names = cards[node], {prefix + name for name in ("trainer", *TRIO)}
        yield (
            f"{node}: one {card['model'].removeprefix('NVIDIA ')} at factor {card['milli'] / 1000:.1f}, with"
            f" {card['promised_milli'] / 10:g}% of {card['milli'] / 10:g}% compute promised."
        )
        table = _table("", "", "", "")
        table.show_header = False
        for pod in outcome["pods"]:
            if pod["namespace"] == NAMESPACE and pod["name"] in names:
                where = f"card {card['index']} of {pod['node']}" if pod["node"] else f"waits: {pod['why']}"
                table.add_row("", pod["name"], pod["request"]["words"], where)
        yield table


def _summary(outcome: Json, found: Comparison) -> Iterator[str]:
    """Yield the comparison of what Tessera did with what whole cards would have done."""
    healthy = [card for card in outcome["cards"] if card["healthy"]]
    used = sum(1 for card in healthy if card["pods"])
    percent = 100 * sum(card["promised_milli"] for card in healthy) / sum(card["milli"] for card in healthy)
    yield (
        f"{found.pods} pods of the batch ask for a GPU and can ever run (the others ask for none, or for what no card"
        f" has); there are {len(healthy)} healthy cards."
    )
    yield (
        f"Tessera placed {found.placed} and {found.pods - found.placed} wait. {used} cards are in use, and"
        f" {percent:.0f}% of all compute is promised."
    )
    yield (
        f"Whole-card allocation would have needed {found.cards_for_all} cards for all of them, and"
        f" {found.cards_for_placed} for those that Tessera placed. It would have placed {found.placed_whole},"
        f" and {found.pods - found.placed_whole} would have waited."
    )
