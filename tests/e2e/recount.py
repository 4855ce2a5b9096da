"""An independent recount of what kubectl reads back: no code of the engine, only the rules of the semantics.

Compute in thousandths of a card, memory in MiB, as the records have them.
"""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from itertools import combinations, product
from typing import Any, Final

MIB: Final = 1 << 20
SHARERS: Final = 48


@dataclass
class Card:
    """A card's capacity and what the records take of it."""

    mib: int
    taken_mib: int = 0
    taken_milli: int = 0
    sharers: int = 0
    exclusive: int = 0

    def room(self, mib: int, milli: int, sharers: int, *, exclusive: bool) -> bool:
        """Say whether so much more fits."""
        if self.exclusive or (exclusive and self.sharers):
            return False
        return (
            self.taken_mib + mib <= self.mib
            and self.taken_milli + milli <= 1000
            and self.sharers + sharers <= SHARERS
        )


@dataclass
class Recount:
    """Cards by node and uuid, pods by fate, and every breach found."""

    cards: dict[str, dict[str, Card]]
    bound: list[dict[str, Any]] = field(default_factory=list)
    pending: list[dict[str, Any]] = field(default_factory=list)
    breaches: list[str] = field(default_factory=list)


def recount(gpunodes: str, pods: str) -> Recount:
    """Recount from what `kubectl get -o json` printed of gpunodes and pods."""
    cards = {
        item["metadata"]["name"]: {
            gpu["uuid"]: Card(gpu["memoryMiB"] - gpu.get("reservedMiB", 0)) for gpu in item["status"]["gpus"]
        }
        for item in json.loads(gpunodes)["items"]
    }
    result = Recount(cards)
    for pod in json.loads(pods)["items"]:
        if "nodeName" in pod["spec"]:
            result.bound.append(pod)
            _book(result, pod)
        else:
            result.pending.append(pod)
    for node, of_node in cards.items():
        for uuid, card in of_node.items():
            if card.taken_mib > card.mib or card.taken_milli > 1000 or card.sharers > SHARERS:
                result.breaches.append(f"{node} {uuid} is over capacity: {card}")
            if card.exclusive > 1 or (card.exclusive and card.sharers > 1):
                result.breaches.append(f"{node} {uuid} is exclusive and shared: {card}")
    return result


def _asks(pod: dict[str, Any]) -> dict[str, dict[str, str]]:
    """Return what each container asks by annotation."""
    asks: dict[str, dict[str, str]] = defaultdict(dict)
    for key, value in (pod["metadata"].get("annotations") or {}).items():
        name, _, container = key.removeprefix("tessera.gpu/").partition(".")
        if key.startswith("tessera.gpu/") and name in ("memory", "utilization", "count"):
            asks[container or pod["spec"]["containers"][0]["name"]][name] = value
    return dict(asks)


