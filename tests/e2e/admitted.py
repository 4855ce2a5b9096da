"""A control plane with Tessera's admission: its policies, and its webhooks with the certificate they make."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import yaml

from tests.e2e.controlplane.api import ApiError, answers
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import (
    DEPLOY,
    EXTENDER,
    ROOT,
    add_nodes,
    advertised,
    control_plane,
    machines,
    scheduler_configuration,
)

PODS: Final = "/api/v1/namespaces/{}/pods"
POLICIES: Final = ("request", "devices", "unchanged", "quota", "namespace")
Json = dict[str, Any]


@dataclass
class Stage:
    """The control plane, the extender, and where its webhooks listen."""

    plane: ControlPlane
    extender: Process
    door: HeldPort

    def create(self, pod: Json, query: str = "", namespace: str = "default") -> Json:
        """Create a pod; return it as the API server has it."""
        made: Json = json.loads(self.plane.request("POST", PODS.format(namespace) + query, pod))
        return made

    def dry(self, pod: Json, namespace: str = "default") -> Json:
        """Return a pod as it would be created."""
        return self.create(pod, "?dryRun=All", namespace)

    def refusal(self, pod: Json, query: str = "?dryRun=All", namespace: str = "default") -> str:
        """Return the sentence that a pod is refused with, "" if it is not."""
        try:
            self.create(pod, query, namespace)
        except ApiError as error:
            said: str = json.loads(error.body)["message"]
            return said
        return ""

    def pod(self, name: str, namespace: str = "default") -> Json:
        """Return a pod as it is now."""
        found: Json = json.loads(self.plane.request("GET", f"{PODS.format(namespace)}/{name}"))
        return found

    def bound(self, name: str, namespace: str = "default") -> Json:
        """Return a pod once it is bound."""
        wait_until(lambda: "nodeName" in self.pod(name, namespace)["spec"], f"{name} is bound")
        return self.pod(name, namespace)


def webhooks(door: HeldPort) -> list[Json]:
    """Return the shipped configurations, with only this test's address put in."""
    shipped = [
        d for d in yaml.safe_load_all((DEPLOY / "admission/webhooks.yaml").read_text()) if d["kind"] != "Service"
    ]
    for configuration in shipped:
        for webhook in configuration["webhooks"]:
            path = webhook["clientConfig"].pop("service")["path"]
            webhook["clientConfig"]["url"] = f"https://{door}{path}"
    return shipped


def apply(plane: ControlPlane, objects: list[Json]) -> None:
    """Apply objects as the administrator."""
    plane.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))


@contextmanager
def admitted(*flags: str, nodes: int = 20) -> Iterator[Stage]:
    """Run a control plane with everything in force: webhooks, policies, the extender, kube-scheduler."""
    with control_plane() as plane, HeldPort() as port, HeldPort() as door:
        add_nodes(plane, machines(nodes))
        for path in ("rbac/admission.yaml", *(f"admission/{policy}.yaml" for policy in POLICIES)):
            plane.kubectl("apply", "-f", str(DEPLOY / path))
        apply(plane, webhooks(door))
        process = extender(plane, port, door, *flags)
        stage = Stage(plane, process, door)
        plane.start_scheduler(scheduler_configuration(plane, "config.yaml", port))
        in_force(stage)
        yield stage


def extender(plane: ControlPlane, port: HeldPort, door: HeldPort, *flags: str) -> Process:
    """Start the extender with its webhooks; wait until it is ready and the nodes advertise totals."""
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    command = [sys.executable, "-m", "extender", "--kubeconfig", str(plane.kubeconfig(EXTENDER.name))]
    command += ["--port", str(port.number), "--webhook-port", str(door.number), "--webhook-names", "127.0.0.1"]
    command += ["--pod-namespace", "tessera-system", *flags]
    url = f"http://{port}"
    process = plane.start("tessera-extender", command, url, lambda: answers(f"{url}/readyz"))
    wait_until(lambda: advertised(plane), "every node advertises totals")
    return process


def in_force(stage: Stage) -> None:
    """Wait until the API server calls the webhooks, and each policy refuses what it is there for."""
    probe: Json = {"metadata": {"name": "probe"}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    asks = probe | {"metadata": {"name": "probe", "annotations": {"tessera.gpu/memory": "1Gi"}}}
    wait_until(lambda: not stage.refusal(asks), "the webhooks answer")
    cdi = {"metadata": {"name": "probe", "annotations": {"tessera.gpu/memory": "1Gi", "cdi.k8s.io/x": "y"}}}
    wait_until(lambda: "cdi.k8s.io/x is set" in stage.refusal(probe | cdi), "the policy on devices is enforced")
    there = {"containers": [{"name": "main", "image": "none"}], "nodeName": "node-000"}
    wait_until(
        lambda: "goes through the scheduler" in stage.refusal(asks | {"spec": there}), "so is that on requests"
    )


def resolved(pod: Json, container: Json) -> dict[str, str]:
    """Return a container's environment as a kubelet makes it: in order, fields of the pod as they are now."""
    environment: dict[str, str] = {}
    for variable in container.get("env", []):
        value = variable.get("value", "")
        path = variable.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        if path:
            key = path.removeprefix("metadata.annotations['").removesuffix("']")
            assert path == f"metadata.annotations['{key}']"
            value = pod["metadata"].get("annotations", {}).get(key, "")
        for name, known in environment.items():
            value = value.replace(f"$({name})", known)
        environment[variable["name"]] = value
    return environment


def containers(pod: Json) -> list[Json]:
    """Return all containers of a pod."""
    spec = pod["spec"]
    return [*spec.get("initContainers", []), *spec["containers"], *spec.get("ephemeralContainers", [])]


def record(pod: Json) -> dict[str, list[Json]]:
    """Return the grants of each container in a pod's record."""
    found: dict[str, list[Json]] = json.loads(pod["metadata"]["annotations"]["tessera.gpu/assignment"])["containers"]
    return found
