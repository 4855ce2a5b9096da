"""What doctor looks at: asked all at once, but for what only the extender can say where to look for."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any, Final

import msgspec

from contract.names import AGENTS, GROUP, PLURAL, Resources
from extender.kubectl.api import GPUNODES, UNFINISHED, Api, Unanswered, at_once
from extender.wire import AgentLease, GpuNode, Node, Pod

Object = Mapping[str, Any]

SYSTEM: Final = "kube-system"
REGISTRATION: Final = "/apis/admissionregistration.k8s.io/v1"
DEFINITION: Final = f"/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{PLURAL}.{GROUP}"


class About(msgspec.Struct, rename="camel", frozen=True):
    """What the extender tells of itself (`extender/looks.py`); what an older one does not tell is the default."""

    version: str = ""
    policy: str = ""
    refusal: str = ""
    resources: tuple[str, str, str] | None = None
    namespace: str = ""  # its own; "" if it does not know it
    agent_namespace: str = AGENTS  # where it looks for heartbeats
    silent_seconds: float = 90
    port: int = 8580
    time: float = 0.0  # seconds since 1970


@dataclass(frozen=True, slots=True)
class Facts:
    """What was gathered; what could not be is None, and `missing` says why. `now`: the cluster's time, seconds."""

    now: float
    plugin: str = ""
    version: Object | None = None
    crd: Object | None = None
    gpu_nodes: Sequence[GpuNode] | None = None
    nodes: Sequence[Node] | None = None
    pods: Sequence[Pod] | None = None
    leases: Sequence[AgentLease] | None = None
    webhooks: Sequence[Object] | None = None
    policies: Sequence[Object] | None = None
    config_maps: Sequence[Object] | None = None
    about: About | None = None
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def installed(self) -> About:
        """What the extender tells of itself, or what it would with default settings."""
        return self.about or About()

    @property
    def resources(self) -> Resources:
        """The resources' names."""
        return Resources(*self.installed.resources or ())


def gather(api: Api, clock: Callable[[], float], plugin: str) -> Facts:
    """Return what can be known. `clock`: this machine's, by which to judge if nobody tells the cluster's time."""
    missing: dict[str, str] = {}
    found = _answers(_anywhere(api), missing)
    if found["version"] is None:
        return Facts(clock(), plugin, missing=missing)
    found |= _answers(_installed(api, found["about"] or About()), missing)
    return Facts(found.pop("time") or clock(), plugin, missing=missing, **found)


def seconds(time: str) -> float:
    """Return a time of an object as seconds since 1970, 0 if it is none."""
    try:
        return datetime.fromisoformat(time).timestamp()
    except ValueError:
        return 0.0


def written(lease: AgentLease) -> float:
    """Return when the API server last took a write of a Lease, by its clock; by the writer's if it does not say."""
    times = [seconds(entry.time) for entry in lease.metadata.managed_fields or ()]
    return max(times, default=0.0) or seconds(lease.spec.renew_time)


def _answers(questions: Mapping[str, Callable[[], Any]], missing: dict[str, str]) -> dict[str, Any]:
    """Return the answers by name; where there is none, None, and the reason in `missing`."""

    def ask(name: str) -> Any:
        try:
            return questions[name]()
        except (Unanswered, msgspec.DecodeError) as error:
            missing[name] = str(error)
            return None

    return dict(zip(questions, at_once([partial(ask, name) for name in questions]), strict=True))


def _anywhere(api: Api) -> dict[str, Callable[[], Any]]:
    return {
        "version": partial(api.object, "/version"),
        "crd": partial(api.object, DEFINITION),
        "gpu_nodes": partial(api.list, GpuNode, GPUNODES),
        "nodes": partial(api.list, Node, "/api/v1/nodes"),
        "pods": partial(api.list, Pod, "/api/v1/pods", **UNFINISHED),
        "webhooks": partial(api.list, dict[str, Any], f"{REGISTRATION}/mutatingwebhookconfigurations"),
        "policies": partial(api.list, dict[str, Any], f"{REGISTRATION}/validatingadmissionpolicies"),
        "about": lambda: msgspec.json.decode(api.ask_extender("/about"), type=About),
    }


def _installed(api: Api, about: About) -> dict[str, Callable[[], Any]]:
    """Return the questions about places that the extender names."""
    where = (about.namespace or api.extender_namespace or "tessera-system", SYSTEM)
    return {
        "leases": partial(_leases, api, about.agent_namespace),
        "config_maps": lambda: [
            found
            for namespace in dict.fromkeys(where)
            for found in api.list(dict[str, Any], f"/api/v1/namespaces/{namespace}/configmaps")
        ],
        # Without the extender: a control plane renews Leases of its own every few seconds.
        "time": lambda: about.time or max(map(written, _leases(api, SYSTEM)), default=0.0),
    }


def _leases(api: Api, namespace: str) -> list[AgentLease]:
    return api.list(AgentLease, f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
