"""What the room on a node is worth: the potential whose growth the default policy keeps small.

    phi = fragments * F + filled * S + stranded * C + sum of hinges: w * max(0, R - cpu / r)
          - sum over cards: V[model, left] - sum over large shapes that the node can host now: H

R is what the node's cards have left. F: the part of it that GPU pods to come cannot use, as
`scoring.fragmentation` measures it. S: what would be lost if the node were filled with copies of each of them.
C: the node's CPU, in cards, that pods to come cannot use. The hinges price cards whose CPU is gone. V: what a card
with so much left is worth to the pods to come, from `scoring.prices`. H: what it is worth to be able to host a pod
of several cards. All in cards; `docs/packing.md` says why each term is there.
"""

from dataclasses import dataclass

import numpy as np

from scoring.fit import Trials
from scoring.model import CARD, Bools, Fleet, Floats, Ints, left
from scoring.workload import Typical, allowed

LEVELS = 101  # what a card has left is looked up in hundredths of it


@dataclass(frozen=True, slots=True)
class Weights:
    """The weights of the terms; `hinges` are pairs of a weight and CPU (thousandths of a core) per card."""

    fragments: float
    filled: float
    stranded: float
    hinges: tuple[tuple[float, float], ...]


@dataclass(frozen=True, slots=True)
class Load:
    """What the potential knows of the pods to come: M GPU demands and the CPU-only ones.

    `typical.freq` sums to 1 over the demands that fragments are measured with. `size` [M] is what one of their
    cards takes, in thousandths; `host` [M] the price H. `cpu_only` [K] ascending, with cumulated shares `reached`
    [K]; `share` of all pods are CPU-only; `cpu_per_card`: CPU asked by all pods for each card asked.
    """

    typical: Typical
    size: Ints
    host: Floats
    cpu_only: Ints
    reached: Floats
    share: float
    cpu_per_card: float


@dataclass(frozen=True, slots=True)
class _Cards:
    """Some cards of T nodes [C, T]; cards come first, since sums over them are what costs."""

    mib: Ints
    milli: Ints
    slots: Ints
    capacity: Ints  # MiB
    size: Ints  # slots
    model: Ints

    def left(self) -> Ints:
        return np.where(self.slots >= 1, left(self.mib, self.milli, self.capacity), 0)


@dataclass(slots=True)
class _Sums:
    """Sums over the cards of nodes: by kind of share [U, T] or in all [T]."""

    fits: Ints  # cards that fit a share
    copies: Ints  # copies of it that fit on them; without the term S the same
    usable: Ints  # left on the cards that fit, in thousandths
    idle: Ints  # left on all cards
    worth: Floats  # V of all cards


