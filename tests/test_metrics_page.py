"""docs/metrics.md says what the code tells Prometheus."""

import re
from pathlib import Path

from tests.metrics_page import of_agent, of_extender, page

PAGE = Path(__file__).parents[1] / "docs" / "metrics.md"


def test_the_page_is_made_from_the_code() -> None:
    """Where this fails: `python -m tests.metrics_page > docs/metrics.md`."""
    assert PAGE.read_text() == page()


def test_names_follow_the_rules() -> None:
    """Our prefix, base units, a sentence, and no name twice."""
    families = [*of_agent(), *of_extender()]
    names = [name for name, *_ in families]
    assert len(names) == len(set(names)) >= 20
    for name, kind, help_, _ in families:
        assert re.fullmatch(r"tessera(_[a-z]+)+", name), name
        assert not re.search(r"_(mib|milliseconds|percent|milli)(_|$)", name), name
        assert kind in ("counter", "gauge", "histogram", "summary")
        assert help_.endswith("."), name
