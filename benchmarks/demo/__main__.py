"""`python -m benchmarks.demo`: start the extender on the example cluster, drive it, show what came of it.

Exits 0 only if every record fits its card and the sharing example shares one; 1 if not, or if the extender failed; 2
if the command line or the file to write is wrong.
"""

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from random import Random

from benchmarks.demo import report
from benchmarks.demo.batch import FIXED, Wanted, batch
from benchmarks.demo.drive import Client, Failed, Outcome, Scheduler, extender
from benchmarks.demo.example import FILE, Example, read
from benchmarks.demo.recount import Json, faults, result
from benchmarks.demo.whole import compare
from extender.cluster.embedded import BadSnapshot

PODS = 230  # they ask for about a fifth more compute than the example cluster has


@dataclass(frozen=True, slots=True)
class Before:
    """What was there before the batch: pods by UID, and the cards they hold."""

    uids: set[str]
    cards: set[str]


def main() -> None:
    """Run the demo."""
    said = _arguments()
    started = time.perf_counter()
    try:
        example = read()
        before, outcomes, outcome = _drive(example, batch(said.seed, said.pods), Random(said.seed))
    except (BadSnapshot, Failed) as error:
        print(f"demo: {error}", file=sys.stderr)
        raise SystemExit(1) from error
    found = _faults(outcome, before)
    out = report.console()
    report.show(out, outcome, compare(outcomes, example.cards, before.cards))
    if said.json is not None:
        _write(said.json, outcome)
    for fault in found:
        print(f"demo: {fault}", file=sys.stderr)
    if not found:
        out.print(f"Every record was added up again and fits its card. {time.perf_counter() - started:.1f} s.")
    raise SystemExit(1 if found else 0)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.demo",
        description="Start the extender on the example cluster, and schedule a mixed batch of pods over HTTP.",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the outcome: pods and cards")
    parser.add_argument("--seed", type=int, default=42, help="seed of the batch and of ties (default: %(default)s)")
    parser.add_argument("--pods", type=int, default=PODS, help=f"pods, at least {FIXED} (default: %(default)s)")
    said = parser.parse_args()
    if said.pods < FIXED:
        parser.error(f"--pods is {said.pods}; the pods that are in every batch are {FIXED}.")
    return said


def _drive(example: Example, wanted: list[Wanted], rng: Random) -> tuple[Before, list[Outcome], Json]:
    """Schedule every pod in its turn; return what was there before, what became of each, and what is there now."""
    with extender(FILE) as port, closing(Client(port)) as client:
        first = result(client.pods(), [], example.cards)
        scheduler = Scheduler(client, example.rooms, rng)
        outcomes = [scheduler.schedule(one) for one in wanted]
        last = result(client.pods(), outcomes, example.cards)
    uids = {pod["uid"] for pod in first["pods"]}
    return Before(uids, {card["uuid"] for card in first["cards"] if card["pods"]}), outcomes, last


def _write(path: Path, outcome: Json) -> None:
    try:
        path.write_text(json.dumps(outcome, indent=1) + "\n")
    except OSError as error:
        print(f"demo: {path} cannot be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(2) from error


def _faults(outcome: Json, before: Before) -> list[str]:
    apart = "The trainer and its three inference pods are not on one card."
    return faults(outcome, before.uids) + ([] if report.sharing(outcome) else [apart])


if __name__ == "__main__":
    main()
