"""Events that the driver tells of its own accord, and the limits that it is told."""

from collections.abc import KeysView
from pathlib import Path
from typing import Any

import pytest

from nodeagent.nvml import NvmlReader
from nodeagent.reader import Event, EventKind, LimitRefused, MemoryLimit
from tests.nodeagent.fakenvml import SYSTEM, Node, card, uuid
from tests.nodeagent.nvml.conftest import Driver as Load
from tests.nodeagent.nvml.conftest import Readers

SOON = 5.0  # a deadline that nothing here reaches


def heard(reader: NvmlReader) -> Event | None:
    return reader.wait_event(SOON)


def test_events(node: Node, readers: Readers) -> None:
    """Events are told under the card's UUID, the dead card's too; those that came earlier are not."""
    reader = readers()
    node.write(card(0), card(1))
    assert reader.wait_event(0.01) is None, "there are no cards yet"
    reader.read(SOON)
    node.event(0, "xid", 13)
    assert reader.wait_event(0.01) is None, "that was before anybody listened"
    node.write(card(0), card(1, **{"error.*": "GPU_IS_LOST"}))
    node.event(1, "xid", 79)
    assert heard(reader) == Event(uuid(1), EventKind.XID, 79)
    reader.read(SOON)
    node.event(1, "xid", 79)
    node.event(0, "xid", 31, (1, 0))
    node.event(0, "dbe")
    node.event(0, "recovery", 1)
    assert heard(reader) == Event(uuid(1), EventKind.XID, 79)
    assert heard(reader) == Event(uuid(0), EventKind.XID, 31, 1)
    assert heard(reader) == Event(uuid(0), EventKind.DOUBLE_BIT_ECC)
    assert heard(reader) == Event(uuid(0), EventKind.RECOVERY_ACTION, 1)
    assert reader.wait_event(0.01) is None


def test_waiting_for_events_fails_and_works_again(node: Node, readers: Readers) -> None:
    """After an error the cards are registered anew."""
    reader = readers()
    node.write(card(0))
    reader.read(SOON)
    assert reader.wait_event(0.01) is None
    node.happens("!UNKNOWN")
    assert reader.wait_event(0.05) is None
    assert reader.wait_event(0.01) is None
    node.event(0, "xid", 79)
    assert heard(reader) == Event(uuid(0), EventKind.XID, 79)


def test_a_wait_that_fails_during_a_reading_leaves_nobody_unheard(node: Node, readers: Readers) -> None:
    """The thread that reads must not bring back who was registered with the set that is given up."""
    reader = readers()
    node.write(card(0))
    reader.read(SOON)
    assert reader.wait_event(0.01) is None

    class Meanwhile(dict[str, Any]):
        def keys(self) -> KeysView[str]:  # type: ignore[override]
            node.happens("!UNKNOWN")
            assert reader.wait_event(0.01) is None
            return super().keys()

    reader._events.know(Meanwhile({uuid(0): reader._cards.seen[uuid(0)].handle}))
    assert reader.wait_event(0.01) is None
    node.event(0, "xid", 79)
    assert heard(reader) == Event(uuid(0), EventKind.XID, 79)


def test_a_card_that_comes_back_between_two_waits_is_registered_again(node: Node, readers: Readers) -> None:
    """However short it was away, the driver may have forgotten who wanted its events."""
    reader = readers()
    (node.directory / "trace").touch()
    node.write(card(0))
    reader.read(SOON)
    assert reader.wait_event(0.01) is None
    asked = registered(node)
    for cards in ((), (card(0),)):
        node.write(*cards)
        reader.read(SOON)
    assert reader.wait_event(0.01) is None
    assert registered(node) > asked
    assert reader.wait_event(0.01) is None


def registered(node: Node) -> int:
    """Return how often the driver was asked to register a card."""
    return (node.directory / "trace").read_text().count("nvmlDeviceRegisterEvents")


def test_a_card_without_events(node: Node, readers: Readers) -> None:
    """Where a board has no events the others' are told all the same."""
    reader = readers()
    node.write(card(0, supported_events=0), card(1, supported_events=0x8))
    reader.read(SOON)
    assert reader.wait_event(0.01) is None
    node.event(0, "xid", 79)
    node.event(1, "xid", 62)
    assert heard(reader) == Event(uuid(1), EventKind.XID, 62)


def test_a_card_that_cannot_be_registered_is_tried_again(
    node: Node, readers: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once, the other card's events are told meanwhile, and its own as soon as it can be."""
    reader = readers()
    node.write(card(0, error__nvmlDeviceRegisterEvents="UNKNOWN"), card(1))
    reader.read(SOON)
    for _ in range(3):
        assert reader.wait_event(0.01) is None
    assert len([r for r in caplog.records if uuid(0) in r.getMessage()]) == 1
    node.event(1, "xid", 62)
    assert heard(reader) == Event(uuid(1), EventKind.XID, 62)
    node.write(card(0), card(1))
    assert reader.wait_event(0.01) is None
    node.event(0, "xid", 79)
    assert heard(reader) == Event(uuid(0), EventKind.XID, 79)


def test_memory_limits(node: Node, readers: Readers, tmp_path: Path) -> None:
    """A limit is set on a cgroup, read back with what the cgroup uses, and cleared; nothing is reserved."""
    cgroup = tmp_path / "container"
    cgroup.mkdir()
    (cgroup / "cgroup.procs").write_text("41\n")
    reader = readers()
    node.write(card(0, memory_limits=1, proc=("41 100 C 0 0", "42 7 C 0 0")))
    assert reader.read(SOON).cards[0].limits
    reader.set_memory_limit(uuid(0), str(cgroup), 8192)
    assert reader.memory_limit(uuid(0), str(cgroup)) == MemoryLimit(8192, 100)
    reader.set_memory_limit(uuid(0), str(cgroup), None)
    assert reader.memory_limit(uuid(0), str(cgroup)) == MemoryLimit(None, 100)
    assert (node.directory / "limits").read_text() == f"0 0 {8192 * 2**20} {cgroup}\n0 0 {2**64 - 1} {cgroup}\n"


@pytest.mark.parametrize("hide", [[], ["nvmlDeviceGetMemoryLimits_v1", "nvmlDeviceSetMemoryLimits_v1"]])
def test_no_memory_limits(hide: list[str], driver: Load, readers: Readers, tmp_path: Path) -> None:
    """A driver without limits says so beforehand, and refuses with a sentence."""
    node = driver(hide)
    node.write(card(0))
    reader = readers()
    assert not reader.read(SOON).cards[0].limits
    assert reader.memory_limit(uuid(0), str(tmp_path)) is None
    with pytest.raises(LimitRefused, match=rf"The driver did not limit .* on card {uuid(0)}: "):
        reader.set_memory_limit(uuid(0), str(tmp_path), 1)


def test_limits_without_root(node: Node, readers: Readers, tmp_path: Path) -> None:
    """Reading limits wants no privileges, setting them does."""
    node.write(card(0, memory_limits=1), system={**SYSTEM, "privileged": 0})
    reader = readers()
    assert reader.read(SOON).cards[0].limits
    with pytest.raises(LimitRefused, match="Permission"):
        reader.set_memory_limit(uuid(0), str(tmp_path), 1)
