"""The measure of fragmentation: how much of what is free could not be used by the next pod.

F_n of Weng et al., "Beware of Fragmentation" (USENIX ATC'23), section 4: for each typical demand, the part of a
node's free compute that a pod of that demand could not use; averaged over the demands by frequency. Extended to
two device dimensions: a card counts with what it can still give (`model.left`), and fits a demand only if its
memory, compute and slots do. With cards that tell no memory this is the paper's measure to the last bit.
"""

from dataclasses import dataclass

import numpy as np

from scoring.fit import Trials
from scoring.model import Bools, Fleet, Floats, Ints, left
from scoring.workload import Typical, allowed


@dataclass(frozen=True, slots=True)
class _Cards:
    """The state of some cards [..., C]: free amounts, capacity, model."""

    mib: Ints
    milli: Ints
    slots: Ints
    mib_capacity: Ints
    slots_capacity: Ints
    model: Ints

    def fit(self, typical: Typical, models: Bools | None) -> Bools:
        """Say for each typical demand whether each card fits it [M, ..., C]."""
        wide = (slice(None), *[None] * self.milli.ndim)
        ok: Bools = self.milli >= typical.milli[wide]
        if typical.exclusive.any():
            empty = self.slots >= np.maximum(self.slots_capacity, 1)
            ok &= np.where(typical.exclusive[wide], empty, self.slots >= 1)
        else:
            ok &= self.slots >= 1
        if typical.mib.any() or (self.mib_capacity > 0).any():
            share = -(-np.maximum(self.mib_capacity, 0) * typical.percent[wide] // 100)
            ok &= self.mib >= np.maximum(typical.mib[wide], share)
        if models is not None:
            ok &= models[:, self.model]
        return ok

    def left(self) -> Ints:
        return np.where(self.slots >= 1, left(self.mib, self.milli, self.mib_capacity), 0)


def _cards(
    fleet: Fleet, index: tuple[Ints, ...], mib: Ints | int = 0, milli: Ints | int = 0, slots: Ints | int = 0
) -> _Cards:
    return _Cards(
        fleet.free.mib[index] - mib,
        fleet.free.milli[index] - milli,
        fleet.free.slots[index] - slots,
        fleet.capacity.mib[index],
        fleet.capacity.slots[index],
        fleet.model[index],
    )


def of_nodes(fleet: Fleet, typical: Typical, rows: Ints) -> Floats:
    """Return F of some nodes as they are, in thousandths of a card."""
    before, _ = before_and_after(fleet, typical, rows, None, 0)
    return before


def before_and_after(
    fleet: Fleet, typical: Typical, rows: Ints, trials: Trials | None, cpu_milli: int
) -> tuple[Floats, Floats]:
    """Return F of some nodes as they are [R], and of each trial's node after the trial [T].

    Thousandths of a card. Only the cards that a trial touches are looked at again.
    """
    models = allowed(fleet, typical) if any(typical.models) else None
    state = _cards(fleet, (rows,))
    fit, have = state.fit(typical, models), state.left()
    count, idle = fit.sum(axis=2), have.sum(axis=1)  # [M, R], [R]
    lost = np.where(fit, 0, have).sum(axis=2)
    any_model: Bools | None = None
    if models is not None:
        any_model = np.asarray(models[:, state.model].any(axis=2, where=state.slots >= 0), np.bool_)
    before = _fragments(typical, count, lost, idle, fleet.free.cpu[rows], any_model)
    if trials is None:
        return before, np.empty(0)
    at = trials.at
    touched = (trials.rows[:, None], trials.cards)
    old = (at[:, None], trials.cards)
    new = _cards(fleet, touched, trials.mib, trials.milli, trials.slots)
    new_fit, new_have = new.fit(typical, models), new.left()
    old_fit, old_have = fit[:, *old], have[old]
    count = count[:, at] + new_fit.sum(axis=2) - old_fit.sum(axis=2)
    lost = lost[:, at] + np.where(new_fit, 0, new_have).sum(axis=2) - np.where(old_fit, 0, old_have).sum(axis=2)
    idle = idle[at] + (new_have - old_have).sum(axis=1)
    after = _fragments(
        typical,
        count,
        lost,
        idle,
        fleet.free.cpu[trials.rows] - cpu_milli,
        None if any_model is None else any_model[:, at],
    )
    return before, after


def _fragments(typical: Typical, count: Ints, lost: Ints, idle: Ints, cpu: Ints, any_model: Bools | None) -> Floats:
    """Return F [T] from, per typical demand and node, the cards that fit and what the others have left [M, T].

    The published results depend on the last bit, so the sums are made as the reference makes them: by the
    reason of the loss, within it in the order of the typical demands, then over the reasons.
    """
    cpu_ok = cpu >= typical.cpu[:, None]
    gpu_ok = count >= typical.count[:, None]
    no_gpu = (typical.count == 0)[:, None]
    known = np.ones((1, 1), np.bool_) if any_model is None else any_model
    asks = ~no_gpu & known
    everything = typical.freq[:, None] * idle
    satisfied = typical.freq[:, None] * lost
    reasons = (
        np.where(asks & ~gpu_ok & ~cpu_ok, everything, 0.0),  # lacks both
        np.where(asks & cpu_ok, np.where(gpu_ok, satisfied, everything), 0.0),  # lacks cards, or nothing
        np.where(asks & gpu_ok & ~cpu_ok, everything, 0.0),  # lacks CPU
        np.where(no_gpu & cpu_ok, everything, 0.0),  # wants no card
        np.where(no_gpu & ~cpu_ok, everything, 0.0),  # wants no card, lacks CPU
        np.where(~no_gpu & ~known, everything, 0.0),  # the node has no card of its models
    )
    total = np.zeros(len(idle))
    for reason in reasons:
        total = total + np.add.accumulate(reason, axis=0)[-1]
    return total
