"""bind: the only verb that writes. Reserve, bind, then confirm or forget.

    reserve (before the first await) --> Binding with the record --> 201: done, the watch confirms
                                                                 --> certainly not done: forget at once
                                                                 --> no answer: held until a look at the pod decides

OK is answered only with proof that the pod is on the node with our record: kube-scheduler believes an OK for
ever. A second call for the same pod and node finds the first one's outcome and books nothing again.
"""

import asyncio
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import Final

from contract.assignment import Assignment, BadAssignment, annotations, decode
from contract.inventory import Inventory
from contract.names import ASSIGNMENT
from extender.cluster import Away, Binding, Cluster, NotDone, PerhapsDone, Unreachable
from extender.delivery import Mode, told
from extender.pod import asks_us
from extender.request import BadDemand
from extender.state import ClusterState
from extender.wire import BindingArgs, Meta, Pod

NO_LONGER_FITS: Final = "the pod does not fit the node's cards any more"
LOOKS: Final = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0)  # seconds between looks at a pod whose bind had no answer ...
LAST: Final = 30.0  # ... and from then on; a write that the API server had taken up has ended by then


class Refused(Exception):
    """The pod is not bound by this call; the message goes to kube-scheduler and onto the pod."""


class Raced(Refused):
    """The cards that filter saw went to another pod in the meantime: kube-scheduler asks again."""


