"""What a pod asks, in words: the same sentence on the page, in `kubectl tessera explain` and from the service."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # what can be said without them must not wait for numpy
    from extender.pod import Request
    from scoring.model import Ask


def in_words(request: "Request") -> list[str]:
    """Return one phrase a container that asks, then what holds for the whole pod."""
    demand = request.demand
    said = [f"{name}: {_ask(ask)}" for name, ask in zip(request.containers, demand.asks, strict=True)]
    if demand.models:
        said.append(f"of the models {', '.join(demand.models)}")
    if demand.uuids:
        said.append(f"of the cards {', '.join(demand.uuids)}")
    if demand.private:
        said.append("beside pods of its own namespace alone")
    if request.policy:
        said.append(f"packed by {request.policy}")
    return said


def _ask(ask: "Ask") -> str:
    if ask.whole:
        return "1 whole card" if ask.count == 1 else f"{ask.count} whole cards"
    parts = []
    if ask.percent:
        parts.append(f"{ask.percent}% of the memory")
    elif ask.mib > 1:
        parts.append(f"{mib(ask.mib)} of memory")
    if ask.milli:
        parts.append(f"{percent(ask.milli)} of the compute")
    shared = " that nobody shares" if ask.exclusive else ""
    where = "1 card" if ask.count == 1 else f"each of {ask.count} cards"
    return f"{' and '.join(parts) or 'a place'} on {where}{shared}"


def mib(amount: int) -> str:
    """Return an amount of MiB as people write it: 512Mi, 8Gi, 22.5Gi."""
    return f"{amount}Mi" if amount < 1024 else f"{amount / 1024:.1f}".removesuffix(".0") + "Gi"


def percent(milli: int) -> str:
    """Return thousandths of a card in percent."""
    return f"{milli / 10:.1f}".removesuffix(".0") + "%"
