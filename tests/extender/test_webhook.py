"""Admission without an API server: what is added, that twice is once, and that no body is a crash."""

import base64
import copy
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from contract.names import Resources
from extender.pod import Request, request_of
from extender.request import BadDemand
from extender.webhook import Admission, BadReview, mutate, totals, validate
from extender.wire import Pod
from scoring.model import WHOLE, Ask
from tests.extender.test_app_fuzz import AMOUNT, JSON, KEYS, PODS, TEXT
from tests.extender.test_request import REFUSALS

Json = dict[str, Any]
RULES = Admission()
MORE = Admission(scheduler_name="gpu", runtime_class="nvidia")


def review(pod: Any, operation: str = "CREATE", **more: Any) -> bytes:
    """Return an AdmissionReview as an API server sends it."""
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "r1", "kind": kind, "operation": operation, "object": pod, "oldObject": None} | more
    return json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}).encode()


def answer(body: bytes, rules: Admission = RULES) -> Json:
    """Return what mutate answers, its patch decoded."""
    reply = json.loads(mutate(body, rules))
    assert (reply["apiVersion"], reply["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: Json = reply["response"]
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        response["patch"] = json.loads(base64.b64decode(response["patch"]))
    return response


def patched(pod: Any, patch: list[Json]) -> Any:
    """Apply a JSON patch of `add` operations as RFC 6902 says; a parent that is not there is an error."""
    pod = copy.deepcopy(pod)
    for operation in patch:
        assert operation["op"] == "add"
        *parents, last = (part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:])
        at = pod
        for part in parents:
            at = at[int(part)] if isinstance(at, list) else at[part]
        if isinstance(at, list):
            assert int(last) <= len(at)
            at.insert(int(last), operation["value"])
        else:
            assert isinstance(at, dict)
            at[last] = operation["value"]
    return pod


def mutated(pod: Json, rules: Admission = RULES) -> Json:
    """Return a pod as admission leaves it."""
    response = answer(review(pod), rules)
    assert response["allowed"] is True, response
    done: Json = patched(pod, response.get("patch", []))
    return done


def sentence(pod: Json, rules: Admission = RULES) -> str:
    """Return the sentence that a pod is refused with."""
    response = answer(review(pod), rules)
    assert (response["allowed"], response["status"]["code"], "patch" in response) == (False, 403, False)
    said: str = response["status"]["message"]
    return said


def pod(*containers: Json, init: list[Json] | None = None, **notes: str) -> Json:
    """Return a pod; `notes` are Tessera's annotations, `__` for a dot."""
    said = {"tessera.gpu/" + key.replace("__", ".").replace("_", "-"): value for key, value in notes.items()}
    spec: Json = {"containers": list(containers) or [{"name": "main", "resources": {}}]}
    if init:
        spec["initContainers"] = init
    return {"metadata": {"name": "p", "annotations": said}, "spec": spec}


def environment(container: Json) -> dict[str, Any]:
    return {v["name"]: v.get("value", v.get("valueFrom")) for v in container.get("env", [])}


# --- what is added -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ask", "amounts"),
    [
        (Ask(mib=4096), {"share": "1", "memory": "4096Mi"}),
        (Ask(mib=4096, milli=500), {"share": "1", "memory": "4096Mi", "utilization": "50"}),
        (Ask(2, mib=4096, milli=500), {"share": "2", "memory": "8192Mi", "utilization": "100"}),
        (Ask(2, mib=1, milli=70), {"share": "2", "memory": "2Mi", "utilization": "14"}),
        (Ask(mib=1, percent=25), {"share": "1"}),
        (Ask(percent=30, milli=300), {"share": "1", "utilization": "30"}),
        (Ask(3, WHOLE.mib, WHOLE.percent, WHOLE.milli, whole=True), {"share": "3", "utilization": "300"}),
    ],
)
def test_totals(ask: Ask, amounts: dict[str, str]) -> None:
    """A part of a card that is not chosen yet has no total of memory."""
    resources = Resources("memory", "utilization", "share")
    assert totals(ask, resources) == amounts


