"""What the end-to-end tests have in common: the API servers' audit logs, and the test of them, which comes last."""

from pathlib import Path
from typing import Final

import pytest

from tests.e2e.controlplane.cluster import ControlPlane

LAST: Final = "test_rights.py"


@pytest.fixture(scope="session", autouse=True)
def audits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the audit logs of every API server that the tests run."""
    ControlPlane.audits = tmp_path_factory.mktemp("audit")
    return ControlPlane.audits


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the test of the logs after all others; without all others it can say nothing, and is left out."""
    last = [item for item in items if item.path.name == LAST]
    modules = {item.path.name for item in items if item.path.parent == Path(__file__).parent}
    items[:] = [item for item in items if item not in last]
    if modules == {path.name for path in Path(__file__).parent.glob("test_*.py")}:
        items += last
    else:
        config.hook.pytest_deselected(items=last)
