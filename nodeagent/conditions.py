"""The conditions of a GPUNode: what of this node can be used, and why not."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from nodeagent.reader import Reading

LEAST_DRIVER: Final = (470, 82, 1)
LEAST_KERNEL: Final = (5, 10)

# type, status, reason, message
Condition = tuple[str, str, str, str]


@dataclass(frozen=True, slots=True)
class Host:
    """What does not change while the agent runs: the kernel's release, whether an IOMMU is on, when it was booted."""

    kernel: str = ""
    iommu: bool = False
    booted: float = 0.0  # seconds since 1970

    @classmethod
    def read(cls, proc: Path = Path("/proc"), sys: Path = Path("/sys")) -> "Host":
        """Return this host's; what cannot be read is empty."""
        try:
            kernel = (proc / "sys/kernel/osrelease").read_text().strip()
        except OSError:
            kernel = ""
        try:
            iommu = next((sys / "kernel/iommu_groups").iterdir(), None) is not None
        except OSError:
            iommu = False
        try:
            booted = re.search(r"^btime (\d+)$", (proc / "stat").read_text(), re.MULTILINE)
        except OSError:
            booted = None
        return cls(kernel, iommu, float(booted[1]) if booted else 0.0)


def conditions(reading: Reading, host: Host, limits: Condition) -> tuple[Condition, ...]:
    """Return all conditions of a node, `limits` among them as `limits.py` found it."""
    return (
        _ready(reading),
        _at_least("DriverSupported", "driver", reading.driver.version, LEAST_DRIVER, "470.82.01"),
        _at_least("KernelSupported", "kernel", host.kernel, LEAST_KERNEL, "5.10"),
        ("IOMMUEnabled", "True", "Groups", "")
        if host.iommu
        else ("IOMMUEnabled", "False", "NoGroups", "The kernel has no IOMMU groups."),
        limits,
    )


def _ready(reading: Reading) -> Condition:
    if reading.must_restart:
        return "Ready", "False", "DriverReplaced", "The driver was replaced; the agent has to start again."
    if any(card.gpu.healthy for card in reading.cards):
        return "Ready", "True", "Reporting", " ".join(reading.faults)[:300]
    if reading.cards:
        said = reading.faults or (reading.cards[0].gpu.reason,)
        return "Ready", "False", "NoHealthyCard", " ".join(said)[:300]
    return "Ready", "False", "NoCards", (" ".join(reading.faults) or "The driver knows no card.")[:300]


def _at_least(kind: str, what: str, version: str, least: tuple[int, ...], said: str) -> Condition:
    numbers = tuple(int(n) for n in re.findall(r"\d+", version.partition("-")[0]))
    if not numbers:
        return kind, "Unknown", "NotTold", f"The version of the {what} is not known."
    if numbers >= least:
        return kind, "True", "Supported", ""
    return kind, "False", "TooOld", f"The {what} is {version}; Tessera needs {said} or newer."


def as_status(now: Iterable[Condition], before: Iterable[dict[str, Any]], at: str) -> list[dict[str, Any]]:
    """Return conditions as the API server has them; one whose status is as before keeps its time, others get `at`."""
    since = {c.get("type"): (c.get("status"), c.get("lastTransitionTime")) for c in before}
    out = []
    for kind, status, reason, message in now:
        was, time = since.get(kind, (None, None))
        out.append(
            {
                "type": kind,
                "status": status,
                "lastTransitionTime": time if was == status and time else at,
                "reason": reason,
                "message": message,
            }
        )
    return out
