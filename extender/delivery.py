"""How a container gets to its cards, and what it is told of them: its environment, and annotations on the Binding.

    env    NVIDIA_VISIBLE_DEVICES from the record, by the downward API: resolved after binding; empty is no card
    cdi    an annotation for the NRI plugin of NVIDIA's container toolkit
    none   somebody else reads the record

Never env and cdi both. Containers that get no card are told so, since CUDA images ask for every card by themselves.
"""

from collections.abc import Mapping
from typing import Any, Final, Literal

from contract.assignment import Assignment, Grant
from contract.names import MAX_NAME, devices_key, figure_key

Mode = Literal["env", "cdi", "none"]

VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
NO_CARD: Final = "void"
HARMLESS: Final = (NO_CARD, "none", "")  # of NVIDIA_VISIBLE_DEVICES
NRI: Final = "nvidia.cdi.k8s.io/container."
MOST_NRI: Final = MAX_NAME - len("container.")  # characters of a container's name that the key has room for
CDI_CLASS: Final = "nvidia.com/gpu"
MEMORY_MIB, UTILIZATION, FRACTION = "memory-mib", "utilization", "memory-fraction"
FIGURES: Final = {
    "TESSERA_GPU_MEMORY_MIB": MEMORY_MIB,
    "TESSERA_GPU_UTILIZATION": UTILIZATION,
    "TESSERA_GPU_MEMORY_FRACTION": FRACTION,
}
LEAST_MARGIN_MIB: Final = 512  # for what a framework's own bookkeeping leaves out: context, graphs, NCCL ...
MARGIN_PERCENT: Final = 3  # ... or so much of the grant
DECIMALS: Final = 5  # of the fraction: one in the last place is less than 1 % of 1 GiB, on the largest card too
PARTS: Final = 10**DECIMALS


def environment(container: str, mode: Mode, *, has_cards: bool) -> list[dict[str, Any]]:
    """Return the environment of one container of a pod that asks for GPUs, as the API server has it."""
    if mode == "none":
        return []
    if not has_cards:
        return [{"name": VISIBLE, "value": NO_CARD}]
    # In cdi mode a runtime that honours the environment must not give all cards besides.
    devices = _told(VISIBLE, devices_key(container)) if mode == "env" else {"name": VISIBLE, "value": NO_CARD}
    return [devices, *(_told(name, figure_key(container, figure)) for name, figure in FIGURES.items())]


def _told(name: str, annotation: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{annotation}']"}}}


def told(record: Assignment, memory: Mapping[str, int], mode: Mode, *, limited: bool = False) -> dict[str, str]:
    """Return the annotations that go with a record for its containers to read.

    `memory`: MiB of each card. `limited`: a container sees its grant as the size of the card.
    """
    notes: dict[str, str] = {}
    for container, grants in record.containers.items():
        if mode == "none" or not grants:
            continue
        if mode == "cdi":
            notes[NRI + container] = ",".join(f"{CDI_CLASS}={grant.gpu}" for grant in grants)
        seen = {grant.gpu: grant.mib for grant in grants} if limited else memory
        notes |= {figure_key(container, figure): text for figure, text in _figures(grants, seen).items()}
    return notes


def _figures(grants: tuple[Grant, ...], seen: Mapping[str, int]) -> dict[str, str]:
    """Return what holds on every card of a container; what is not known, not reserved or 0 is left out.

    `seen`: MiB that each card has in the eyes of the container.
    """
    figures: dict[str, str] = {}
    if mib := min(grant.mib for grant in grants):
        figures[MEMORY_MIB] = str(mib)
        known = all(seen.get(grant.gpu) for grant in grants)
        if known and (parts := min(fraction(grant.mib, seen[grant.gpu]) for grant in grants)):
            figures[FRACTION] = f"{parts / PARTS:.{DECIMALS}f}"
    if milli := min(grant.milli for grant in grants):
        figures[UTILIZATION] = str(milli // 10)
    return figures


def fraction(granted: int, total: int) -> int:
    """Return the part of `total` MiB that a framework may claim for itself, in 1/PARTS and rounded down.

    It is what vLLM takes as --gpu-memory-utilization: of the card as the container sees it, less a margin for what is
    not in that claim. 0: the grant is no larger than the margin, or by less than one part.
    """
    margin = max(LEAST_MARGIN_MIB, -(-granted * MARGIN_PERCENT // 100))
    return max(granted - margin, 0) * PARTS // total
