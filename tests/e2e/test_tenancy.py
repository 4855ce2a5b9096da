"""A cluster whose boundary is the namespace: no two tenants on a card, and the reason says so."""

import json
import random
from typing import Any

import pytest

from contract.inventory import Gpu, Inventory
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import add_nodes, control_plane, extender, pod, scheduler_configuration
from tests.e2e.test_packing import decided

pytestmark = pytest.mark.e2e

REASON = "no card with enough room whose pods the pod may share it with"
TENANTS = ("red", "blue", "green")


def ask(plane: ControlPlane, namespace: str, name: str, memory: str = "2Gi") -> None:
    """Create a pod of a tenant."""
    made = pod(name, {"main": {"memory": memory, "utilization": "10%"}})
    plane.request("POST", f"/api/v1/namespaces/{namespace}/pods", made)


def read(plane: ControlPlane, namespace: str, name: str) -> dict[str, Any]:
    """Return a pod as it is now."""
    found: dict[str, Any] = json.loads(plane.request("GET", f"/api/v1/namespaces/{namespace}/pods/{name}"))
    return found


def pods(plane: ControlPlane, *tenants: str) -> list[dict[str, Any]]:
    """Return the pods of some tenants, of all by default."""
    paths = [f"/api/v1/namespaces/{tenant}/pods" for tenant in tenants or TENANTS]
    return [item for path in paths for item in json.loads(plane.request("GET", path))["items"]]


def leave(plane: ControlPlane, gone: list[dict[str, Any]]) -> None:
    """Delete pods at once: no kubelet would ever confirm."""
    for item in gone:
        meta = item["metadata"]
        plane.request("DELETE", f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}?gracePeriodSeconds=0")


def cards(plane: ControlPlane) -> dict[str, set[str]]:
    """Return the tenants on each card, by the records."""
    out: dict[str, set[str]] = {}
    for item in pods(plane):
        record = json.loads(item["metadata"].get("annotations", {}).get("tessera.gpu/assignment", "{}"))
        for grants in record.get("containers", {}).values():
            for grant in grants:
                out.setdefault(grant["gpu"], set()).add(item["metadata"]["namespace"])
    return out


def test_no_card_has_two_tenants() -> None:
    """Two cards, three tenants: the third waits with its reason, and gets the card that the second leaves."""
    gpus = tuple(Gpu(f"GPU-{i}", i, "NVIDIA A10", 23028) for i in range(2))
    with control_plane() as plane, HeldPort() as port:
        add_nodes(plane, [("n1", Inventory("n1", gpus), 64, 256)])
        extender(plane, port, "--boundary", "namespace")
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        for tenant in TENANTS:
            plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": tenant}})
        for tenant in TENANTS[:2]:
            ask(plane, tenant, "first")
            wait_until(lambda t=tenant: read(plane, t, "first")["spec"].get("nodeName"), f"{tenant} is bound")  # type: ignore[misc]
        ask(plane, "green", "first")
        said = wait_until(
            lambda: [c["message"] for c in read(plane, "green", "first")["status"].get("conditions", ())],
            "green has a message",
        )
        assert REASON in said[0]
        draw = random.Random(1)
        for i in range(30):
            ask(plane, draw.choice(TENANTS[:2]), f"p{i}", draw.choice(("1Gi", "4Gi")))
        wait_until(lambda: all(map(decided, pods(plane))), "every pod is decided")
        full = cards(plane)
        # A red pod that waits has the same right to the card that blue leaves.
        leave(plane, [item for item in pods(plane, "red") if "nodeName" not in item["spec"]])
        leave(plane, pods(plane, "blue"))
        wait_until(lambda: read(plane, "green", "first")["spec"].get("nodeName"), "green is bound")
        found = cards(plane)
    assert sorted(full.values(), key=list) == [{"blue"}, {"red"}]
    assert all(len(tenants) == 1 for tenants in found.values()), found
    assert {"green"} in found.values()
