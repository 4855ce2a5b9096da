"""Overpromised: Events on the pods of a card that cannot give what they hold of it together.

It takes a split brain, a record that was written by hand, or a limit that was lowered. Nobody is evicted: the card
takes no others until enough of them have ended. Each of them is told once while that lasts.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from extender.cluster import Cluster, NotDone, PerhapsDone
from extender.controllers import repeat
from extender.pod import Holding
from extender.state import ClusterState
from extender.wire import Meta, Pod

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 10.0
MOST: Final = 20  # Events in one step: one limit that is lowered may concern every pod


@dataclass(slots=True)
class Overpromised:
    """Tells the pods at a bounded pace. `may_act`: this replica leads, and has seen everything."""

    state: ClusterState
    cluster: Cluster
    may_act: Callable[[], bool]
    _told: set[tuple[str, str]] = field(default_factory=set)  # UUID of the card, UID of the pod

    async def run(self) -> None:
        """Work until cancelled."""
        await repeat(self.step, PAUSE_SECONDS)

    async def step(self) -> None:
        """Tell some of the pods that were not told yet."""
        if not self.may_act():
            return
        holders = {
            (uuid, held.uid): held
            for node, cards in self.state.overpromised.items()
            for held in self.state.on_node(node)
            for uuid in held.cards.keys() & set(cards)
        }
        self._told &= holders.keys()
        for uuid, uid in [key for key in holders if key not in self._told][:MOST]:
            if not await self._tell(uuid, holders[uuid, uid]):
                return
            self._told.add((uuid, uid))

    async def _tell(self, uuid: str, held: Holding) -> bool:
        """Write an Event about a pod; False: not now."""
        about = Pod(Meta(name=held.name, namespace=held.namespace, uid=held.uid))
        text = f"The pods on card {uuid} of {held.node} hold more of it than it can give; it takes no others."
        try:
            await self.cluster.event(about, "CardOverpromised", text, warning=True)
        except (NotDone, PerhapsDone) as error:
            log.warning("An event could not be written: %s", error)
            return False
        log.warning("%s/%s: %s", held.namespace, held.name, text)
        return True
