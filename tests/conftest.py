"""What every test needs, and nothing that only some do."""

import os

import pytest
from hypothesis import settings

from tests.long import LONG

# The same cases in every run, and no limit on the time of one: chance is for `make test-long`.
settings.register_profile("tessera", deadline=None, derandomize=not LONG, print_blob=True)
settings.load_profile("tessera")
for name in ("no_proxy", "NO_PROXY"):
    os.environ[name] = "127.0.0.1,localhost"  # where everything is that tests talk to


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the service does."""
    return "asyncio"
