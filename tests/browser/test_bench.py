"""The benchmark of the page, at a size that says nothing of speed."""

from pathlib import Path

from benchmarks.page import chromium, extender, measure, write


def test_it_measures_what_is_shown(tmp_path: Path) -> None:
    """All cards, two viewers, and frames in which something was drawn."""
    write(tmp_path / "cluster.yaml", 3)
    with extender(tmp_path / "cluster.yaml") as url:
        found = measure(url, chromium(), rounds=1, seconds=1, many=2, picture=tmp_path / "page.png")
    assert (found.nodes, found.cards) == (3, 24)
    assert found.cold_paint_s > 0
    assert found.frames_per_second > 1
    assert (tmp_path / "page.png").stat().st_size > 1000