def _need(asks: dict[str, str], card: Card) -> tuple[int, int, bool]:
    """Return the MiB and thousandths that one card must give, and whether it must be empty."""
    memory, utilization = asks.get("memory"), int(asks.get("utilization", "0").removesuffix("%"))
    if memory is None and utilization in (0, 100):
        return card.mib, 1000, True
    if memory is None:
        return -(-card.mib * utilization // 100), 10 * utilization, False
    if memory.endswith("%"):
        return -(-card.mib * int(memory[:-1]) // 100), 10 * utilization, False
    return 1024 * int(memory.removesuffix("Gi")), 10 * utilization, False


def _phases(pod: dict[str, Any]) -> list[list[str]]:
    """Return the containers that run together; the tests make no sidecars."""
    spec = pod["spec"]
    return [[c["name"]] for c in spec.get("initContainers") or ()] + [[c["name"] for c in spec["containers"]]]


def _book(result: Recount, pod: dict[str, Any]) -> None:
    name, node = pod["metadata"]["name"], pod["spec"]["nodeName"]
    asks = _asks(pod)
    text = pod["metadata"].get("annotations", {}).get("tessera.gpu/assignment")
    if not asks:
        if text is not None:
            result.breaches.append(f"{name} asks for nothing and has a record")
        return
    if text is None:
        result.breaches.append(f"{name} is bound to {node} without a record")
        return
    record = json.loads(text)
    if record["node"] != node or record["uid"] != pod["metadata"]["uid"]:
        result.breaches.append(f"{name} has the record of {record['node']} {record['uid']}")
    if set(record["containers"]) != set(asks):
        result.breaches.append(f"{name} asks for {set(asks)} and got {set(record['containers'])}")
    for container, grants in record["containers"].items():
        _check_container(result, pod, container, grants, asks.get(container, {}))
    _charge(result, pod, record["containers"])


def _check_container(
    result: Recount, pod: dict[str, Any], container: str, grants: list[dict[str, Any]], asks: dict[str, str]
) -> None:
    name, of_node = f"{pod['metadata']['name']}/{container}", result.cards[pod["spec"]["nodeName"]]
    uuids = [grant["gpu"] for grant in grants]
    if len(set(uuids)) != int(asks.get("count", "1")) or len(uuids) != len(set(uuids)):
        result.breaches.append(f"{name} asks for {asks.get('count', '1')} cards and got {uuids}")
    listed = pod["metadata"]["annotations"].get(f"tessera.gpu/devices.{container}")
    if listed != ",".join(uuids):
        result.breaches.append(f"{name} lists {listed} and was granted {uuids}")
    for grant in grants:
        if grant["gpu"] not in of_node:
            result.breaches.append(f"{name} was granted {grant['gpu']}, which its node does not have")
        elif (grant["mib"], grant["milli"]) != _need(asks, of_node[grant["gpu"]])[:2]:
            result.breaches.append(f"{name} asks for {asks} and was granted {grant}")


def _charge(result: Recount, pod: dict[str, Any], containers: dict[str, list[dict[str, Any]]]) -> None:
    """Charge every card the dearest phase."""
    of_node, asks = result.cards[pod["spec"]["nodeName"]], _asks(pod)
    most: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for phase in _phases(pod):
        now: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
        for container in phase:
            for grant in containers.get(container, ()):
                for i, amount in enumerate((grant["mib"], grant["milli"], 1)):
                    now[grant["gpu"]][i] += amount
        for uuid, amounts in now.items():
            most[uuid] = [max(pair) for pair in zip(most[uuid], amounts, strict=True)]
    whole = {g["gpu"] for c, grants in containers.items() for g in grants if _need(asks[c], of_node[g["gpu"]])[2]}
    for uuid, (mib, milli, sharers) in most.items():
        if uuid in of_node:
            card = of_node[uuid]
            card.taken_mib, card.taken_milli = card.taken_mib + mib, card.taken_milli + milli
            card.sharers, card.exclusive = card.sharers + sharers, card.exclusive + (uuid in whole)


def could_go(result: Recount, pod: dict[str, Any]) -> list[str]:
    """Return the nodes whose cards would take a pending pod, found by trying every way."""
    return [node for node, cards in result.cards.items() if _fits_node(pod, list(cards.values()))]


def _fits_node(pod: dict[str, Any], cards: list[Card]) -> bool:
    asks = _asks(pod)
    ways = [list(combinations(range(len(cards)), int(a.get("count", "1")))) for a in asks.values()]
    for way in product(*ways):
        chosen = dict(zip(asks, way, strict=True))
        if all(_fits_card(pod, asks, chosen, i, card) for i, card in enumerate(cards)):
            return True
    return False


def _fits_card(
    pod: dict[str, Any], asks: dict[str, dict[str, str]], chosen: dict[str, tuple[int, ...]], i: int, card: Card
) -> bool:
    for phase in _phases(pod):
        needs = [_need(asks[c], card) for c in phase if i in chosen.get(c, ())]
        mib, milli = sum(n[0] for n in needs), sum(n[1] for n in needs)
        if needs and not card.room(mib, milli, len(needs), exclusive=any(n[2] for n in needs)):
            return False
    return True
