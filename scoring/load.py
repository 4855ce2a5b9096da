"""A look at fleet and load: what the default policy learns from. Numbers only; nothing here prefers."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from scoring.model import CARD, Bools, Fleet, Floats, Ints, left
from scoring.potential import Load
from scoring.prices import LEVELS
from scoring.workload import Typical, Workload

POPULARITY: Final = 0.98  # share of the GPU pods that fragments are measured with


@dataclass(frozen=True, slots=True)
class Sight:
    """What was seen. Rates are per slot: a pod and one of its cards.

    `cards` [LEVELS]: cards by hundredths left, on nodes that have CPU. `sizes`, `rates` [S]: of the GPU pods.
    `large` [L]: indices into `load.typical` of pods of several cards, `large_rates` their rates. `wanted` [models]:
    how much more often a model's card is asked for than the mean, 0 for as often.
    """

    load: Load
    cards: Floats
    sizes: Ints
    rates: Floats
    large: Ints
    large_rates: Floats
    wanted: Floats
    cards_in_use: float
    cards_per_slot: float
    cpu: float  # of all nodes with cards, in thousandths of a core
    cpu_per_card: float  # asked by GPU pods, per card asked

    def hosts(self, fleet: Fleet) -> Ints:
        """Return how many pods of each large demand the fleet could take now [L]."""
        return _hosts(fleet, self.load.typical, self.large)


def look(fleet: Fleet, workload: Workload) -> Sight | None:
    """Return what is to be seen; None: no GPU pod, or no card."""
    everything, times = workload.everything()
    size = _sizes(fleet, everything)
    gpu = everything.count > 0
    asked = (times * size * everything.count)[gpu].sum() / CARD
    there = fleet.capacity.slots[: len(fleet)] > 0
    if not asked or not there.any():
        return None
    keep = _popular(times * gpu)
    large = gpu & (everything.count > 1)
    kept = np.flatnonzero(keep | large)
    typical = _part(everything, kept, np.where(keep, times, 0)[kept])
    rest = _cpu_only(everything, times, gpu)
    load = Load(
        typical,
        size[kept],
        np.zeros(len(kept)),
        *rest,
        float(times[~gpu].sum() / times.sum()),
        float((times * everything.cpu).sum() / asked),
    )
    slots = (times * np.maximum(everything.count, 1))[gpu]
    hundredths = -(-size[gpu] * (LEVELS - 1) // CARD)
    sizes = np.unique(hundredths[hundredths > 0])
    rates = np.array([slots[hundredths == s].sum() for s in sizes], np.float64)
    have = _left(fleet)
    return Sight(
        load=load,
        cards=_levels(fleet, have),
        sizes=sizes,
        rates=rates / rates.sum(),
        large=np.flatnonzero(large[kept]),
        large_rates=times[kept][large[kept]] / slots.sum(),
        wanted=_wanted(fleet, everything, times * size * everything.count / CARD),
        cards_in_use=float(there.sum() - have.sum() / CARD),
        cards_per_slot=float(asked / slots.sum()),
        cpu=float(fleet.capacity.cpu[: len(fleet)][there.any(axis=1)].sum()),
        cpu_per_card=float((times * everything.cpu)[gpu].sum() / asked),
    )


def _left(fleet: Fleet) -> Ints:
    n = len(fleet)
    have = left(fleet.free.mib[:n], fleet.free.milli[:n], fleet.capacity.mib[:n])
    return np.where(fleet.free.slots[:n] >= 1, have, 0)


def _sizes(fleet: Fleet, demands: Typical) -> Ints:
    """Return what one card of each demand takes, in thousandths: the larger of compute and memory, whose share is of
    the mean card [M]."""
    there = fleet.capacity.mib[: len(fleet)]
    mean = float(there[there > 0].mean()) if (there > 0).any() else np.inf
    by_memory = np.maximum(np.ceil(demands.mib * CARD / mean).astype(np.int64), 10 * demands.percent)
    return np.minimum(np.maximum(demands.milli, by_memory), CARD) * (demands.count > 0)


def _popular(times: Ints) -> Bools:
    """Say which demands are among the most frequent ones that make up POPULARITY of all [M]."""
    order = np.argsort(-times, kind="stable")
    reached = np.cumsum(times[order])
    kept = order[: int(np.searchsorted(reached, POPULARITY * reached[-1] - 1e-9)) + 1]
    out = np.zeros(len(times), np.bool_)
    out[kept] = True
    return out & (times > 0)


def _part(demands: Typical, kept: Ints, times: Ints) -> Typical:
    return Typical(
        times / times.sum(),
        demands.cpu[kept],
        demands.count[kept],
        demands.milli[kept],
        demands.mib[kept],
        demands.percent[kept],
        demands.exclusive[kept],
        tuple(demands.models[i] for i in kept),
    )


def _cpu_only(demands: Typical, times: Ints, gpu: Bools) -> tuple[Ints, Floats]:
    """Return the CPU of the CPU-only demands, ascending, and the share of them that each reaches."""
    cpu, back = np.unique(demands.cpu[~gpu], return_inverse=True)
    shares = np.bincount(back, weights=times[~gpu], minlength=len(cpu))
    return cpu, np.cumsum(shares) / max(shares.sum(), 1)


def _levels(fleet: Fleet, have: Ints) -> Floats:
    usable = have[fleet.free.cpu[: len(fleet)] > 0]
    level = np.minimum(usable * (LEVELS - 1) // CARD, LEVELS - 1)
    cards = np.bincount(level.ravel(), minlength=LEVELS).astype(np.float64)
    cards[0] = 0
    return cards


def _hosts(fleet: Fleet, demands: Typical, which: Ints) -> Ints:
    n = len(fleet)
    cpu = np.maximum(fleet.free.cpu[:n], 0)
    fitting: dict[tuple[object, ...], Ints] = {}
    hosts = np.zeros(len(which), np.int64)
    for i, m in enumerate(which):
        key = (demands.milli[m], demands.mib[m], demands.percent[m], demands.exclusive[m], demands.models[m])
        if key not in fitting:
            fitting[key] = _cards_that_fit(fleet, demands, m)
        hosts[i] = np.minimum(fitting[key] // demands.count[m], cpu // max(demands.cpu[m], 1)).sum()
    return hosts


def _cards_that_fit(fleet: Fleet, demands: Typical, m: int) -> Ints:
    """Return how many cards of each node fit a demand's share [N]."""
    n = len(fleet)
    free, capacity = fleet.free, fleet.capacity
    slots = np.maximum(capacity.slots[:n], 1) if demands.exclusive[m] else 1
    ok = (free.milli[:n] >= demands.milli[m]) & (free.slots[:n] >= slots)
    need = demands.mib[m]
    if demands.percent[m]:
        need = np.maximum(need, -(-np.maximum(capacity.mib[:n], 0) * demands.percent[m] // 100))
    ok &= free.mib[:n] >= need
    if demands.models[m]:
        ok &= fleet.allowed_models(demands.models[m])[fleet.model[:n]]
    return ok.sum(axis=1)


def _wanted(fleet: Fleet, demands: Typical, cards_asked: Floats) -> Floats:
    """Return for each model the cards asked per card there is, if every demand spreads evenly over the cards that
    can host it when empty; relative to the mean, minus 1 [models]."""
    n, models = len(fleet), max(len(fleet.models), 1)
    kinds, nodes = _kinds(fleet)
    mib, cards, model, cpu = kinds
    there = cards > 0
    amount = np.zeros((len(nodes), models))
    np.add.at(amount, (np.arange(len(nodes))[:, None].repeat(cards.shape[1], 1)[there], model[there]), 1)
    load = np.zeros(models)
    for m in np.flatnonzero(cards_asked):
        ok = there & (mib >= np.maximum(demands.mib[m], -(-np.maximum(mib, 0) * demands.percent[m] // 100)))
        if demands.models[m]:
            ok &= fleet.allowed_models(demands.models[m])[model]
        able = (ok.sum(axis=1) >= demands.count[m]) & (cpu >= demands.cpu[m])
        weight = (amount * (nodes * able)[:, None]).sum(axis=0)
        if weight.sum():
            load += cards_asked[m] * weight / weight.sum()
    of_model = (amount * nodes[:, None]).sum(axis=0)
    rate = load / np.maximum(of_model, 1)
    mean = (rate * of_model).sum() / max(of_model.sum(), 1)
    return np.where(of_model > 1, rate / mean - 1, 0.0) if mean and n else np.zeros(models)


def _kinds(fleet: Fleet) -> tuple[tuple[Ints, Ints, Ints, Ints], Ints]:
    """Return the kinds of nodes (cards' MiB, cards' slots, cards' models, CPU) and how many there are of each."""
    n, width = len(fleet), fleet.width
    capacity = fleet.capacity
    whole = np.hstack([capacity.mib[:n], capacity.slots[:n], fleet.model[:n], capacity.cpu[:n, None]])
    rows, nodes = np.unique(whole, axis=0, return_counts=True)
    return (rows[:, :width], rows[:, width : 2 * width], rows[:, 2 * width : 3 * width], rows[:, -1]), nodes
