"""How a request is spelled: annotations and extended resources, each key with its sentence of refusal.

Never 0 by accident, never a silent default: what cannot be read is refused, naming key, value and what is allowed.
"""

import difflib
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from contract.names import (
    COUNT,
    DEFAULT_CONTAINER,
    DEVICES,
    MEMORY,
    MIG_PROFILE,
    MODEL,
    PER_CONTAINER,
    PER_POD,
    POLICY,
    PREFIX,
    SHARING,
    UTILIZATION,
    UUID,
    WRITTEN,
    Resources,
)
from extender.quantity import MIB, BadQuantity, quantity, whole
from extender.wire import Container, Pod
from scoring.model import WHOLE, Ask
from scoring.policies import POLICIES

MOST_CARDS: Final = 64
MOST_LISTED: Final = 64  # models or cards: every card of the cluster is compared with each
MOST_MIB: Final = 1 << 27
SHOWN: Final = 8  # containers that a refusal lists
_MODEL: Final = re.compile(r"!?[A-Za-z0-9*?][A-Za-z0-9 ._*?()/+-]{0,95}")


class BadDemand(ValueError):
    """A request that its author must change; the message is one sentence, stable from call to call."""


class AsksNothing(BadDemand):
    """Our resources are named, and 0 is all that is asked of them: where such a pod runs, it holds no card."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What one container says, per card; None: not said. Memory is in MiB or, if `percent`, in percent."""

    mib: int | None = None
    percent: int | None = None
    utilization: int | None = None
    count: int | None = None

    @property
    def says_memory(self) -> bool:
        return self.mib is not None or self.percent is not None


@dataclass(frozen=True, slots=True)
class PodRules:
    """What a pod says about all of its cards; `keys` are the annotations that said it."""

    models: tuple[str, ...] = ()
    uuids: tuple[str, ...] = ()
    policy: str | None = None
    exclusive: bool = False
    private: bool = False
    keys: tuple[str, ...] = ()


def pod_rules(pod: Pod) -> PodRules:
    """Return a pod's rules on models, cards, policy and sharing.

    Raises
    ------
    BadDemand
        Also for a key with our prefix that nobody knows.
    """
    said = _ours(pod)
    for key in said:
        _check_known(key)
    sharing = _sharing(said.get(SHARING, "any"))
    return PodRules(
        _models(said[MODEL]) if MODEL in said else (),
        _uuids(said[UUID]) if UUID in said else (),
        _policy(said[POLICY]) if POLICY in said else None,
        sharing == "none",
        sharing == "namespace",
        tuple(key for key in said if key in PER_POD),
    )


def asked_by_annotations(pod: Pod) -> dict[str, Wanted]:
    """Return what each container asks by annotation. A bare key speaks of the pod's default container.

    Raises
    ------
    BadDemand
    """
    fields: dict[str, dict[str, int]] = {}
    names = {c.name: None for c in (*(pod.spec.init_containers or ()), *(pod.spec.containers or ()))}
    for key, value in _ours(pod).items():
        bare, _, container = key.removeprefix(PREFIX).partition(".")
        if PREFIX + bare not in PER_CONTAINER:
            continue
        container = container or _default_container(pod, names)
        if container not in names:
            has = ", ".join(list(names)[:SHOWN]) + (", ..." if len(names) > SHOWN else "")
            raise BadDemand(f"{key} names the container {container!r}, which the pod does not have: it has {has}.")
        got = fields.setdefault(container, {})
        for field, number in _read(PREFIX + bare, key, value).items():
            if got.setdefault(field, number) != number:
                raise BadDemand(
                    f"{key} is {value!r}, but another annotation says otherwise for the container {container!r}."
                )
    wanted = {name: Wanted(**got) for name, got in fields.items()}
    for name, said in wanted.items():
        if said.mib is not None and said.percent is not None:
            raise BadDemand(
                f"{MEMORY} is given twice for the container {name!r}, as an amount and in percent: give one."
            )
    return wanted


