"""docs/failures.md names tests that are there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/failures.md").read_text()
ROWS = [line for line in PAGE.splitlines() if line.startswith("| ")][1:]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_each_row_names_tests_that_are_there(row: str) -> None:
    """Every promise has at least one, and a test that is renamed takes its name on the page with it."""
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row)
    assert named
    for file, name in named:
        tree = ast.parse((ROOT / file).read_text())
        assert name in {
            node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }, (file, name)
