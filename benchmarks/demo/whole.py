"""What the same batch needs when a card is given whole: the comparison, kept favourable to whole cards.

A pod takes as many cards as its widest container, so containers and phases of one pod share. The cards of pods
that ran before are taken; memory that is used by nobody known is not held against a card, and neither are the
CPU and memory of the nodes. Nobody waits for a pod that could never run.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.demo.batch import Wanted
from benchmarks.demo.drive import Outcome
from benchmarks.demo.example import Card


@dataclass(frozen=True, slots=True)
class Comparison:
    """The pods of a batch that ask for a GPU and can ever run, and what becomes of them in two ways.

    `cards_for_all` and `cards_for_placed` are the whole cards needed for all of them, and for those that Tessera
    placed, at once; `placed_whole` is how many get some when each is served in its turn.
    """

    pods: int
    placed: int
    placed_whole: int
    cards_for_all: int
    cards_for_placed: int


def compare(outcomes: Iterable[Outcome], cards: Iterable[Card], taken: set[str]) -> Comparison:
    """Return what whole cards would have meant for a batch; `taken` has the UUIDs that are in use before."""
    asked = [one for one in outcomes if one.wanted.sound and one.wanted.cards]
    free = [card for card in cards if card.healthy and card.uuid not in taken]
    placed_whole = 0
    for one in asked:
        chosen = _choose(one.wanted, free)
        placed_whole += bool(chosen)
        free = [card for card in free if card not in chosen]
    return Comparison(
        len(asked),
        sum(1 for one in asked if one.node),
        placed_whole,
        sum(one.wanted.cards for one in asked),
        sum(one.wanted.cards for one in asked if one.node),
    )


def _choose(one: Wanted, free: Sequence[Card]) -> list[Card]:
    """Return the cards for a pod, [] if there are none: the smallest that will do, where fewest are left."""
    able: dict[str, list[Card]] = {}
    for card in free:
        if card.memory_mib >= one.mib and one.selector in (None, card.node) and _allowed(one.model, card.model):
            able.setdefault(card.node, []).append(card)
    nodes = [found for found in able.values() if len(found) >= one.cards]
    best = min(nodes, key=lambda found: (found[0].memory_mib, len(found)), default=[])
    return best[: one.cards]


def _allowed(pattern: str, model: str) -> bool:
    """Say whether a card's model is what a pod of the batch wants: one of some names, not one name, or anything."""
    name = model.removeprefix("NVIDIA ")
    if pattern.startswith("!"):
        return name != pattern.removeprefix("!")
    return not pattern or name in pattern.split(", ")
