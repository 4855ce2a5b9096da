"""What containers get: their cards and no others, as a kubelet hands them on, whoever else changes the pod."""

import json
import ssl
import threading
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import pytest
import trustme
import yaml

from contract.names import DEFAULT_CONTAINER
from tests.e2e.admitted import Json, Stage, admitted, apply, containers, record, resolved
from tests.e2e.controlplane.api import STRATEGIC, ApiError
from tests.e2e.controlplane.ports import LOOPBACK
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import DEPLOY

pytestmark = pytest.mark.e2e

LONG: Final = "a-name-of-as-many-characters-as-a-container-may-have-which-is-63"[:62] + "x"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
FRAMEWORKS: Final = ("vllm", "pytorch", "tensorflow", "jax")


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    """Twenty nodes, everything in force."""
    with admitted() as running:
        yield running


def pod(name: str, names: list[str], init: list[Json] | None = None, **notes: str) -> Json:
    """Return a pod with these containers; `notes`: Tessera's annotations, `__` for a dot."""
    said = {"tessera.gpu/" + key.replace("__", "."): value for key, value in notes.items()}
    spec: Json = {"containers": [{"name": n, "image": "none"} for n in names]}
    if init:
        spec["initContainers"] = [{"image": "none"} | container for container in init]
    return {"metadata": {"name": name, "annotations": said}, "spec": spec}


