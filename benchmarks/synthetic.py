"""A made cluster, as the API server would show it: GPU nodes, their inventories, and pods that fill half of it.

Everything is drawn from one seed. Objects are JSON-ready; nothing here is tuned to any policy.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, Final

from contract.assignment import Assignment, Grant, annotations
from contract.inventory import API_VERSION, Gpu, Inventory, encode

CARDS: Final = 8
MODEL: Final = ("NVIDIA A100-SXM4-80GB", 81920, 769)  # as NVML gives it: name, MiB, of which reserved

# weight, annotations. The whole range: parts of a card, several cards, whole ones, several containers.
SHAPES: Final[tuple[tuple[int, dict[str, str]], ...]] = (
    (20, {"memory": "8Gi", "utilization": "20"}),
    (15, {"memory": "20Gi", "utilization": "50"}),
    (10, {"memory": "40Gi", "utilization": "70"}),
    (8, {"memory": "25%", "utilization": "30"}),
    (8, {"utilization": "40"}),
    (5, {"memory": "4Gi"}),
    (12, {"count": "1"}),
    (6, {"count": "2"}),
    (3, {"count": "4"}),
    (3, {"count": "8"}),
    (5, {"memory": "16Gi", "utilization": "60", "count": "2"}),
    (5, {"memory": "16Gi", "utilization": "50", "memory.helper": "4Gi", "utilization.helper": "20"}),
)


def node_name(i: int) -> str:
    """Return the name of the i-th node, as long as a cloud's are."""
    return f"gpu-{i:05d}.zone-{'abc'[i % 3]}.cluster.example.internal"


def nodes(count: int, padding: int = 0) -> Iterator[dict[str, Any]]:
    """Yield Nodes with 8 cards; `padding`: bytes of labels, images and conditions that a real one carries."""
    for i in range(count):
        amounts = {"cpu": "128", "memory": "1024Gi", "pods": "250"}
        status: dict[str, Any] = {"allocatable": amounts, "capacity": amounts}
        if padding:
            image = {"names": [f"registry.example/{'x' * 200}@sha256:{'0' * 64}"], "sizeBytes": 123456789}
            status["images"] = [image] * (padding // 340)
        yield {"apiVersion": "v1", "kind": "Node", "metadata": {"name": node_name(i)}, "status": status}


def inventories(count: int) -> Iterator[dict[str, Any]]:
    """Yield the GPUNodes of those nodes."""
    model, mib, reserved = MODEL
    for i in range(count):
        name = node_name(i)
        gpus = tuple(Gpu(_uuid(i, c), c, model, mib, reserved) for c in range(CARDS))
        status = encode(Inventory(name, gpus, "570.86"))
        yield {"apiVersion": API_VERSION, "kind": "GPUNode", "metadata": {"name": name}, "status": status}


def pods(count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield bound pods with their records that hold half of all cards: whole cards and parts of cards.

    Some nodes are full and some are empty, as packing leaves them.
    """
    rng = Random(seed)
    mib = MODEL[1] - MODEL[2]
    for i in range(count):
        left = round(rng.random() * CARDS * 1000)
        card = 0
        while left > 0 and card < CARDS:
            milli = rng.choice((1000, 1000, 700, 500, 500, 300))
            cards = rng.choice((1, 1, 2)) if milli == 1000 else 1
            cards = min(cards, CARDS - card)
            name = f"held-{i:05d}-{card}"
            grants = tuple(Grant(_uuid(i, card + c), mib * milli // 1000, milli, milli == 1000) for c in range(cards))
            yield held(name, node_name(i), grants)
            left -= milli * cards
            card += cards


def held(name: str, node: str, grants: tuple[Grant, ...]) -> dict[str, Any]:
    """Return a bound pod whose container `main` holds those cards, if any."""
    notes: dict[str, str] = {}
    if grants:
        first = grants[0]
        whole = {"tessera.gpu/count": str(len(grants))}
        part = {"tessera.gpu/memory": f"{first.mib}Mi", "tessera.gpu/utilization": str(first.milli // 10)}
        record = Assignment(node, f"uid-{name}", {"main": grants})
        notes = (whole if first.exclusive else part) | annotations(record)
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes}
    main = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "2", "memory": "8Gi"}}}
    spec = {"nodeName": node, "containers": [main]}
    status = {"phase": "Running"}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec, "status": status}


def asking(name: str, rng: Random, new: float = 0.1) -> dict[str, Any]:
    """Return a pod as kube-scheduler sends it; with probability `new` of a shape that nobody has asked for."""
    said = dict(rng.choices([shape for _, shape in SHAPES], [weight for weight, _ in SHAPES])[0])
    if rng.random() < new:
        said = {"memory": f"{rng.randint(1024, 70000)}Mi", "utilization": str(rng.randint(1, 100))}
    names = ("main", "helper") if any(key.endswith(".helper") for key in said) else ("main",)
    environment = [{"name": f"SETTING_{i}", "value": "x" * 40} for i in range(12)]
    containers = [
        {
            "name": container,
            "image": f"registry.example/team/{container}:1.2.3",
            "env": environment,
            "resources": {"requests": {"cpu": "2", "memory": "8Gi"}},
            "terminationMessagePath": "/dev/termination-log",
            "imagePullPolicy": "IfNotPresent",
        }
        for container in names
    ]
    return {
        "metadata": {
            "name": name,
            "namespace": "default",
            "uid": f"uid-{name}",
            "resourceVersion": "1",
            "labels": {"app": name, "team": "research"},
            "annotations": {f"tessera.gpu/{key}": value for key, value in said.items()},
        },
        "spec": {"containers": containers, "schedulerName": "default-scheduler", "priority": 0},
        "status": {"phase": "Pending"},
    }


def write(path: Path, count: int, seed: int = 0, asking_pods: int = 0) -> None:
    """Write a cluster of so many nodes, half full, as one file that `tessera-extender --cluster` serves.

    `asking_pods` of known shapes are in it that are not bound.
    """
    rng = Random(seed)
    waiting = ({"apiVersion": "v1", "kind": "Pod"} | asking(f"asking-{i}", rng, new=0) for i in range(asking_pods))
    with path.open("w") as file:
        for found in itertools.chain(nodes(count), inventories(count), pods(count, seed), waiting):
            file.write("---\n" + json.dumps(found) + "\n")


def _uuid(node: int, card: int) -> str:
    return f"GPU-{node:08d}-0000-4000-8000-{card:012d}"
