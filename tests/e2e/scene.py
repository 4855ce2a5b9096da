"""What the end-to-end tests put on the stage: Tessera's objects, GPU nodes, pods, and the extender itself.

Until the issue on admission the tests write the pods' resources, as the webhook will.
"""

import json
import os
import random
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import yaml

from contract.inventory import Gpu, Inventory, encode
from contract.names import LEADER
from tests.e2e.controlplane.api import MERGE, ApiError, answers
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.users import service_account
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.relay import Relay

ROOT: Final = Path(__file__).parents[2]
DEPLOY: Final = ROOT / "deploy"
EXTENDER: Final = service_account("tessera-system", "tessera-extender")
GPUNODES: Final = "/apis/tessera.gpu/v1alpha1/gpunodes"
SHARERS: Final = 48
MIB: Final = 1 << 20

# model, NVML's total and reserved MiB, cards, CPU, memory GiB, how many of a hundred nodes
MACHINES: Final = (
    ("NVIDIA A10", 23028, 478, 1, 16, 64, 20),
    ("NVIDIA A10", 23028, 478, 4, 64, 256, 20),
    ("Tesla T4", 15360, 434, 2, 32, 128, 25),
    ("NVIDIA L4", 23034, 457, 2, 48, 192, 15),
    ("NVIDIA A100-SXM4-80GB", 81920, 769, 8, 128, 1024, 12),
    ("NVIDIA H100 80GB HBM3", 81559, 571, 8, 192, 2048, 8),
)


@contextmanager
def control_plane() -> Iterator[ControlPlane]:
    """Run a control plane that knows Tessera: CRD, policy, and the extender's own rights."""
    with ControlPlane(users=[EXTENDER]) as plane:
        for path in ("crd/gpunodes.yaml", "rbac/extender.yaml", "policy/assignment.yaml", "policy/extender.yaml"):
            plane.kubectl("apply", "-f", str(DEPLOY / path))
        plane.kubectl("wait", "--for=condition=Established", "crd/gpunodes.tessera.gpu")
        wait_until(lambda: _served(plane), "gpunodes are served")
        yield plane


def _served(plane: ControlPlane) -> bool:
    """Say whether the API server has opened its store for the new kind, which follows Established."""
    try:
        plane.request("GET", GPUNODES)
    except ApiError:
        return False
    return True


def add_nodes(plane: ControlPlane, machines: Iterable[tuple[str, Inventory, int, int]]) -> None:
    """Create nodes (name, inventory, CPU, memory GiB) with their GPUNode; the extender advertises the totals."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda machine: _add_node(plane, *machine), machines))


def _add_node(plane: ControlPlane, name: str, inventory: Inventory, cpu: int, ram_gib: int) -> None:
    amounts = {"cpu": str(cpu), "memory": f"{ram_gib}Gi", "pods": "250"}
    status = {"allocatable": amounts, "capacity": amounts}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    plane.request("POST", "/api/v1/nodes", node)
    _add_inventory(plane, name, inventory)


def add_inventories(plane: ControlPlane, machines: Iterable[tuple[str, Inventory, int, int]]) -> None:
    """Create only the GPUNodes of nodes that are there."""
    for name, inventory, *_ in machines:
        _add_inventory(plane, name, inventory)


def _add_inventory(plane: ControlPlane, name: str, inventory: Inventory) -> None:
    gpu_node = {"apiVersion": "tessera.gpu/v1alpha1", "kind": "GPUNode", "metadata": {"name": name}}
    plane.request("POST", GPUNODES, gpu_node)
    # A merge, as the extender may write its part of the status in between.
    status = {"status": encode(inventory)}
    plane.request("PATCH", f"{GPUNODES}/{name}/status", status, content_type=MERGE)


def totals(inventory: Inventory) -> dict[str, str]:
    """Return what a node advertises: hardware capacity, as the semantics say."""
    mib = sum((gpu.memory_mib or 0) - gpu.reserved_mib for gpu in inventory.gpus)
    cards = len(inventory.gpus)
    return {
        "nvidia.com/gpu-memory": str(mib * MIB),
        "nvidia.com/gpu-utilization": str(100 * cards),
        "tessera.gpu/share": str(SHARERS * cards),
    }


def machines(count: int = 100) -> list[tuple[str, Inventory, int, int]]:
    """Return `count` nodes of mixed cards, as `add_nodes` takes them."""
    made: list[tuple[str, Inventory, int, int]] = []
    for model, mib, reserved, cards, cpu, ram_gib, of_hundred in MACHINES:
        for _ in range(of_hundred * count // 100):
            name = f"node-{len(made):03d}"
            gpus = tuple(Gpu(f"GPU-{name}-{i}", i, model, mib, reserved) for i in range(cards))
            made.append((name, Inventory(name, gpus, "570.86"), cpu, ram_gib))
    return made


def pod(
    name: str,
    containers: dict[str, dict[str, str]],
    *,
    init: dict[str, dict[str, str]] | None = None,
    cpu: str = "500m",
    resources: bool = True,
    **annotations: str,
) -> dict[str, Any]:
    """Return a pod whose containers ask by annotation (`memory`, `utilization`, `count`), and by resource too."""
    said = {f"tessera.gpu/{key}": value for key, value in annotations.items()}
    for container, asks in {**containers, **(init or {})}.items():
        said |= {f"tessera.gpu/{key}.{container}": value for key, value in asks.items()}

    def made(container: str, asks: dict[str, str]) -> dict[str, Any]:
        amounts = resource_totals(asks) if resources else {}
        requests = {"cpu": cpu, "memory": "256Mi"} | amounts
        return {"name": container, "image": "none", "resources": {"requests": requests, "limits": amounts}}

    spec = {
        "containers": [made(name, asks) for name, asks in containers.items()],
        "initContainers": [made(name, asks) for name, asks in (init or {}).items()],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "annotations": said}, "spec": spec}


def resource_totals(asks: dict[str, str]) -> dict[str, str]:
    """Return a container's extended resources for what it asks per card, as admission will add them."""
    if not asks:
        return {}
    count = int(asks.get("count", "1"))
    out = {"tessera.gpu/share": str(count)}
    memory, utilization = asks.get("memory", ""), asks.get("utilization", "").removesuffix("%")
    if memory and not memory.endswith("%"):
        out["nvidia.com/gpu-memory"] = f"{count * int(memory.removesuffix('Gi'))}Gi"
    if utilization or not memory:
        out["nvidia.com/gpu-utilization"] = str(count * int(utilization or 100))
    return out


