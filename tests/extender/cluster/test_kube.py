"""The client of the API server against a scripted one: what comes over the wire, and what is made of it."""

import asyncio
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from extender.cluster import Away, Binding, Later, NotDone, PerhapsDone, Silent, Unreachable
from extender.cluster.api import BadConnection
from extender.cluster.binding import MAX_ANNOTATIONS, check_annotations
from extender.cluster.circuit import FAILURES, SHORTEST
from extender.cluster.kube import AWAY, PATCHES, KubeCluster
from extender.wire import Meta, Pod
from tests.extender.cluster.conftest import Connect
from tests.fakes_apiserver import Answer, ApiServer, Handler, hang, refusal, reply, reset, status

POD = "/api/v1/namespaces/ns/pods/p"
BINDING = Binding("ns", "p", "u1", "n1", {"tessera.gpu/assignment": "{}"})


def pod(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": version}}


# --- binding ------------------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_bind_posts_node_and_annotations_together(api: ApiServer, connect: Connect) -> None:
    """One POST carries the pod's UID, the annotations and the node."""
    api.script("POST", f"{POD}/binding", reply(201, status(201, "")))
    await connect().bind(BINDING)
    [request] = api.requests
    assert request.body["metadata"] == {
        "namespace": "ns",
        "name": "p",
        "uid": "u1",
        "annotations": {"tessera.gpu/assignment": "{}"},
    }
    assert request.body["target"] == {"apiVersion": "v1", "kind": "Node", "name": "n1"}


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (refusal(400, "why"), NotDone),
        (refusal(403, "why"), NotDone),
        (refusal(404, "why"), NotDone),
        (refusal(409, "why"), NotDone),
        (refusal(429, "why"), NotDone),
        (refusal(500, "why"), PerhapsDone),
        (refusal(504, "why"), PerhapsDone),
        (reset, PerhapsDone),
        (hang, PerhapsDone),
    ],
    ids=["400", "403", "404", "409", "429", "500", "504", "reset", "hang"],
)
async def test_bind_that_fails(api: ApiServer, connect: Connect, answer: Answer, error: type[Exception]) -> None:
    """A refusal is certain, a failure or a lost answer is not; the Binding is sent once in each case."""
    api.script("POST", f"{POD}/binding", answer)
    with pytest.raises(error, match="lost|no answer" if answer in (reset, hang) else "^why$"):
        await connect(deadline=2.0 if answer is hang else 10.0).bind(BINDING)
    assert len(api.requests) == 1


@pytest.mark.anyio
async def test_bind_that_cannot_connect_is_not_done(api: ApiServer, connect: Connect) -> None:
    """Where nobody listens, nothing was sent."""
    cluster = connect()
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        cluster._api._client.configuration.host = f"http://127.0.0.1:{unused.getsockname()[1]}"
        with pytest.raises(NotDone):
            await cluster.bind(BINDING)


@pytest.mark.anyio
async def test_bind_that_waits_for_a_thread_too_long_is_not_done(api: ApiServer, connect: Connect) -> None:
    """A Binding that no thread has picked up before the deadline is never sent."""
    api.script("POST", f"{POD}/binding", hang)
    cluster = connect(binds=1, deadline=0.1)
    cluster._threads.submit(api.over.wait)
    with pytest.raises(NotDone, match="No thread was free"):
        await cluster.bind(BINDING)
    api.over.set()
    assert api.requests == []


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("path", "ask"),
    [
        ("/api/v1/nodes/n1/status", lambda cluster, body: cluster.patch_node_status("n1", body)),
        (POD, lambda cluster, body: cluster.patch_pod("ns", "p", body)),
    ],
    ids=["a node's status", "a pod"],
)
async def test_patches_are_merged(api: ApiServer, connect: Connect, path: str, ask: Callable[..., Any]) -> None:
    """The body goes out as it is, None included, once; a refusal is certain and a lost answer is not."""
    body = {"metadata": {"uid": "u1", "annotations": {"a": None}}}
    api.script("PATCH", path, reply(200, {}), refusal(403, "why"), reset)
    cluster = connect()
    await ask(cluster, body)
    with pytest.raises(NotDone, match="why"):
        await ask(cluster, body)
    with pytest.raises(Silent):
        await ask(cluster, body)
    assert [(r.method, r.path, r.body) for r in api.requests] == [("PATCH", path, body)] * 3