def test_a_pod_that_asks_by_annotation_is_completed() -> None:
    """Resources and environment for who gets a card, no card for the others, and which container a bare key means."""
    done = mutated(pod({"name": "main", "resources": {}}, {"name": "proxy"}, init=[{"name": "warm"}], memory="4Gi"))
    main, proxy = done["spec"]["containers"]
    assert main["resources"] == {"limits": {"tessera.gpu/share": "1", "nvidia.com/gpu-memory": "4096Mi"}}
    assert environment(main)["NVIDIA_VISIBLE_DEVICES"] == {
        "fieldRef": {"fieldPath": "metadata.annotations['tessera.gpu/devices.main']"}
    }
    assert len(environment(main)) == 4
    void = {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert (environment(proxy), environment(done["spec"]["initContainers"][0])) == (void, void)
    assert done["metadata"]["annotations"]["kubectl.kubernetes.io/default-container"] == "main"
    assert "resources" not in proxy


def test_what_is_there_already_stays() -> None:
    """Amounts that were said, the pod's own scheduler and class; a resource of 0 says nothing."""
    limits = {"cpu": "1", "nvidia.com/gpu-memory": "4Gi", "tessera.gpu/share": "0"}
    given = pod(
        {"name": "main", "resources": {"limits": limits, "requests": {"tessera.gpu/share": "0"}}}, memory="4Gi"
    )
    given["spec"] |= {"schedulerName": "mine", "runtimeClassName": "kata"}
    done = mutated(given, MORE)
    assert done["spec"]["containers"][0]["resources"] == {
        "limits": limits | {"tessera.gpu/share": "1"},
        "requests": {"tessera.gpu/share": "1"},
    }
    assert (done["spec"]["schedulerName"], done["spec"]["runtimeClassName"]) == ("mine", "kata")


def test_scheduler_and_class_of_the_settings() -> None:
    """They are for pods that name none, and that ask for GPUs."""
    given = pod(memory="4Gi")
    given["spec"]["schedulerName"] = "default-scheduler"
    done = mutated(given, MORE)
    assert (done["spec"]["schedulerName"], done["spec"]["runtimeClassName"]) == ("gpu", "nvidia")
    assert "patch" not in answer(review(pod()), MORE)


def test_our_variables_come_first() -> None:
    """So that the pod's own can refer to them."""
    own = {"name": "FRACTION", "value": "$(TESSERA_GPU_MEMORY_FRACTION)"}
    done = mutated(pod({"name": "main", "env": [own]}, memory="4Gi"))
    names = [variable["name"] for variable in done["spec"]["containers"][0]["env"]]
    assert names[0] == "NVIDIA_VISIBLE_DEVICES"
    assert names.index("FRACTION") == len(names) - 1


def test_a_container_that_is_injected_later_gets_no_card() -> None:
    """Even in front: the bare key goes on speaking of the container that was first before."""
    done = mutated(pod(memory="4Gi"))
    done["spec"]["containers"].insert(0, {"name": "mesh", "env": [{"name": "A", "value": "b"}]})
    again = mutated(done)
    assert environment(again["spec"]["containers"][0]) == {"NVIDIA_VISIBLE_DEVICES": "void", "A": "b"}
    assert again["spec"]["containers"][1] == done["spec"]["containers"][1]


def test_a_debugger_gets_no_card_and_older_ones_stay_as_they_are() -> None:
    """An ephemeral container comes by an update, which may not touch anything else."""
    before = pod({"name": "main"}, memory="4Gi")
    before["spec"]["ephemeralContainers"] = [{"name": "old"}]
    after = copy.deepcopy(before)
    after["spec"]["ephemeralContainers"].append({"name": "new"})
    response = answer(review(after, "UPDATE", subResource="ephemeralcontainers", oldObject=before))
    assert [operation["path"] for operation in response["patch"]] == ["/spec/ephemeralContainers/1/env"]
    after["spec"]["ephemeralContainers"][1]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert answer(review(after, "UPDATE", subResource="ephemeralcontainers", oldObject=before))["allowed"] is False


# --- refusals ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("asking", "says"), [pytest.param(p, s, id=name) for name, p, s in REFUSALS])
def test_a_request_that_cannot_be_meant_is_refused(asking: Pod, says: str) -> None:
    """With the same sentence as filter gives, by both webhooks."""
    body = review(msgspec.to_builtins(asking))
    for webhook in (mutate, validate):
        response = json.loads(webhook(body, RULES))["response"]
        assert (response["allowed"], response["status"]["message"]) == (False, says)


@pytest.mark.parametrize("value", ["all", "void", "GPU-1", ""])
def test_nobody_chooses_devices_besides(value: str) -> None:
    """Nor takes them away from the container that asks."""
    given = pod({"name": "main", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}, memory="4Gi")
    assert sentence(given).startswith("NVIDIA_VISIBLE_DEVICES is set in the container 'main': a pod that asks")


def test_another_containers_list_is_not_ones_own() -> None:
    """A field of the pod that is not this container's list of devices."""
    for path in ("metadata.annotations['tessera.gpu/devices.b']", "metadata.name"):
        stolen = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for container in ("a", "c"):
            given = pod({"name": "a"}, {"name": "b"}, {"name": "c"}, memory__a="1Gi", memory__b="1Gi")
            {c["name"]: c for c in given["spec"]["containers"]}[container]["env"] = [stolen]
            assert f"container '{container}'" in sentence(given)


def test_a_container_without_a_card_may_say_so_itself() -> None:
    """void, none and an empty value give it none."""
    for value in ("void", "none", ""):
        given = pod(
            {"name": "a"}, {"name": "b", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": value}]}, memory="1Gi"
        )
        assert mutated(given)["spec"]["containers"][1] == given["spec"]["containers"][1]


def test_names_that_the_plugins_key_has_no_room_for() -> None:
    """In cdi mode a container that asks may have 53 characters in its name, and any other 63."""
    rules = Admission(delivery="cdi")
    long = "a" * 54
    assert "may have at most 53." in sentence(pod({"name": long}, memory="4Gi"), rules)
    mutated(pod({"name": "a" * 53}, {"name": long}, memory="4Gi"), rules)
    mutated(pod({"name": long}, memory="4Gi"))


def test_what_another_webhook_undid_is_refused() -> None:
    """The last look: a pod that would run without what was added does not pass."""
    done = mutated(pod(memory="4Gi"))
    assert json.loads(validate(review(done), RULES))["response"] == {"uid": "r1", "allowed": True}
    del done["spec"]["containers"][0]["resources"]["limits"]["tessera.gpu/share"]
    response = json.loads(validate(review(done), RULES))["response"]
    assert response["status"]["message"] == (
        "Another webhook undid what Tessera had added to the pod:"
        " /spec/containers/0/resources/limits/tessera.gpu/share is not there."
    )


# --- whatever comes ------------------------------------------------------------------------------------------

ENV = st.lists(
    st.fixed_dictionaries(
        {"name": st.sampled_from(["A", "NVIDIA_VISIBLE_DEVICES", "TESSERA_GPU_MEMORY_MIB"])},
        optional={"value": st.sampled_from(["", "void", "all"]), "valueFrom": st.none() | JSON},
    ),
    max_size=3,
)
REVIEWS = st.fixed_dictionaries(
    {"uid": TEXT},
    optional={
        "kind": st.fixed_dictionaries({"group": st.just(""), "kind": st.sampled_from(["Pod", "Node"])}),
        "operation": st.sampled_from(["CREATE", "UPDATE", "DELETE", "CONNECT", ""]),
        "subResource": st.sampled_from(["", "ephemeralcontainers", "status"]),
        "object": PODS | JSON,
        "oldObject": PODS | JSON,
    },
)


@st.composite
def pods(draw: st.DrawFn) -> Json:
    """Return a pod that an API server would send: names differ, annotations and amounts are anything."""
    made: Json = draw(PODS)
    spec = made["spec"]
    for kind in ("containers", "initContainers"):
        for i, container in enumerate(spec.get(kind) or ()):
            container["name"] = f"{'ab'[i % 2]}{'' if i < 2 else i}" if kind == "containers" else f"i{i}"
            container["env"] = draw(ENV)
    made["metadata"]["annotations"] = draw(st.dictionaries(KEYS, AMOUNT, max_size=3))
    return made


def request(pod: Json) -> tuple[Request | None, str]:
    """Return what a pod asks, and the sentence if it cannot be meant."""
    try:
        return request_of(msgspec.convert(pod, Pod), Resources()), ""
    except BadDemand as refused:
        return None, str(refused)


@settings(max_examples=400, deadline=None)
@given(pods(), st.sampled_from([RULES, MORE, Admission(delivery="cdi"), Admission(delivery="none")]))
def test_what_is_mutated_asks_for_the_same_and_is_not_mutated_again(given_pod: Json, rules: Admission) -> None:
    """One look completes a pod; a second finds nothing to add, and the last webhook agrees."""
    try:
        response = answer(review(given_pod), rules)
    except BadReview:
        reject()  # of a kind that no API server sends
    asked, refused = request(given_pod)
    if refused:
        assert response["status"]["message"] == refused
    if not response["allowed"]:
        reject()
    done = patched(given_pod, response.get("patch", []))
    assert request(done) == (asked, "")
    if asked is None:
        assert "patch" not in response
    assert "patch" not in answer(review(done), rules)
    assert json.loads(validate(review(done), rules))["response"]["allowed"] is True
    for container in (*(done["spec"].get("initContainers") or ()), *(done["spec"]["containers"] or ())):
        devices = [v for v in container["env"] if v["name"] == "NVIDIA_VISIBLE_DEVICES"]
        gets = asked is not None and container["name"] in asked.containers
        if asked is not None and rules.delivery == "env" and gets:
            assert all("fieldRef" in v["valueFrom"] for v in devices)
            assert devices
        elif asked is not None:
            assert all(v.get("value", "") in ("", "void") for v in devices)
            assert devices or rules.delivery == "none"


@settings(max_examples=400, deadline=None)
@given(
    JSON.map(lambda of: json.dumps(of).encode())
    | st.binary(max_size=64)
    | REVIEWS.map(lambda of: json.dumps({"request": of}).encode())
)
def test_no_body_is_a_crash(body: bytes) -> None:
    """Whatever comes is answered with the request's own uid, or is no AdmissionReview of a pod."""
    for webhook in (mutate, validate):
        try:
            response = json.loads(webhook(body, RULES))["response"]
        except BadReview:
            continue
        assert response["uid"] == json.loads(body)["request"]["uid"]
        assert response["allowed"] or response["status"]["message"]
