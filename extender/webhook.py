"""Admission: a pod that asks by annotation gets resources and environment, and one that cannot be meant a sentence.

Pure: AdmissionReview in, AdmissionReview out. What is there already is left alone, so a second look, after another
webhook's, adds only what that one made necessary.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import msgspec

from contract.names import DEFAULT_CONTAINER, PER_CONTAINER, Resources
from extender.admission_wire import (
    AdmittedContainer,
    AdmittedPod,
    Answer,
    Asked,
    EnvVar,
    Reply,
    Status,
    admitted_decoder,
    review_decoder,
)
from extender.delivery import HARMLESS, MOST_NRI, VISIBLE, Mode, environment
from extender.pod import asks_us, request_of
from extender.quantity import quantity
from extender.request import BadDemand
from extender.wire import Pod, encode
from scoring.model import Ask

FORBIDDEN: Final = 403
USUAL_SCHEDULER: Final = "default-scheduler"

T = TypeVar("T")
Patch = list[dict[str, Any]]

_pod_decoder: Final = msgspec.json.Decoder(Pod)


class BadReview(ValueError):
    """Not an AdmissionReview of a pod; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Admission:
    """What admission goes by. An empty name: it is left to the pod."""

    resources: Resources = field(default_factory=Resources)
    delivery: Mode = "env"
    scheduler_name: str = ""
    runtime_class: str = ""


def mutate(body: bytes, rules: Admission) -> bytes:
    """Answer with a JSON patch that completes the pod, or with a refusal.

    Raises
    ------
    BadReview
    """

    def completed(asked: Asked, patch: Patch) -> Answer:
        answer = Answer(asked.uid, allowed=True)
        if patch:
            answer.patch, answer.patch_type = encode(patch), "JSONPatch"
        return answer

    return _answer(body, rules, completed)


def validate(body: bytes, rules: Admission) -> bytes:
    """Answer whether the pod may pass, after all webhooks: it has to be what `mutate` would leave as it is.

    Raises
    ------
    BadReview
    """

    def complete(asked: Asked, patch: Patch) -> Answer:
        if not patch:
            return Answer(asked.uid, allowed=True)
        changed = patch[0]["path"].replace("~1", "/")
        return _refusal(asked, f"Another webhook undid what Tessera had added to the pod: {changed} is not there.")

    return _answer(body, rules, complete)


