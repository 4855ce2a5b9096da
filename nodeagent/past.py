"""What the agent before this one told of the node's cards, asked for until the API server answers.

A card that is missing now is lost, not forgotten; one that an event took out of service is not healed by a restart.
So no report goes out before this is known.
"""

import logging
import math
import threading
import time
from dataclasses import dataclass
from random import Random
from typing import Final

from contract.inventory import BadInventory, Gpu, decode
from nodeagent.api import Api, Refused, Unreachable
from nodeagent.publish import Backoff, last_told, written_at

log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Past:
    """The cards that were told, and when, in seconds since 1970 (infinite: not told)."""

    gpus: tuple[Gpu, ...] = ()
    written: float = math.inf


def recall(api: Api, node: str, stopping: threading.Event) -> Past | None:
    """Return what was told, as soon as the API server says it; None if `stopping` was set before."""
    backoff = Backoff(time.monotonic, Random())
    while not stopping.wait(backoff.left()):
        try:
            return _asked(api, node)
        except (Unreachable, Refused) as error:
            backoff.failed()
            log.warning("What was reported before is not known yet: %s", error)
    return None


def _asked(api: Api, node: str) -> Past:
    found = last_told(api, node)
    try:
        written = written_at(found)
        return Past(decode(node, found.get("status")).gpus, math.inf if written is None else written)
    except BadInventory as error:  # it will not read better the next time
        log.warning("What was reported before cannot be read, so nothing of it is known: %s", error)
        return Past()