@pytest.mark.anyio
async def test_while_nobody_answers_requests_are_refused_at_once(
    api: ApiServer, connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After some failures nothing is sent, in one stable sentence; one request finds out, and all go again."""
    now = 100.0
    monkeypatch.setattr("extender.cluster.kube.time.monotonic", lambda: now)
    api.script("POST", f"{POD}/binding", *[reset] * FAILURES, reply(201, {}))
    cluster = connect()
    for _ in range(FAILURES):
        with pytest.raises(Silent):
            await cluster.bind(BINDING)
    for _ in range(3):
        with pytest.raises(Away, match=f"^{AWAY}$"):
            await cluster.bind(BINDING)
        with pytest.raises(Unreachable, match=f"^{AWAY}$"):
            await cluster.pod("ns", "p")
    assert len(api.requests) == FAILURES
    now += SHORTEST
    await cluster.bind(BINDING)
    assert not cluster.circuit.is_open


@pytest.mark.anyio
async def test_a_queue_of_our_own_is_no_trouble_of_the_api_servers(api: ApiServer, connect: Connect) -> None:
    """Many patches at once wait for their turn, longer than one may take, and none fails nor holds up binds."""

    def slow(handler: Handler) -> None:
        time.sleep(0.1)
        reply(200, {})(handler)

    api.script("PATCH", "/api/v1/nodes/n/status", slow)
    cluster = connect(deadline=0.4)
    await asyncio.gather(*(cluster.patch_node_status("n", {}) for _ in range(8 * PATCHES)))
    assert not cluster.circuit.is_open


@pytest.mark.anyio
async def test_a_bind_that_found_no_thread_says_nothing_of_the_api_server(api: ApiServer, connect: Connect) -> None:
    """It never left this process."""
    cluster = connect(binds=1, deadline=0.1)
    cluster._threads.submit(api.over.wait)
    for _ in range(FAILURES + 1):
        with pytest.raises(NotDone, match="No thread was free"):
            await cluster.bind(BINDING)
    assert not cluster.circuit.is_open
    api.over.set()


@pytest.mark.anyio
async def test_a_silent_end_of_a_connection_is_noticed(api: ApiServer, connect: Connect) -> None:
    """The kernel asks the other side after ten seconds, and gives up after 25: a watch only listens."""
    api.script("GET", POD, refusal(404, "none", "NotFound"))
    cluster = connect()
    await cluster.pod("ns", "p")
    pools = cluster._api._client.rest_client.pool_manager.pools
    (pool,) = map(pools.get, pools.keys())
    connection = pool._get_conn()
    asked = [
        connection.sock.getsockopt(socket.IPPROTO_TCP, option)
        for option in (socket.TCP_KEEPIDLE, socket.TCP_USER_TIMEOUT)
    ]
    assert connection.sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    assert asked == [10, 25_000]
    connection.close()


@pytest.mark.anyio
@pytest.mark.parametrize("answer", [refusal(403, "why"), refusal(500, "why")])
async def test_a_refusal_is_an_answer(api: ApiServer, connect: Connect, answer: Answer) -> None:
    """Whoever says no is there: the circuit stays closed."""
    api.script("POST", f"{POD}/binding", *[answer] * 9)
    cluster = connect()
    for _ in range(9):
        with pytest.raises((NotDone, PerhapsDone), match="why"):
            await cluster.bind(BINDING)
    assert len(api.requests) == 9


@pytest.mark.anyio
async def test_binds_run_side_by_side(api: ApiServer, connect: Connect) -> None:
    """Thirty-two Bindings that the server keeps waiting are all under way at the same time."""
    api.script("POST", f"{POD}/binding", hang)
    cluster = connect(deadline=20.0)
    binds = asyncio.gather(*(cluster.bind(BINDING) for _ in range(32)), return_exceptions=True)
    assert all(await asyncio.to_thread(lambda: [api.hanging.acquire(timeout=10) for _ in range(32)]))
    api.over.set()
    assert {type(result) for result in await binds} == {Silent}


@pytest.mark.parametrize(
    "key",
    ["bad key!", "", "/x", "a/", "a/b/c", "UPPER/x", "-a", "a-", "x" * 64, "p" * 254 + "/x", "a..b/x", "a\n"],
)
def test_annotation_keys_that_would_poison_the_pod(key: str) -> None:
    """A key that the API server takes on a Binding, and on no later update, is refused before it is sent."""
    with pytest.raises(NotDone):
        check_annotations({key: ""})


@pytest.mark.parametrize("key", ["a", "A_b.c-9", "tessera.gpu/devices.x", "x" * 63, "a" * 63 + ".b/" + "y" * 63])
def test_annotation_keys_that_kubernetes_allows(key: str) -> None:
    """A qualified name passes, up to its longest."""
    check_annotations({key: "any text\n"})


@pytest.mark.anyio
async def test_annotations_too_large_are_not_sent(api: ApiServer, connect: Connect) -> None:
    """The bytes count, not the characters."""
    with pytest.raises(NotDone, match="bytes"):
        await connect().bind(Binding("ns", "p", "u1", "n1", {"a": "é" * (MAX_ANNOTATIONS // 2)}))
    assert api.requests == []


# --- one pod, and the way to the server ---------------------------------------------------------------------


@pytest.mark.anyio
async def test_pod_as_it_is_now(api: ApiServer, connect: Connect) -> None:
    """A GET finds the pod, or says that there is none."""
    api.script("GET", POD, reply(200, {**pod("p"), "spec": {"nodeName": "n1"}}), refusal(404, "none", "NotFound"))
    cluster = connect()
    found = await cluster.pod("ns", "p")
    assert found is not None
    assert (found.spec.node_name, found.metadata.uid) == ("n1", "u-p")
    assert await cluster.pod("ns", "p") is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    "answer",
    [refusal(500, "no"), refusal(404, "a proxy's page"), reply(404, "text"), reply(200, []), reset, hang],
    ids=["500", "another 404", "no status", "not a pod", "reset", "hang"],
)
async def test_pod_that_cannot_be_looked_up(api: ApiServer, connect: Connect, answer: Answer) -> None:
    """Only the API server's own NotFound says that a pod is gone."""
    api.script("GET", POD, answer)
    with pytest.raises(Unreachable):
        await connect(deadline=2.0 if answer is hang else 10.0).pod("ns", "p")


BUDGETS = "/apis/policy/v1/poddisruptionbudgets"


@pytest.mark.anyio
async def test_an_eviction_names_the_pod_that_is_meant(api: ApiServer, connect: Connect) -> None:
    """The UID is a precondition; 429 is a no for now, and any other refusal one for good."""
    refused = [refusal(429, "Cannot evict pod as it would violate the pod's disruption budget."), refusal(409, "uid")]
    api.script("POST", f"{POD}/eviction", reply(201, {}), *refused)
    cluster = connect()
    await cluster.evict("ns", "p", "u1")
    assert api.requests[0].body == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "ns", "name": "p"},
        "deleteOptions": {"preconditions": {"uid": "u1"}},
    }
    with pytest.raises(Later, match="disruption budget"):
        await cluster.evict("ns", "p", "u1")
    with pytest.raises(NotDone, match="uid") as error:
        await cluster.evict("ns", "p", "u1")
    assert not isinstance(error.value, Later)


