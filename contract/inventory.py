"""What a node's cards are: the status of a GPUNode object, as dataclasses.

The property names here are the CRD's (`deploy/crd/`), which a test compares. Readers accept unknown fields.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Final, TypeVar, get_args, get_origin

from contract.names import GROUP, VERSION

API_VERSION: Final = f"{GROUP}/{VERSION}"
EVERYBODY: Final = "*"
LIMITS_ENFORCED: Final = "MemoryLimitsEnforced"  # a condition of the agent's
_PROMISED: Final = ("promised_mib", "promised_milli", "sharers")  # what the extender tells, in a list of its own


class BadInventory(ValueError):
    """A GPUNode that cannot be read; the message is one sentence for an administrator."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A MIG device of a card: a compute instance in a GPU instance. Memory in MiB, places in memory slices."""

    uuid: str
    profile: str = ""  # such as 1g.10gb
    gpu_instance: int | None = None
    compute_instance: int | None = None
    start: int | None = None  # where in the card; None: the driver does not tell (it wants root)
    memory_mib: int | None = None
    used_mib: int | None = None
    healthy: bool = True
    reason: str = ""


@dataclass(frozen=True, slots=True)
class MigProfile:
    """A shape that cards of a model can be cut into, as the driver tells it."""

    model: str
    id: int = 0
    name: str = ""
    slices: int = 0  # of compute
    memory_mib: int = 0
    instances: int = 0  # on an empty card, at most
    starts: tuple[int, ...] = ()  # the memory slices where one may begin; empty: the driver does not tell
    size: int = 0  # in memory slices


@dataclass(frozen=True, slots=True)
class Gpu:
    """One card. Memory in MiB, compute in thousandths of the card, utilization in percent."""

    uuid: str
    index: int = 0
    model: str = ""
    memory_mib: int | None = None  # NVML's total; None: the driver tells no figure (unified memory)
    reserved_mib: int = 0
    healthy: bool = True
    reason: str = ""
    numa_node: int | None = None
    pci_bus_id: str = ""
    nvlink: tuple[str, ...] = ()
    mig: bool = False
    mig_instances: tuple[MigInstance, ...] = ()
    used_mib: int | None = None
    foreign_mib: int = 0
    utilization: int | None = None
    promised_mib: int | None = None
    promised_milli: int | None = None
    sharers: int | None = None


@dataclass(frozen=True, slots=True)
class Inventory:
    """The cards of one node, in the order of their index.

    `limits_enforced`: a container sees its grant as the size of the card. The agent writes it as a condition, beside
    what is encoded here, so it is decoded and never encoded.
    """

    node: str
    gpus: tuple[Gpu, ...] = ()
    driver_version: str = ""
    cuda_version: str = ""
    mig_profiles: tuple[MigProfile, ...] = ()  # of the models that are in MIG mode
    limits_enforced: bool = False


# Attribute -> property of the custom resource, where camel case alone does not give it.
_PROPERTY = {
    "memory_mib": "memoryMiB",
    "reserved_mib": "reservedMiB",
    "used_mib": "usedMiB",
    "foreign_mib": "foreignMiB",
    "promised_mib": "promisedMiB",
}


def property_of(attribute: str) -> str:
    """Return the custom resource's property that holds a dataclass's attribute."""
    first, *rest = attribute.split("_")
    return _PROPERTY.get(attribute) or first + "".join(word.capitalize() for word in rest)


GPU_PROPERTIES: Final = {property_of(f.name): f.name for f in fields(Gpu)}
_PROPERTIES: Final = {part: {property_of(f.name): f for f in fields(part)} for part in (Gpu, MigInstance, MigProfile)}
_Part = TypeVar("_Part", Gpu, MigInstance, MigProfile)


def encode(inventory: Inventory) -> dict[str, Any]:
    """Return the GPUNode's status as JSON-ready values; what is absent is left out.

    Behind a switch every card reaches every other: from three cards on `nvlink` is then the one word `*`, since the
    names of eight times seven peers would be half of what a node says.
    """
    uuids = [gpu.uuid for gpu in inventory.gpus]
    gpus = [_encode(_shortened(gpu, uuids)) for gpu in inventory.gpus]
    ours = {property_of(name) for name in _PROMISED}
    status: dict[str, Any] = {"gpus": [{k: v for k, v in gpu.items() if k not in ours} for gpu in gpus]}
    promises = [{k: v for k, v in gpu.items() if k in ours or k == "uuid"} for gpu in gpus if gpu.keys() & ours]
    if promises:
        status["promises"] = promises
    if inventory.driver_version:
        status["driverVersion"] = inventory.driver_version
    if inventory.cuda_version:
        status["cudaVersion"] = inventory.cuda_version
    if inventory.mig_profiles:
        status["migProfiles"] = [_encode(profile) for profile in inventory.mig_profiles]
    return status