def totals(ask: Ask, resources: Resources) -> dict[str, str]:
    """Return what a container asks for as extended resources: totals of its cards.

    A part of a card whose size is not known yet has no total of memory.
    """
    found = {resources.share: str(ask.count)}
    if ask.mib and not ask.percent:
        found[resources.memory] = f"{ask.count * ask.mib}Mi"
    if ask.milli:
        found[resources.utilization] = str(ask.count * ask.milli // 10)
    return found


def _read(decoder: "msgspec.json.Decoder[T]", body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadReview(f"The body is no AdmissionReview of a pod: {error}.") from error


def _answer(body: bytes, rules: Admission, judge: Callable[[Asked, Patch], Answer]) -> bytes:
    """Return what `judge` makes of the patch that the pod needs, or the refusal of a request that cannot be meant."""
    asked = _read(review_decoder, body).request
    try:
        answer = judge(asked, _patch(asked, rules))
    except BadDemand as error:
        answer = _refusal(asked, str(error))
    return encode(Reply(answer))


def _refusal(asked: Asked, sentence: str) -> Answer:
    return Answer(asked.uid, allowed=False, status=Status(FORBIDDEN, sentence))


def _patch(asked: Asked, rules: Admission) -> Patch:
    """Return what a pod lacks. Raises BadDemand, BadReview."""
    if (asked.kind.group, asked.kind.kind) != ("", "Pod") or asked.operation not in ("CREATE", "UPDATE"):
        return []
    pod, admitted = _read(_pod_decoder, bytes(asked.object)), _read(admitted_decoder, bytes(asked.object))
    assert admitted is not None  # null is no Pod, which the line above said
    if asked.sub_resource == "ephemeralcontainers":
        return _debuggers(pod, admitted, _read(admitted_decoder, bytes(asked.old_object)), rules)
    if asked.operation != "CREATE" or asked.sub_resource:
        return []
    request = request_of(pod, rules.resources)
    if request is None:
        return []
    asks = dict(zip(request.containers, request.demand.asks, strict=True))
    patch: Patch = []
    for path, container in _containers(admitted):
        ask = asks.get(container.name)
        if ask is not None:
            _check_name(container.name, rules)
            patch += _resources(path, container, totals(ask, rules.resources))
        patch += _environment(path, container, rules, has_cards=ask is not None)
    return patch + _whole_pod(pod, admitted, rules)


def _debuggers(pod: Pod, admitted: AdmittedPod, before: AdmittedPod | None, rules: Admission) -> Patch:
    """Return what new ephemeral containers lack: they get no card, and the others cannot be changed any more."""
    if not asks_us(pod, rules.resources):
        return []
    old = {container.name for container in (before and before.spec.ephemeral_containers) or ()}
    patch: Patch = []
    for i, container in enumerate(admitted.spec.ephemeral_containers or ()):
        if container.name not in old:
            patch += _environment(f"/spec/ephemeralContainers/{i}", container, rules, has_cards=False)
    return patch


def _containers(pod: AdmittedPod) -> Iterator[tuple[str, AdmittedContainer]]:
    for kind, containers in (("initContainers", pod.spec.init_containers), ("containers", pod.spec.containers)):
        for i, container in enumerate(containers or ()):
            yield f"/spec/{kind}/{i}", container


def _check_name(container: str, rules: Admission) -> None:
    if rules.delivery == "cdi" and len(container) > MOST_NRI:
        raise BadDemand(
            f"The container {container!r} asks for a GPU, and its name has {len(container)} characters:"
            f" in this cluster such a container's name may have at most {MOST_NRI}."
        )


def _resources(path: str, container: AdmittedContainer, wanted: dict[str, str]) -> Patch:
    found = container.resources
    limits, requests = (found.limits or {}, found.requests or {}) if found else ({}, {})
    # A resource of 0 says nothing, as none does; what is asked already stands for the same amount.
    missing = {n: v for n, v in wanted.items() if not quantity(limits.get(n, 0)) and not quantity(requests.get(n, 0))}
    if not missing:
        return []
    zeros = [_add(f"{path}/resources/requests", n, v) for n, v in missing.items() if n in requests]
    if found is None:
        return [_add(path, "resources", {"limits": missing})]
    if not limits:
        return [_add(f"{path}/resources", "limits", missing), *zeros]
    return [_add(f"{path}/resources/limits", n, v) for n, v in missing.items()] + zeros


def _environment(path: str, container: AdmittedContainer, rules: Admission, *, has_cards: bool) -> Patch:
    wanted = environment(container.name, rules.delivery, has_cards=has_cards)
    there = container.env or []
    for variable in there:
        if variable.name == VISIBLE and not _is_ours(variable, wanted, has_cards=has_cards):
            raise BadDemand(
                f"{VISIBLE} is set in the container {container.name!r}:"
                " a pod that asks Tessera for GPUs gets it from Tessera, so leave it out."
            )
    missing = [variable for variable in wanted if variable["name"] not in {v.name for v in there}]
    if not there:
        return [_add(path, "env", missing)] if missing else []
    # In front, so that the pod's own variables can refer to them.
    return [_add(f"{path}/env", "0", variable) for variable in reversed(missing)]


def _is_ours(variable: EnvVar, wanted: list[dict[str, Any]], *, has_cards: bool) -> bool:
    """Say whether NVIDIA_VISIBLE_DEVICES is as we set it, or names no card where none is given."""
    ours = wanted[0] if wanted else {}
    if variable.value_from is not None:
        path = _field(variable.value_from)
        return path is not None and path == _field(ours.get("valueFrom"))
    value = variable.value or ""
    return value == ours.get("value") if has_cards and wanted else value in HARMLESS


def _field(source: Any) -> Any:
    reference = source.get("fieldRef") if isinstance(source, dict) else None
    return reference.get("fieldPath") if isinstance(reference, dict) else None


def _whole_pod(pod: Pod, admitted: AdmittedPod, rules: Admission) -> Patch:
    patch, notes, spec = [], pod.metadata.annotations or {}, admitted.spec
    if any(key in notes for key in PER_CONTAINER) and DEFAULT_CONTAINER not in notes and spec.containers:
        # Whatever is put in front of the first container later, a bare key goes on speaking of this one.
        patch.append(_add("/metadata/annotations", DEFAULT_CONTAINER, spec.containers[0].name))
    scheduler = rules.scheduler_name
    if scheduler and scheduler != spec.scheduler_name and (spec.scheduler_name or USUAL_SCHEDULER) == USUAL_SCHEDULER:
        patch.append(_add("/spec", "schedulerName", scheduler))
    if rules.runtime_class and not spec.runtime_class_name:
        patch.append(_add("/spec", "runtimeClassName", rules.runtime_class))
    return patch


def _add(parent: str, key: str, value: Any) -> dict[str, Any]:
    """Return the operation that puts a value under a key, whatever is there."""
    return {"op": "add", "path": f"{parent}/{key.replace('~', '~0').replace('/', '~1')}", "value": value}
