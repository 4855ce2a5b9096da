"""The service over HTTP: what kube-scheduler sends and gets, and what anybody else may send."""

import json
import tracemalloc
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from extender.app import NO_NODES, NO_POD, NOT_READY, STALE, build
from extender.cluster.embedded import EmbeddedCluster
from extender.leader import NOT_LEADING
from tests.builders import bound, plain, pod
from tests.extender.served import EXAMPLE, Served, client, serve, service_of

pytestmark = pytest.mark.anyio

GOLDEN = Path(__file__).parents[1] / "golden/wire"
NAMES = ["a10x4-0", "l4x1-0", "t4x4-0"]
SHARE = {"nvidia.com/gpu-memory": "4Gi"}


@pytest.fixture
async def served() -> AsyncIterator[Served]:
    """Serve the example cluster."""
    async with serve() as running:
        yield running


def asked(name: str) -> bytes:
    """Return a request as kube-scheduler 1.36.2 sent it, the nodes renamed to the example's."""
    return (GOLDEN / f"{name}.json").read_bytes()


def pod_json(
    name: str = "p", notes: dict[str, str] | None = None, limits: dict[str, str] | None = None
) -> dict[str, Any]:
    """Return a pod as JSON, which asks for 4 GiB of a card by resource unless it has annotations."""
    wanted = limits or ({} if notes else SHARE)
    return {
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}", "annotations": notes},
        "spec": {"containers": [{"name": "main", "resources": {"limits": wanted}}]},
    }


# --- kube-scheduler's own requests ---------------------------------------------------------------------------


async def test_recorded_filter_and_prioritize(served: Served) -> None:
    """A recorded question with NodeNames is answered: keys, types and no null but the unused Nodes."""
    reply = await served.post("filter", asked("ask-node-names"))
    assert reply == {
        "NodeNames": NAMES,
        "Nodes": None,
        "FailedNodes": {},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }
    scores = await served.post("prioritize", asked("ask-node-names"))
    assert [set(score) for score in scores] == [{"Host", "Score"}] * 3
    assert [score["Host"] for score in scores] == NAMES
    assert max(score["Score"] for score in scores) == 10


async def test_recorded_bind(served: Served) -> None:
    """The recorded bind that follows binds the pod with its record; asked again, it succeeds and books nothing."""
    await served.post("filter", asked("ask-node-names"))
    args = json.loads(asked("bind"))
    for _ in range(3):
        assert await served.post("bind", asked("bind")) == {"Error": ""}
    found = await served.cluster.pod(args["PodNamespace"], args["PodName"])
    assert found is not None
    assert found.spec.node_name == args["Node"]
    assert {"tessera.gpu/assignment", "tessera.gpu/devices.c"} <= set(found.metadata.annotations or {})
    await served.until(lambda state: args["PodUID"] in state.holdings and not state.assumed)
    assert await served.post("bind", asked("bind")) == {"Error": ""}
    elsewhere = {**args, "Node": "l4x1-0"}
    assert await served.post("bind", elsewhere) == {"Error": f"the pod is already bound to {args['Node']}"}


async def test_nodes_pass_through_byte_for_byte(served: Served) -> None:
    """Full Node objects come back as they came, without those that do not fit."""
    question = asked("ask-nodes")
    raw = question.decode().split('"items":[', 1)[1].rsplit("]}", 1)[0]
    reply = await served.http.post("/filter", content=question)
    assert raw in reply.text
    assert reply.json()["NodeNames"] is None
    scores = await served.post("prioritize", question)
    assert [score["Host"] for score in scores] == NAMES
    tight = question.replace(b'"nvidia.com/gpu-memory":"4Gi"', b'"nvidia.com/gpu-memory":"20Gi"')
    left = (await served.post("filter", tight))["Nodes"]["items"]
    assert [item["metadata"]["name"] for item in left] == ["a10x4-0"]
    original = json.loads(question)["Nodes"]["items"]
    assert left == original[:1]


async def test_odd_spelling_of_a_node_survives(served: Served) -> None:
    """Spaces, escapes and numbers of a Node are not re-encoded."""
    node = '{ "metadata":{"name":"a10x4-0","x":1.50,"y":"\\u00e9\\/"},\n"z":12345678901234567890123 }'
    body = f'{{"Pod":{json.dumps(pod_json())},"Nodes":{{"items":[{node}]}},"NodeNames":null}}'
    reply = await served.http.post("/filter", content=body)
    assert node in reply.text


