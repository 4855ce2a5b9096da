"""Nobody but the extender writes a record, and it nothing else: deploy/policy and deploy/rbac on an API server."""

from collections.abc import Callable, Iterator
from typing import Any, Final

import pytest
import yaml

from contract.names import ASSIGNMENT, LEADER, RETRY, devices_key
from tests.e2e.controlplane.api import MERGE, STRATEGIC, ApiError
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.users import User
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY, EXTENDER, GPUNODES, control_plane

pytestmark = pytest.mark.e2e

RECORD: Final = {ASSIGNMENT: "{}", devices_key("main"): "GPU-1"}
PODS: Final = "/api/v1/namespaces/default/pods"
EDITOR: Final = User("admin")
FORBIDDEN: Final = ("Only the Tessera extender may write", "The Tessera extender may change nothing")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """A control plane whose API server enforces the policy already."""
    with control_plane() as running:
        wait_until(lambda: refused(lambda: create(running, "probe", RECORD, "?dryRun=All")), "the policy is enforced")
        create(running, "probe")
        wait_until(lambda: _has_rights(running), "the extender's role is in force")
        wait_until(
            lambda: refused(lambda: annotate(running, "probe", {"a": "b"}, "?dryRun=All", user=EXTENDER.name)),
            "the other too",
        )
        yield running


def _has_rights(plane: ControlPlane) -> bool:
    """Say whether the API server knows the extender's role by now: until then it refuses by that alone."""
    try:
        annotate(plane, "probe", {"a": "b"}, "?dryRun=All", user=EXTENDER.name)  # once written it changes nothing
    except ApiError as error:
        return "cannot patch resource" not in error.body
    return True


def refused(request: Callable[[], object]) -> bool:
    """Say whether the policy refuses a request."""
    try:
        request()
    except ApiError as error:
        if not any(sentence in error.body for sentence in FORBIDDEN):
            raise
        return True
    return False


def create(plane: ControlPlane, name: str, annotations: dict[str, str] | None = None, query: str = "") -> str:
    """Create a pod as the administrator."""
    meta: dict[str, Any] = {"name": name, "annotations": annotations or {}}
    spec = {"containers": [{"name": "main", "image": "none"}]}
    return plane.request("POST", PODS + query, {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def annotate(
    plane: ControlPlane, name: str, annotations: dict[str, str | None], sub: str = "", user: str = EDITOR.name
) -> str:
    """Merge annotations into a pod, None removing one."""
    body = {"metadata": {"annotations": annotations}}
    return plane.request("PATCH", f"{PODS}/{name}{sub}", body, content_type=MERGE, user=user)


def patch(plane: ControlPlane, name: str, body: dict[str, Any], user: str) -> str:
    """Change a pod, lists in it by the names of their items."""
    return plane.request("PATCH", f"{PODS}/{name}", body, user=user, content_type=STRATEGIC)


def bind(plane: ControlPlane, name: str, annotations: dict[str, str], user: str) -> str:
    """Bind a pod with annotations on the Binding."""
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "annotations": annotations},
        "target": {"apiVersion": "v1", "kind": "Node", "name": "n1"},
    }
    return plane.request("POST", f"{PODS}/{name}/binding", body, user=user)


def test_a_record_can_be_neither_created_nor_forged(plane: ControlPlane) -> None:
    """Not on a new pod, not on an old one, not through its status, not on a stranger's Binding."""
    for i, (key, value) in enumerate(RECORD.items()):
        assert refused(lambda i=i, key=key, value=value: create(plane, f"forged-{i}", {key: value}))  # type: ignore[misc]
    create(plane, "plain", {"tessera.gpu/memory": "4Gi"})
    assert refused(lambda: annotate(plane, "plain", dict(RECORD)))
    assert refused(lambda: annotate(plane, "plain", dict(RECORD), "/status"))
    assert refused(lambda: bind(plane, "plain", RECORD, EDITOR.name))
    annotate(plane, "plain", {"example.com/team": "red"})


def test_what_the_extender_wrote_stays_while_everything_else_may_change(plane: ControlPlane) -> None:
    """After the extender's Binding the record can be neither changed nor removed; other updates pass."""
    create(plane, "bound")
    bind(plane, "bound", RECORD, EXTENDER.name)
    for change in ({ASSIGNMENT: "{ }"}, {ASSIGNMENT: None}, {devices_key("main"): None}, {devices_key("other"): "x"}):
        assert refused(lambda change=change: annotate(plane, "bound", change))  # type: ignore[misc]
    annotate(plane, "bound", {"example.com/team": "red"})
    annotate(plane, "bound", {ASSIGNMENT: RECORD[ASSIGNMENT]})
    plane.request("PATCH", f"{PODS}/bound/status", {"status": {"phase": "Running"}}, content_type=MERGE)


def test_the_extender_has_no_right_that_it_does_not_use(plane: ControlPlane) -> None:
    """It reads three kinds, creates Bindings and patches two; secrets and GPUNodes are not its to write."""
    for path in ("/api/v1/pods", "/api/v1/nodes", GPUNODES):
        plane.request("GET", path, user=EXTENDER.name)
    create(plane, "other")
    for method, path in (
        ("PUT", f"{PODS}/other"),
        ("PATCH", f"{PODS}/other/status"),
        ("GET", "/api/v1/secrets"),
        ("POST", "/api/v1/nodes"),
        ("PATCH", "/api/v1/nodes/n1"),
    ):
        with pytest.raises(ApiError) as caught:
            plane.request(method, path, {}, user=EXTENDER.name, content_type=MERGE)
        assert caught.value.status == 403


