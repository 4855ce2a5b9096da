"""Builders with defaults: a test names only what it is about."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from contract.assignment import Assignment, Grant, annotations
from contract.inventory import API_VERSION
from contract.names import COUNT, MEMORY, UTILIZATION
from extender.wire import Container, GpuNode, Meta, Node, NodeStatus, Pod, PodSpec, PodStatus, Requirements
from scoring.model import CARD, Ask, Card, Demand, Fleet, Row

Given = tuple[str, int, int]  # a card's UUID, MiB, thousandths

SLOTS = 48


# --- objects of the API server -------------------------------------------------------------------------------


def container(
    name: str = "main",
    *,
    limits: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    sidecar: bool = False,
) -> Container:
    """Return a container that asks for nothing."""
    resources = Requirements(limits, requests) if limits or requests else None
    return Container(name, resources, "Always" if sidecar else None)


def pod(
    name: str = "p",
    *,
    memory: str | None = "4Gi",
    utilization: str | None = None,
    count: str | None = None,
    annotations: Mapping[str, str] | None = None,
    containers: Sequence[Container] | None = None,
    init: Sequence[Container] | None = None,
    limits: dict[str, Any] | None = None,
    requests: dict[str, Any] | None = None,
    namespace: str = "default",
    uid: str | None = None,
    node: str = "",
    phase: str = "Pending",
) -> Pod:
    """Return a pod with one container `main` that asks for 4 GiB of a card."""
    said = {MEMORY: memory, UTILIZATION: utilization, COUNT: count}
    notes = {key: value for key, value in said.items() if value is not None} | dict(annotations or {})
    mains = list(containers) if containers is not None else [container(limits=limits, requests=requests)]
    return Pod(
        Meta(name=name, namespace=namespace, uid=f"uid-{name}" if uid is None else uid, annotations=notes or None),
        PodSpec(node_name=node, containers=mains, init_containers=list(init) if init else None),
        PodStatus(phase),
    )


def plain(name: str = "p", **more: Any) -> Pod:
    """Return a pod that asks for no GPU."""
    return pod(name, memory=None, **more)


def bound(
    asking: Pod,
    node: str = "n1",
    cards: Mapping[str, Sequence[Given]] | Sequence[Given] | None = None,
    *,
    record_node: str | None = None,
    record_uid: str | None = None,
    text: str | None = None,
    phase: str = "Running",
    exclusive: bool = False,
) -> Pod:
    """Return the pod as it is once bound, with a record of its cards; `text`: with that for a record."""
    given = cards if isinstance(cards, Mapping) else {"main": cards} if cards is not None else None
    extra: dict[str, str] = {}
    if given is not None:
        shares = {name: tuple(Grant(*card, exclusive) for card in of) for name, of in given.items()}
        extra = annotations(Assignment(record_node or node, record_uid or asking.metadata.uid, shares))
    if text is not None:
        extra = {"tessera.gpu/assignment": text}
    meta, spec = asking.metadata, asking.spec
    return Pod(
        Meta(meta.name, meta.namespace, meta.uid, annotations={**(meta.annotations or {}), **extra} or None),
        PodSpec(node, spec.containers, spec.init_containers, spec.overhead, spec.resources),
        PodStatus(phase),
    )


def node(
    name: str = "n1",
    *,
    cpu: str = "64",
    memory: str = "256Gi",
    overcommit: str | None = None,
    more: Mapping[str, Any] | None = None,
) -> Node:
    """Return a Node of 64 cores and 256 GiB; `more` is added to its allocatable."""
    notes = None if overcommit is None else {"tessera.gpu/overcommit": overcommit}
    return Node(Meta(name=name, annotations=notes), NodeStatus({"cpu": cpu, "memory": memory, **(more or {})}))


def gpu(uuid: str, **more: Any) -> dict[str, Any]:
    """Return a healthy card of 24 GiB as a GPUNode's status lists it."""
    return {"uuid": uuid, "index": 0, "model": "NVIDIA A10", "memoryMiB": 24576, "healthy": True, **more}


def gpu_node(
    name: str = "n1", gpus: int | Sequence[dict[str, Any]] = 1, *, api_version: str = API_VERSION
) -> GpuNode:
    """Return an inventory; a number stands for so many equal cards GPU-<node>-<index>."""
    cards = [gpu(f"GPU-{name}-{i}", index=i) for i in range(gpus)] if isinstance(gpus, int) else list(gpus)
    told, promises = apart(cards)
    return GpuNode(Meta(name=name), {"gpus": told, "promises": promises}, api_version)


def apart(cards: Sequence[dict[str, Any]]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return what the agent tells of some cards, and what the extender promised of them."""
    ours = ("promisedMiB", "promisedMilli", "sharers")
    told = [{k: v for k, v in card.items() if k not in ours} for card in cards]
    promises = [{k: v for k, v in card.items() if k in (*ours, "uuid")} for card in cards if "promisedMiB" in card]
    return told, promises


# --- the mathematics -----------------------------------------------------------------------------------------


def card(
    mib: int = 24576,
    milli: int = CARD,
    slots: int = SLOTS,
    *,
    mib_free: int | None = None,
    milli_free: int | None = None,
    slots_free: int | None = None,
    model: str = "A10",
    uuid: str = "",
) -> Card:
    """Return a card of 24 GiB with nothing on it."""
    free = (
        mib if mib_free is None else mib_free,
        milli if milli_free is None else milli_free,
        slots if slots_free is None else slots_free,
    )
    return Card(uuid, model, mib, milli, slots, *free)


def row(*cards: Card, cpu: int = 64_000, ram: int = 262_144) -> Row:
    """Return an idle node of 64 cores and 256 GiB; cards without a UUID get GPU-<index>."""
    named = (c if c.uuid else replace(c, uuid=f"GPU-{i}") for i, c in enumerate(cards))
    return Row(tuple(named), cpu, ram, cpu, ram)


def fleet(*rows: Row) -> Fleet:
    """Return a fleet of nodes n0, n1, ...; one idle card on one node by default."""
    return Fleet((f"n{i}", r) for i, r in enumerate(rows or (row(card()),)))


def demand(
    *asks: Ask, cpu: int = 0, ram: int = 0, models: tuple[str, ...] = (), uuids: tuple[str, ...] = ()
) -> Demand:
    """Return the demand of a pod whose containers all run together; one container with 4 GiB by default."""
    asks = asks or (Ask(mib=4096),)
    return Demand(asks, (tuple(range(len(asks))),), cpu, ram, models, uuids)
