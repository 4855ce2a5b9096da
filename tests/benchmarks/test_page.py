"""What `tessera-bench page` says without a browser; with one it runs in tests/browser."""

import sys
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from benchmarks import page
from benchmarks.__main__ import app
from benchmarks.page import BROWSERS, Shown, chromium

MADE = Shown(40000, 5000, 5_000_000, 1.9, 0.3, 30.5, 17.0, 30.0)


def test_both_goals_have_to_be_met() -> None:
    """The first paint is the first viewer's, not the later ones'."""
    assert MADE.holds
    assert not replace(MADE, cold_paint_s=2.1).holds
    assert not replace(MADE, frames_per_second=29.9).holds


def test_no_browser_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """That names what to install."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("TESSERA_CHROMIUM", raising=False)
    with pytest.raises(LookupError, match=BROWSERS[0]):
        chromium()
    monkeypatch.setenv("TESSERA_CHROMIUM", "/opt/chrome")
    assert chromium() == "/opt/chrome"


def test_without_playwright_nothing_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of no extra, so that many lack it; half a minute later would be late to say so."""
    monkeypatch.setitem(sys.modules, "playwright", None)
    monkeypatch.setattr(page, "chromium", lambda: "chromium")
    monkeypatch.setattr(page, "write", lambda *_: pytest.fail("a cluster was made"))
    done = CliRunner().invoke(app, ["page"])
    assert done.exit_code == 2
    assert "playwright is missing" in done.output
