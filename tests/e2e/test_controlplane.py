"""The control plane that the other end-to-end tests stand on works by itself.

When this file is red, look here first: nothing of Tessera runs in it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.controlplane.cluster import ControlPlane, KubectlError
from tests.e2e.controlplane.process import ComponentError
from tests.e2e.controlplane.users import User
from tests.e2e.controlplane.waiting import wait_until

pytestmark = pytest.mark.e2e

SCHEDULER_CONFIGURATION = """
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
"""

READER = User("reader")


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    """One control plane for all tests of this file."""
    with ControlPlane(users=[READER]) as running:
        yield running


def node(name: str) -> dict[str, object]:
    """An idle node that can take ten pods."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "status": {"allocatable": {"cpu": "8", "memory": "32Gi", "pods": "10"}},
    }


def pod(name: str) -> dict[str, object]:
    """A pod that asks for one processor."""
    resources = {"requests": {"cpu": "1"}}
    container = {"name": "main", "image": "none", "resources": resources}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container]},
    }


def node_of(plane: ControlPlane, name: str) -> str:
    """Where the pod is bound; empty while it is not."""
    return plane.kubectl("get", "pod", name, "-o", "jsonpath={.spec.nodeName}")


def create(plane: ControlPlane, thing: dict[str, object]) -> None:
    """Create an object as the administrator."""
    plane.kubectl("create", "-f", "-", stdin=json.dumps(thing))


def test_a_pod_is_bound_by_the_real_scheduler(plane: ControlPlane, tmp_path: Path) -> None:
    """Node, pod and scheduler meet, and the scheduler can be frozen and ended."""
    configuration = tmp_path / "scheduler.yaml"
    configuration.write_text(SCHEDULER_CONFIGURATION)
    create(plane, node("n1"))
    with plane.start_scheduler(configuration) as scheduler:
        create(plane, pod("first"))
        assert wait_until(lambda: node_of(plane, "first"), "first is bound") == "n1"

        scheduler.pause()
        create(plane, pod("second"))
        assert node_of(plane, "second") == ""
        scheduler.resume()
        assert wait_until(lambda: node_of(plane, "second"), "second is bound") == "n1"

        assert "scheduler_schedule_attempts_total" in plane.scrape(scheduler)
    assert not scheduler.alive


def test_rbac_refuses_what_no_role_allows(plane: ControlPlane) -> None:
    """A user without a role reads nothing; with a role, exactly what it says."""
    with pytest.raises(KubectlError, match="Forbidden"):
        plane.kubectl("get", "pods", user=READER.name)

    plane.kubectl("create", "clusterrole", "read-pods", "--verb=get,list", "--resource=pods")
    plane.kubectl("create", "clusterrolebinding", "r", "--clusterrole=read-pods", "--user=reader")

    wait_until(lambda: may(plane, "list", "pods"), "the role is in force")
    assert not may(plane, "delete", "pods")
    assert not may(plane, "list", "nodes")


def may(plane: ControlPlane, verb: str, resource: str) -> bool:
    """What the API server says to `reader` about its own rights."""
    try:
        return plane.kubectl("auth", "can-i", verb, resource, user=READER.name) == "yes\n"
    except KubectlError:  # how kubectl says no
        return False


def test_a_real_service_account_token_is_known_by_its_name(plane: ControlPlane) -> None:
    """Tokens for service accounts need no controller, so charts are tried with real ones."""
    plane.kubectl("create", "serviceaccount", "agent")
    token = plane.kubectl("create", "token", "agent").strip()
    given = plane.write_kubeconfig("agent", token)
    told = plane.kubectl("auth", "whoami", f"--kubeconfig={given}", "-o", "yaml")
    assert "system:serviceaccount:default:agent" in told


def test_named_controllers_run(plane: ControlPlane) -> None:
    """With its controller running, a deleted namespace goes away; kubectl waits for that."""
    plane.kubectl("create", "namespace", "short-lived")
    with plane.start_controllers("namespace-controller"):
        plane.kubectl("delete", "namespace", "short-lived")
    with pytest.raises(KubectlError, match="NotFound"):
        plane.kubectl("get", "namespace", "short-lived")


def test_a_component_that_dies_tells_why(plane: ControlPlane, tmp_path: Path) -> None:
    """The error carries the end of the log, where the reason stands."""
    configuration = tmp_path / "wrong.yaml"
    configuration.write_text(SCHEDULER_CONFIGURATION + "nonsense: true\n")
    with pytest.raises(ComponentError, match="unknown field"):
        plane.start_scheduler(configuration, name="wrong")


def test_the_api_server_comes_back_with_its_data(plane: ControlPlane) -> None:
    """A killed API server is started again on the same port, and etcd has it all."""
    plane.kubectl("create", "configmap", "kept")
    port = plane.server
    plane.apiserver.kill()
    plane.etcd.kill()
    plane.etcd.start()
    plane.apiserver.start()
    assert plane.server == port
    assert plane.kubectl("get", "configmap", "kept", "-o", "name") == "configmap/kept\n"
