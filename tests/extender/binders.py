"""Binders over scripted clusters, and what their tests ask of them."""

import asyncio

import pytest

from extender.bind import Binder, Refused
from extender.node import Rules
from extender.state import ClusterState
from extender.wire import BindingArgs, Pod
from tests.builders import gpu_node, node
from tests.fakes import ScriptedCluster


def binder_of(cluster: ScriptedCluster, *, known: bool = True, nodes: int = 2) -> Binder:
    """Return a binder over idle nodes n1, n2 of one A10 each; `known`: the watch has shown the cluster's pods."""
    state = ClusterState(Rules())
    for i in range(1, nodes + 1):
        state.saw_node(node(f"n{i}"))
        state.saw_inventory(gpu_node(f"n{i}"))
    if known:
        for seen in cluster.pods.values():
            state.saw_pod(seen)
    return Binder(state, cluster)


def args(asking: Pod, to: str = "n1", uid: str | None = None) -> BindingArgs:
    """Return kube-scheduler's request to bind a pod."""
    return BindingArgs(asking.metadata.name, asking.metadata.namespace, uid or asking.metadata.uid, to)


def free(binder: Binder, name: str = "n1") -> int:
    """Return the free MiB of a node's card."""
    fleet = binder.state.fleet
    return int(fleet.free.mib[fleet.index[name], 0])


async def settled(binder: Binder) -> None:
    """Wait until nothing is looked at any more."""
    while binder.settling:
        await asyncio.wait(set(binder.settling), timeout=5)


async def refused(binder: Binder, what: BindingArgs) -> str:
    """Return the sentence with which a bind is refused."""
    with pytest.raises(Refused) as error:
        await binder.bind(what)
    return str(error.value)
