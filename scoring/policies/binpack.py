"""Binpack, the default: place a pod where the worth of the room that remains falls least.

The potential is in `scoring/potential.py`, its prices in `scoring/prices.py`; `docs/packing.md` explains both and
shows what each term brings. All of it is learned from the pods seen so far, off the request path.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Final

import numpy as np

from scoring.fit import Trials
from scoring.load import Sight, look
from scoring.model import CARD, Demand, Fleet, Floats, Ints
from scoring.policies.bestfit import BestFit
from scoring.policies.policy import FIRST_LOOK, LOOK_EVERY, Policy, Study
from scoring.potential import Potential, Weights
from scoring.prices import Prices, prices
from scoring.workload import Workload

MEMORY: Final = 0.8  # how much of the last prices stays at a new look, or less if they knew fewer of the pods
QUANTUM: Final = 1e-6  # scores closer than this are equal, and the first node wins
CAPABILITY: Final = 0.05  # how much more a card is worth whose model is asked for more than the mean
SCARCE: Final = (0.85, 0.95)  # CPU asked over CPU there is: CPU is no concern below, and all of it above
ROOM: Final = 4.0  # power of (hosts needed / hosts there) in the price of a host
ALARM: Final = 0.5  # hosts are priced anew when so many of them are left ...
CHECK_EVERY: Final = 8  # ... which is looked at after so many pods


class Binpack(Policy):
    """Minus the growth of the potential, in cards. While nothing is known of the load, best fit."""

    cards = "distinct"
    capability = CAPABILITY
    scarce = SCARCE
    host_price = 1.0  # of a host that is sure to be needed, as a part of its cards

    def __init__(self, _: Workload) -> None:
        self._potential: Potential | None = None
        self._value: Floats | None = None
        self._sight: Sight | None = None
        self._horizon = 0.0
        self._hosts: Ints = np.empty(0, np.int64)
        self._knew = 0  # pods, at the last look
        self._looked = 0  # pods placed until the last look
        self._departed = 0  # likewise
        self._leaving = 0.0  # pods that leave for each that comes
        self._next_look = 0
        self._looking = False

    def score(self, fleet: Fleet, demand: Demand, rows: Ints, trials: Trials) -> Floats:
        if self._potential is None:
            return BestFit().score(fleet, demand, rows, trials)
        before, after = self._potential.before_and_after(fleet, rows, trials, demand.cpu_milli)
        return -np.rint((after - before[trials.at]) / QUANTUM)

    def attend(self, fleet: Fleet, workload: Workload) -> Study | None:
        """Look at the load anew after so many pods, and at the hosts of large pods when they become few."""
        if self._looking:
            return None
        known = workload.given + workload.seen
        if known and workload.seen >= self._next_look and (workload.given or known >= FIRST_LOOK):
            wait = LOOK_EVERY if workload.given else min(known, LOOK_EVERY)
            self._next_look = workload.seen + wait
            return self._study(fleet, workload)
        if self._sight is not None and workload.seen % CHECK_EVERY == 0 and len(self._hosts):
            hosts = self._sight.hosts(fleet)
            if (hosts < ALARM * self._hosts).any():
                self._price_hosts(fleet, hosts, workload.placed, workload.running)
        return None

    def _study(self, fleet: Fleet, workload: Workload) -> Study | None:
        sight = look(fleet, workload)
        if sight is None:
            return None
        self._looking, placed, known = True, workload.placed, workload.given + workload.seen
        if placed > self._looked:
            left = min(1.0, (workload.departed - self._departed) / (placed - self._looked))
            self._leaving += 0.5 * (left - self._leaving)
        self._departed, running = workload.departed, workload.running

        def solve() -> Callable[[], None]:
            found = prices(sight.cards, sight.sizes, sight.rates)
            return lambda: self._adopt(fleet, sight, found, known, placed, running)

        return solve

    def _adopt(self, fleet: Fleet, sight: Sight, found: Prices, known: int, placed: int, running: int) -> None:
        """Put a look's outcome in force."""
        self._looking = False
        old = found.value if self._value is None else self._value
        memory = min(MEMORY, self._knew / known)
        self._value, self._knew = memory * old + (1 - memory) * found.value, known
        self._sight, self._horizon, self._looked = sight, found.horizon, placed
        self._price_hosts(fleet, sight.hosts(fleet), placed, running)

    def _price_hosts(self, fleet: Fleet, hosts: Ints, placed: int, running: int) -> None:
        """Price the ability to host each large pod by how many hosts will be needed of those that are left.

        Those that leave make room for as many, so while pods leave the horizon is that of all that run.
        """
        sight, value = self._sight, self._value
        if sight is None or value is None:
            return
        self._hosts = hosts
        horizon = max(self._horizon - (placed - self._looked), 0.0) + self._leaving * running
        need = sight.large_rates * horizon
        need = need + np.sqrt(need)
        load = sight.load
        host = np.zeros(len(load.typical))
        host[sight.large] = load.size[sight.large] * load.typical.count[sight.large] / CARD
        host[sight.large] *= self.host_price * np.minimum(1.0, need / np.maximum(hosts, 1)) ** ROOM
        scarcity = self._scarcity(sight)
        worth = self.worth(value) * (1 + self.capability * sight.wanted)[:, None] * (1 - 0.5 * scarcity)
        weights = self.weights(scarcity, sight.cpu_per_card)
        self._potential = Potential(fleet, replace(load, host=host), weights, worth)
        self.epoch += 1

    def _scarcity(self, sight: Sight) -> float:
        """Return how scarce CPU will be when the cards are full: 0 not at all, 1 wholly."""
        in_use = sight.cards_in_use + max(self._horizon, 0.0) * sight.cards_per_slot
        low, high = self.scarce
        asked = sight.load.cpu_per_card * in_use / max(sight.cpu, 1)
        return float(np.clip((asked - low) / (high - low), 0, 1))

    def worth(self, value: Floats) -> Floats:
        """Return what a card is worth by what it has left, whatever its model [LEVELS]."""
        return value

    def weights(self, scarcity: float, cpu_per_card: float) -> Weights:
        """Return the weights between those for plenty of CPU and those for scarce CPU."""
        return Weights(
            fragments=0.1 + 0.1 * scarcity,
            filled=0.4 * scarcity,
            stranded=0.1 * scarcity,
            hinges=((2 - 1.7 * scarcity, cpu_per_card), (0.6 * scarcity, 1.6 * cpu_per_card)) if cpu_per_card else (),
        )
