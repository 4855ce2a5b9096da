"""Where should this pod go? Questions only; `Fleet.take` and `Fleet.give_back` commit the answers."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from scoring.fit import charges, node_fits, trials
from scoring.model import Charge, Demand, Fleet, Floats, Ints, Placement
from scoring.policies.policy import Policy

UNFIT: Final = -np.inf
COLUMNS: Final = 8  # that an answer has on average at most: a pod may ask for hundreds of cards


@dataclass(slots=True)
class _Answer:
    """One demand's score of every node, the cards that gave it, and when it was true."""

    scores: Floats  # [N]
    chosen: NDArray[np.int16]  # [N, demand.cards]
    changes: int
    epoch: int
    open: tuple[int, ...]  # rows that have still to be looked at


class Board:
    """One policy's scores over one Fleet, kept per demand: only nodes that changed are scored again.

    `with_node`: a node also needs the CPU and memory; without it only cards count, as for an extender, which is
    asked about nodes that kube-scheduler has already found roomy enough.
    """

    def __init__(self, fleet: Fleet, policy: Policy, *, with_node: bool = True, keep: int = 512) -> None:
        self.fleet, self.policy, self._with_node, self._keep = fleet, policy, with_node, keep
        self._answers: OrderedDict[Demand, _Answer] = OrderedDict()
        self._columns = 0  # of all answers: a node takes so many cells

    def node_scores(self, demand: Demand) -> Floats:
        """Return the policy's score of every node [N], minus infinity where the demand does not fit now."""
        return self._answer(demand).scores

    def choose(self, demand: Demand, row: int) -> Placement | None:
        """Return the cards on one node that the policy prefers; None: the demand does not fit there now."""
        answer = self._answer(demand)
        if answer.scores[row] == UNFIT:
            return None
        flat = answer.chosen[row].tolist()
        cards = []
        for ask in demand.asks:
            cards.append(tuple(sorted(flat[: ask.count])))
            flat = flat[ask.count :]
        return Placement(row, tuple(cards), charge_of(self.fleet, demand, row, tuple(cards)))

    def best(self, demand: Demand) -> Placement | None:
        """Return the best placement of all, on the first of equally good nodes; None: it fits nowhere."""
        scores = self.node_scores(demand)
        if not len(scores):
            return None
        row = int(scores.argmax())
        return self.choose(demand, row)

    def looked_at_all(self, demand: Demand) -> bool:
        """Say whether the last answer about a demand left no node out: a search among many containers may."""
        answer = self._answers.get(self._key(demand))
        return answer is None or not answer.open

    def _key(self, demand: Demand) -> Demand:
        """Return the demand under which an answer is kept: where tenants ask alike they share one."""
        return demand if demand.private or self.fleet.guarded else demand.anonymous

    def _answer(self, demand: Demand) -> _Answer:
        fleet, epoch = self.fleet, self.policy.epoch
        demand = self._key(demand)
        answer = self._answers.get(demand)
        changed = fleet.changed_since(answer.changes) if answer and answer.epoch == epoch else None
        if answer is None or changed is None:
            answer = _Answer(np.empty(0), np.empty((0, demand.cards), np.int16), 0, epoch, ())
            changed = np.arange(len(fleet))
        elif answer.open:
            changed = np.union1d(changed, answer.open)
        if len(answer.scores) < len(fleet):
            answer.scores = np.concatenate([answer.scores, np.full(len(fleet) - len(answer.scores), UNFIT)])
            more = np.zeros((len(fleet) - len(answer.chosen), demand.cards), np.int16)
            answer.chosen = np.concatenate([answer.chosen, more])
        if len(changed):
            self._score(demand, changed, answer)
        answer.changes = fleet.changes
        if demand not in self._answers:
            self._columns += 1 + demand.cards
        self._answers[demand] = answer
        self._answers.move_to_end(demand)
        while len(self._answers) > self._keep or (self._columns > COLUMNS * self._keep and len(self._answers) > 1):
            oldest, _ = self._answers.popitem(last=False)
            self._columns -= 1 + oldest.cards
        return answer

    def _score(self, demand: Demand, rows: Ints, answer: _Answer) -> None:
        """Score some nodes anew, the first of a node's best trials standing for it."""
        answer.scores[rows], answer.open = UNFIT, ()
        if self._with_node:
            rows = rows[node_fits(demand, rows, self.fleet.free)]
        ways = trials(self.fleet, demand, rows, cards=self.policy.cards)
        answer.open = ways.open
        if not len(ways):
            return
        scores = self.policy.score(self.fleet, demand, rows, ways)
        best = np.full((len(rows), max(self.fleet.width, 1)), UNFIT)
        best[ways.at, ways.column] = scores
        trial = np.zeros(best.shape, np.int64)
        trial[ways.at, ways.column] = np.arange(len(ways))
        column = best.argmax(axis=1)
        here = np.arange(len(rows))
        some = best[here, column] > UNFIT
        answer.scores[rows] = best[here, column]
        answer.chosen[rows[some]] = ways.chosen[trial[here, column][some]]


def charge_of(fleet: Fleet, demand: Demand, row: int, cards: tuple[tuple[int, ...], ...]) -> Charge:
    """Return what a choice of cards takes from its node, in the Fleet's width."""
    amounts = np.zeros((3, fleet.width), np.int64)
    for card, taken in charges(fleet, demand, row, cards).items():
        amounts[:, card] = taken
    mib, milli, slots = amounts
    kind = demand.kind if demand.asks else None
    holder = (demand.tenant, demand.private) if demand.tenant or demand.private else None
    return Charge(mib, milli, slots, demand.cpu_milli, demand.ram_mib, kind, holder)
