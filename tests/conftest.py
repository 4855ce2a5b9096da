"""What every test needs, and nothing that only some do."""

import pytest


@pytest.fixture
def anyio_backend() -> str:
    """Async tests run on asyncio, as the service does."""
    return "asyncio"
