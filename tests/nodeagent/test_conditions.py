"""The conditions of a node, and their times."""

from pathlib import Path

import pytest

from nodeagent.conditions import Condition, Host, as_status, conditions
from nodeagent.reader import Reading
from tests.nodeagent.given import card, reading

HOST = Host("6.1.0-18-amd64", True)
LIMITS: Condition = ("MemoryLimitsEnforced", "True", "Limits", "")


def found(read: Reading, host: Host = HOST) -> dict[str, tuple[str, str]]:
    """Return status and reason by condition."""
    return {kind: (status, reason) for kind, status, reason, _ in conditions(read, host, LIMITS)}


def test_a_good_node_has_all_of_them() -> None:
    """Five conditions, each true."""
    assert {kind: status for kind, (status, _) in found(reading()).items()} == dict.fromkeys(
        ("Ready", "DriverSupported", "KernelSupported", "IOMMUEnabled", "MemoryLimitsEnforced"), "True"
    )


@pytest.mark.parametrize(
    ("driver", "status"),
    [
        ("470.82.01", "True"),
        ("470.82.00", "False"),
        ("470.103.01", "True"),
        ("465.19", "False"),
        ("615.71.09", "True"),
        ("", "Unknown"),
    ],
)
def test_drivers_from_470_82_01_are_supported(driver: str, status: str) -> None:
    """Versions are compared number by number; one that is not told is not judged."""
    assert found(reading(driver=driver))["DriverSupported"][0] == status


@pytest.mark.parametrize(
    ("kernel", "status"),
    [("5.10.0-23-cloud-amd64", "True"), ("5.4.0-100-generic", "False"), ("6.14", "True"), ("", "Unknown")],
)
def test_kernels_from_5_10_are_supported(kernel: str, status: str) -> None:
    """What follows a dash is the distribution's own."""
    assert found(reading(), Host(kernel, False))["KernelSupported"][0] == status


def test_a_node_without_cards_says_why() -> None:
    """Ready is false with the driver's fault; with cards left it is true and still tells the fault."""
    fault = "There is no NVIDIA driver library."
    none = conditions(Reading(faults=(fault,)), Host(), LIMITS)[0]
    assert none == ("Ready", "False", "NoCards", fault)
    assert conditions(Reading(), Host(), LIMITS)[0][3] == "The driver knows no card."
    assert conditions(reading(card(), faults=("Card 1 has no name.",)), Host(), LIMITS)[0] == (
        "Ready",
        "True",
        "Reporting",
        "Card 1 has no name.",
    )
    assert found(reading(must_restart=True))["Ready"] == ("False", "DriverReplaced")


def test_cards_of_which_none_can_be_used_are_not_ready() -> None:
    """A driver that was unloaded, or a dead card that is the only one: the sentence says which."""
    dead = card(healthy=False, reason="The driver has lost the card.")
    unloaded = reading(dead, faults=("The NVIDIA driver is not loaded.",))
    assert conditions(unloaded, HOST, LIMITS)[0][1:] == ("False", "NoHealthyCard", "The NVIDIA driver is not loaded.")
    assert conditions(reading(dead), HOST, LIMITS)[0][3] == "The driver has lost the card."
    assert found(reading(dead, card("GPU-b")))["Ready"] == ("True", "Reporting")


def test_the_host_is_read_from_proc_and_sys(tmp_path: Path) -> None:
    """The kernel's release, and any IOMMU group; without them nothing is claimed."""
    assert Host.read(tmp_path, tmp_path) == Host("", False)
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "sys/kernel/osrelease").write_text("6.1.0\n")
    (tmp_path / "kernel/iommu_groups").mkdir(parents=True)
    assert Host.read(tmp_path, tmp_path) == Host("6.1.0", False)
    (tmp_path / "kernel/iommu_groups/0").mkdir()
    (tmp_path / "stat").write_text("cpu  1 2 3\nbtime 1700000000\nprocesses 5\n")
    assert Host.read(tmp_path, tmp_path) == Host("6.1.0", True, 1.7e9)


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    """Another message is no transition; a new condition and another status are."""
    before = as_status([("Ready", "True", "Reporting", "")], (), "t0")
    assert before[0]["lastTransitionTime"] == "t0"
    assert as_status([("Ready", "True", "Reporting", "x")], before, "t1")[0]["lastTransitionTime"] == "t0"
    now = as_status([("Ready", "False", "NoCards", ""), LIMITS], before, "t2")
    assert [c["lastTransitionTime"] for c in now] == ["t2", "t2"]
