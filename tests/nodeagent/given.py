"""What the tests of the agent are given: readings, pods and reports with defaults."""

from typing import Any

from contract.inventory import Gpu, Inventory
from nodeagent.pods import HeldPod
from nodeagent.reader import Card, Driver, Process, Reading
from nodeagent.smooth import Report

A10_MIB = 23028


def gpu(uuid: str = "GPU-a", **more: Any) -> Gpu:
    """Return a healthy idle A10."""
    told: dict[str, Any] = {"model": "NVIDIA A10", "memory_mib": A10_MIB, "used_mib": 0, "utilization": 0}
    return Gpu(uuid, **(told | more))


def card(uuid: str = "GPU-a", *processes: Process, limits: bool = False, lost: bool = False, **more: Any) -> Card:
    """Return a card with these processes; what it uses is theirs if not said."""
    used = sum(process.used_mib or 0 for process in processes)
    return Card(gpu(uuid, **({"used_mib": used} | more)), processes, limits=limits, lost=lost)


def reading(*cards: Card, driver: str = "580.126.09", **more: Any) -> Reading:
    """Return a reading of these cards; of one idle card by default."""
    return Reading(Driver(driver, "13.0"), cards or (card(),), **more)


def held(name: str = "p", **granted: int) -> HeldPod:
    """Return a pod of one container with so many MiB of cards, as `GPU_a=4096`."""
    grants = {uuid.replace("_", "-"): mib for uuid, mib in granted.items()}
    by_container = {"main": grants} if grants else {}
    return HeldPod("default", name, f"uid-{name}", grants, by_container, {}, 1)


def report(*gpus: Gpu, conditions: tuple[tuple[str, str, str, str], ...] = ()) -> Report:
    """Return a report of these cards; of one idle card by default."""
    return Report(Inventory("n1", gpus or (gpu(),), "580.126.09", "13.0"), conditions)
