"""Names that the API server accepts, made by one function."""

import hashlib
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract import names
from contract.names import MAX_NAME, PREFIX, devices_key

LABEL = st.from_regex(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?", fullmatch=True)
# IsQualifiedName of apimachinery, which the API server does not apply to a Binding's annotations.
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]")


@pytest.mark.parametrize("length", [1, 40, 55])
def test_a_short_name_stays_whole(length: int) -> None:
    """A container's name of up to 55 characters is in the key as it is."""
    assert devices_key("a" * length) == f"tessera.gpu/devices.{'a' * length}"


def test_a_long_name_is_shortened() -> None:
    """A longer one keeps 40 characters and gets 10 digits of its SHA-256."""
    name = "a" * 62 + "b"
    digest = hashlib.sha256(name.encode()).hexdigest()[:10]
    assert devices_key(name) == f"tessera.gpu/devices.{'a' * 40}-{digest}"
    assert devices_key("a" * 56) != devices_key("a" * 57)


@given(LABEL)
def test_every_key_is_a_qualified_name(container: str) -> None:
    """Whatever a container is called, its key is one that the API server accepts."""
    name = devices_key(container).removeprefix(PREFIX)
    assert len(name) <= MAX_NAME
    assert QUALIFIED.fullmatch(name)


@given(LABEL, LABEL)
def test_keys_tell_containers_apart(one: str, other: str) -> None:
    """Two containers have two keys."""
    assert (devices_key(one) == devices_key(other)) == (one == other)


def test_what_users_write() -> None:
    """The spelling of every key is a promise."""
    assert names.PER_CONTAINER == (
        "tessera.gpu/memory",
        "tessera.gpu/utilization",
        "tessera.gpu/count",
        "tessera.gpu/mig-profile",
    )
    assert names.PER_POD == ("tessera.gpu/model", "tessera.gpu/uuid", "tessera.gpu/policy", "tessera.gpu/sharing")
    assert (names.ASSIGNMENT, names.OVERCOMMIT) == ("tessera.gpu/assignment", "tessera.gpu/overcommit")
