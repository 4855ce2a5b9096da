"""What gets in and what does not, on a real API server: every sentence, with our servers up and down."""

import json
import random
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import msgspec
import pytest
import yaml
from cryptography import x509

from contract.names import WEBHOOKS
from extender.controllers.certificates import LIFETIME, make
from extender.wire import Pod
from tests.e2e.admitted import PODS, Json, Stage, admitted, apply, webhooks
from tests.e2e.controlplane.api import MERGE, STRATEGIC, ApiError, fetch
from tests.e2e.controlplane.cluster import KubectlError
from tests.e2e.controlplane.waiting import wait_until
from tests.extender.test_request import REFUSALS

pytestmark = pytest.mark.e2e

# The API server reads quantities before it asks anybody.
NOT_OURS: Final = {"a resource that is no quantity": "quantities must match the regular expression"}
API_SERVERS_TOO: Final = {"a resource below nothing", "half a resource"}  # if we did not
# What the policies do not say: it would take arithmetic over both ways of asking.
WEBHOOK_ALONE: Final = {
    name
    for name, asking, _ in REFUSALS
    if name.startswith(("both forms", "two numbers", "an amount"))
    or (not asking.metadata.annotations and asking.spec.containers and asking.spec.containers[0].resources)
} - {"nothing of a resource"}


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Ten nodes, everything in force."""
    with admitted(nodes=10) as running:
        yield running


def pod(name: str, env: list[Json] | None = None, spec: Json | None = None, **notes: str) -> Json:
    """Return a pod with the container `main`; `notes`: Tessera's annotations, `__` for a dot."""
    said = {"tessera.gpu/" + key.replace("__", "."): value for key, value in notes.items()}
    container = {"name": "main", "image": "none"} | ({"env": env} if env else {})
    meta = {"name": name, "annotations": said}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [container]} | (spec or {})}


def sent(asking: Pod) -> Json:
    """Return a pod of the unit tests as somebody would apply it."""
    made: Json = msgspec.to_builtins(asking)
    containers = {kind: made["spec"][kind] for kind in ("containers", "initContainers") if made["spec"][kind]}
    for container in (c for of in containers.values() for c in of):
        for key in [key for key, value in container.items() if value is None]:
            del container[key]
        container["image"] = "none"
    meta = {"name": "refused", "annotations": made["metadata"]["annotations"] or {}}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": containers}


# --- sentences ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "asking", "sentence"), [pytest.param(*row, id=row[0]) for row in REFUSALS])
def test_a_refusal_shows_its_sentence(stage: Stage, name: str, asking: Pod, sentence: str) -> None:
    """In kubectl apply, and the same in a server-side dry run."""
    text = yaml.safe_dump(sent(asking), allow_unicode=True)
    for more in ((), ("--dry-run=server",)):
        with pytest.raises(KubectlError) as refused:
            stage.plane.kubectl("apply", "-f", "-", *more, stdin=text)
        assert NOT_OURS.get(name, sentence) in refused.value.stderr


def test_without_any_server_of_ours_the_policies_refuse(stage: Stage) -> None:
    """All that one request's text shows to be wrong, naming the key; and every policy's CEL passes the type check."""
    checker = stage.plane.start_controllers("validatingadmissionpolicy-status-controller")
    kinds = ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration")
    for kind in kinds:
        stage.plane.kubectl("delete", kind, WEBHOOKS)
    try:
        wait_until(lambda: completed(stage) is False, "they are gone")
        missed = {name for name, asking, _ in REFUSALS if not stage.refusal(sent(asking))}
        assert missed == WEBHOOK_ALONE - set(NOT_OURS) - API_SERVERS_TOO
        for name, asking, sentence in REFUSALS:
            if name not in missed and name not in NOT_OURS:
                assert sentence.split(" ")[0] in stage.refusal(sent(asking)), name
        longest = ",".join(f"{i:096d}" for i in range(64))
        assert stage.refusal(pod("fine", memory="1Gi", uuid=longest, model=longest)) == ""
        for many in (",".join("A" * 65), ",".join("A" * 120_000)):
            for listing in (pod("x", memory="1Gi", uuid=many), pod("x", memory="1Gi", model=many)):
                assert " at most 64 " in stage.refusal(listing)
        for fine in (pod("fine", memory="25%", utilization="007", count="1"), pod("fine", memory="1e9")):
            assert stage.refusal(fine) == ""
    finally:
        restore(stage)
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def checked() -> list[Json]:
        items: list[Json] = json.loads(stage.plane.request("GET", path))["items"]
        return items if all("typeChecking" in item.get("status", {}) for item in items) else []

    for policy in wait_until(checked, "the policies' types are checked"):
        assert policy["status"]["typeChecking"] == {}, policy["metadata"]["name"]
    checker.stop()


