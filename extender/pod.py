"""What a pod says: the request it makes of us, and the record it carries. Pod JSON becomes values here, once.

A pod's charge is what kube-scheduler would charge it: the dearest of all containers together with the sidecars,
and of each init container together with the sidecars before it.
"""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import datetime
from math import inf
from typing import Any

from contract import assignment
from contract.assignment import Assignment
from contract.names import ASSIGNMENT, Resources
from extender.quantity import BadQuantity, to_mib, to_milli
from extender.request import (
    AsksNothing,
    BadDemand,
    Wanted,
    asked_by_annotations,
    asked_by_resources,
    check_names_nothing,
    pod_rules,
    to_ask,
)
from extender.wire import Container, Pod
from scoring.model import Demand

FINISHED = ("Succeeded", "Failed")
MOST_CONTAINERS = 32  # that ask for GPUs, in one pod


@dataclass(frozen=True, slots=True)
class Request:
    """What a pod asks: a demand, the name of the container behind each ask, and how to pack it if it says so."""

    demand: Demand
    containers: tuple[str, ...]
    policy: str | None = None


@dataclass(frozen=True, slots=True)
class Share:
    """What a pod holds of one card: MiB, thousandths, containers; `exclusive`: nobody may join."""

    mib: int
    milli: int
    slots: int
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Holding:
    """What a bound, unfinished pod takes of its node: cards by UUID, CPU in thousandths, memory in MiB.

    `problem`: a sentence if its record cannot be read. `unaccounted`: it asks for GPUs and has no record.
    `started`: in seconds, infinite if it has not. `leaving`: it is being deleted. `labels`: of one with cards.
    `private`: it shares its cards with pods of its own namespace alone.
    """

    uid: str
    namespace: str
    name: str
    node: str
    cards: dict[str, Share]
    cpu_milli: int = 0
    ram_mib: int = 0
    problem: str = ""
    unaccounted: bool = False
    priority: int = 0
    started: float = inf
    leaving: bool = False
    labels: dict[str, str] | None = None
    private: bool = False


def request_of(pod: Pod, resources: Resources) -> Request | None:
    """Return what a pod asks of us, or None if it asks nothing.

    Raises
    ------
    BadDemand
        The author must change the pod; the message names the key, the value and what is allowed.
    """
    rules = pod_rules(pod)
    by_annotation = asked_by_annotations(pod)
    asks, names = [], []
    for container in _all_containers(pod):
        said = by_annotation.get(container.name, Wanted())
        also = asked_by_resources(container, resources, said.count)
        ask = to_ask(container.name, said, also, exclusive=rules.exclusive)
        if ask is not None:
            asks.append(ask)
            names.append(container.name)
    if len(asks) > MOST_CONTAINERS:
        raise BadDemand(f"The pod has {len(asks)} containers that ask for GPUs; at most {MOST_CONTAINERS} may.")
    if not asks:
        if rules.keys:
            raise BadDemand(
                f"{rules.keys[0]} is given, but no container asks for a GPU: add memory, utilization or count."
            )
        check_names_nothing(_all_containers(pod), resources)
        return None
    phases = _phases(pod, names)
    who = pod.metadata.namespace, rules.private
    demand = Demand(tuple(asks), phases, _cpu(pod), _ram(pod), rules.models, rules.uuids, *who)
    return Request(demand, tuple(names), rules.policy)


def plain_demand(pod: Pod) -> Demand:
    """Return the demand of a pod that asks nothing of us: CPU and memory."""
    return Demand(cpu_milli=_cpu(pod), ram_mib=_ram(pod))


def holding_of(pod: Pod, resources: Resources) -> Holding | None:
    """Return what a pod holds, or None if it holds nothing: unbound, or finished.

    A terminating pod holds everything until it is gone.
    """
    if not pod.spec.node_name or pod.status.phase in FINISHED:
        return None
    meta = pod.metadata
    cards, private, problem = _recorded(pod)
    return Holding(
        meta.uid,
        meta.namespace,
        meta.name,
        pod.spec.node_name,
        cards,
        _cpu(pod),
        _ram(pod),
        problem,
        unaccounted=not cards and not problem and asks_us(pod, resources),
        priority=pod.spec.priority or 0,
        started=_seconds(pod.status.start_time),
        leaving=meta.deletion_timestamp is not None,
        labels=meta.labels if cards else None,
        private=private,
    )


def holding_to_be(pod: Pod, request: Request, record: Assignment) -> Holding:
    """Return what a pod will hold once it is bound with a record."""
    meta, demand, cards = pod.metadata, request.demand, charge(pod, record.containers)
    return Holding(
        meta.uid,
        meta.namespace,
        meta.name,
        record.node,
        cards,
        demand.cpu_milli,
        demand.ram_mib,
        priority=pod.spec.priority or 0,
        private=record.private,
    )


