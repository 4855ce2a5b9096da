"""A cluster as `kubectl get --raw` answers it: a path, and what stands there."""

import json
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs, urlsplit

import msgspec

from contract.inventory import API_VERSION
from contract.names import AGENTS, GROUP
from extender.kubectl.api import Api
from extender.kubectl.facts import seconds
from tests.builders import apart, bound, gpu, pod

GPUNODES = "/apis/tessera.gpu/v1alpha1/gpunodes"
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
COORDINATION = "/apis/coordination.k8s.io/v1/namespaces"
LEASES = f"{COORDINATION}/{AGENTS}/leases"
CONTROL_PLANE = f"{COORDINATION}/kube-system/leases"
CRD = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gpunodes.tessera.gpu"
PROXY = "/api/v1/namespaces/tessera-system/services/http:tessera-extender:probes/proxy"
NOW = "2026-05-01T12:00:00.000000Z"


@dataclass
class Cluster:
    """What is where; a list is served a page at a time, and what is not there is a 404 in kubectl's words."""

    there: dict[str, Any] = field(default_factory=dict)
    page: int = 2
    asked: list[list[str]] = field(default_factory=list)

    @property
    def api(self) -> Api:
        """The way to it."""
        return Api("kubectl", (), "tessera-system/http:tessera-extender:probes", self.run)

    def run(self, command: list[str], **_: Any) -> "subprocess.CompletedProcess[bytes]":
        """Answer as kubectl does."""
        self.asked.append(command)
        if "config" in command:
            return subprocess.CompletedProcess(command, 0, b"default", b"")
        asked = urlsplit(command[-1])
        whole = {key: value for key, value in self.there.items() if key == command[-1]}
        found = whole.get(command[-1], self.there.get(asked.path))
        if found is None:
            said = f"Error from server (NotFound): the server could not find {asked.path.rpartition('/')[2]}\n"
            return subprocess.CompletedProcess(command, 1, b"", said.encode())
        if isinstance(found, list):
            found = self._page(found, parse_qs(asked.query))
        return subprocess.CompletedProcess(command, 0, msgspec.json.encode(found), b"")

    def _page(self, items: list[Any], query: dict[str, list[str]]) -> dict[str, Any]:
        first = int(query.get("continue", ["0"])[0])
        more = str(first + self.page) if first + self.page < len(items) else ""
        return {"metadata": {"continue": more}, "items": items[first : first + self.page]}


def gpu_node(name: str, *gpus: dict[str, Any], ready: str = "") -> dict[str, Any]:
    """Return a GPUNode; `ready`: why it is not, if it is not."""
    conditions = [{"type": "Ready", "status": "False" if ready else "True", "message": ready}]
    told, promises = apart(gpus)
    status = {"gpus": told, "promises": promises, "driverVersion": "570.86", "conditions": conditions}
    return {"apiVersion": API_VERSION, "metadata": {"name": name}, "status": status}


def lease(name: str, renewed: str = NOW, written: str = "2026-05-01T12:00:00Z") -> dict[str, Any]:
    """Return an agent's heartbeat, by its own clock and by the API server's."""
    fields = [{"manager": "tessera-agent", "time": written}]
    return {"metadata": {"name": name, "managedFields": fields}, "spec": {"renewTime": renewed}}


def node(name: str, **allocatable: str) -> dict[str, Any]:
    """Return a Node that advertises places on cards."""
    said = {"tessera.gpu/share": "48", **{key.replace("_", "/"): value for key, value in allocatable.items()}}
    return {"metadata": {"name": name}, "status": {"allocatable": said}}


def raw(made: Any, **status: Any) -> dict[str, Any]:
    """Return a built pod as JSON values, with more in its status."""
    found: dict[str, Any] = json.loads(msgspec.json.encode(made))
    found["status"] |= status
    return found


MEASURED = {"promisedMiB": 16384, "promisedMilli": 600, "sharers": 1, "usedMiB": 9000, "utilization": 40}


