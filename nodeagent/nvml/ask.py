"""One call to the driver: an answer, or None where the driver has none to give."""

from collections.abc import Mapping
from typing import Any, Final

import pynvml

MIB: Final = 2**20
NOT_TOLD: Final = 2**32 - 1  # a GPU or compute instance that there is none of
ABSENT: Final = {
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_NOT_FOUND,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
}
# After these no other answer about the card, or from the driver, is worth asking for.
FATAL: Final = {
    pynvml.NVML_ERROR_GPU_IS_LOST: "The driver has lost the card.",
    pynvml.NVML_ERROR_RESET_REQUIRED: "The card must be reset before it can be used again.",
    pynvml.NVML_ERROR_UNINITIALIZED: "The NVIDIA driver was closed.",
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "The NVIDIA driver is not loaded.",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "There is no NVIDIA driver library (libnvidia-ml.so.1) on this node.",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "The NVIDIA driver was replaced; the agent must start again.",
}
NOTHING: Final[Mapping[int, Any]] = {}


class Asker:
    """Asks the driver, and keeps which calls failed though the driver has them."""

    def __init__(self) -> None:
        self.failed: list[str] = []

    def __call__(self, name: str, *args: Any, empty: Mapping[int, Any] = NOTHING) -> Any:
        """Return the answer, or None; `empty` has what other error codes stand for."""
        try:
            return getattr(pynvml, name)(*args)
        except (pynvml.NVMLLibraryMismatchError, AttributeError):
            return None  # the driver, or the binding, is older than the call
        except pynvml.NVMLError as error:
            if error.value in empty:
                return empty[error.value]
            if error.value in FATAL:
                raise
            if error.value not in ABSENT:
                self.failed.append(f"{name}: {error}")
            return None


def sentence(error: Any) -> str:
    """Say what an NVMLError means for an administrator."""
    if error.value == pynvml.NVML_ERROR_NO_PERMISSION:
        return "The driver does not let the agent read the card."
    return FATAL.get(error.value) or f"The driver says: {error}."


def mib_of(size: int) -> int:
    """Return bytes as MiB, rounded up."""
    return -(-size // MIB)
