"""The JSON that reaches us and leaves us: kube-scheduler's extender/v1, and the objects of the API server.

Only the fields that Tessera uses are decoded; everything else is skipped at C speed. Keys of extender/v1 are
the Go field names (its structs have no json tags), the embedded objects use camel case. Go sends null for an
empty list or map, so every list and map here may be None.

Nothing here decides: an object that is well-formed JSON of the right shape gets in, its meaning is read in
`extender/pod.py` and `contract/`.
"""

from typing import Any

import msgspec
from msgspec import Struct, field

# --- objects of the API server -------------------------------------------------------------------------------


class Meta(Struct, rename="camel", gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    annotations: dict[str, str] | None = None
    labels: dict[str, str] | None = None
    deletion_timestamp: str | None = None
    creation_timestamp: str | None = None


class Requirements(Struct, gc=False):
    limits: dict[str, Any] | None = None
    requests: dict[str, Any] | None = None


class Container(Struct, rename="camel", gc=False):
    name: str = ""
    resources: Requirements | None = None
    restart_policy: str | None = None  # "Always" on an init container makes it a sidecar


class PodSpec(Struct, rename="camel", gc=False):
    node_name: str = ""
    containers: list[Container] | None = None
    init_containers: list[Container] | None = None
    overhead: dict[str, Any] | None = None
    resources: Requirements | None = None
    priority: int | None = None
    preemption_policy: str | None = None
    scheduling_gates: list[Any] | None = None


class Condition(Struct, gc=False):
    type: str = ""
    status: str = ""
    reason: str | None = None


class PodStatus(Struct, rename="camel", gc=False):
    phase: str = ""
    conditions: list[Condition] | None = None
    start_time: str | None = None
    nominated_node_name: str | None = None  # kube-scheduler clears this node for the pod


class Pod(Struct, gc=False):
    metadata: Meta = field(default_factory=Meta)
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)


class NodeStatus(Struct, gc=False):
    allocatable: dict[str, Any] | None = None
    capacity: dict[str, Any] | None = None


class Node(Struct, gc=False):
    metadata: Meta = field(default_factory=Meta)
    status: NodeStatus = field(default_factory=NodeStatus)


class Selector(Struct, rename="camel", gc=False):
    match_labels: dict[str, str] | None = None
    match_expressions: list[dict[str, Any]] | None = None


class BudgetSpec(Struct, gc=False):
    selector: Selector | None = None


class BudgetStatus(Struct, rename="camel", gc=False):
    disruptions_allowed: int = 0


class Budget(Struct, gc=False):
    """A PodDisruptionBudget."""

    metadata: Meta = field(default_factory=Meta)
    spec: BudgetSpec = field(default_factory=BudgetSpec)
    status: BudgetStatus = field(default_factory=BudgetStatus)


class ManagedField(Struct, gc=False):
    manager: str = ""
    time: str = ""  # by the API server's clock


class LeaseMeta(Meta, rename="camel"):
    managed_fields: list[ManagedField] | None = None


class LeaseSpec(Struct, rename="camel", gc=False):
    renew_time: str = ""


class AgentLease(Struct):
    """The heartbeat of a node's agent: a Lease of the same name as the Node."""

    metadata: LeaseMeta = field(default_factory=LeaseMeta)
    spec: LeaseSpec = field(default_factory=LeaseSpec)


class GpuNode(Struct, rename={"api_version": "apiVersion"}, gc=False):
    """A GPUNode custom resource; its status is decoded by `contract.inventory`."""

    metadata: Meta = field(default_factory=Meta)
    status: dict[str, Any] | None = None
    api_version: str = ""


# --- kube-scheduler's extender/v1 ----------------------------------------------------------------------------


class RawNodeList(Struct):
    """Full Node objects, kept as the bytes they came in: a reply passes them through untouched."""

    items: list[msgspec.Raw] | None = None


class ExtenderArgs(Struct, rename="pascal"):
    """What filter and prioritize are asked: NodeNames if nodeCacheCapable is true, else Nodes.

    The names are kept as the bytes they came in, for `extender/answers.py` may have seen them before.
    """

    pod: Pod | None = None
    nodes: RawNodeList | None = None
    node_names: msgspec.Raw = msgspec.Raw(b"null")


class BindingArgs(
    Struct,
    rename={"pod_name": "PodName", "pod_namespace": "PodNamespace", "pod_uid": "PodUID", "node": "Node"},
):
    pod_name: str = ""
    pod_namespace: str = ""
    pod_uid: str = ""
    node: str = ""


class NodeName(Struct):
    """The one field of a raw Node that a question needs."""

    metadata: Meta = field(default_factory=Meta)


class FilterResult(Struct, rename="pascal"):
    """Never null where kube-scheduler dereferences; `Nodes` only answers a question asked with Nodes."""

    node_names: list[str] | None = None
    nodes: RawNodeList | None = None
    failed_nodes: dict[str, str] = {}
    failed_and_unresolvable_nodes: dict[str, str] = {}
    error: str = ""


class HostPriority(Struct, rename="pascal"):
    host: str
    score: int


class BindingResult(Struct, rename="pascal"):
    error: str = ""


class MetaPod(Struct, rename={"uid": "UID"}):
    uid: str = ""


class MetaVictims(Struct, rename={"pods": "Pods", "violations": "NumPDBViolations"}):
    """A node's victims by UID. kube-scheduler crashes on a null in a reply, and Pods[0] must be the highest."""

    pods: list[MetaPod | None] | None = None
    violations: int = 0


class Victims(Struct, rename={"pods": "Pods", "violations": "NumPDBViolations"}):
    """A node's victims as whole pods: asked in place of MetaVictims if nodeCacheCapable is false."""

    pods: list[Pod | None] | None = None
    violations: int = 0


class PreemptArgs(Struct, rename="pascal"):
    """What preempt is asked; one of the maps is null."""

    pod: Pod | None = None
    node_name_to_victims: dict[str, Victims | None] | None = None
    node_name_to_meta_victims: dict[str, MetaVictims | None] | None = None


class PreemptResult(Struct, rename="pascal"):
    """Always by UID, however it was asked. An empty map: no node can be cleared for the pod."""

    node_name_to_meta_victims: dict[str, MetaVictims] = {}


args_decoder = msgspec.json.Decoder(ExtenderArgs)
names_decoder = msgspec.json.Decoder(list[str])
preempt_decoder = msgspec.json.Decoder(PreemptArgs)
binding_decoder = msgspec.json.Decoder(BindingArgs)
node_name_decoder = msgspec.json.Decoder(NodeName)
encode = msgspec.json.Encoder().encode
