"""The real reader: NVIDIA's library through pynvml, which is imported nowhere else than here.

Handles are asked for anew at each reading, since the order of the index does not last; a card is known by its UUID.
Any call may be absent: in old drivers the function, on some boards the answer, in a container the permission.
"""

import math
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

import pynvml

from contract.inventory import Gpu
from nodeagent.cards import Cards, Failed, Seen, Started
from nodeagent.nvml.ask import FATAL, MIB, Asker, mib_of, sentence
from nodeagent.nvml.events import Events
from nodeagent.nvml.facts import bus_id, driver_of, links_of, memory_of, recovery_of, repair_pending
from nodeagent.nvml.mig import instances_of, profiles_of
from nodeagent.nvml.processes import processes_of
from nodeagent.reader import Card, Driver, Event, LimitRefused, MemoryLimit, Reading

NO_LIMIT: Final = 2**64 - 1
USE_WINDOW_S: Final = 5  # over which the use by process is averaged


class NvmlReader:
    """A `Reader` of the cards of this machine."""

    def __init__(
        self,
        *,
        slow_every_s: float = 60.0,
        cgroup_root: str = "/sys/fs/cgroup",
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """Make a reader; the driver is not touched before the first reading.

        Parameters
        ----------
        slow_every_s
            How often topology, error counters and the like are read.
        cgroup_root
            A cgroup directory that exists, to find out whether memory can be limited.
        """
        self._slow_every_s, self._cgroup_root, self._clock, self._wall = slow_every_s, cgroup_root, clock, wall
        self._driver = Driver()
        self._loaded = False
        self._cards = Cards(self, clock)
        self._events = Events()

    def read(self, deadline_s: float) -> Reading:
        """Read all cards; see `Reader`."""
        reading = self._cards.read(deadline_s)
        there = (card.gpu.uuid for card in reading.cards if not card.lost and not card.age_s)
        self._events.know({uuid: self._cards.seen[uuid].handle for uuid in there if uuid in self._cards.seen})
        return reading

    def recall(self, known: Iterable[Gpu], wanted: Callable[[str], bool]) -> None:
        """Take the cards that an earlier process saw; see `Reader`."""
        self._cards.recall(known, wanted)

    def wait_event(self, timeout_s: float) -> Event | None:
        """Wait for the next event; see `Reader`."""
        return self._events.wait(timeout_s)

    def close(self) -> None:
        """Let the driver go."""
        self._cards.close()
        if self._loaded:
            self._loaded = False
            with suppress(pynvml.NVMLError):
                pynvml.nvmlShutdown()

    # --- the source of `Cards` ----------------------------------------------------------------------------

    def start(self) -> Started | Failed:
        """Start the driver if it is not, and count the cards."""
        try:
            if not self._loaded:
                pynvml.nvmlInit()
                self._loaded = True
            count = pynvml.nvmlDeviceGetCount()
            if not self._driver.version:
                self._driver = driver_of(Asker())
        except pynvml.NVMLError as error:
            self._loaded = self._loaded and error.value not in FATAL
            return Failed(sentence(error), lost=error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
        return Started(self._driver, count)

    def read_card(self, index: int, before: Mapping[str, Seen]) -> Seen | Failed:
        """Read one card; a card that does not tell its name, or is lost, has failed."""
        uuid = ""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            uuid = pynvml.nvmlDeviceGetUUID(handle)
            last, now = before.get(uuid), self._clock()
            fresh = last is not None and now - last.slow_at < self._slow_every_s
            seen = replace(last, handle=handle) if last and fresh else self._read_slow(handle, uuid, last, now)
            return self._read_fast(handle, index, seen, last.card.gpu if last else seen.card.gpu)
        except pynvml.NVMLError as error:
            gone = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_INVALID_ARGUMENT)
            return Failed(sentence(error), error.value in gone, uuid)

    def _read_slow(self, handle: Any, uuid: str, last: Seen | None, now: float) -> Seen:
        """Read what seldom changes, or is not needed every second. If a call fails, what was read last stands."""
        ask = Asker()
        model = ask("nvmlDeviceGetName", handle) or ""
        bus = ask("nvmlDeviceGetPciInfo", handle)
        near = ask("nvmlDeviceGetMemoryAffinity", handle, 1, pynvml.NVML_AFFINITY_SCOPE_NODE)
        nodes = near[0] if near else 0
        gpu = Gpu(
            uuid,
            model=model,
            pci_bus_id=bus_id(bus.busId) if bus else "",
            numa_node=nodes.bit_length() - 1 if nodes.bit_count() == 1 else None,
        )
        errors = (pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC)
        card = Card(
            gpu,
            ecc_uncorrected=ask("nvmlDeviceGetTotalEccErrors", handle, *errors),
            repair_pending=repair_pending(ask, handle),
            limits=self._has_limits(handle),
        )
        links = links_of(ask, handle)
        if ask.failed and last:
            return replace(last, handle=handle)
        return Seen(card, handle, links, (), -math.inf if ask.failed else now)

    def _read_fast(self, handle: Any, index: int, seen: Seen, last: Gpu) -> Seen:
        ask = Asker()
        mode = ask("nvmlDeviceGetMigMode", handle)
        mig = bool(mode[0]) if mode else bool(ask.failed and last.mig)
        instances = instances_of(ask, handle, last.mig_instances) if mig else {}
        total, reserved, used = memory_of(ask, handle)
        if total is None and ask.failed:
            total, reserved = last.memory_mib, last.reserved_mib  # they do not change; only this call went wrong
        told = tuple(each for each, _ in instances.values()) or (last.mig_instances if ask.failed and mig else ())
        rates = None if mig else ask("nvmlDeviceGetUtilizationRates", handle)  # none is told in MIG mode
        gpu = replace(
            seen.card.gpu,
            index=index,
            memory_mib=total,
            reserved_mib=reserved,
            used_mib=used,
            utilization=rates.gpu if rates else None,
            mig=mig,
            mig_instances=told,
        )
        profiles = (seen.profiles or profiles_of(ask, handle, gpu.model)) if mig else ()
        since_us = int((self._wall() - USE_WINDOW_S) * 1e6)
        card = replace(
            seen.card,
            gpu=gpu,
            processes=processes_of(ask, handle, instances, None if mig else since_us),
            recovery=recovery_of(ask, handle),
            failed=tuple(ask.failed),  # last: the calls above fill it
        )
        return replace(seen, card=card, profiles=profiles)

    # --- limits -------------------------------------------------------------------------------------------

    def _has_limits(self, handle: Any) -> bool:
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(handle, _limits("c_nvmlGetMemoryLimits_v1_t", self._cgroup_root))
        except AttributeError:
            return False  # the binding is older than the call
        except pynvml.NVMLError as error:
            return bool(error.value == pynvml.NVML_ERROR_NOT_FOUND)  # it knows limits, not this cgroup
        return True

    def memory_limit(self, uuid: str, cgroup: str) -> MemoryLimit | None:
        """Return the limit of a cgroup directory on a card; see `Reader`."""
        seen = self._cards.seen.get(uuid)
        if seen is None or not seen.card.limits:
            return None
        limits = _limits("c_nvmlGetMemoryLimits_v1_t", cgroup)
        try:
            pynvml.nvmlDeviceGetMemoryLimits_v1(seen.handle, limits)
        except pynvml.NVMLError:
            return None
        hard = None if limits.hardLimit == NO_LIMIT else limits.hardLimit // MIB
        return MemoryLimit(hard, mib_of(limits.currentUsed))

    def set_memory_limit(self, uuid: str, cgroup: str, hard_mib: int | None) -> None:
        """Limit what a cgroup may use of a card, or clear the limit with None; see `Reader`.

        Nothing is ever reserved (the soft limit is zero): a reservation would stay with the parents of a cgroup that
        ends before it is cleared.
        """
        seen = self._cards.seen.get(uuid)
        if seen is None:
            raise LimitRefused(f"Card {uuid} is not on this node, so its memory cannot be limited.")
        try:
            limits = _limits("c_nvmlSetMemoryLimits_v1_t", cgroup)
            limits.softLimit, limits.hardLimit = 0, NO_LIMIT if hard_mib is None else hard_mib * MIB
            pynvml.nvmlDeviceSetMemoryLimits_v1(seen.handle, limits)
        except AttributeError as error:
            raise LimitRefused("This release of nvidia-ml-py has no memory limits.") from error
        except pynvml.NVMLError as error:
            raise LimitRefused(f"The driver did not limit {cgroup} on card {uuid}: {error}.") from error


def _limits(kind: str, cgroup: str) -> Any:
    limits = getattr(pynvml, kind)()
    limits.nameSpace = cgroup.encode()
    return limits
