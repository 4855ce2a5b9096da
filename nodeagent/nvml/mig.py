"""MIG: which devices a card is cut into, and which it could be cut into."""

import ctypes
from dataclasses import replace
from typing import Any, Final

import pynvml

from contract.inventory import MigInstance, MigProfile
from nodeagent.nvml.ask import MIB, Asker, mib_of

MOST_PLACES: Final = 64

Instances = dict[tuple[int | None, int | None], tuple[MigInstance, Any]]  # by GPU and compute instance, with handle


def instances_of(ask: Asker, handle: Any, last: tuple[MigInstance, ...]) -> Instances:
    """Return the MIG devices. What an instance is does not change while it lives, so only its use is read again."""
    known = {each.uuid: each for each in last if each.profile and each.gpu_instance is not None}
    found: Instances = {}
    for index in range(ask("nvmlDeviceGetMaxMigDeviceCount", handle) or 0):
        device = ask("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        uuid = device and ask("nvmlDeviceGetUUID", device)
        if not uuid:
            continue  # a hole in the range
        each = known.get(uuid) or _instance(ask, handle, device, uuid)
        memory = ask("nvmlDeviceGetMemoryInfo", device)
        total, used = (memory.total // MIB, mib_of(memory.used)) if memory else (each.memory_mib, None)
        if (total, used) != (each.memory_mib, each.used_mib):
            each = replace(each, memory_mib=total, used_mib=used)
        found[each.gpu_instance, each.compute_instance] = each, device
    return found


def _instance(ask: Asker, handle: Any, device: Any, uuid: str) -> MigInstance:
    gpu_instance = ask("nvmlDeviceGetGpuInstanceId", device)
    owner = gpu_instance is not None and ask("nvmlDeviceGetGpuInstanceById", handle, gpu_instance)
    info = owner and ask("nvmlGpuInstanceGetInfo", owner)
    return MigInstance(
        uuid,
        (ask("nvmlDeviceGetName", device) or "").rpartition("MIG ")[2],
        gpu_instance,
        ask("nvmlDeviceGetComputeInstanceId", device),
        info.placement.start if info else None,
    )


def profiles_of(ask: Asker, handle: Any, model: str) -> tuple[MigProfile, ...]:
    """Return the shapes of GPU instances and where they may begin, if the driver lets us know (it wants root)."""
    profiles = []
    for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
        info = ask("nvmlDeviceGetGpuInstanceProfileInfo", handle, number)
        if not info:
            continue
        count, places = ctypes.c_uint(), (pynvml.c_nvmlGpuInstancePlacement_t * MOST_PLACES)()
        ask("nvmlDeviceGetGpuInstancePossiblePlacements", handle, info.id, places, ctypes.byref(count))
        starts = tuple(sorted(place.start for place in places[: count.value]))  # none if it was refused
        name, memory = info.name.removeprefix("MIG "), info.memorySizeMB
        profiles.append(
            MigProfile(model, info.id, name, info.sliceCount, memory, info.instanceCount, starts, places[0].size)
        )
    return tuple(profiles)