def _seconds(time: str | None) -> float:
    """Return a time of the API server in seconds; one that is not there, or cannot be read, is yet to come."""
    try:
        return datetime.fromisoformat(time or "").timestamp()
    except ValueError:
        return inf


def asks_us(pod: Pod, resources: Resources) -> bool:
    """Say whether a pod asks for GPUs, be it in words that cannot be read."""
    try:
        return request_of(pod, resources) is not None
    except AsksNothing:
        return False
    except BadDemand:
        return True


def _recorded(pod: Pod) -> tuple[dict[str, Share], bool, str]:
    """Return a bound pod's shares by card, whether it is private, and a sentence if its record does not tell them.

    A record counts only on the node and the pod that it names: another one's is ignored.
    """
    text = (pod.metadata.annotations or {}).get(ASSIGNMENT)
    if text is None:
        return {}, False, ""
    try:
        record = assignment.decode(text)
    except assignment.BadAssignment as error:
        return {}, False, str(error)
    if record.node != pod.spec.node_name or record.uid != pod.metadata.uid:
        return {}, False, ""
    return charge(pod, record.containers), record.private, ""


def charge(pod: Pod, containers: dict[str, tuple[assignment.Grant, ...]]) -> dict[str, Share]:
    """Return what a pod's grants take of each card: of every amount the dearest phase."""
    cards: dict[str, Share] = {}
    known = {container.name for container in _all_containers(pod)}
    strangers = tuple(name for name in containers if name not in known)
    for phase in _phase_names(pod, set(containers)):
        now: dict[str, Share] = {}
        for name in (*phase, *strangers):
            for grant in containers.get(name, ()):
                was = now.get(grant.gpu, Share(0, 0, 0))
                now[grant.gpu] = Share(
                    was.mib + grant.mib, was.milli + grant.milli, was.slots + 1, was.exclusive or grant.exclusive
                )
        for gpu, share in now.items():
            most = cards.get(gpu, share)
            cards[gpu] = Share(
                max(most.mib, share.mib),
                max(most.milli, share.milli),
                max(most.slots, share.slots),
                most.exclusive or share.exclusive,
            )
    return cards


def _all_containers(pod: Pod) -> Iterator[Container]:
    yield from pod.spec.init_containers or ()
    yield from pod.spec.containers or ()


def _phase_names(pod: Pod, names: Collection[str]) -> list[tuple[str, ...]]:
    """Return the containers, of some, that run at the same time, phase by phase."""
    sidecars: tuple[str, ...] = ()
    phases: list[tuple[str, ...]] = []
    for container in pod.spec.init_containers or ():
        if container.name not in names:
            continue
        if container.restart_policy == "Always":
            sidecars = (*sidecars, container.name)
        else:
            phases.append((*sidecars, container.name))
    phases.append((*sidecars, *(c.name for c in pod.spec.containers or () if c.name in names)))
    return phases


def _phases(pod: Pod, names: list[str]) -> tuple[tuple[int, ...], ...]:
    """Return the phases as indices into the GPU containers, without those that another one covers."""
    found = [tuple(names.index(name) for name in phase) for phase in _phase_names(pod, set(names))]
    distinct = [p for i, p in enumerate(found) if p and p not in found[:i]]
    return tuple(p for p in distinct if not any(set(p) < set(other) for other in distinct))


def _dearest(pod: Pod, amount: Callable[[Container], int]) -> int:
    """Return what the dearest phase takes of an amount that any container may ask for."""
    sidecars = most = 0
    for container in pod.spec.init_containers or ():
        if container.restart_policy == "Always":
            sidecars += amount(container)
        else:
            most = max(most, sidecars + amount(container))
    return max(most, sidecars + sum(amount(container) for container in pod.spec.containers or ()))


def _requested(resource: str, parse: Callable[[Any], int], most: int) -> Callable[[Pod], int]:
    def of(requests: dict[str, Any] | None, limits: dict[str, Any] | None) -> int:
        value = (requests or {}).get(resource, (limits or {}).get(resource))
        try:
            return 0 if value is None else min(parse(value), most)
        except BadQuantity:
            return 0  # the API server lets none in; a made-up one costs nothing

    def of_container(container: Container) -> int:
        found = container.resources
        return 0 if found is None else of(found.requests, found.limits)

    def of_pod(pod: Pod) -> int:
        whole = pod.spec.resources
        told = 0 if whole is None else of(whole.requests, whole.limits)
        return (told or _dearest(pod, of_container)) + of(pod.spec.overhead, None)

    return of_pod


# More than any node has is not told apart: the API server takes 9E, which added up leaves the numbers of an array.
_cpu = _requested("cpu", to_milli, 1 << 22)  # 4,194 cores
_ram = _requested("memory", to_mib, 1 << 27)  # 128 TiB