class Potential:
    """The potential for one look at the load.

    Demands that ask the same of a card are one kind of share (U), with the same number of cards one group (G): what
    differs within a group is CPU alone, and is looked up in a table by the node's CPU.
    """

    def __init__(self, fleet: Fleet, load: Load, weights: Weights, value: Floats) -> None:
        """`value` [models, LEVELS] is V, in cards."""
        self.load, self.weights, self.value = load, weights, value
        typical = load.typical
        keys = list(zip(typical.exclusive, typical.milli, typical.mib, typical.percent, typical.models, strict=True))
        kinds = sorted(set(keys), key=lambda key: (key[0], *map(int, key[1:4]), key[4]))
        self._kind_of = np.array([kinds.index(key) for key in keys], np.int64)  # [M]
        first = np.array([keys.index(kind) for kind in kinds], np.int64)
        self._shared = int((~typical.exclusive[first]).sum())  # kinds of shares come before exclusive kinds
        self._milli, self._mib = typical.milli[first][:, None], typical.mib[first][:, None]
        self._percent = typical.percent[first][:, None] if typical.percent.any() else None
        self._models = allowed(fleet, typical)[first] if any(typical.models) else None
        self._memory = bool(typical.mib.any() or (fleet.capacity.mib > 0).any())
        groups, group_of = np.unique(np.stack([self._kind_of, typical.count], 1), axis=0, return_inverse=True)
        self._group_kind, self._group_count = groups[:, 0], groups[:, 1][:, None]
        self._steps = np.unique(typical.cpu)
        self._share = self._by_cpu(group_of.ravel(), len(groups), typical.freq)
        self._host = self._by_cpu(group_of.ravel(), len(groups), load.host) if load.host.any() else None

    def _by_cpu(self, group_of: Ints, groups: int, amount: Floats) -> Floats:
        """Return what of `amount` [M] a node with so much CPU can run, by group and step of CPU [G, steps + 1]."""
        table = np.zeros((groups, len(self._steps) + 1))
        np.add.at(table, (group_of, np.searchsorted(self._steps, self.load.typical.cpu) + 1), amount)
        return table.cumsum(axis=1)

    def before_and_after(self, fleet: Fleet, rows: Ints, trials: Trials, cpu_milli: int) -> tuple[Floats, Floats]:
        """Return phi of some nodes as they are [R], and of each trial's node after the trial [T]."""
        cpu, at = fleet.free.cpu, trials.at
        free, capacity = fleet.free, fleet.capacity
        before = self._sums(
            _Cards(*(np.ascontiguousarray(a[rows].T) for a in (*free[:3], capacity.mib, capacity.slots, fleet.model)))
        )
        after = _Sums(
            before.fits[:, at], before.copies[:, at], before.usable[:, at], before.idle[at], before.worth[at]
        )
        if trials.cards.shape[1]:
            n, cards = len(trials), trials.cards.T
            touched = (np.concatenate([trials.rows, trials.rows]), np.concatenate([cards, cards], axis=1))
            both = _Cards(*(a[touched] for a in (*free[:3], capacity.mib, capacity.slots, fleet.model)))
            for amount, taken in ((both.mib, trials.mib), (both.milli, trials.milli), (both.slots, trials.slots)):
                amount[:, :n] -= taken.T
            change = self._sums(both)  # first as the cards will be, then as they are
            after.fits = after.fits + change.fits[:, :n] - change.fits[:, n:]
            after.copies = after.copies + change.copies[:, :n] - change.copies[:, n:]
            after.usable = after.usable + change.usable[:, :n] - change.usable[:, n:]
            after.idle = after.idle + change.idle[:n] - change.idle[n:]
            after.worth = after.worth + change.worth[:n] - change.worth[n:]
        return self._phi(before, cpu[rows]), self._phi(after, cpu[trials.rows] - cpu_milli)

    def _sums(self, cards: _Cards) -> _Sums:
        fit, have = self._fit(cards), cards.left()
        level = np.minimum(have * (LEVELS - 1) // CARD, LEVELS - 1)
        fits = np.add.reduce(fit.view(np.int8), axis=0)
        usable = (fit * have.astype(np.int32)[:, None, :]).sum(0)
        copies = self._copies(cards, fit).sum(0) if self.weights.filled else fits
        return _Sums(fits, copies, usable, have.sum(0), self.value[cards.model, level].sum(0))

    def _fit(self, cards: _Cards) -> Bools:
        """Say which kinds of share fit each card [C, U, T]."""
        fit = np.empty((len(cards.milli), len(self._milli), cards.milli.shape[1]), np.bool_)
        usable = np.where(cards.slots >= 1, cards.milli, -1)[:, None, :]
        empty = np.where(cards.slots >= np.maximum(cards.size, 1), cards.milli, -1)[:, None, :]
        np.greater_equal(usable, self._milli[: self._shared], out=fit[:, : self._shared])
        np.greater_equal(empty, self._milli[self._shared :], out=fit[:, self._shared :])
        if self._memory:
            fit &= cards.mib[:, None, :] >= self._need(cards)
        if self._models is not None:
            fit &= np.moveaxis(self._models[:, cards.model], 0, 1)
        return fit

    def _need(self, cards: _Cards) -> Ints:
        """Return the MiB that each kind of share needs of each card [C, U, T], or of any card [U, 1]."""
        if self._percent is None:
            return self._mib
        share = -(-np.maximum(cards.capacity, 0)[:, None, :] * self._percent // 100)
        return np.maximum(self._mib, share)

    def _copies(self, cards: _Cards, fit: Bools) -> Ints:
        """Return how many copies of each kind of share fit each card [C, U, T]."""
        copies = np.maximum(cards.milli, 0)[:, None, :] // np.maximum(self._milli, 1)
        if self._memory:
            need = self._need(cards)
            by_memory = np.maximum(cards.mib, 0)[:, None, :] // np.maximum(need, 1)
            copies = np.where(self._milli > 0, copies, by_memory)
            copies = np.where(need > 0, np.minimum(copies, by_memory), copies)
        copies[:, self._shared :] = np.minimum(copies[:, self._shared :], 1)
        return copies * fit

    def _phi(self, sums: _Sums, cpu: Ints) -> Floats:
        weights, kind = self.weights, self._group_kind
        step = np.searchsorted(self._steps, cpu, side="right")
        fits = sums.fits[kind] >= self._group_count
        can = self._share.take(step, axis=1) * fits  # the part of the pods to come that the node can take, by group
        can_all = can.sum(0)
        fragments = sums.idle - np.einsum("gt,gt->t", can, sums.usable[kind])
        phi = weights.fragments / CARD * fragments - sums.worth
        if self._host is not None:
            phi -= np.einsum("gt,gt->t", self._host.take(step, axis=1), fits)
        if weights.filled:
            phi += weights.filled / CARD * (sums.idle - self._filled(sums, cpu))
        if weights.stranded:
            phi += weights.stranded * self._stranded(can_all, cpu)
        for weight, cpu_per_card in weights.hinges:
            phi += weight * np.maximum(0, sums.idle / CARD - cpu / cpu_per_card)
        return phi

    def _filled(self, sums: _Sums, cpu: Ints) -> Floats:
        """Return what the node would use, filled with copies of a demand, in the mean over the demands [T]."""
        load, typical = self.load, self.load.typical
        by_cpu = np.maximum(cpu, 0) // np.maximum(typical.cpu, 1)[:, None]
        pods = np.minimum(sums.copies[self._kind_of] // typical.count[:, None], by_cpu)
        ok = (sums.fits[self._kind_of] >= typical.count[:, None]) & (cpu >= typical.cpu[:, None])
        return (typical.freq * load.size * typical.count) @ (pods * ok)

    def _stranded(self, can: Floats, cpu: Ints) -> Floats:
        """Return C: the node's CPU in cards, times the share of all pods that cannot come to it [T]."""
        load = self.load
        hosted = np.concatenate([[0.0], load.reached])[np.searchsorted(load.cpu_only, cpu, side="right")]
        return cpu / load.cpu_per_card * ((1 - load.share) * (1 - can) + load.share * (1 - hosted))