@pytest.mark.anyio
async def test_an_event_is_about_the_pod(api: ApiServer, connect: Connect) -> None:
    """It lies in the pod's namespace and names the pod by its UID; the message is cut to what is allowed."""
    api.script("POST", "/api/v1/namespaces/ns/events", reply(201, {}))
    await connect().event(Pod(Meta(name="p", namespace="ns", uid="u1")), "Reason", "m" * 2000, warning=True)
    body = api.requests[0].body
    assert body["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": "ns",
        "name": "p",
        "uid": "u1",
    }
    assert (body["reason"], body["type"], body["message"]) == ("Reason", "Warning", "m" * 1024)
    assert body["metadata"] == {"generateName": "p.", "namespace": "ns"}


@pytest.mark.anyio
async def test_budgets_are_read_page_by_page(api: ApiServer, connect: Connect) -> None:
    """With their selectors and what they still allow; a refusal is no empty list."""
    one = {
        "metadata": {"name": "b", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": "k", "operator": "Exists"}]}},
        "status": {"disruptionsAllowed": 2},
    }
    pages = [
        reply(200, {"metadata": {"continue": "more"}, "items": [one]}),
        reply(200, {"metadata": {}, "items": []}),
    ]
    api.script("GET", BUDGETS, *pages, refusal(403, "no right"))
    cluster = connect()
    (budget,) = await cluster.budgets()
    assert [r.query.get("continue") for r in api.requests] == [None, "more"]
    assert (budget.metadata.name, budget.status.disruptions_allowed) == ("b", 2)
    assert budget.spec.selector is not None
    assert budget.spec.selector.match_labels == {"app": "a"}
    with pytest.raises(Unreachable, match="no right"):
        await cluster.budgets()


def test_a_bad_kubeconfig_is_named(tmp_path: Path) -> None:
    """The sentence names the file."""
    file = tmp_path / "none"
    with pytest.raises(BadConnection, match="none cannot be used"):
        KubeCluster.connect(str(file))
    file.write_text("x")
    with pytest.raises(BadConnection, match="none cannot be used: it is not a mapping"):
        KubeCluster.connect(str(file))


def test_without_a_kubeconfig_the_service_account_is_tried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside a pod there is no service account either, and the sentence says both."""
    monkeypatch.setattr("extender.cluster.api._config.KUBE_CONFIG_DEFAULT_LOCATION", str(tmp_path / "none"))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(BadConnection, match="no kubeconfig, and the service account"):
        KubeCluster.connect()


@pytest.mark.anyio
async def test_the_api_server_gives_up_a_write_as_we_do(api: ApiServer, connect: Connect) -> None:
    """Its own time limit travels with the request: a Binding must not land when another replica leads already."""
    api.script("POST", f"{POD}/binding", reply(201, {}))
    await connect(deadline=3.5).bind(BINDING)
    assert api.requests[0].query == {"timeout": "3.5s"}