def batch(cards: int, seed: int = 1, load: float = 1.3) -> list[dict[str, Any]]:
    """Return pods of mixed demands that together ask for `load` times the compute of `cards` cards."""
    draw = random.Random(seed)
    pods: list[dict[str, Any]] = []
    asked = 0.0
    while asked < load * cards:
        kind = draw.choices(range(len(_KINDS)), weights=[weight for weight, _, _ in _KINDS])[0]
        _, compute, made = _KINDS[kind]
        pods.append(made(f"pod-{len(pods):04d}", draw))
        asked += compute
    return pods


def _one(name: str, **asks: str) -> dict[str, Any]:
    return pod(name, {"main": asks})


# weight, compute in cards, how to make one
_KINDS: Final[tuple[tuple[int, float, Callable[[str, random.Random], dict[str, Any]]], ...]] = (
    (20, 0.2, lambda n, d: _one(n, memory=f"{d.choice((1, 2, 4))}Gi", utilization="20%")),
    (20, 0.5, lambda n, d: _one(n, memory=f"{d.choice((4, 8, 10))}Gi", utilization="50%")),
    (12, 0.7, lambda n, d: _one(n, memory=f"{d.choice((8, 12))}Gi", utilization="70%")),
    (8, 0.3, lambda n, _: _one(n, memory="25%", utilization="30%")),
    (8, 0.4, lambda n, _: _one(n, utilization="40%")),
    (4, 0.0, lambda n, d: _one(n, memory=f"{d.choice((1, 2))}Gi")),
    (12, 1.0, lambda n, _: _one(n, count="1")),
    (4, 2.0, lambda n, _: _one(n, count="2")),
    (2, 4.0, lambda n, _: _one(n, count="4")),
    (4, 1.2, lambda n, _: _one(n, memory="6Gi", utilization="60%", count="2")),
    (
        6,
        0.9,
        lambda n, _: pod(
            n,
            {"trainer": {"memory": "8Gi", "utilization": "60%"}, "helper": {"memory": "2Gi", "utilization": "30%"}},
        ),
    ),
    (
        4,
        0.5,
        lambda n, _: pod(
            n,
            {"main": {"memory": "4Gi", "utilization": "30%"}, "log": {}},
            init={"warm": {"memory": "8Gi", "utilization": "50%"}},
        ),
    ),
)


def create(plane: ControlPlane, pods: Iterable[dict[str, Any]]) -> None:
    """Create pods in the default namespace, as fast as the API server takes them."""
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda made: plane.request("POST", "/api/v1/namespaces/default/pods", made), pods))


def scheduler_configuration(plane: ControlPlane, name: str, port: HeldPort | Relay) -> Path:
    """Return one of the shipped configurations with only this test's address and credentials put in."""
    shipped = yaml.safe_load((DEPLOY / "scheduler" / name).read_text())
    shipped["extenders"][0]["urlPrefix"] = f"http://{port}"
    del shipped["clientConnection"]
    path = plane.folder / f"shipped-{name}"
    path.write_text(yaml.safe_dump(shipped))
    return path


def advertised(plane: ControlPlane) -> bool:
    """Say whether every node with cards advertises totals."""
    gpu_nodes = json.loads(plane.request("GET", GPUNODES))["items"]
    nodes = {n["metadata"]["name"]: n for n in json.loads(plane.request("GET", "/api/v1/nodes"))["items"]}
    there = [nodes[name] for g in gpu_nodes if (name := g["metadata"]["name"]) in nodes]
    return all("tessera.gpu/share" in node["status"]["allocatable"] for node in there)


def leaders(plane: ControlPlane) -> list[str]:
    """Return the names of the pods that the verbs' Service selects: those with the leader's label."""
    found = plane.request("GET", f"/api/v1/namespaces/tessera-system/pods?labelSelector={LEADER}%3Dtrue")
    return [item["metadata"]["name"] for item in json.loads(found)["items"]]


def extender(plane: ControlPlane, port: HeldPort, *flags: str) -> Process:
    """Start the extender with its own account's rights; wait until it is ready and the nodes advertise totals."""
    command = [sys.executable, "-m", "extender", "--kubeconfig", str(plane.kubeconfig(EXTENDER.name))]
    os.environ.setdefault("PYTHONPATH", str(ROOT))
    url = f"http://{port}"
    command += ["--port", str(port.number), *flags]
    process = plane.start("tessera-extender", command, url, lambda: answers(f"{url}/readyz"))
    wait_until(lambda: advertised(plane), "every node advertises totals")
    return process
