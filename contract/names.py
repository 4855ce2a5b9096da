"""Every name that Tessera puts into a Kubernetes object: the only place where they are spelled."""

import hashlib
from dataclasses import dataclass

GROUP = "tessera.gpu"
VERSION = "v1alpha1"
PLURAL = "gpunodes"
KIND = "GPUNode"

PREFIX = f"{GROUP}/"

# What a user asks, per GPU, as annotations of the pod. `<key>.<container>` addresses one container.
MEMORY = f"{PREFIX}memory"
UTILIZATION = f"{PREFIX}utilization"
COUNT = f"{PREFIX}count"
MIG_PROFILE = f"{PREFIX}mig-profile"
PER_CONTAINER = (MEMORY, UTILIZATION, COUNT, MIG_PROFILE)

# What a user asks for the whole pod.
MODEL = f"{PREFIX}model"
UUID = f"{PREFIX}uuid"
POLICY = f"{PREFIX}policy"
SHARING = f"{PREFIX}sharing"
PER_POD = (MODEL, UUID, POLICY, SHARING)

# What Tessera writes on a pod.
ASSIGNMENT = f"{PREFIX}assignment"
DEVICES = f"{PREFIX}devices"
RETRY = f"{PREFIX}retry"  # a number that grows: it wakes kube-scheduler for this pod alone
LEADER = f"{PREFIX}leader"  # on the leading replica's own pod: a label for its Service to select, and who leads
WRITTEN = (ASSIGNMENT, RETRY, LEADER)

# The admission webhooks' configurations. API servers ask mutating ones in the order of these names: ours comes early.
WEBHOOKS = "0-tessera"

# What an administrator writes on a node: the overcommit factor of its cards' compute.
OVERCOMMIT = f"{PREFIX}overcommit"

# Where the heartbeats of the node agents are: one Lease for each Node, of the same name.
AGENTS = "tessera-agents"

DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
WHOLE_GPUS = "nvidia.com/gpu"

MAX_NAME = 63  # characters of an annotation's name after the slash


@dataclass(frozen=True, slots=True)
class Resources:
    """The extended resources that containers may ask for instead of annotations; settings may rename them."""

    memory: str = "nvidia.com/gpu-memory"
    utilization: str = "nvidia.com/gpu-utilization"
    share: str = f"{PREFIX}share"


def devices_key(container: str) -> str:
    """Return the annotation that lists one container's GPUs for the downward API.

    A container's name may have 63 characters, as many as the whole annotation name may have after the
    slash: a longer one keeps its first 40 and gets 10 hexadecimal digits of its SHA-256.
    """
    name = f"devices.{container}"
    return PREFIX + (name if len(name) <= MAX_NAME else f"devices.{_short(container, 40)}")


def figure_key(container: str, figure: str) -> str:
    """Return the annotation that tells one container a figure of its cards, shortened where there is no room.

    No container has a dot in its name, so it is nobody's list of devices.
    """
    room = MAX_NAME - len(f"devices..{figure}")
    return f"{PREFIX}devices.{container if len(container) <= room else _short(container, room - 11)}.{figure}"


def _short(container: str, keep: int) -> str:
    return f"{container[:keep]}-{hashlib.sha256(container.encode()).hexdigest()[:10]}"