def restore(stage: Stage) -> None:
    """Put the webhooks back, and wait until the leader has told by which certificate to know them."""
    apply(stage.plane, webhooks(stage.door))
    wait_until(lambda: completed(stage), "the webhooks answer")


def completed(stage: Stage) -> bool | None:
    """Say whether the webhooks complete a pod; None while it is refused."""
    try:
        made = stage.dry(pod("probe", memory="1Gi"))
    except ApiError:
        return None
    return "env" in made["spec"]["containers"][0]


# --- who may change what -----------------------------------------------------------------------------------


def test_what_a_pod_asks_for_stays(stage: Stage) -> None:
    """Neither the request nor the container that it means; nor can a pod that asked for nothing begin to ask."""
    stage.create(pod("stays", memory="1Gi", utilization="10%"))
    stage.create(pod("plain"))
    # By resources, in an init container alone, and without a record.
    asking = resource_pod("warms")["spec"]["containers"]
    others = {"containers": [{"name": "c", "image": "none"}], "schedulerName": "nobody"}
    warms = pod("warms", spec={"initContainers": asking, **others})
    stage.create(warms)
    changes: list[tuple[str, dict[str, str | None]]] = [
        ("stays", {"tessera.gpu/memory": "2Gi"}),
        ("stays", {"tessera.gpu/memory": None}),
        ("stays", {"tessera.gpu/model": "T4"}),
        ("stays", {"kubectl.kubernetes.io/default-container": None}),
        ("stays", {"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
        ("stays", {"tessera.gpu/assignment": "{}"}),
        ("plain", {"tessera.gpu/memory": "1Gi"}),
        ("warms", {"cdi.k8s.io/x": "nvidia.com/gpu=all"}),
    ]
    for name, change in changes:
        for sub in ("", "/status"):
            with pytest.raises(ApiError, match=r"cannot be changed|Only the Tessera extender"):
                annotate(stage, name, change, sub)
    annotate(stage, "stays", {"example.com/team": "red"})
    annotate(stage, "plain", {"kubectl.kubernetes.io/default-container": "main"})


def annotate(stage: Stage, name: str, notes: dict[str, str | None], sub: str = "") -> None:
    """Merge annotations into a pod as the administrator."""
    path = f"{PODS.format('default')}/{name}{sub}"
    stage.plane.request("PATCH", path, {"metadata": {"annotations": notes}}, content_type=MERGE)


def test_nobody_chooses_devices_behind_our_back(stage: Stage) -> None:
    """By environment, by annotation, by mount, by a node's name, or on a Binding."""
    stage.create(pod("waits", spec={"containers": [{"name": "main", "image": "none"}], "schedulerName": "nobody"}))
    target = {"target": {"apiVersion": "v1", "kind": "Node", "name": "node-000"}}
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    assert "NVIDIA_VISIBLE_DEVICES is set in the container 'main'" in stage.refusal(pod("x", env, memory="1Gi"))
    for key in ("nvidia.cdi.k8s.io/container.main", "cdi.k8s.io/x"):
        asking = pod("x", memory="1Gi")
        asking["metadata"]["annotations"][key] = "nvidia.com/gpu=all"
        assert f"{key} is set" in stage.refusal(asking)
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "waits", "annotations": {key: "v"}}}
        with pytest.raises(ApiError, match="may bind a pod with annotations that name devices"):
            stage.plane.request("POST", f"{PODS.format('default')}/waits/binding", binding | target)
    for path in MOUNTS:
        asking = pod("x", spec=mounted(path), memory="1Gi")
        assert "A volume is mounted at /var/run/nvidia-container-devices" in stage.refusal(asking), path
    asking = pod("x", spec={"nodeName": "node-000"}, memory="1Gi")
    assert "spec.nodeName is 'node-000', but a pod that asks for GPUs" in stage.refusal(asking)


MOUNTS: Final = [f"{at}/nvidia-container-devices/0" for at in ("/var/run", "/var/run/", "/var/run/.", "/run")]


def mounted(path: str) -> Json:
    """Return the spec of a pod with a volume there."""
    container = {"name": "main", "image": "none", "volumeMounts": [{"name": "v", "mountPath": path}]}
    return {"containers": [container], "volumes": [{"name": "v", "emptyDir": {}}]}


