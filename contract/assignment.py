"""The record of a decision: which cards each container of a pod holds. An annotation of the pod.

    {"v":1,"node":"n1","uid":"<pod UID>","containers":{"trainer":[{"gpu":"GPU-…","mib":8192,"milli":700}]}}

It is written on the Binding, in one transaction with the node, and by the extender alone.
"""

import json
from dataclasses import dataclass
from typing import Any, Final

from contract.names import ASSIGNMENT, devices_key

MAJOR: Final = 1


class BadAssignment(ValueError):
    """A record that cannot be read; the message is one sentence for an administrator."""


@dataclass(frozen=True, slots=True)
class Grant:
    """A container's share of one card: memory in MiB, compute in thousandths; `exclusive`: nobody joins."""

    gpu: str
    mib: int
    milli: int
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Assignment:
    """The cards of every GPU container of one pod on one node.

    `private`: it shares its cards with pods of its own namespace alone.
    """

    node: str
    uid: str
    containers: dict[str, tuple[Grant, ...]]
    private: bool = False


def encode(assignment: Assignment) -> str:
    """Return the annotation's value: compact JSON, containers in the order they were given."""
    containers = {name: [_encode_grant(g) for g in grants] for name, grants in assignment.containers.items()}
    said = {"v": MAJOR, "node": assignment.node, "uid": assignment.uid, "containers": containers}
    return json.dumps(said | ({"private": True} if assignment.private else {}), separators=(",", ":"))


def _encode_grant(grant: Grant) -> dict[str, Any]:
    out: dict[str, Any] = {"gpu": grant.gpu, "mib": grant.mib, "milli": grant.milli}
    if grant.exclusive:
        out["exclusive"] = True
    return out


def annotations(assignment: Assignment) -> dict[str, str]:
    """Return all annotations that go with an assignment: the record, and each container's list of GPUs."""
    lists = {devices_key(name): ",".join(g.gpu for g in grants) for name, grants in assignment.containers.items()}
    return {ASSIGNMENT: encode(assignment), **lists}


def decode(text: str) -> Assignment:
    """Return the assignment in an annotation's value; unknown fields are ignored.

    Raises
    ------
    BadAssignment
        Not JSON, another major version, or a field missing or of a wrong type.
    """
    try:
        raw = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadAssignment("The assignment is not JSON.") from error
    if not isinstance(raw, dict) or raw.get("v") != MAJOR or isinstance(raw["v"], bool):
        version = raw.get("v") if isinstance(raw, dict) else None
        raise BadAssignment(f"The assignment has version {version!r}; this release reads version {MAJOR}.")
    node, uid, containers = raw.get("node"), raw.get("uid"), raw.get("containers")
    if not isinstance(node, str) or not isinstance(uid, str) or not isinstance(containers, dict):
        raise BadAssignment("The assignment lacks its node, uid or containers.")
    grants = {name: _decode_grants(name, of) for name, of in containers.items()}
    return Assignment(node, uid, grants, raw.get("private") is True)


def _decode_grants(container: str, raw: Any) -> tuple[Grant, ...]:
    if not isinstance(raw, list):
        raise BadAssignment(f"The assignment of container {container} is not a list of cards.")
    grants = tuple(_decode_grant(container, item) for item in raw)
    if len({grant.gpu for grant in grants}) != len(grants):
        raise BadAssignment(f"The assignment of container {container} names a card twice.")
    return grants


def _decode_grant(container: str, raw: Any) -> Grant:
    if not isinstance(raw, dict) or not isinstance(raw.get("gpu"), str) or not raw["gpu"]:
        raise BadAssignment(f"The assignment of container {container} has a card without a uuid.")
    for key in ("mib", "milli"):
        value = raw.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 2**53:
            raise BadAssignment(
                f"The assignment of container {container} has {key} {value!r}, not a whole number from 0."
            )
    return Grant(raw["gpu"], raw["mib"], raw["milli"], raw.get("exclusive") is True)
