"""What a team may take and what it may see: ResourceQuota over GPU memory and compute, and roles."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from contract.names import WEBHOOKS
from tests.e2e.admitted import Json, Stage, admitted, apply
from tests.e2e.controlplane.cluster import KubectlError
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY
from tests.e2e.test_admission import completed, restore

pytestmark = pytest.mark.e2e

TEAM = "team"


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Ten nodes, everything in force, and a namespace with a quota of 8 GiB and 100 %."""
    with admitted(nodes=10) as running:
        running.plane.start_controllers("resourcequota-controller", "clusterrole-aggregation-controller")
        apply(running.plane, [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}])
        bound_by(
            running, "gpu", {"requests.nvidia.com/gpu-memory": "8Gi", "requests.nvidia.com/gpu-utilization": "100"}
        )
        yield running


def bound_by(stage: Stage, name: str, hard: dict[str, str], **spec: object) -> None:
    """Create a quota, and wait until it counts."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": name, "namespace": TEAM}}
    apply(stage.plane, [quota | {"spec": {"hard": hard} | spec}])
    wait_until(lambda: used(stage, name), f"the quota {name} counts")


def used(stage: Stage, name: str = "gpu") -> dict[str, str]:
    """Return what of a quota is used."""
    found = json.loads(stage.plane.request("GET", f"/api/v1/namespaces/{TEAM}/resourcequotas/{name}"))
    amounts: dict[str, str] = found.get("status", {}).get("used", {})
    return amounts


def pod(name: str, limits: Json | None = None, **notes: Any) -> Json:
    """Return a pod with the container `main`; `notes`: Tessera's annotations."""
    said = {f"tessera.gpu/{key}": value for key, value in notes.items()}
    container = {"name": "main", "image": "none", "resources": {"limits": limits or {}}}
    return {"metadata": {"name": name, "annotations": said}, "spec": {"containers": [container]}}


def test_a_quota_counts_both_ways_of_asking(stage: Stage) -> None:
    """The pod that would exceed it is refused, and a deletion gives the room back."""
    stage.create(pod("by-annotation", memory="4Gi", utilization="50%"), namespace=TEAM)
    resources = {"nvidia.com/gpu-memory": "3Gi", "nvidia.com/gpu-utilization": "20"}
    stage.create(pod("by-resource", resources), namespace=TEAM)
    assert used(stage) == {"requests.nvidia.com/gpu-memory": "7Gi", "requests.nvidia.com/gpu-utilization": "70"}
    for exceeds in (
        pod("more", memory="2Gi"),
        pod("more", memory="1Gi", utilization="40%"),
        pod("more", {"nvidia.com/gpu-memory": "2Gi"}),
        pod("more", memory="1Gi", count="2"),
    ):
        assert "exceeded quota: gpu" in stage.refusal(exceeds, namespace=TEAM)
    stage.plane.kubectl("delete", "pod", "by-annotation", "-n", TEAM, "--grace-period=0", "--force")
    wait_until(lambda: used(stage)["requests.nvidia.com/gpu-memory"] == "3Gi", "the room is given back")
    again = pod("again", memory="5Gi", utilization="80")
    wait_until(lambda: not stage.refusal(again, namespace=TEAM), "admission has heard of it")
    stage.create(again, namespace=TEAM)
    assert used(stage) == {"requests.nvidia.com/gpu-memory": "8Gi", "requests.nvidia.com/gpu-utilization": "100"}
    stage.bound("again", TEAM)


@pytest.mark.parametrize("limits", [{}, {"nvidia.com/gpu-memory": "0"}], ids=["unsaid", "none of it"])
@pytest.mark.parametrize("notes", [{"memory": "25%"}, {"utilization": "30%"}, {"count": "1"}])
def test_where_memory_is_bounded_it_is_said_in_gi(stage: Stage, notes: dict[str, Any], limits: Json) -> None:
    """What has no total would not be counted; elsewhere it is taken."""
    assert (
        "The container 'main' does not say its GPU memory in Gi, and the ResourceQuota 'gpu' bounds it:"
        " set tessera.gpu/memory to an amount such as 4Gi."
    ) in stage.refusal(pod("x", limits, **notes), namespace=TEAM)
    assert stage.refusal(pod("x", limits, **notes)) == ""


def test_without_the_webhooks_memory_is_said_in_gi_too(stage: Stage) -> None:
    """Nobody adds the share then, and the extender gives a part or the whole of a card for a utilization alone."""
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        stage.plane.kubectl("delete", kind, WEBHOOKS)
    try:
        wait_until(lambda: completed(stage) is False, "they are gone")
        says = "The container 'main' does not say its GPU memory in Gi"
        for limits in ({"nvidia.com/gpu-utilization": "100"}, {"nvidia.com/gpu-utilization": "30"}):
            assert says in stage.refusal(pod("x", limits), namespace=TEAM)
            assert stage.refusal(pod("x", limits)) == ""
            assert says not in stage.refusal(pod("x", limits | {"nvidia.com/gpu-memory": "1Gi"}), namespace=TEAM)
    finally:
        restore(stage)


def test_who_may_see_what(stage: Stage) -> None:
    """With view, edit and admin one may get and list GPUNodes, and nothing else of them."""
    stage.plane.kubectl("apply", "-f", str(DEPLOY / "rbac/users.yaml"))
    for role in ("view", "edit", "admin"):
        stage.plane.kubectl("create", "clusterrolebinding", f"of-{role}", f"--clusterrole={role}", f"--group={role}s")
        wait_until(lambda r=role: can(stage, r, "get"), f"{role} is aggregated")  # type: ignore[misc]
        verbs = ("get", "list", "watch", "create", "update", "patch", "delete")
        assert [verb for verb in verbs if can(stage, role, verb)] == ["get", "list"]
        assert not can(stage, role, "patch", "gpunodes/status")


def can(stage: Stage, role: str, verb: str, what: str = "gpunodes") -> bool:
    """Say whether somebody with a role may do something."""
    resource, _, sub = what.partition("/")
    more = [f"--subresource={sub}"] if sub else []
    args = ("auth", "can-i", verb, f"{resource}.tessera.gpu", *more, "--as=someone", f"--as-group={role}s")
    try:
        return stage.plane.kubectl(*args).strip() == "yes"
    except KubectlError as no:
        if no.code != 1:
            raise
        return False