def test_a_namespace_may_keep_its_pods_off_the_cards(stage: Stage) -> None:
    """With the label, a pod that does not ask us gets no card by hand; without it that is not our business."""
    label = {"tessera.gpu/guard": "true"}
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "guarded", "labels": label}}
    apply(stage.plane, [space])
    apply(
        stage.plane,
        [
            {
                "apiVersion": "node.k8s.io/v1",
                "kind": "RuntimeClass",
                "metadata": {"name": "nvidia"},
                "handler": "nvidia",
            }
        ],
    )
    env = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    cdi = pod("x")
    cdi["metadata"]["annotations"]["cdi.k8s.io/x"] = "nvidia.com/gpu=all"
    for asking, says in (
        (pod("x", env), "NVIDIA_VISIBLE_DEVICES is set in the container 'main': in this namespace ask for GPUs by"),
        (pod("x", spec={"runtimeClassName": "nvidia"}), "runtimeClassName is 'nvidia', but the pod asks for no GPU"),
        (cdi, "cdi.k8s.io/x is set: in this namespace"),
        *((pod("x", spec=mounted(path)), "nvidia-container-devices: in this namespace") for path in MOUNTS),
    ):
        wait_until(lambda a=asking, s=says: s in stage.refusal(a, namespace="guarded"), says)  # type: ignore[misc]
        assert stage.refusal(asking) == ""
    for asking in (pod("x"), pod("x", spec={"runtimeClassName": "nvidia"}, memory="1Gi")):
        assert stage.refusal(asking, namespace="guarded") == ""
    for name in AMOUNTS:
        amounts = {"name": "main", "image": "none", "resources": {"limits": {name: "0"}}}
        asking = pod("x", spec={"containers": [amounts], "runtimeClassName": "nvidia"})
        assert f"{name} is 0, which asks for nothing" in stage.refusal(asking, namespace="guarded")


def test_a_guarded_pod_gets_no_card_later(stage: Stage) -> None:
    """No note for CDI, through pods or their status, nor a debugger with cards; an older pod goes on as it is."""
    space: Json = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "guarded-later"}}
    apply(stage.plane, [space])
    older = pod("older", [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}])
    older["metadata"]["annotations"] = {"cdi.k8s.io/x": "nvidia.com/gpu=0"}
    stage.create(older, namespace="guarded-later")
    space["metadata"]["labels"] = {"tessera.gpu/guard": "true"}
    apply(stage.plane, [space])
    like = older | {"metadata": older["metadata"] | {"name": "like"}}
    wait_until(lambda: "in this namespace" in stage.refusal(like, namespace="guarded-later"), "it is guarded")
    stage.create(pod("newer"), namespace="guarded-later")

    def change(name: str, body: Json, sub: str = "") -> None:
        path = f"{PODS.format('guarded-later')}/{name}{sub}"
        stage.plane.request("PATCH", path, body, content_type=STRATEGIC)

    def debugger(name: str, **more: object) -> Json:
        return {"spec": {"ephemeralContainers": [{"name": name, "image": "none"} | more]}}

    for name in ("newer", "older"):
        for sub in ("", "/status"):
            for key in ("cdi.k8s.io/x", "nvidia.cdi.k8s.io/container.main"):
                with pytest.raises(ApiError, match=f"{key} is set: in this namespace"):
                    change(name, {"metadata": {"annotations": {key: "nvidia.com/gpu=all"}}}, sub)
            change(name, {"metadata": {"annotations": {"example.com/team": f"red{sub}"}}}, sub)
        change(name, {"status": {"phase": "Running"}}, "/status")
        with pytest.raises(ApiError, match="NVIDIA_VISIBLE_DEVICES is set in the container 'taker'"):
            change(
                name,
                debugger("taker", env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
                "/ephemeralcontainers",
            )
        change(name, debugger("first"), "/ephemeralcontainers")
        change(name, debugger("second"), "/ephemeralcontainers")
    change("older", {"metadata": {"annotations": {"cdi.k8s.io/x": None}}})


def test_a_deployments_template_is_refused_when_its_pod_is_made(stage: Stage) -> None:
    """With an event on its ReplicaSet that has the sentence."""
    stage.plane.start_controllers("deployment-controller", "replicaset-controller", name="deployments")
    template = pod("", memory="4096")
    template = {
        "metadata": {"labels": {"app": "d"}} | {"annotations": template["metadata"]["annotations"]},
        "spec": template["spec"],
    }
    spec = {"selector": {"matchLabels": {"app": "d"}}, "template": template}
    apply(stage.plane, [{"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"}, "spec": spec}])
    says = "tessera.gpu/memory is '4096', which is below 1Mi: was 4096Mi or 4096Gi meant?"

    def events() -> list[str]:
        items = json.loads(stage.plane.request("GET", "/api/v1/namespaces/default/events"))["items"]
        return [e["message"] for e in items if e["reason"] == "FailedCreate" and says in e["message"]]

    wait_until(events, "an event has the sentence")


