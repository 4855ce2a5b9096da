"""What tests of several files of the extender start from."""

import pytest

from extender import bind


@pytest.fixture
def short_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks at a pod be milliseconds apart."""
    monkeypatch.setattr(bind, "LOOKS", (0.001, 0.002))
    monkeypatch.setattr(bind, "LAST", 0.003)
