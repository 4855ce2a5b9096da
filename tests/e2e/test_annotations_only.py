"""The second configuration: an empty list of managed resources, for pods that ask by annotation alone."""

from collections.abc import Iterator

import pytest

from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import add_nodes, control_plane, create, extender, machines, pod, scheduler_configuration
from tests.e2e.test_packing import counted, node_of, settle

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def stage() -> Iterator[tuple[ControlPlane, Process]]:
    """Three hundred GPU nodes, the extender, and kube-scheduler that asks it about every pod."""
    with control_plane() as plane, HeldPort() as port:
        add_nodes(plane, machines(300))
        service = extender(plane, port)
        plane.start_scheduler(scheduler_configuration(plane, "config-annotations-only.yaml", port))
        yield plane, service


def test_annotations_alone_get_a_share(stage: tuple[ControlPlane, Process]) -> None:
    """Pods without any extended resource are bound with right records, and plain pods by the extender too."""
    plane, _ = stage
    asking = [
        pod(f"ask-{i:02d}", {"main": {"memory": f"{2 + i % 9}Gi", "utilization": "30%"}}, resources=False)
        for i in range(60)
    ]
    create(plane, [*asking, *(pod(f"plain-{i}", {"main": {}}) for i in range(5))])
    settle(plane)
    wait_until(lambda: not counted(plane).pending, "every pod is bound")
    result = counted(plane)
    assert result.breaches == []
    assert (
        sum(1 for card in result.cards.values() if any(c.sharers for c in card.values())) < 60
    )  # packed, not spread


def test_with_the_extender_down_every_pod_waits(stage: tuple[ControlPlane, Process]) -> None:
    """What the configuration file says it costs is what it costs; it ends when the extender is back."""
    plane, service = stage
    service.kill()
    create(plane, [pod("waits", {"main": {}})])
    path = '{.status.conditions[?(@.type=="PodScheduled")].reason}'
    wait_until(
        lambda: plane.kubectl("get", "pod", "waits", "-o", f"jsonpath={path}") == "SchedulerError", "the pod waits"
    )
    service.start()
    wait_until(lambda: node_of(plane, "waits"), "the pod is bound")
