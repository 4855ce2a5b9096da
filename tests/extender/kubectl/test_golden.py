"""What every command prints, word for word. A difference in these files is seen by whoever reads or parses them."""

import itertools
from pathlib import Path

import pytest

from extender.kubectl import __main__ as command_line
from extender.kubectl.doctor import _seconds
from extender.kubectl.table import shown
from tests.extender.kubectl.given import scene

GOLDEN = Path(__file__).parents[2] / "golden" / "kubectl"
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
    said.clock, said.version = lambda: _seconds("2026-05-01T12:00:10Z"), "0.1.0"
    return shown(command_line.answer(scene().api, said), output) + "\n"


@pytest.mark.parametrize(("words", "output"), list(itertools.product(COMMANDS, ("table", "wide", "json", "yaml"))))
def test_what_is_printed(words: str, output: str) -> None:
    """As it was."""
    file = GOLDEN / f"{words.replace(' -A', '').replace(' ', '-')}.{output}.txt"
    assert printed(words, output) == file.read_text()


def test_nobody_is_forgotten() -> None:
    """Every command has its files, and every file its command."""
    assert {words.split()[0] for words in COMMANDS} == set(command_line.COMMANDS)
    assert len(list(GOLDEN.iterdir())) == 4 * len(COMMANDS)