def _shortened(gpu: Gpu, uuids: list[str]) -> Gpu:
    everybody = len(uuids) > 2 and gpu.nvlink == _others(gpu, uuids)
    return replace(gpu, nvlink=(EVERYBODY,)) if everybody else gpu


def _others(gpu: Gpu, uuids: list[str]) -> tuple[str, ...]:
    return tuple(sorted(uuid for uuid in uuids if uuid != gpu.uuid))


def _encode(part: _Part) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name, field in _PROPERTIES[type(part)].items():
        value = getattr(part, field.name)
        if isinstance(value, tuple):
            value = [item if isinstance(item, str | int) else _encode(item) for item in value]
        always = type(part) is Gpu and field.name in ("index", "healthy")
        if always or (value != field.default and value != []):
            out[name] = value
    return out


def decode(node: str, status: Mapping[str, Any] | None, api_version: str = API_VERSION) -> Inventory:
    """Return the inventory in a GPUNode's status; cards come back in the order of their index.

    Raises
    ------
    BadInventory
        An API version of another major, a card without a UUID, a UUID twice, or a value of a wrong type.
    """
    if api_version != API_VERSION:
        raise BadInventory(f"GPUNode {node} has apiVersion {api_version!r}; this release reads {API_VERSION!r}.")
    status = status or {}
    if not isinstance(status.get("gpus") or [], list):
        raise BadInventory(f"GPUNode {node}: gpus is not a list.")
    promises = _decode_promises(node, status.get("promises") or [])
    told = (_decode_gpu(node, raw) for raw in status.get("gpus") or ())
    gpus = sorted((_with(gpu, promises.get(gpu.uuid)) for gpu in told), key=lambda gpu: gpu.index)
    uuids = [gpu.uuid for gpu in gpus]
    if len(set(uuids)) != len(uuids):
        raise BadInventory(f"GPUNode {node} lists a card twice; every uuid may appear once.")
    profiles = _decode_list(MigProfile, status.get("migProfiles") or [], f"GPUNode {node}", "migProfiles")
    driver, cuda = (str(status.get(name) or "") for name in ("driverVersion", "cudaVersion"))
    whole = (replace(gpu, nvlink=_others(gpu, uuids)) if gpu.nvlink == (EVERYBODY,) else gpu for gpu in gpus)
    return Inventory(node, tuple(whole), driver, cuda, profiles, _is_true(LIMITS_ENFORCED, status.get("conditions")))


def _is_true(kind: str, conditions: Any) -> bool:
    """Say whether a condition is there and True; one that cannot be read is not."""
    return isinstance(conditions, list) and any(
        isinstance(c, Mapping) and (c.get("type"), c.get("status")) == (kind, "True") for c in conditions
    )


def _decode_promises(node: str, raw: Any) -> dict[str, Gpu]:
    """Return what was promised of each card, also of one that its agent no longer reports."""
    return {gpu.uuid: gpu for gpu in _decode_list(Gpu, raw, f"GPUNode {node}", "promises")}


def _with(gpu: Gpu, promise: Gpu | None) -> Gpu:
    if promise is None:
        return gpu
    mib, milli, sharers = promise.promised_mib, promise.promised_milli, promise.sharers
    return replace(gpu, promised_mib=mib, promised_milli=milli, sharers=sharers)


def _decode_gpu(node: str, raw: Any) -> Gpu:
    if not isinstance(raw, Mapping) or not isinstance(raw.get("uuid"), str) or not raw["uuid"]:
        raise BadInventory(f"GPUNode {node} has a card without a uuid.")
    return _decode(Gpu, raw, f"GPUNode {node}, card {raw['uuid']}")


def _decode(part: type[_Part], raw: Mapping[str, Any], where: str) -> _Part:
    values: dict[str, Any] = {}
    for name, field in _PROPERTIES[part].items():
        if (value := raw.get(name)) is None or (field.name == "numa_node" and value == -1):
            continue  # -1 is what a machine without NUMA tells
        if field.type == tuple[MigInstance, ...]:
            values[field.name] = _decode_list(MigInstance, value, where, name)
        elif _is_a(value, field.type):
            values[field.name] = tuple(value) if isinstance(value, list) else value
        else:
            raise BadInventory(f"{where}: {name} is {value!r}, which is not allowed there.")
    return part(**values)


def _decode_list(part: type[_Part], raw: Any, where: str, name: str) -> tuple[_Part, ...]:
    key = fields(part)[0].name  # the one that has no default
    if not isinstance(raw, list) or not all(isinstance(item, Mapping) and item.get(key) is not None for item in raw):
        raise BadInventory(f"{where}: {name} is {raw!r}, which is not allowed there.")
    return tuple(_decode(part, item, where) for item in raw)


def _is_a(value: Any, wanted: Any) -> bool:
    if get_origin(wanted) is tuple:
        return isinstance(value, list) and all(_is_a(item, get_args(wanted)[0]) for item in value)
    if wanted in (str, bool):
        return isinstance(value, wanted)
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**27
