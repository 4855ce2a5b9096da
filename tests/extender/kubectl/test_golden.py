"""What every command prints, word for word. A difference in these files is seen by whoever reads or parses them."""

import itertools
import json
import re
from pathlib import Path

import pytest

from extender.kubectl import __main__ as command_line
from extender.kubectl.facts import seconds
from extender.kubectl.table import shown
from tests.extender.kubectl.given import scene

GOLDEN = Path(__file__).parents[2] / "golden" / "kubectl"
COUNTS = {"cards", "pods", "sharers", "index", "nodes", "used", "hard", "left"}
AMOUNT = re.compile(r"-?\d+(\.\d+)?([KMGT]i?|%)?")
COMMANDS = (
    "top",
    "top cards",
    "top pods -A",
    "top namespaces",
    "pods",
    "explain waits",
    "explain runs",
    "quota -A",
    "doctor",
)


def printed(words: str, output: str) -> str:
    """Return what a command prints about the scene, ten seconds after its heartbeats."""
    said = command_line.parser().parse_args([*words.split(), "-o", output])
    said.clock, said.version = lambda: seconds("2026-05-01T12:00:10Z"), "0.1.0"
    return shown(command_line.answer(scene().api, said), output) + "\n"


@pytest.mark.parametrize(("words", "output"), list(itertools.product(COMMANDS, ("table", "wide", "json", "yaml"))))
def test_what_is_printed(words: str, output: str) -> None:
    """As it was."""
    file = GOLDEN / f"{words.replace(' -A', '').replace(' ', '-')}.{output}.txt"
    assert printed(words, output) == file.read_text()


@pytest.mark.parametrize("words", COMMANDS)
def test_json_has_whole_numbers_with_the_unit_in_the_name(words: str) -> None:
    """So nobody has to take words apart, or to guess: a number without a unit is a count."""
    for row in json.loads(printed(words, "json"))["items"]:
        assert not any(isinstance(value, float) for value in row.values())
        numbers = {key for key, value in row.items() if isinstance(value, int)}
        assert {key for key in numbers if not key.endswith(("MiB", "Milli", "Percent"))} <= COUNTS
        amounts = {key for key, value in row.items() if isinstance(value, str) and AMOUNT.fullmatch(value)}
        assert amounts <= {"driver"}  # a version


def test_nobody_is_forgotten() -> None:
    """Every command has its files, and every file its command."""
    assert {words.split()[0] for words in COMMANDS} == set(command_line.COMMANDS)
    assert len(list(GOLDEN.iterdir())) == 4 * len(COMMANDS)
