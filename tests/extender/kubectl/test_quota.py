"""What a ResourceQuota bounds, in numbers for programs and in words for people."""

import pytest

from contract.names import Resources
from extender.kubectl.quota import quotas
from extender.kubectl.table import shown


@pytest.mark.parametrize(
    ("key", "used", "hard", "unit", "numbers", "words"),
    [
        (
            "requests.nvidia.com/gpu-memory",
            "20Gi",
            "1536Mi",
            "MiB",
            [20480, 1536, -18944],
            ["20Gi", "1.5Gi", "-18.5Gi"],
        ),
        ("requests.nvidia.com/gpu-utilization", "50", "1k", "Percent", [50, 1000, 950], ["50%", "1000%", "950%"]),
        ("requests.tessera.gpu/share", "4", "5", "", [4, 5, 1], ["4", "5", "1"]),
        ("requests.nvidia.com/gpu-memory", "0", "what", "MiB", [0, None, None], ["0Mi", "-", "-"]),
    ],
)
def test_amounts(key: str, used: str, hard: str, unit: str, numbers: list[int | None], words: list[str]) -> None:
    """Whole numbers in the unit of the resource, and what is left may be below nothing."""
    made = {
        "metadata": {"namespace": "n", "name": "q"},
        "spec": {"hard": {key: hard}},
        "status": {"used": {key: used}},
    }
    report = quotas([made], Resources())
    (row,) = report.rows
    assert [row[f"{what}{unit}"] for what in ("used", "hard", "left")] == numbers
    assert shown(report, "table").splitlines()[1].split()[3:6] == words