async def test_the_packing_of_the_example(served: Served) -> None:
    """The example's shared A10 takes a trainer and three inference pods, and the other one says why it does not."""
    trainer = {"tessera.gpu/memory": "8Gi", "tessera.gpu/utilization": "70%"}
    small = {"tessera.gpu/memory": "2Gi", "tessera.gpu/utilization": "20%"}
    for name, expected in (("a10x1-0", [True] * 4), ("a10x1-1", [True, True, False, False])):
        results = []
        for i, notes in enumerate([trainer, small, small, small]):
            asking = pod_json(f"{name}-{i}", notes)
            reply = await served.post("filter", {"Pod": asking, "NodeNames": [name]})
            results.append(reply["NodeNames"] == [name])
            if results[-1]:
                meta = asking["metadata"]
                body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": name}
                assert await served.post("bind", body) == {"Error": ""}
            else:
                why = reply["FailedAndUnresolvableNodes"]
                assert why == {name: "no card with enough free GPU utilization"}
        assert results == expected


# --- what else may come --------------------------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["filter", "prioritize"])
async def test_questions_without_pod_or_nodes(served: Served, verb: str) -> None:
    """No Pod, or no nodes: 200, with an Error where the reply has room for one."""
    for body, error in (
        ({"Pod": None, "NodeNames": ["l4x1-0"]}, NO_POD),
        ({"NodeNames": ["l4x1-0"]}, NO_POD),
        ({}, NO_POD),
        ({"Pod": pod_json()}, NO_NODES),
        ({"Pod": pod_json(), "Nodes": None, "NodeNames": None}, NO_NODES),
    ):
        reply = await served.post(verb, body)
        if verb == "filter":
            assert (reply["Error"], reply["NodeNames"]) == (error, [])
        else:
            assert reply == [{"Host": name, "Score": 0} for name in body.get("NodeNames") or ()]


@pytest.mark.parametrize("nodes", [{"items": None}, {"items": []}, {}])
async def test_an_empty_list_of_nodes(served: Served, nodes: dict[str, Any]) -> None:
    """Go sends null for an empty list: the reply has an empty one."""
    reply = await served.post("filter", {"Pod": pod_json(), "Nodes": nodes})
    assert (reply["Nodes"], reply["FailedNodes"], reply["Error"]) == ({"items": []}, {}, "")


async def test_a_bad_quantity_is_told_on_every_node(served: Served) -> None:
    """A request that cannot be read is a 200, with its sentence on all nodes and no node passing."""
    bad = pod_json(notes={"tessera.gpu/memory": "4096"})
    reply = await served.post("filter", {"Pod": bad, "NodeNames": NAMES})
    sentence = "tessera.gpu/memory is '4096', which is below 1Mi: was 4096Mi or 4096Gi meant?"
    assert reply["FailedAndUnresolvableNodes"] == dict.fromkeys(NAMES, sentence)
    assert (reply["NodeNames"], reply["FailedNodes"], reply["Error"]) == ([], {}, "")
    scores = await served.post("prioritize", {"Pod": bad, "NodeNames": NAMES})
    assert {score["Score"] for score in scores} == {0}


@pytest.mark.parametrize("said", ["1Ei", "7Ei", "1e3", "9" * 70, "-1", "1e-999"])
async def test_no_quantity_is_a_crash(served: Served, said: str) -> None:
    """Whatever stands where a quantity should be, the answer is a 200."""
    for asking in (
        pod_json(notes={"tessera.gpu/memory": said}),
        pod_json(limits={"nvidia.com/gpu-memory": said, "cpu": said}),
    ):
        reply = await served.post("filter", {"Pod": asking, "NodeNames": NAMES})
        assert reply["NodeNames"] == []


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
@pytest.mark.parametrize(
    ("body", "start"),
    [
        (b"", "The body is not JSON: "),
        (b"{", "The body is not JSON: "),
        (b"nonsense", "The body is not JSON: "),
        (b'{"Pod":"\xff","PodName":"\xff"}', "The body is not "),
        (b"[" * 100_000, "The body is not "),
        (b"[]", "The body is not what this verb takes: "),
        (b"null", "The body is not what this verb takes: "),
        (b'{"Pod":[],"PodName":[]}', "The body is not what this verb takes: "),
        (b'{"Pod":{"spec":{"containers":{}}},"PodUID":7}', "The body is not what this verb takes: "),
    ],
)
async def test_bodies_that_are_refused(served: Served, verb: str, body: bytes, start: str) -> None:
    """What is not JSON or of another shape is a 400 with one sentence."""
    reply = await served.post(verb, body, 400)
    assert reply["Error"].startswith(start)


