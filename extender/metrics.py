"""What the extender tells Prometheus about itself. Per-card figures belong to the node agents."""

from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)


class Metrics:
    """The extender's counters and gauges, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests = Counter(
            "tessera_extender_requests",
            "Requests by verb and HTTP status.",
            ["verb", "code"],
            registry=self.registry,
        )
        self.seconds = Histogram(
            "tessera_extender_request_duration_seconds",
            "Time to answer, by verb.",
            ["verb"],
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self.binds = Counter("tessera_bind", "Binds by result.", ["result"], registry=self.registry)
        self.assumed = Gauge("tessera_assumed_pods", "Pods whose bind is under way.", registry=self.registry)
        self.holding = Gauge("tessera_holding_pods", "Pods that hold a share of a card.", registry=self.registry)
        self.unaccounted = Gauge(
            "tessera_unaccounted_pods",
            "Bound pods that ask for GPUs and have no record.",
            registry=self.registry,
        )
        self.closed = Gauge(
            "tessera_closed_nodes",
            "Nodes that take no GPU pod, by reason.",
            ["reason"],
            registry=self.registry,
        )
        self.overpromised = Gauge(
            "tessera_overpromised_cards",
            "Cards of which pods hold more than they can give; they take no others.",
            registry=self.registry,
        )
        self.outage = Gauge(
            "tessera_watch_outage_seconds",
            "Time for which some watch has not been open; above stale_seconds, 30 by default, nothing is decided.",
            registry=self.registry,
        )
        self.silence = Gauge(
            "tessera_watch_silence_seconds",
            "Time since the quietest watch last heard from the API server; a minute is nothing unusual.",
            registry=self.registry,
        )

        self.writes = Counter(
            "tessera_controller_writes",
            "Writes of the controllers, by kind (totals of a node, retry of a pod) and result.",
            ["kind", "result"],
            registry=self.registry,
        )
        self.leads = Gauge(
            "tessera_leader", "1 while this replica answers the verbs, 0 while another does.", registry=self.registry
        )
        self.circuit = Gauge(
            "tessera_circuit_open",
            "1 while requests are refused because the API server does not answer.",
            registry=self.registry,
        )

    def text(self) -> bytes:
        """Return all of them in Prometheus' text format."""
        return generate_latest(self.registry)
