"""What a card is: identity, memory, links, and what the driver says about its health."""

from typing import Any, Final

import pynvml

from nodeagent.cards import SWITCH
from nodeagent.nvml.ask import MIB, Asker, mib_of
from nodeagent.reader import Driver, Recovery

NO_SUCH_LINK: Final = {pynvml.NVML_ERROR_INVALID_ARGUMENT: None}


def bus_id(text: str) -> str:
    """Return a PCI bus id as the kernel writes it: 00000000:1B:00.0 is 0000:1b:00.0."""
    domain, _, rest = text.lower().partition(":")
    return f"{int(domain, 16):04x}:{rest}"


def driver_of(ask: Asker) -> Driver:
    """Return the versions of the driver and of the CUDA that it serves."""
    cuda = ask("nvmlSystemGetCudaDriverVersion_v2")
    version = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else ""
    return Driver(ask("nvmlSystemGetDriverVersion") or "", version)


def memory_of(ask: Asker, handle: Any) -> tuple[int | None, int, int | None]:
    """Return total, reserved and used memory. Old drivers count what is reserved as used."""
    info = ask("nvmlDeviceGetMemoryInfo", handle, pynvml.nvmlMemory_v2)
    info = info or (None if ask.failed else ask("nvmlDeviceGetMemoryInfo", handle))
    if not info or not info.total:
        return None, 0, None
    return info.total // MIB, mib_of(getattr(info, "reserved", 0)), mib_of(info.used)


def repair_pending(ask: Asker, handle: Any) -> bool | None:
    """Say whether bad memory waits for a reset, or could not be replaced; None: not told."""
    if rows := ask("nvmlDeviceGetRemappedRows", handle):
        return bool(rows[2] or rows[3])
    pages = ask("nvmlDeviceGetRetiredPagesPendingStatus", handle)
    return None if pages is None else bool(pages)


def recovery_of(ask: Asker, handle: Any) -> Recovery | None:
    """Return what the driver says the card needs; None: it does not tell."""
    answer = ask("nvmlDeviceGetFieldValues", handle, [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not answer or answer[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    action = answer[0].value.uiVal
    return Recovery(action) if action in set(Recovery) else Recovery.RESET  # a later driver's; it needs something


def links_of(ask: Asker, handle: Any) -> frozenset[str]:
    """Return where the card's NVLinks end: PCI bus ids, or SWITCH."""
    ends = set()
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        state = ask("nvmlDeviceGetNvLinkState", handle, link, empty=NO_SUCH_LINK)
        if state is None:
            break  # no NVLink, or no more links
        if state:
            if ask("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH:
                ends.add(SWITCH)
            elif other := ask("nvmlDeviceGetNvLinkRemotePciInfo", handle, link):
                ends.add(bus_id(other.busId))
    return frozenset(ends)
