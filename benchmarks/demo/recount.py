"""The outcome as JSON, and whether its records fit: added up anew from what is written, without the engine.

    {"pods":  [{"namespace", "name", "uid", "request", "node", "record", "why"}],
     "cards": [{"node", "index", "uuid", "model", "memory_mib", "milli", "foreign_mib", "healthy",
                "promised_mib", "promised_milli", "pods"}]}

`memory_mib` and `milli` are the capacity of a card, not what is free: see `benchmarks.demo.example.Card`. The pods
include those that ran before. `record` is the pod's annotation, decoded. `request` has the annotations and the
containers that make it, which also say which containers run at the same time: a card is charged for the dearest
of a pod's phases.
"""

import json
from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

from benchmarks.demo.batch import words
from benchmarks.demo.drive import Outcome
from benchmarks.demo.example import Card
from contract.names import ASSIGNMENT, DEVICES, PREFIX

MOST_SHARERS: Final = 48

Json = dict[str, Any]
Amounts = tuple[int, int, int]  # MiB, thousandths, containers


def result(pods: Iterable[Json], outcomes: Iterable[Outcome], cards: Iterable[Card]) -> Json:
    """Return the outcome: the pods as the cluster has them now, and how much of each card is promised."""
    reasons = {outcome.wanted.uid: outcome.why for outcome in outcomes}
    shown = [_pod(pod, reasons.get(pod["metadata"]["uid"])) for pod in pods]
    held = charges(shown)
    return {
        "pods": shown,
        "cards": [
            {
                **card.as_json(),
                "promised_mib": sum(mib for mib, _, _ in held[card.uuid].values()),
                "promised_milli": sum(milli for _, milli, _ in held[card.uuid].values()),
                "pods": len(held[card.uuid]),
            }
            for card in cards
        ],
    }


def _pod(pod: Json, why: str | None) -> Json:
    meta, spec = pod["metadata"], pod["spec"]
    said = meta["annotations"] or {}
    record = said.get(ASSIGNMENT)
    ours = {
        key: value
        for key, value in said.items()
        if key.startswith(PREFIX) and key != ASSIGNMENT and not key.startswith(f"{DEVICES}.")
    }
    return {
        "namespace": meta["namespace"],
        "name": meta["name"],
        "uid": meta["uid"],
        "request": {
            "words": words(pod),
            "annotations": ours,
            "initContainers": [_container(c) for c in spec["initContainers"] or []],
            "containers": [_container(c) for c in spec["containers"] or []],
        },
        "node": spec["nodeName"] or None,
        "record": None if record is None else json.loads(record),
        "why": why,
    }


def _container(container: Json) -> Json:
    limits = (container["resources"] or {}).get("limits") or {}
    restart = container["restartPolicy"]
    return {
        "name": container["name"],
        **({"restartPolicy": restart} if restart else {}),
        **({"limits": limits} if limits else {}),
    }


def charges(pods: Iterable[Json]) -> dict[str, dict[str, Amounts]]:
    """Return what each pod takes of each card, by the card's UUID and the pod's UID."""
    held: dict[str, dict[str, Amounts]] = defaultdict(dict)
    for pod in pods:
        for phase in _phases(pod["request"]) if pod["record"] else ():
            for uuid, now in _together(pod["record"]["containers"], phase).items():
                mib, milli, count = held[uuid].get(pod["uid"], (0, 0, 0))
                held[uuid][pod["uid"]] = (max(mib, now[0]), max(milli, now[1]), max(count, now[2]))
    return held


def _phases(request: Json) -> list[list[str]]:
    """Return the containers that run at the same time: each init container with the sidecars before it, then all."""
    sidecars: list[str] = []
    phases = []
    for container in request["initContainers"]:
        if container.get("restartPolicy") == "Always":
            sidecars.append(container["name"])
        else:
            phases.append([*sidecars, container["name"]])
    return [*phases, [*sidecars, *(container["name"] for container in request["containers"])]]


def _together(containers: Json, names: list[str]) -> dict[str, Amounts]:
    total: dict[str, Amounts] = {}
    for grant in (grant for name in names for grant in containers.get(name, ())):
        mib, milli, count = total.get(grant["gpu"], (0, 0, 0))
        total[grant["gpu"]] = (mib + grant["mib"], milli + grant["milli"], count + 1)
    return total


def faults(outcome: Json, ran_before: set[str]) -> list[str]:
    """Return a sentence for every record that is not where its pod is, and every card that is promised too often.

    `ran_before` has the UIDs of the pods that need not obey what a card's health and unknown users forbid.
    """
    found = [fault for pod in outcome["pods"] if (fault := _misplaced(pod, outcome["cards"]))]
    held = charges(outcome["pods"])
    alone = {
        (grant["gpu"], pod["uid"])
        for pod in outcome["pods"]
        for grants in ((pod["record"] or {}).get("containers") or {}).values()
        for grant in grants
        if grant.get("exclusive")
    }
    for card in outcome["cards"]:
        here = held[card["uuid"]]
        what = f"Card {card['index']} of {card['node']} ({card['uuid']})"
        found += [f"{what} {fault}." for fault in _too_much(card, list(here.values()))]
        if len(here) > 1 and any((card["uuid"], uid) in alone for uid in here):
            found.append(f"{what} is shared although one of its pods is to be alone.")
        if not card["healthy"] and not set(here) <= ran_before:
            found.append(f"{what} is not healthy and got a new pod.")
    return found


def _misplaced(pod: Json, cards: list[Json]) -> str:
    record = pod["record"]
    if record is None:
        return ""
    here = {card["uuid"] for card in cards if card["node"] == pod["node"]}
    grants = [[grant["gpu"] for grant in grants] for grants in record["containers"].values()]
    if (record["node"], record["uid"]) != (pod["node"], pod["uid"]):
        return f"The record of {pod['name']} names another node or pod."
    if any(len(set(one)) != len(one) for one in grants):
        return f"The record of {pod['name']} gives one container a card twice."
    if any(uuid not in here for one in grants for uuid in one):
        return f"The record of {pod['name']} names a card that {pod['node']} does not have."
    return ""


def _too_much(card: Json, held: list[Amounts]) -> list[str]:
    mib, milli, sharers = (sum(amounts[i] for amounts in held) for i in range(3))
    room = card["memory_mib"] - card["foreign_mib"]
    found = []
    if held and mib > room:
        found.append(f"has {room} MiB to give and promises {mib}")
    if milli > card["milli"]:
        found.append(f"has {card['milli']} thousandths to give and promises {milli}")
    if sharers > MOST_SHARERS:
        found.append(f"has {sharers} containers, more than {MOST_SHARERS}")
    return found