@dataclass(slots=True)
class Binder:
    """Binds pods. `running` keeps one task a pod, so that a repeated call joins the first."""

    state: ClusterState
    cluster: Cluster
    running: dict[str, tuple[str, "asyncio.Task[None]"]] = field(default_factory=dict)
    settling: set["asyncio.Task[None]"] = field(default_factory=set)
    delivery: Mode = "env"
    seconds: float = 3.5  # in which a call is answered, whatever is still under way

    async def bind(self, args: BindingArgs) -> None:
        """Bind a pod to a node with the cards chosen for it.

        Raises
        ------
        Refused
        """
        under_way = self.running.get(args.pod_uid)
        if under_way is None:
            task = asyncio.ensure_future(self._bind(args))
            self.running[args.pod_uid] = (args.node, task)
            task.add_done_callback(lambda _: self._ended(args))
        elif under_way[0] != args.node:
            raise Refused(f"the pod is already being bound to {under_way[0]}")
        else:
            task = under_way[1]
        # A caller that hangs up, or whose time is over, must not cancel a write under way.
        try:
            await asyncio.wait_for(asyncio.shield(task), self.seconds)
        except TimeoutError as error:
            raise Refused("the API server did not answer: the bind is still under way") from error

    def _ended(self, args: BindingArgs) -> None:
        """Go on looking at a pod after its bind, for what is not known for certain."""
        self.running.pop(args.pod_uid, None)
        if self._unsure(args.pod_uid):
            task = asyncio.ensure_future(self._settle(args))
            self.settling.add(task)
            task.add_done_callback(self.settling.discard)

    def _unsure(self, uid: str) -> bool:
        """Say whether a pod's bind is undecided, or no watch would tell of its end."""
        return uid in self.state.assumed or uid in self.state.unwatched

    async def _bind(self, args: BindingArgs) -> None:
        uid, node = args.pod_uid, args.node
        held = self.state.holdings.get(uid)
        if held is not None:
            if (held.namespace, held.name) != (args.pod_namespace, args.pod_name):
                raise Refused("there is no such pod with this UID")
            if held.node == node and not held.unaccounted and not held.problem:
                return
            raise Refused(f"the pod is already bound to {held.node}")
        record = self.state.assumed_record(uid)
        again = record is not None
        if record is not None and record.node != node:
            raise Refused(f"an earlier bind of the pod to {record.node} is not decided yet")
        if record is None:
            pod = self.state.waiting.get(uid) or await self._find(args)
            if pod.spec.node_name:
                return
            record = self._reserve(pod, node)
        await self._write(args, record, again=again)

    async def _write(self, args: BindingArgs, record: Assignment | None, *, again: bool) -> None:
        """Post the Binding. A record whose first post had no answer is posted again unchanged: at most one lands."""
        extra = self._notes(record) if record else {}
        try:
            await self.cluster.bind(Binding(args.pod_namespace, args.pod_name, args.pod_uid, args.node, extra))
        except NotDone as error:
            # Where nothing could be sent nobody can be asked, and the caller learns it at once.
            landed = None if isinstance(error, Away) else await self._landed_before(args)
            if landed:
                return
            if not again or landed is False:
                self.state.forget(args.pod_uid)
            raise Refused(str(error)) from error
        except PerhapsDone as error:
            raise Refused(f"the API server did not answer: {error}") from error

    def _notes(self, record: Assignment) -> dict[str, str]:
        """Return what travels on the Binding: the record, and what its containers are told of it."""
        inventory = self.state.inventories.get(record.node) or Inventory(record.node)
        memory = {gpu.uuid: gpu.memory_mib - gpu.reserved_mib for gpu in inventory.gpus if gpu.memory_mib}
        return annotations(record) | told(record, memory, self.delivery, limited=inventory.limits_enforced)

    async def _landed_before(self, args: BindingArgs) -> bool | None:
        """Say whether a refused Binding was refused because an earlier one of ours had landed; None: it still may."""
        try:
            pod = await self.cluster.pod(args.pod_namespace, args.pod_name)
        except Unreachable:
            return None
        if pod is None or pod.metadata.uid != args.pod_uid:
            return False
        return self._is_ours(pod, args) if pod.spec.node_name else None

    def _reserve(self, pod: Pod, node: str) -> Assignment | None:
        """Return the record to write, None for a pod that asks nothing of us."""
        try:
            request = self.state.request_of(pod)
        except BadDemand as error:
            raise Refused(str(error)) from error
        if request is None:
            return None
        record = self.state.reserve(pod, request, node)
        if record is None:
            raise Raced(NO_LONGER_FITS)
        return record

    async def _find(self, args: BindingArgs) -> Pod:
        """Return a pod that the watch has not shown us, or shows as one that asks nothing."""
        try:
            pod = await self.cluster.pod(args.pod_namespace, args.pod_name)
        except Unreachable as error:
            raise Refused(f"the pod cannot be read: {error}") from error
        if pod is None or pod.metadata.uid != args.pod_uid:
            raise Refused("there is no such pod with this UID")
        self.state.read_pod(pod)
        if pod.spec.node_name and not self._is_ours(pod, args):
            raise Refused(f"the pod is already bound to {pod.spec.node_name}")
        return pod

    async def _settle(self, args: BindingArgs) -> None:
        """Look at a pod until nothing of it is unsure; while nobody answers, its share stays held.

        The watch may have a gap in which a pod comes and goes: then only these looks find that it is gone.
        """
        uid = args.pod_uid
        for wait in chain(LOOKS, repeat(LAST)):
            await asyncio.sleep(wait)
            if uid in self.running or not self._unsure(uid):
                return
            try:
                pod = await self.cluster.pod(args.pod_namespace, args.pod_name)
            except Unreachable:
                continue
            if uid in self.running or not self._unsure(uid):
                return  # that call decides, and must not be forgotten under way; or the watch knows better by now
            if pod is None or pod.metadata.uid != uid:
                self.state.lost_pod(Pod(Meta(name=args.pod_name, namespace=args.pod_namespace, uid=uid)))
            elif wait == LAST and not pod.spec.node_name:
                self.state.forget(uid)
            else:
                self.state.read_pod(pod)

    def _is_ours(self, pod: Pod, args: BindingArgs) -> bool:
        """Say whether a pod is on the node that was asked for, with a record of ours if it needs one."""
        text = (pod.metadata.annotations or {}).get(ASSIGNMENT)
        if pod.spec.node_name != args.node:
            return False
        if text is None:
            return not asks_us(pod, self.state.rules.resources)
        try:
            record = decode(text)
        except BadAssignment:
            return False
        return (record.node, record.uid) == (args.node, args.pod_uid)
