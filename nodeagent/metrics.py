"""What the agent tells Prometheus: each card, each pod's share of a card, and the agent itself.

The node is a label of the scrape. Series are bounded: 64 cards, and on each as many pods as can share it.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contract.inventory import Gpu
from nodeagent.use import CardUse

PODS_PER_CARD: Final = 512  # the most that the setting `sharers` allows, and more pods than a node runs
_MIB: Final = 1 << 20
_CARD: Final = ("gpu_uuid",)
_POD: Final = ("gpu_uuid", "namespace", "pod")


@dataclass(frozen=True, slots=True)
class View:
    """What is told, as the last tick left it. `granted`: MiB by card (None: not known); `events`: by reason."""

    gpus: tuple[Gpu, ...] = ()
    uses: Mapping[str, CardUse] = field(default_factory=dict)
    granted: Mapping[str, int] | None = None
    events: Mapping[str, int] = field(default_factory=dict)
    xids: Mapping[tuple[str, int], int] = field(default_factory=dict)
    ticks: int = 0
    tick_seconds: float = 0.0
    late_cards: int = 0
    reports: int = 0
    report_failures: int = 0
    heartbeats: int = 0
    limits: int = 0


class Metrics(Collector):
    """Makes every series from the view of the last tick when it is asked."""

    def __init__(self) -> None:
        self.view = View()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def text(self) -> bytes:
        """Return all series in Prometheus' text format."""
        return generate_latest(self._registry)

    def collect(self) -> Iterable[Metric]:
        """Yield every family, also those without a series."""
        yield from _cards(self.view)
        yield from _pods(self.view)
        yield from _agent(self.view)


def _cards(view: View) -> Iterator[Metric]:
    info = _gauge("gpu_info", "1 for every card that was ever seen.", (*_CARD, "gpu_index", "model"))
    healthy = _gauge("gpu_healthy", "1 if the card is healthy, else 0.", _CARD)
    capacity = _gauge("gpu_memory_capacity_bytes", "All memory of the card.", _CARD)
    reserved = _gauge("gpu_memory_reserved_bytes", "Memory that the driver keeps for itself.", _CARD)
    used = _gauge("gpu_memory_used_bytes", "Memory in use, without what is reserved.", _CARD)
    foreign = _gauge("gpu_memory_foreign_bytes", "Memory in use that no grant answers for.", _CARD)
    granted = _gauge("gpu_memory_granted_bytes", "Memory granted to the pods of this node.", _CARD)
    busy = _gauge("gpu_utilization_ratio", "Part of the time in which the card was busy, averaged.", _CARD)
    for gpu in view.gpus:
        card = (gpu.uuid,)
        info.add_metric((gpu.uuid, str(gpu.index), gpu.model), 1)
        healthy.add_metric(card, int(gpu.healthy))
        _add_mib(capacity, card, gpu.memory_mib)
        _add_mib(reserved, card, None if gpu.memory_mib is None else gpu.reserved_mib)
        _add_mib(used, card, gpu.used_mib)
        use = view.uses.get(gpu.uuid)
        _add_mib(foreign, card, None if use is None or use.foreign_mib is None else gpu.foreign_mib)
        _add_mib(granted, card, None if view.granted is None else view.granted.get(gpu.uuid, 0))
        _add_percent(busy, card, gpu.utilization)
    yield from (info, healthy, capacity, reserved, used, foreign, granted, busy)
    xids = _counter("gpu_xid_errors", "XID errors by number, benign ones too.", (*_CARD, "xid"))
    for (uuid, xid), times in view.xids.items():
        xids.add_metric((uuid, str(xid)), times)
    yield xids


def _pods(view: View) -> Iterator[Metric]:
    used = _gauge("pod_gpu_memory_used_bytes", "Memory of the card that the pod uses.", _POD)
    granted = _gauge(
        "pod_gpu_memory_granted_bytes", "Memory of the card granted to the pod; absent if none is.", _POD
    )
    busy = _gauge(
        "pod_gpu_utilization_ratio", "Part of the card's compute that the pod uses, if the driver tells.", _POD
    )
    for uuid, use in view.uses.items():
        for by_pod in use.pods[:PODS_PER_CARD]:
            share = (uuid, by_pod.pod.namespace, by_pod.pod.name)
            _add_mib(used, share, by_pod.used_mib)
            _add_mib(granted, share, by_pod.granted_mib)
            _add_percent(busy, share, by_pod.utilization)
    yield from (used, granted, busy)


def _agent(view: View) -> Iterator[Metric]:
    events = _counter("agent_events", "Pods seen beyond their grants, and evictions done, by reason.", ("reason",))
    for reason, times in view.events.items():
        events.add_metric((reason,), times)
    yield events
    for name, help_, counted in (
        ("agent_samples", "Samples taken of the node.", view.ticks),
        ("agent_sample_seconds", "Time spent on samples.", view.tick_seconds),
        ("agent_reports", "Reports of the node's cards that the API server took.", view.reports),
        ("agent_report_failures", "Reports that it did not take, or did not answer.", view.report_failures),
        ("agent_heartbeats", "Heartbeats that the API server took.", view.heartbeats),
    ):
        family = _counter(name, help_, ())
        family.add_metric((), counted)
        yield family
    late = _gauge("agent_late_cards", "Cards that did not answer the last sample in time.", ())
    late.add_metric((), view.late_cards)
    limits = _gauge("agent_memory_limits", "Memory limits in force: one for each cgroup and card.", ())
    limits.add_metric((), view.limits)
    yield from (late, limits)


def _gauge(name: str, help_: str, labels: tuple[str, ...]) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tessera_{name}", help_, labels=labels)


def _counter(name: str, help_: str, labels: tuple[str, ...]) -> CounterMetricFamily:
    return CounterMetricFamily(f"tessera_{name}", help_, labels=labels)


def _add_mib(family: GaugeMetricFamily, labels: tuple[str, ...], mib: int | None) -> None:
    if mib is not None:
        family.add_metric(labels, mib * _MIB)


def _add_percent(family: GaugeMetricFamily, labels: tuple[str, ...], percent: int | None) -> None:
    if percent is not None:
        family.add_metric(labels, percent / 100)
