"""`tessera-bench page` before it measures: what is missing is told before anything is made."""

import sys

import pytest
from typer.testing import CliRunner

from benchmarks import page
from benchmarks.__main__ import app


def test_without_playwright_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of no extra, so that many lack it; half a minute later would be late to say so."""
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setattr(page, "chromium", lambda: "chromium")
    monkeypatch.setattr(page, "write", lambda *_: pytest.fail("a cluster was made"))
    done = CliRunner().invoke(app, ["page"])
    assert done.exit_code == 2
    assert "playwright is missing" in done.output