# --- whatever is asked -------------------------------------------------------------------------------------

VALUES: Final = {  # two that are right, and then those that are not
    "memory": ["4Gi", "25%", "0", "4096", "x"],
    "utilization": ["50%", "7", "0", "101%"],
    "count": ["1", "2", "0", "65"],
    "model": ["T4", "!A10, L4", ","],
    "policy": ["spread", "binpack", "best"],
    "sharing": ["none", "any", "some"],
    "uuid": ["GPU-1", "GPU-1,GPU-2", "_"],
}
AMOUNTS: Final = {
    "nvidia.com/gpu-memory": ["4Gi", "8Gi", "0", "4096", "3000Mi"],
    "nvidia.com/gpu-utilization": ["50", "100", "200", "0", "75"],
    "tessera.gpu/share": ["1", "2", "0", "100"],
}


def drawn(draw: random.Random) -> Json:
    """Return a pod that the API server would take without us: any request, right or wrong."""

    def container(name: str) -> Json:
        limits = {key: draw.choice(of) for key, of in AMOUNTS.items() if draw.random() < 0.05}
        names = draw.sample(["A", "B", "NVIDIA_VISIBLE_DEVICES", "TESSERA_GPU_MEMORY_MIB"], draw.randrange(3))
        env = [{"name": n, "value": draw.choice(["void", "void", "", "$(A)"])} for n in names]
        return (
            {"name": name, "image": "none"}
            | ({"env": env} if env else {})
            | ({"resources": {"limits": limits}} if limits else {})
        )

    names = ["main", "side", "a" * 63][: draw.randrange(1, 4)]
    init = ["warm", "sidecar"][: draw.randrange(3)]
    notes: dict[str, str] = {}
    for key, values in VALUES.items():
        if draw.random() < (0.5 if key in ("memory", "utilization") else 0.1):
            where = draw.choice(["", "", *(f".{name}" for name in (*names, *init, "nobody") if len(name) < 50)])
            notes[f"tessera.gpu/{key}{where}"] = draw.choice(values[: draw.choice([2, 2, 2, len(values)])])
    spec: Json = {"containers": [container(name) for name in names]}
    if init:
        spec["initContainers"] = [
            container(n) | ({"restartPolicy": "Always"} if n == "sidecar" else {}) for n in init
        ]
    return {"metadata": {"generateName": "drawn-", "annotations": notes}, "spec": spec}


def test_no_mutation_is_refused_by_the_api_server(stage: Stage) -> None:
    """Of a thousand pods, each is taken, or refused by a sentence of ours; and the service has not stumbled."""
    draw, taken, refused = random.Random(6), 0, 0
    for _ in range(1000):
        asking = drawn(draw)
        said = stage.refusal(asking)
        assert not said or "denied the request: " in said or "denied request: " in said, (said, asking)
        taken, refused = taken + (not said), refused + bool(said)
    print(f"{taken} pods taken, {refused} refused; {within(stage)}")
    assert min(taken, refused) > 200
    assert "Traceback" not in stage.extender.log.read_text()


def within(stage: Stage) -> str:
    """Return how many of the webhooks' answers took no longer than they should, by the extender's own account."""
    lines = fetch(f"{stage.extender.url}/metrics").splitlines()
    told = [line for line in lines if "request_duration_seconds_bucket" in line and 'verb="mutate"' in line]
    soon, whole = (next(line.split()[-1] for line in told if f'le="{le}"' in line) for le in ("0.05", "+Inf"))
    return f"{soon} of {whole} answers within 50 ms"


# --- certificates, and servers that are away ---------------------------------------------------------------


def secret(stage: Stage) -> Json:
    """Return the Secret that keeps the certificate."""
    found: Json = json.loads(stage.plane.request("GET", "/api/v1/namespaces/tessera-system/secrets/tessera-webhook"))
    return found


CONFIGURATIONS: Final = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{WEBHOOKS}"
    for kind in ("mutating", "validating")
]