async def test_a_node_of_another_shape(served: Served) -> None:
    """A Nodes item that is no object is a 400, and one without a name fits nothing."""
    assert (await served.post("filter", {"Pod": pod_json(), "Nodes": {"items": [7]}}, 400))["Error"]
    reply = await served.post("filter", {"Pod": pod_json(), "Nodes": {"items": [{}]}})
    assert (reply["Nodes"], list(reply["FailedAndUnresolvableNodes"])) == ({"items": []}, [""])


@pytest.mark.parametrize("key", ["PodName", "PodNamespace", "PodUID", "Node"])
async def test_a_bind_that_lacks_something(served: Served, key: str) -> None:
    """A bind without one of its four names says which."""
    body = {**json.loads(asked("bind")), key: ""}
    error = (await served.post("bind", body))["Error"]
    assert error == f"The request has no {key}."


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_too_large(verb: str) -> None:
    """A body above the limit is a 413, be its length announced or not."""

    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(3):
            yield b" " * (1 << 19)

    async with serve(max_body_mib=1) as served:
        announced = await served.http.post(f"/{verb}", content=b" " * ((1 << 20) + 1))
        chunked = await served.http.post(f"/{verb}", content=pieces())
        for reply in (announced, chunked):
            assert (reply.status_code, reply.json()) == (413, {"Error": "The body is larger than 1 MiB."})


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_wrong_method_and_path(served: Served, verb: str) -> None:
    """Only POST is a question, and only what is there is found."""
    got, lost = await served.http.get(f"/{verb}"), await served.http.post(f"/{verb}s")
    assert (got.status_code, got.json()) == (405, {"Error": f"/{verb} takes POST alone."})
    assert (lost.status_code, lost.json()) == (404, {"Error": f"/{verb}s is not served here."})
    assert (await served.http.put(f"/{verb}")).json() == {"Error": f"/{verb} does not take PUT."}


@pytest.mark.parametrize("probe", ["livez", "readyz", "healthz"])
async def test_probes_answer_head(served: Served, probe: str) -> None:
    """Some load balancers probe with HEAD."""
    assert (await served.http.head(f"/{probe}")).status_code == 200


async def test_a_prefix_for_the_verbs() -> None:
    """The verbs move under the prefix, the probes stay."""
    async with serve(prefix="/scheduler") as served:
        assert (await served.post("scheduler/filter", asked("ask-node-names")))["NodeNames"] == NAMES
        assert (await served.http.post("/filter")).status_code == 404
        assert (await served.http.get("/readyz")).status_code == 200


# --- readiness and metrics -----------------------------------------------------------------------------------


async def test_before_everything_is_listed() -> None:
    """Until nodes, inventories and pods are listed every verb refuses, and so does readyz; livez does not."""
    app = build(service_of(EmbeddedCluster.load(EXAMPLE)))
    async with client(app) as http:
        assert (await http.get("/livez")).status_code == 200
        ready = await http.get("/readyz")
        assert (ready.status_code, ready.text) == (503, f"{NOT_READY}\n")
        assert (await http.post("/filter", content=asked("ask-node-names"))).json()["Error"] == NOT_READY
        assert (await http.post("/bind", content=asked("bind"))).json() == {"Error": NOT_READY}
        scores = (await http.post("/prioritize", content=asked("ask-node-names"))).json()
        assert scores == [{"Host": name, "Score": 0} for name in NAMES]


