"""explain: why does a pod wait? Every node's reason, summed up, and the card that comes nearest. Pure.

The reasons are filter's own, from the same functions, so that no second account of what fits can differ from the
first. What other filters of kube-scheduler say about a node is not known here: it stands in the pod's conditions.
"""

from collections import Counter
from typing import Final

import numpy as np
from msgspec import Struct

from extender.pod import Request
from extender.state import ClusterState
from extender.verbs import WRONG_MODEL, why_not
from extender.wire import Pod
from extender.words import in_words, mib, percent
from scoring.fit import needs
from scoring.model import CARD, Ints
from scoring.place import UNFIT

EXAMPLES: Final = 3


class Reason(Struct, frozen=True):
    """Why some nodes do not take the pod; `examples`: the first of them."""

    reason: str
    nodes: int
    examples: list[str]


class Near(Struct, frozen=True, rename="camel"):
    """The card that comes nearest: what is free on it, what the pod wants of it. MiB and thousandths."""

    node: str
    gpu: str
    free_mib: int
    want_mib: int
    free_milli: int
    want_milli: int

    @property
    def sentence(self) -> str:
        """What is missing there, in words."""
        lack = []
        if self.want_mib > self.free_mib:
            lack.append(f"{mib(self.want_mib - self.free_mib)} of memory")
        if self.want_milli > self.free_milli:
            lack.append(f"{percent(self.want_milli - self.free_milli)} of compute")
        missing = " and ".join(lack) or "room for another pod"
        have = f"{mib(self.free_mib)} and {percent(self.free_milli)} free"
        return f"{self.gpu} on {self.node} comes nearest with {have}: it lacks {missing}."


class Explanation(Struct, frozen=True):
    """`fits`: nodes that take the pod now. `why`: the reason by node. `said`: sentences that sum it up."""

    pod: str
    asks: list[str]
    nodes: int
    fits: int
    reasons: list[Reason]
    said: list[str]
    nearest: Near | None = None
    why: dict[str, str] = {}


def explain(state: ClusterState, pod: Pod, request: Request) -> Explanation:
    """Return why a pod fits where it does and not elsewhere, as filter would answer now."""
    with state.seen_by(pod):
        rows = np.array([r for r, name in enumerate(state.fleet.names) if name in state.nodes], np.int64)
        scores = state.board(request.policy).node_scores(request.demand)
        unfit = rows[scores[rows] == UNFIT]
        texts = why_not(state, request.demand, unfit) if len(unfit) else []
        near = _nearest(state, request, unfit[[text != WRONG_MODEL for text in texts]] if texts else unfit)
    why = {state.fleet.names[row]: text for row, text in zip(unfit.tolist(), texts, strict=True)}
    reasons = [
        Reason(text, count, [name for name, of in why.items() if of == text][:EXAMPLES])
        for text, count in Counter(texts).most_common()
    ]
    fits = len(rows) - len(unfit)
    said = _said(state, request, rows, fits, near)
    where = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return Explanation(where, in_words(request), len(rows), fits, reasons, said, near, why)


def _nearest(state: ClusterState, request: Request, rows: Ints) -> Near | None:
    """Return the card that lacks least, in parts of a card, for the container that is hardest to place.

    Where a container wants several cards of a node, its last one counts.
    """
    ask, fleet = request.demand.main, state.fleet
    if ask is None or not len(rows) or ask.count > fleet.width:
        return None
    want, free, has = needs(fleet, ask, rows), fleet.free, fleet.capacity
    lack = np.maximum(want.mib - free.mib[rows], 0) / np.maximum(has.mib[rows], 1)
    lack = lack + np.maximum(want.milli - free.milli[rows], 0) / CARD + (free.slots[rows] < want.slots)
    never = (free.mib[rows] < 0) | (want.mib > has.mib[rows]) | (want.milli > has.milli[rows])
    if (allowed := fleet.eligible(request.demand, rows)) is not None:
        never |= ~allowed
    lack = np.where(never, np.inf, lack)
    cards = np.argsort(lack, axis=1, kind="stable")[:, ask.count - 1]
    of_nodes = lack[np.arange(len(rows)), cards]
    at = int(of_nodes.argmin())
    if not np.isfinite(of_nodes[at]):
        return None
    row, card = int(rows[at]), int(cards[at])
    found = (free.mib[row, card], want.mib[at, card], free.milli[row, card], want.milli)
    return Near(fleet.names[row], fleet.uuids[row][card], *map(int, found))


def _said(state: ClusterState, request: Request, rows: Ints, fits: int, near: Near | None) -> list[str]:
    if fits:
        return [f"{fits} of {len(rows)} nodes with cards take it now, by their cards."]
    said = [f"None of {len(rows)} nodes with cards takes it now."]
    ask = request.demand.main
    if near is None or ask is None:
        return said
    mib_free, milli_free = (int(np.maximum(of[rows], 0).sum()) for of in state.fleet.free[:2])
    if mib_free >= ask.count * near.want_mib and milli_free >= ask.count * near.want_milli:
        all_free = f"{mib(mib_free)} and {percent(milli_free)} of a card"
        said.append(f"All cards together have {all_free} free: the free room is in fragments.")
    return [*said, near.sentence]
