"""What the driver tells of its own accord: XIDs, double-bit errors, cards that go away or ask to be reset."""

import ctypes
import logging
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from threading import Event as Flag
from typing import Any, Final

import pynvml

from nodeagent.nvml.ask import NOT_TOLD, Asker
from nodeagent.reader import Event, EventKind

log: Final = logging.getLogger(__name__)

RETRY_S: Final = 1.0  # after a wait that failed


class Events:
    """The driver's events. A card is registered when it was first read; what came before is not told.

    The thread that reads writes only in `know`; all else is that of the thread that waits.
    """

    def __init__(self) -> None:
        self._set: Any = None
        self._registered: dict[str, int] = {}  # which coming of a card is
        self._comings: Counter[str] = Counter()  # how often a card was there after it was not
        self._deaf: set[str] = set()  # cards that could not be registered, which was logged
        self._handles: Mapping[str, Any] = {}
        self._names: dict[int | None, str] = {}
        self._known = Flag()

    def know(self, handles: Mapping[str, Any]) -> None:
        """Take the handles of the cards that just answered."""
        self._names = self._names | {_address(handle): uuid for uuid, handle in handles.items()}
        self._comings.update(handles.keys() - self._handles.keys())
        self._handles = handles
        if handles:
            self._known.set()

    def wait(self, timeout_s: float) -> Event | None:
        """Wait for the next event; None if there was none in time, or it says nothing about a card we know."""
        if not self._known.wait(timeout_s):
            return None
        try:
            self._register()
            data = pynvml.nvmlEventSetWait_v2(self._set, int(timeout_s * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._begin_anew()  # the next reading says which card is bad
                Flag().wait(min(timeout_s, RETRY_S))
            return None
        # The name comes from the last reading: a card that just died does not tell it any more.
        uuid = self._names.get(_address(data.device))
        if uuid is None or data.eventType not in set(EventKind):
            return None
        instance = None if data.gpuInstanceId == NOT_TOLD else data.gpuInstanceId
        return Event(uuid, EventKind(data.eventType), data.eventData, instance)

    def _begin_anew(self) -> None:
        old, self._set, self._registered = self._set, None, {}
        _free(old)

    def _register(self) -> None:
        """Register the cards that are not, or that came back; one that fails is tried again at the next wait."""
        if self._set is None:
            self._set = pynvml.nvmlEventSetCreate()
        for uuid, handle in self._handles.items():
            coming = self._comings[uuid]
            if self._registered.get(uuid) == coming:
                continue
            trial = pynvml.nvmlEventSetCreate()  # a failure may spoil the set, and not that of the others
            try:
                failed = _failure(handle, trial) or _failure(handle, self._set)
            finally:
                _free(trial)
            if not failed:
                self._registered[uuid] = coming
                self._deaf.discard(uuid)
            elif uuid not in self._deaf:
                self._deaf.add(uuid)
                log.warning("The events of card %s are not told yet: %s.", uuid, failed)


def _failure(handle: Any, events: Any) -> str:
    """Register a card for what it has of the events that we want; return what went wrong."""
    ask, wanted = Asker(), sum(EventKind)
    if types := wanted & (ask("nvmlDeviceGetSupportedEventTypes", handle) or 0):
        ask("nvmlDeviceRegisterEvents", handle, types, events)
    return ", ".join(ask.failed)


def _free(events: Any) -> None:
    if events is not None:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlEventSetFree(events)


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value