def asked_by_resources(container: Container, resources: Resources, count: int | None) -> Wanted:
    """Return what a container asks by extended resources, which are totals of its cards; `count` if it is known.

    Raises
    ------
    BadDemand
    """
    found = container.resources
    said: dict[str, Any] = {**(found.requests or {}), **(found.limits or {})} if found else {}
    share = _resource(said, resources.share)
    memory, utilization = _resource(said, resources.memory), _resource(said, resources.utilization)
    cards = count or share or 1
    if share and count and share != count:
        raise BadDemand(f"{resources.share} is {share}, but {COUNT} is {count}: they must be equal.")
    if cards > MOST_CARDS:
        raise BadDemand(f"{resources.share} is {cards}, which is not a whole number from 1 to {MOST_CARDS}.")
    if memory and memory < MIB * cards:
        raise BadDemand(
            f"{resources.memory} is {memory} bytes for {cards} card(s), below 1Mi each: was a unit forgotten?"
        )
    if utilization % cards or utilization > 100 * cards:
        raise BadDemand(
            f"{resources.utilization} is {utilization} for {cards} card(s);"
            f" it must be {cards} times a whole number from 1 to 100."
        )
    mib = -(-memory // (MIB * cards)) or None
    if mib and mib > MOST_MIB:
        raise BadDemand(f"{resources.memory} is {memory} bytes, more than any card has.")
    return Wanted(mib, None, utilization // cards or None, share or None)


def check_names_nothing(containers: Iterable[Container], resources: Resources) -> None:
    """Raise AsksNothing if a container of a pod without a request names one of our resources."""
    for container in containers:
        found = container.resources
        named = {*(found.limits or ()), *(found.requests or ())} if found else set()
        for name in (resources.memory, resources.utilization, resources.share):
            if name in named:
                raise AsksNothing(f"{name} is 0, which asks for nothing: leave it out.")


def to_ask(container: str, said: Wanted, also: Wanted, *, exclusive: bool) -> Ask | None:
    """Return a container's ask from what its annotations and its resources say; None: it asks for nothing.

    Without memory it is the same percentage of the card as the utilization, and 100 % is a whole card.

    Raises
    ------
    BadDemand
        The two forms say different numbers.
    """
    if said == also == Wanted():
        return None
    _agree(container, "memory", said.mib or said.percent, also.mib, of_percent=said.percent is not None)
    _agree(container, "utilization", said.utilization, also.utilization)
    count = said.count or also.count or 1
    mib, percent = said.mib or also.mib, said.percent
    utilization = said.utilization or also.utilization
    if mib is None and percent is None:
        if utilization is None and said.count is None:
            raise BadDemand(
                f"The container {container!r} takes a place on a card and nothing of it: add memory or utilization."
            )
        if utilization in (None, 100):
            return Ask(count, WHOLE.mib, WHOLE.percent, WHOLE.milli, WHOLE.exclusive, WHOLE.whole)
        return Ask(count, 0, utilization or 0, 10 * (utilization or 0), exclusive)
    # Memory in percent is at least 1 MiB, so that a card that tells no memory is none for it.
    return Ask(count, mib or 1, percent or 0, 10 * (utilization or 0), exclusive)


def _agree(container: str, what: str, said: int | None, also: int | None, *, of_percent: bool = False) -> None:
    if said and also and (said != also or of_percent):
        why = "and a percentage has no total" if of_percent else "with different numbers"
        raise BadDemand(
            f"The container {container!r} asks for its {what} twice, by annotation and by resource, {why}:"
            " give one, or the same amount per card."
        )


def _ours(pod: Pod) -> dict[str, str]:
    """Return the annotations by which a pod speaks to us, without those that we write."""
    found = pod.metadata.annotations or {}
    return {
        key: str(value)
        for key, value in found.items()
        if key.startswith(PREFIX) and key not in WRITTEN and not key.startswith(f"{DEVICES}.")
    }


def _check_known(key: str) -> None:
    bare, dot, container = key.removeprefix(PREFIX).partition(".")
    if (PREFIX + bare in PER_CONTAINER and (container or not dot)) or (PREFIX + bare in PER_POD and not dot):
        return
    known = [name.removeprefix(PREFIX) for name in (*PER_CONTAINER, *PER_POD)]
    near = difflib.get_close_matches(bare, known, 1)
    hint = f"did you mean {PREFIX}{near[0]}?" if near else f"the keys are {', '.join(known)}."
    if dot and PREFIX + bare in PER_POD:
        hint = f"{PREFIX}{bare} speaks of the whole pod and takes no container."
    raise BadDemand(f"{key} is not an annotation of Tessera: {hint}")


def _default_container(pod: Pod, names: Collection[str]) -> str:
    named = (pod.metadata.annotations or {}).get(DEFAULT_CONTAINER)
    if named is not None and named not in names:
        raise BadDemand(f"{DEFAULT_CONTAINER} names the container {named!r}, which the pod does not have.")
    first = pod.spec.containers or ()
    return named or (first[0].name if first else "")


def _read(bare: str, key: str, value: str) -> dict[str, int]:
    if bare == MIG_PROFILE:
        raise BadDemand(f"{key} is {_cut(value)!r}, but this release places no MIG slices yet.")
    if bare == UTILIZATION:
        return {"utilization": _percent(key, value.removesuffix("%"), value)}
    if bare == COUNT:
        return {"count": _number(key, value, MOST_CARDS)}
    if value.endswith("%"):
        return {"percent": _percent(key, value.removesuffix("%"), value)}
    return {"mib": _memory(key, value)}


def _memory(key: str, value: str) -> int:
    try:
        amount = quantity(value)
    except BadQuantity as error:
        raise BadDemand(f"{key} is {_cut(value)!r}: {error}; a percentage such as 25% is allowed too.") from error
    if amount < MIB:
        hint = (
            f"was {_cut(value)}Mi or {_cut(value)}Gi meant?"
            if value.isdigit() and int(value)
            else "the least is 1Mi."
        )
        raise BadDemand(f"{key} is {_cut(value)!r}, which is below 1Mi: {hint}")
    mib = whole(amount / MIB)
    if mib > MOST_MIB:
        raise BadDemand(f"{key} is {_cut(value)!r}, more than any card has.")
    return mib


def _percent(key: str, digits: str, value: str) -> int:
    if not re.fullmatch("[0-9]{1,3}", digits) or not 1 <= int(digits) <= 100:
        raise BadDemand(f"{key} is {_cut(value)!r}, which is not a whole percentage from 1 to 100.")
    return int(digits)


def _number(key: str, value: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= most:
        raise BadDemand(f"{key} is {_cut(value)!r}, which is not a whole number from 1 to {most}.")
    return int(value)


def _cut(value: str) -> str:
    """Return what a sentence repeats of a value: it goes out once for every node."""
    return value[:128]


def _resource(said: dict[str, Any], name: str) -> int:
    value = said.get(name, 0)
    try:
        amount = quantity(value)
    except BadQuantity as error:
        raise BadDemand(f"{name} is {str(value)[:64]!r}: {error}.") from error
    if amount < 0 or amount != int(amount):
        raise BadDemand(f"{name} is {value!r}, which is not a whole number from 0.")
    return int(amount)


def _models(value: str) -> tuple[str, ...]:
    patterns = [part.strip() for part in value.split(",", MOST_LISTED)]
    if len(patterns) > MOST_LISTED or not all(map(_MODEL.fullmatch, patterns)):
        what = f'at most {MOST_LISTED} model names or globs with commas between, "!" in front excluding one'
        _refuse(MODEL, value, what)
    return tuple(pattern.lower() for pattern in patterns)


def _uuids(value: str) -> tuple[str, ...]:
    uuids = [part.strip() for part in value.split(",", MOST_LISTED)]
    if len(uuids) > MOST_LISTED or not all(re.fullmatch(r"[A-Za-z0-9-]{1,96}", uuid) for uuid in uuids):
        _refuse(UUID, value, f"at most {MOST_LISTED} GPU UUIDs with commas between")
    return tuple(sorted(set(uuids)))


def _policy(value: str) -> str:
    if value not in POLICIES:
        _refuse(POLICY, value, f"one of {', '.join(sorted(POLICIES))}")
    return value


def _sharing(value: str) -> str:
    if value not in ("any", "namespace", "none"):
        _refuse(SHARING, value, "any, namespace or none")
    return value


def _refuse(key: str, value: str, allowed: str) -> NoReturn:
    raise BadDemand(f"{key} is {_cut(value)!r}, which is not {allowed}.")