async def test_after_too_long_an_outage(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """filter answers from the last state for 30 s, and then refuses."""
    monkeypatch.setattr(served.service.watch, "outage", lambda: 29.0)
    assert (await served.http.get("/readyz")).status_code == 200
    monkeypatch.setattr(served.service.watch, "outage", lambda: 31.0)
    assert (await served.http.get("/readyz")).text == f"{STALE}\n"
    assert (await served.post("filter", asked("ask-node-names")))["Error"] == STALE
    assert (await served.post("bind", asked("bind")))["Error"] == STALE


async def test_nothing_is_offered_before_the_agents_were_listened_to(served: Served) -> None:
    """After a restart a node whose agent is long silent looks like any other for a moment."""
    served.service.listens = lambda: False
    assert (await served.http.get("/readyz")).text == f"{NOT_READY}\n"
    assert (await served.post("filter", asked("ask-node-names")))["Error"] == NOT_READY
    served.service.listens = lambda: True
    assert (await served.http.get("/readyz")).status_code == 200


async def test_whoever_notes_the_names_does_not_keep_the_request(served: Served) -> None:
    """With nodeCacheCapable false that is megabytes a question."""
    kept: list[Callable[[], list[str]]] = []
    served.service.on_filter = lambda _, names: kept.append(names)
    node = {"metadata": {"name": "a10x1-0"}, "status": {"images": ["x" * 1000]}}
    body = {"Pod": pod_json("p", limits={"nvidia.com/gpu-memory": "1Gi"}), "Nodes": {"items": [node] * 1000}}
    tracemalloc.start()
    try:
        served.service.filter(msgspec.json.encode(body))
        assert tracemalloc.get_traced_memory()[0] < 500_000
    finally:
        tracemalloc.stop()
    assert kept[0]() == ["a10x1-0"] * 1000


async def test_metrics_can_be_parsed(served: Served) -> None:
    """The metrics are Prometheus' text, and count what happened."""
    await served.post("filter", asked("ask-node-names"))
    await served.post("filter", b"{", 400)
    await served.post("bind", asked("bind"))
    served.service.state.saw_pod(bound(pod("bad"), "t4x4-0", text="?"))
    served.service.state.saw_pod(bound(pod("stray"), "t4x4-1"))
    served.service.state.saw_pod(bound(plain("other"), "t4x4-1"))
    fleet = served.service.state.fleet
    t4 = fleet.uuids[fleet.index["t4x4-1"]][0]
    for name in ("one", "two"):
        served.service.state.saw_pod(bound(pod(name), "t4x4-1", [(t4, 15000, 0)]))
    reply = await served.http.get("/metrics")
    assert reply.headers["content-type"].startswith("text/plain; version=0.0.4")
    samples = {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(reply.text)
        for sample in family.samples
    }
    assert samples["tessera_extender_requests_total", "200", "filter"] == 1
    assert samples["tessera_extender_requests_total", "400", "filter"] == 1
    assert samples["tessera_extender_request_duration_seconds_count", "bind"] == 1
    assert samples["tessera_bind_total", "bound"] == 1
    assert samples["tessera_unaccounted_pods",] == 1
    assert samples["tessera_closed_nodes", "the assignment of a pod on the node cannot be read"] == 1
    assert samples["tessera_assumed_pods",] + samples["tessera_holding_pods",] == 5
    assert samples["tessera_overpromised_cards",] == 1


async def test_a_quiet_watch_is_no_outage(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The metric that alerts follow is what the verbs refuse by."""
    monkeypatch.setattr(served.service.watch, "silence", lambda: 59.0)
    assert "tessera_watch_outage_seconds 0.0" in (await served.http.get("/metrics")).text
    monkeypatch.setattr(served.service.watch, "outage", lambda: 31.0)
    assert "tessera_watch_outage_seconds 31.0" in (await served.http.get("/metrics")).text


async def test_what_filter_answered_counts_until_the_bind_or_for_a_second(served: Served) -> None:
    """Between a filter and its bind the next pod's filter counts on it; a bind that does not come is forgotten."""
    now = 100.0
    served.service.clock = lambda: now
    first, second = (pod_json(name, limits={"nvidia.com/gpu-memory": "20Gi"}) for name in ("first", "second"))
    for asking, passed in ((first, True), (first, True), (second, False)):
        reply = await served.post("filter", {"Pod": asking, "NodeNames": ["a10x1-0"]})
        assert (reply["NodeNames"] == ["a10x1-0"]) == passed
    now += 1.5
    assert (await served.post("filter", {"Pod": second, "NodeNames": ["a10x1-0"]}))["NodeNames"] == ["a10x1-0"]
    body = {"PodName": "first", "PodNamespace": "default", "PodUID": "uid-first", "Node": "a10x1-0"}
    assert await served.post("bind", body) == {"Error": ""}, (
        "a bind that comes takes what was only expected of another"
    )


@pytest.mark.parametrize("verb", ["filter", "prioritize", "bind"])
async def test_a_replica_that_does_not_lead_is_ready_and_refuses(served: Served, verb: str) -> None:
    """kube-scheduler takes 503 for a failure and asks again; by then the Service has the one that leads."""
    served.service.leads = lambda: False
    assert await served.post(verb, {}, 503) == {"Error": NOT_LEADING}
    assert (await served.http.get("/readyz")).status_code == 200
    assert "tessera_leader 0.0" in (await served.http.get("/metrics")).text