def check(bound: Json) -> dict[str, dict[str, str]]:
    """Check that every container sees exactly the cards of its record; return their environments."""
    granted, seen = record(bound), {c["name"]: resolved(bound, c) for c in containers(bound)}
    assert set(granted) <= set(seen)
    for name, environment in seen.items():
        grants = granted.get(name, [])
        assert environment[VISIBLE] == (",".join(g["gpu"] for g in grants) or "void"), name
        if grants:
            assert environment["TESSERA_GPU_MEMORY_MIB"] == str(min(g["mib"] for g in grants))
            assert environment["TESSERA_GPU_UTILIZATION"] == str(min(g["milli"] for g in grants) // 10)
            assert 0 < float(environment["TESSERA_GPU_MEMORY_FRACTION"]) < 1
        else:
            assert list(environment) == [VISIBLE]
    return seen


@pytest.mark.parametrize(
    "asking",
    [
        pytest.param(pod("one", ["main"], memory="4Gi", utilization="50%"), id="one container"),
        pytest.param(pod("percent", ["main"], memory="25%", utilization="30"), id="memory in percent"),
        pytest.param(pod("whole", ["main"], count="2"), id="two whole cards"),
        pytest.param(pod("long", [LONG], memory="4Gi", utilization="10%"), id="a name of 63 characters"),
        pytest.param(
            pod(
                "several",
                ["a", "log", "b"],
                memory__a="4Gi",
                utilization__a="30%",
                memory__b="2Gi",
                utilization__b="20%",
            ),
            id="several containers, one of them without a card",
        ),
        pytest.param(
            pod(
                "phases",
                ["main"],
                [{"name": "warm"}, {"name": "side", "restartPolicy": "Always"}, {"name": "plain"}],
                memory__warm="6Gi",
                utilization__warm="60%",
                memory__side="1Gi",
                utilization__side="10%",
                memory="4Gi",
                utilization="40%",
            ),
            id="init containers and a native sidecar",
        ),
    ],
)
def test_a_container_sees_the_cards_of_its_record(stage: Stage, asking: Json) -> None:
    """The pod is bound by the shipped scheduler; what a kubelet would resolve is what the record says."""
    stage.create(asking)
    bound = stage.bound(asking["metadata"]["name"])
    check(bound)
    for container in containers(bound):
        assert ("tessera.gpu/share" in container["resources"].get("requests", {})) == (
            container["name"] in record(bound)
        )


def test_before_it_is_bound_a_pod_has_no_card(stage: Stage) -> None:
    """A pod that fits nowhere: the annotation is not there, and an empty value gives no device."""
    stage.create(pod("waits", ["main"], memory="4Gi", model="none-such"))
    waiting = stage.pod("waits")
    assert resolved(waiting, waiting["spec"]["containers"][0])[VISIBLE] == ""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_examples_for_frameworks(stage: Stage, framework: str) -> None:
    """Each is bound, and what it refers to is there."""
    (example,) = yaml.safe_load_all((DEPLOY / f"examples/{framework}.yaml").read_text())
    example["spec"]["containers"][0]["image"] = "none"
    stage.create(example)
    bound = stage.bound(framework)
    (environment,) = check(bound).values()
    if framework == "jax":
        assert environment["XLA_PYTHON_CLIENT_MEM_FRACTION"] == environment["TESSERA_GPU_MEMORY_FRACTION"]


def test_a_debugger_sees_no_card(stage: Stage) -> None:
    """An ephemeral container is told so; one that asks for all cards is refused."""
    stage.create(pod("debugged", ["main"], memory="1Gi", utilization="10%"))
    stage.bound("debugged")
    path = "/api/v1/namespaces/default/pods/debugged/ephemeralcontainers"

    def debug(name: str, **more: Any) -> None:
        body = {"spec": {"ephemeralContainers": [{"name": name, "image": "none"} | more]}}
        stage.plane.request("PATCH", path, body, content_type=STRATEGIC)

    debug("first")
    debug("second")
    bound = stage.pod("debugged")
    assert {c["name"] for c in bound["spec"]["ephemeralContainers"]} == {"first", "second"}
    check(bound)
    with pytest.raises(ApiError, match="NVIDIA_VISIBLE_DEVICES is set in the container 'third'"):
        debug("third", env=[{"name": VISIBLE, "value": "all"}])


# --- beside other webhooks ---------------------------------------------------------------------------------

Change = Callable[[Json], list[Json]]


@contextmanager
def injector(stage: Stage, name: str, folder: Path, change: Change) -> Iterator[None]:
    """Run another webhook, for pods with the label `inject`; `change` makes its JSON patch, and is asked again."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
            patch = b64encode(json.dumps(change(asked["object"])).encode()).decode()
            response = {"uid": asked["uid"], "allowed": True, "patch": patch, "patchType": "JSONPatch"}
            body = json.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Keep the test's output clean."""

    ca = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    ca.issue_cert(LOOPBACK).configure_cert(context)
    server = ThreadingHTTPServer((LOOPBACK, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"https://{LOOPBACK}:{server.server_port}/"
    webhook = {
        "name": f"{name}.example.com",
        "clientConfig": {"url": url, "caBundle": b64encode(ca.cert_pem.bytes()).decode()},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"inject": name}},
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    kind = "MutatingWebhookConfiguration"
    configuration = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": name}}
    apply(stage.plane, [configuration | {"webhooks": [webhook]}])
    try:
        yield
    finally:
        stage.plane.kubectl("delete", kind, name)
        server.shutdown()
        server.server_close()


def sidecar(*, names_default: bool) -> Change:
    """Return a change that puts a container in front of all others, once."""

    def change(pod: Json) -> list[Json]:
        if any(c["name"] == "mesh" for c in pod["spec"]["containers"]):
            return []
        first = pod["spec"]["containers"][0]["name"]
        patch = [{"op": "add", "path": "/spec/containers/0", "value": {"name": "mesh", "image": "none"}}]
        if names_default and DEFAULT_CONTAINER not in pod["metadata"]["annotations"]:
            path = "/metadata/annotations/" + DEFAULT_CONTAINER.replace("/", "~1")
            patch.append({"op": "add", "path": path, "value": first})
        return patch

    return change


@pytest.mark.parametrize(
    ("name", "names_default"),
    [
        pytest.param("00-injector", True, id="before ours, and it says which container is the pod's"),
        pytest.param("zz-injector", False, id="after ours, and it says nothing"),
    ],
)
def test_a_sidecar_of_another_webhook_changes_nothing(
    stage: Stage, tmp_path: Path, name: str, names_default: bool
) -> None:
    """It is put in front of the container that a bare key speaks of; that one has the card, and the sidecar none."""
    with injector(stage, name, tmp_path, sidecar(names_default=names_default)):
        asking = pod(f"injected-{name}", ["main"], memory="2Gi", utilization="10%")
        asking["metadata"]["labels"] = {"inject": name}
        probe = asking | {"metadata": asking["metadata"] | {"name": "probe"}}
        wait_until(lambda: len(stage.dry(probe)["spec"]["containers"]) == 2, "the injector is called")
        stage.create(asking)
        bound = stage.bound(asking["metadata"]["name"])
    assert [c["name"] for c in bound["spec"]["containers"]] == ["mesh", "main"]
    assert list(record(bound)) == ["main"]
    check(bound)


def test_what_another_webhook_takes_away_is_refused(stage: Stage, tmp_path: Path) -> None:
    """A pod that would run without its environment does not get in."""

    def strip(pod: Json) -> list[Json]:
        return [{"op": "remove", "path": "/spec/containers/0/env"}] if pod["spec"]["containers"][0].get("env") else []

    with injector(stage, "zz-strip", tmp_path, strip):
        asking = pod("stripped", ["main"], memory="2Gi")
        asking["metadata"]["labels"] = {"inject": "zz-strip"}
        says = "Another webhook undid what Tessera had added to the pod"
        wait_until(lambda: says in stage.refusal(asking), "it is refused")


# --- the other way -----------------------------------------------------------------------------------------


def test_cdi_names_devices_for_nvidias_plugin() -> None:
    """In cdi mode the annotation has the cards and no environment does; a name too long for its key is refused."""
    with admitted("--delivery", "cdi", nodes=5) as stage:
        stage.create(pod("one", ["main", "log"], count="1"))
        bound = stage.bound("one")
        (grant,) = record(bound)["main"]
        notes = bound["metadata"]["annotations"]
        named = {key: value for key, value in notes.items() if key.startswith("nvidia.cdi.k8s.io/")}
        assert named == {"nvidia.cdi.k8s.io/container.main": f"nvidia.com/gpu={grant['gpu']}"}
        environments = [resolved(bound, c) for c in containers(bound)]
        assert [e[VISIBLE] for e in environments] == ["void", "void"]
        assert environments[0]["TESSERA_GPU_MEMORY_MIB"] == str(grant["mib"])
        assert "may have at most 53." in stage.refusal(pod("two", ["a" * 54], memory="1Gi"))
        assert not stage.refusal(pod("two", ["a" * 53], memory="1Gi"))