def trust(stage: Stage, bundle: str) -> None:
    """Have the API server know the webhooks by these certificates."""
    for path in CONFIGURATIONS:
        names = [webhook["name"] for webhook in called(stage, path)]
        body = {"webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in names]}
        stage.plane.request("PATCH", path, body, content_type=STRATEGIC)


def trusted(stage: Stage, bundle: str) -> bool:
    """Say whether it does."""
    found = [webhook for path in CONFIGURATIONS for webhook in called(stage, path)]
    return all(webhook["clientConfig"]["caBundle"] == bundle for webhook in found)


def called(stage: Stage, path: str) -> list[Json]:
    """Return the webhooks of a configuration."""
    webhooks: list[Json] = json.loads(stage.plane.request("GET", path))["webhooks"]
    return webhooks


def test_a_certificate_is_followed_by_the_next_under_load(stage: Stage) -> None:
    """Not one request is dropped, from a certificate that is nearly over to one that is new."""
    kept = secret(stage)
    old, key = make(("127.0.0.1",), datetime.now(UTC) - LIFETIME * 0.8)
    # As the leader would have announced it: trusted beside the one in force, and then in its place.
    bundle = b64decode(kept["data"]["ca.crt"]) + old
    data = {"tls.crt": old, "tls.key": key, "ca.crt": bundle}
    encoded = {name: b64encode(value).decode() for name, value in data.items()}
    while not trusted(stage, encoded["ca.crt"]):  # which the leader undoes when it looks, every ten seconds
        trust(stage, encoded["ca.crt"])
        time.sleep(1)
    failed: list[str] = []
    asked, stop = [0], threading.Event()

    def ask() -> None:
        while not stop.is_set():
            try:
                said = stage.refusal(pod("load", memory="1Gi"))
            except OSError as error:
                said = repr(error)
            failed.extend([said] if said else [])
            asked[0] += 1

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        path = "/api/v1/namespaces/tessera-system/secrets/tessera-webhook"
        stage.plane.request("PATCH", path, {"data": encoded}, content_type=MERGE)
        wait_until(lambda: secret(stage)["data"]["next.crt"], "the next one is announced")
        begin = time.monotonic()
        wait_until(lambda: not secret(stage)["data"]["next.crt"], "it is in force", 150)
        took = time.monotonic() - begin
        time.sleep(12)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    print(f"{asked[0]} pods asked during the rotation, {len(failed)} failed; announced for {took:.0f} s")
    assert failed == []
    assert asked[0] > 500
    now = x509.load_pem_x509_certificate(b64decode(secret(stage)["data"]["tls.crt"]))
    assert now != x509.load_pem_x509_certificate(old)
    assert now.not_valid_after_utc > datetime.now(UTC) + LIFETIME * 0.9
    assert stage.extender.log.read_text().count("New certificates are in force.") >= 2


def test_with_our_servers_down_nobody_else_is_held_up(stage: Stage) -> None:
    """A pod without GPUs is created and bound as ever; a GPU pod is refused; both recover by themselves."""
    stage.extender.kill()
    stage.create(pod("ordinary"))
    stage.bound("ordinary")
    for asking in (pod("gpu", memory="1Gi"), resource_pod("gpu")):
        assert 'failed calling webhook "mutate.tessera.gpu"' in stage.refusal(asking)
    stage.extender.start()
    wait_until(lambda: not stage.refusal(pod("gpu", memory="1Gi", utilization="10%")), "it is taken")
    stage.create(pod("gpu", memory="1Gi", utilization="10%"))
    stage.bound("gpu")


def test_a_pod_that_waits_for_us_is_bound_when_we_are_back(stage: Stage) -> None:
    """Created in the last moment, it stays pending while nobody answers."""
    stage.extender.pause()
    stage.extender.kill()
    asking = resource_pod("pending")
    for kind in ("MutatingWebhookConfiguration", "ValidatingWebhookConfiguration"):
        stage.plane.kubectl("delete", kind, WEBHOOKS)
    wait_until(lambda: not stage.refusal(asking), "nobody is called")
    stage.create(asking)
    time.sleep(2)
    assert "nodeName" not in stage.pod("pending")["spec"]
    stage.extender.start()
    stage.bound("pending")
    restore(stage)


def resource_pod(name: str) -> Json:
    """Return a pod that asks by resources."""
    amounts = {"nvidia.com/gpu-memory": "1Gi", "tessera.gpu/share": "1"}
    return pod(name, spec={"containers": [{"name": "main", "image": "none", "resources": {"limits": amounts}}]})
