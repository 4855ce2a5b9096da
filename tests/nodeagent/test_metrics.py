"""What the agent tells Prometheus."""

import re

from extender.settings import Settings
from nodeagent.metrics import PODS_PER_CARD, Metrics, View
from nodeagent.use import CardUse, PodUse
from tests.nodeagent.given import gpu, held


def lines(view: View) -> set[str]:
    """Return the series of a view."""
    metrics = Metrics()
    metrics.view = view
    return {line for line in metrics.text().decode().splitlines() if not line.startswith("#")}


def test_a_card_is_told_in_base_units() -> None:
    """Bytes, and ratios from 0 to 1."""
    read = gpu(index=3, used_mib=1024, reserved_mib=256, foreign_mib=512, utilization=37, healthy=False)
    told = lines(View((read,), {"GPU-a": CardUse(500)}, {}))
    assert {
        'tessera_gpu_info{gpu_index="3",gpu_uuid="GPU-a",model="NVIDIA A10"} 1.0',
        'tessera_gpu_healthy{gpu_uuid="GPU-a"} 0.0',
        'tessera_gpu_memory_used_bytes{gpu_uuid="GPU-a"} 1.073741824e+09',
        'tessera_gpu_memory_reserved_bytes{gpu_uuid="GPU-a"} 2.68435456e+08',
        'tessera_gpu_memory_foreign_bytes{gpu_uuid="GPU-a"} 5.36870912e+08',
        'tessera_gpu_memory_granted_bytes{gpu_uuid="GPU-a"} 0.0',
        'tessera_gpu_utilization_ratio{gpu_uuid="GPU-a"} 0.37',
    } <= told


def test_what_is_not_told_has_no_series() -> None:
    """A card without figures has no zero for them; a share without a grant no grant of zero."""
    use = {"GPU-a": CardUse(None, (PodUse(held("p"), None, None, None),))}
    told = lines(View((gpu(memory_mib=None, used_mib=None, utilization=None),), use))
    assert not [line for line in told if re.match(r"tessera_gpu_(memory|utilization)|tessera_pod", line)]
    assert "tessera_agent_late_cards 0.0" in told


def test_shares_are_told_by_pod() -> None:
    """Used and granted stand beside each other, under the same labels."""
    told = lines(View((gpu(),), {"GPU-a": CardUse(0, (PodUse(held("p"), 100, 25, 4096),))}))
    share = '{gpu_uuid="GPU-a",namespace="default",pod="p"}'
    assert f"tessera_pod_gpu_memory_used_bytes{share} 1.048576e+08" in told
    assert f"tessera_pod_gpu_memory_granted_bytes{share} 4.294967296e+09" in told
    assert f"tessera_pod_gpu_utilization_ratio{share} 0.25" in told


def test_series_are_bounded() -> None:
    """All pods that may share a card are told, and however many are on it, no more."""
    assert Settings.model_json_schema()["properties"]["sharers"]["maximum"] == PODS_PER_CARD
    crowd = tuple(PodUse(held(f"p{n}"), 1, None, 1) for n in range(PODS_PER_CARD + 1))
    told = lines(View((gpu(),), {"GPU-a": CardUse(0, crowd)}))
    assert sum(line.startswith("tessera_pod_gpu_memory_used") for line in told) == PODS_PER_CARD