def scene() -> Cluster:
    """Return two nodes, three cards, a pod on each kind of trouble, quotas, and an installation in good order."""
    t4 = {"model": "Tesla T4", "memoryMiB": 15360, "promisedMiB": 0, "promisedMilli": 0, "sharers": 0}
    a = gpu("GPU-a", reservedMiB=478, **MEASURED)
    bad = gpu("GPU-t1", **t4, index=1) | {"healthy": False, "reason": "XID 79"}
    nodes = [gpu_node("big", a), gpu_node("small", gpu("GPU-t0", **t4), bad)]
    over = bound(pod("runs", memory="16Gi", utilization="60%"), "big", [("GPU-a", 16384, 600)])
    stray = raw(pod("stray", node="small", phase="Running"))
    ml = raw(bound(pod("ml", namespace="ml", memory="2Gi"), "small", [("GPU-gone", 2048, 0)]))
    broken = raw(bound(pod("broken", namespace="ml"), "small", text="{"))
    said = "0/2 nodes are available: 2 no card with enough free GPU memory."
    condition = {"type": "PodScheduled", "status": "False", "message": said}
    waits = raw(pod("waits", memory="18Gi", utilization="50%"), conditions=[condition])
    default = [raw(over), stray]
    told = {
        "pod": "default/waits",
        "asks": ["main: 18Gi of memory on 1 card"],
        "nodes": 2,
        "fits": 0,
        "said": [
            "None of 2 nodes with cards takes it now.",
            "GPU-a on big comes nearest with 7.5Gi and 40% free: it lacks 10.5Gi.",
        ],
        "reasons": [{"reason": "no card with enough free GPU memory", "nodes": 2, "examples": ["big", "small"]}],
        "why": dict.fromkeys(("small", "big"), "no card with enough free GPU memory"),
    }
    about = {
        "version": "0.1.0",
        "policy": "binpack",
        "refusal": "",
        "resources": ["nvidia.com/gpu-memory", "nvidia.com/gpu-utilization", "tessera.gpu/share"],
        "namespace": "tessera-system",
        "agentNamespace": AGENTS,
        "silentSeconds": 90.0,
        "port": 8580,
        "time": seconds(NOW) + 10,
    }
    hook = {"name": f"pods.{GROUP}", "failurePolicy": "Ignore", "clientConfig": {"caBundle": "Li4u"}}
    return Cluster(
        {
            GPUNODES: nodes,
            "/api/v1/pods": [*default, ml, broken],
            "/api/v1/namespaces/default/pods": default,
            "/api/v1/namespaces/default/pods/waits": waits,
            "/api/v1/namespaces/default/pods/runs": raw(over),
            "/api/v1/namespaces/default/events": [
                {"reason": "FailedScheduling", "message": said, "lastTimestamp": "2026-05-01T11:59:00Z"}
            ],
            "/api/v1/nodes": [node("big"), node("small")],
            "/version": {"gitVersion": "v1.36.3"},
            CRD: {"status": {"conditions": [{"type": "Established", "status": "True"}]}},
            LEASES: [lease("big"), lease("small")],
            WEBHOOKS: [{"metadata": {"name": "tessera"}, "webhooks": [hook]}],
            POLICIES: [{"metadata": {"name": name}} for name in _POLICIES],
            "/api/v1/namespaces/tessera-system/configmaps": [config_map()],
            "/api/v1/namespaces/kube-system/configmaps": [],
            "/api/v1/resourcequotas": [quota("default"), quota("ml", memory="2Gi")],
            "/api/v1/namespaces/default/resourcequotas": [quota("default")],
            "/api/v1/namespaces": [{"metadata": {"name": name}} for name in ("default", "ml")],
            f"{PROXY}/explain": told,
            f"{PROXY}/about": about,
        }
    )


_POLICIES = ("tessera-assignment", "tessera-extender", "tessera-extender-nodes", "tessera-agent")


def quota(namespace: str, memory: str = "64Gi") -> dict[str, Any]:
    """Return a ResourceQuota that bounds GPU memory, and tries to with two keys that count nothing."""
    hard = {
        "requests.nvidia.com/gpu-memory": memory,
        "limits.nvidia.com/gpu-memory": "1Gi",
        "requests.nvidia.com/gpumem": "1",
        "requests.cpu": "100",
    }
    used = {"requests.nvidia.com/gpu-memory": "16Gi"}
    meta = {"namespace": namespace, "name": "gpus"}
    return {"metadata": meta, "spec": {"hard": hard}, "status": {"used": used}}


def config_map(change: Callable[[str], str] = str) -> dict[str, Any]:
    """Return the shipped scheduler configuration in a ConfigMap."""
    from tests.e2e.scene import DEPLOY

    text = change((DEPLOY / "scheduler" / "config.yaml").read_text())
    return {"metadata": {"namespace": "tessera-system", "name": "scheduler"}, "data": {"config.yaml": text}}