def test_the_extender_may_wake_a_pod_and_change_nothing_else_of_it(plane: ControlPlane) -> None:
    """The growing number passes, the pod's UID is a precondition; anything else is refused, a record as well."""
    create(plane, "woken", {"example.com/team": "red"})
    for number in ("1", "2", None):
        annotate(plane, "woken", {RETRY: number}, user=EXTENDER.name)
    for change in (
        RECORD,
        {"example.com/team": None},
        {"example.com/team": "blue"},
        {LEADER: "x"},
        {RETRY: "1", "a": "b"},
    ):
        assert refused(lambda change=change: annotate(plane, "woken", change, user=EXTENDER.name))  # type: ignore[misc]
    image = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    for body in (image, {"metadata": {"labels": {LEADER: "true"}}}, {"metadata": {"finalizers": ["a.b/c"]}}):
        assert refused(lambda body=body: patch(plane, "woken", body, EXTENDER.name))  # type: ignore[misc]
    with pytest.raises(ApiError) as caught:
        patch(plane, "woken", {"metadata": {"uid": "another", "annotations": {RETRY: "3"}}}, EXTENDER.name)
    assert caught.value.status == 422


def test_a_replica_may_mark_its_pod_as_the_leader(plane: ControlPlane) -> None:
    """In its own namespace the label and the note of that name pass, and no other."""
    path = "/api/v1/namespaces/tessera-system/pods"
    spec = {"containers": [{"name": "main", "image": "none"}]}
    plane.request("POST", path, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}, "spec": spec})

    def mark(key: str, value: str | None) -> str:
        body = {"metadata": {"labels": {key: value}, "annotations": {key: value}}}
        return plane.request("PATCH", f"{path}/one", body, user=EXTENDER.name, content_type=MERGE)

    mark(LEADER, "true")
    mark(LEADER, None)
    assert refused(lambda: mark("a", "b"))


def test_beside_kube_scheduler_the_extender_changes_no_more_of_a_pod(plane: ControlPlane) -> None:
    """With kube-scheduler's right to write a pod's status, that passes, and a record, a note or a label does not."""
    create(plane, "status", {"tessera.gpu/memory": "4Gi"})
    plane.kubectl("create", "clusterrole", "statuses", "--verb=patch", "--resource=pods/status")
    plane.kubectl("create", "clusterrolebinding", "statuses", "--clusterrole=statuses", f"--user={EXTENDER.name}")
    try:
        conditions = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable"}]
        body: dict[str, Any] = {"status": {"conditions": conditions, "nominatedNodeName": "n1"}}
        wait_until(lambda: allowed(lambda: patch(plane, "status/status", body, EXTENDER.name)), "the right is there")
        for change in (dict(RECORD), {"example.com/team": "blue"}, {LEADER: "x"}):
            assert refused(lambda c=change: annotate(plane, "status", c, "/status", EXTENDER.name))  # type: ignore[misc]
        label = {"metadata": {"labels": {"a": "b"}}}
        assert refused(lambda: patch(plane, "status/status", label, EXTENDER.name))
    finally:
        plane.kubectl("delete", "clusterrole/statuses", "clusterrolebinding/statuses")


def allowed(request: Callable[[], object]) -> bool:
    """Say whether RBAC allows a request."""
    try:
        request()
    except ApiError as error:
        if error.status != 403 or any(sentence in error.body for sentence in FORBIDDEN):
            raise
        return False
    return True


def test_of_nodes_the_extender_writes_the_totals_alone(plane: ControlPlane) -> None:
    """They can be set, changed and removed; other amounts, conditions, labels and notes stay as they are."""
    amounts = {"cpu": "8", "example.com/card": "2"}
    ready = [{"type": "Ready", "status": "True"}]
    status = {"capacity": amounts, "allocatable": amounts | {"cpu": "7"}, "conditions": ready, "phase": "Running"}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n2", "labels": {"a": "b"}}, "status": status}
    plane.request("POST", "/api/v1/nodes", node)

    def write(body: dict[str, Any]) -> str:
        path = "/api/v1/nodes/n2/status"
        return plane.request("PATCH", path, body, user=EXTENDER.name, content_type=MERGE)

    def total(amount: str | None, name: str = "nvidia.com/gpu-memory") -> dict[str, Any]:
        return {"status": {"capacity": {name: amount}, "allocatable": {name: amount}}}

    for amount in ("8Gi", "4Gi", None):
        for name in ("nvidia.com/gpu-memory", "nvidia.com/gpu-utilization", "tessera.gpu/share"):
            write(total(amount, name))
    for body in (
        total("0", "cpu"),
        total(None, "example.com/card"),
        total("1", "example.com/other"),
        {"status": {"allocatable": {"cpu": "8"}}},
        {"status": {"allocatable": None}},
        {"status": {"conditions": [{"type": "Ready", "status": "False"}]}},
        {"status": {"conditions": None}},
        {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}},
        {"status": {"nodeInfo": {"kernelVersion": "1"}}},
        {"metadata": {"labels": {"a": None}}},
        {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"metadata": {"finalizers": ["a.b/c"]}},
    ):
        assert refused(lambda body=body: write(body)), body  # type: ignore[misc]
    status["conditions"] = [{"type": "Ready", "status": "False"}]
    plane.request("PATCH", "/api/v1/nodes/n2/status", {"status": status}, content_type=MERGE)


def test_every_example_pod_is_accepted(plane: ControlPlane) -> None:
    """The examples that users copy pass a server-side dry run."""
    said = plane.kubectl("apply", "--dry-run=server", "-f", str(DEPLOY / "examples" / "pods.yaml"))
    made = [m for m in yaml.safe_load_all((DEPLOY / "examples" / "pods.yaml").read_text()) if m]
    assert said.count("created (server dry run)") == len(made)
