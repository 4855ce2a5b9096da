"""Who uses a card: its processes, with their memory and their share of the time."""

from typing import Any, Final

import pynvml

from nodeagent.nvml.ask import Asker, mib_of
from nodeagent.nvml.mig import Instances
from nodeagent.reader import Process

NOTHING_RAN: Final = {pynvml.NVML_SUCCESS: (), pynvml.NVML_ERROR_NOT_FOUND: ()}  # pynvml raises both


def processes_of(ask: Asker, handle: Any, instances: Instances, since_us: int | None) -> tuple[Process, ...] | None:
    """Return every process once, with the most memory that one of the lists has for it; None: no list is told."""
    lists = _lists(ask, handle)
    if not lists and instances:  # a card in MIG mode does not tell everybody; its instances do
        lists = [told for _, device in instances.values() for told in _lists(ask, device)]
    if not lists:
        return None
    use = None if since_us is None else _use(ask, handle, since_us)
    found: dict[tuple[int, str], Process] = {}
    for each in (each for told in lists for each in told):
        place = instances.get((getattr(each, "gpuInstanceId", None), getattr(each, "computeInstanceId", None)))
        key = each.pid, place[0].uuid if place else ""
        used = None if each.usedGpuMemory is None else mib_of(each.usedGpuMemory)
        if key in found:
            used = max((mib for mib in (used, found[key].used_mib) if mib is not None), default=None)
        found[key] = Process(each.pid, used, None if use is None else use.get(each.pid, 0), key[1])
    return tuple(found.values())


def _lists(ask: Asker, handle: Any) -> list[Any]:
    """Return the lists that are told; none if that of CUDA is not, since the others alone look like an idle card."""
    lists = []
    for kind in ("Compute", "Graphics", "MPSCompute"):
        told = ask(f"nvmlDeviceGet{kind}RunningProcesses_v3", handle)
        if told is None:
            told = ask(f"nvmlDeviceGet{kind}RunningProcesses_v2", handle)
        if told is not None:
            lists.append(told)
        elif kind == "Compute":
            return []
    return lists


def _use(ask: Asker, handle: Any, since_us: int) -> dict[int, int] | None:
    """Return percent by process over the window; None: the driver does not tell."""
    samples = ask("nvmlDeviceGetProcessUtilization", handle, since_us, empty=NOTHING_RAN)
    if samples is None:
        return None
    by_pid: dict[int, list[int]] = {}
    for sample in samples:
        by_pid.setdefault(sample.pid, []).append(sample.smUtil)
    return {pid: round(sum(of) / len(of)) for pid, of in by_pid.items()}
