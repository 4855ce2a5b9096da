"""Lists and watches against a scripted API server: what comes over the wire, and what is made of it."""

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from extender.cluster import Event, Gone, Source, Unreachable
from extender.cluster.api import MAX_MESSAGE
from extender.cluster.kube import KubeCluster
from extender.wire import Pod
from tests.extender.cluster.conftest import Connect
from tests.fakes_apiserver import Answer, ApiServer, hang, refusal, reply, reset, status, stream

PODS = "/api/v1/pods"


def pods(cluster: KubeCluster) -> Source:
    return cluster.sources()[2]


def pod(name: str, version: str = "1") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": "ns", "uid": f"u-{name}", "resourceVersion": version}}


def line(kind: str, name: str, version: str) -> dict[str, Any]:
    return {"type": kind, "object": pod(name, version)}


def seen(events: Iterator[Event]) -> list[tuple[str, str]]:
    return [(event.kind, event.version) for event in events]


# --- lists --------------------------------------------------------------------------------------------------


def test_list_follows_the_pages(api: ApiServer, connect: Connect) -> None:
    """A list in two pages is one list, of the version that the last page names."""
    first = {"metadata": {"resourceVersion": "7", "continue": "a=b&c"}, "items": [pod("a"), pod("b")]}
    api.script(
        "GET",
        PODS,
        reply(200, first),
        reply(200, {"metadata": {"resourceVersion": "7"}, "items": [pod("c")]}),
    )
    objects, version = pods(connect(page=2)).list()
    assert ([found.metadata.name for found in objects], version) == (["a", "b", "c"], "7")
    assert [request.query for request in api.requests] == [
        {"limit": "2"},
        {"limit": "2", "continue": "a=b&c"},
    ]


def test_sources_are_nodes_inventories_and_pods(api: ApiServer, connect: Connect) -> None:
    """The four kinds come in their order, each from its path; items may be null."""
    leases = "/apis/coordination.k8s.io/v1/namespaces/tessera-agents/leases"
    paths = ["/api/v1/nodes", "/apis/tessera.gpu/v1alpha1/gpunodes", PODS, leases]
    for path in paths:
        api.script("GET", path, reply(200, {"metadata": {"resourceVersion": "1"}, "items": None}))
    sources = connect().sources()
    assert [source.kind for source in sources] == ["nodes", "gpunodes", "pods", "leases"]
    assert [source.list() for source in sources] == [([], "1")] * 4
    assert [request.path for request in api.requests] == paths


@pytest.mark.parametrize(
    "answer",
    [
        refusal(500, "etcd is away"),
        refusal(403, "not allowed"),
        refusal(410, "the continue token is too old"),
        reply(200, ["not a list object"]),
        reset,
    ],
)
def test_list_that_fails_is_unreachable(api: ApiServer, connect: Connect, answer: Answer) -> None:
    """Whatever is not a list says Unreachable, and nothing is asked twice."""
    api.script("GET", PODS, answer)
    with pytest.raises(Unreachable):
        pods(connect()).list()
    assert len(api.requests) == 1


def test_the_message_of_the_server_is_kept(api: ApiServer, connect: Connect) -> None:
    """The API server's own sentence reaches the log, on one line and cut."""
    api.script("GET", PODS, refusal(403, "pods is\nforbidden " + "x" * 1000))
    with pytest.raises(Unreachable, match=r"^pods is forbidden x{282}$") as caught:
        pods(connect()).list()
    assert len(str(caught.value)) == MAX_MESSAGE


# --- watches ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("split", [1 << 20, 7])
def test_watch_yields_events_and_bookmarks(api: ApiServer, connect: Connect, split: int) -> None:
    """Lines become events however the bytes are cut; the first says that the watch is open."""
    lines = [line("ADDED", "a", "8"), {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "12"}}}]
    lines.append(line("DELETED", "a", "13"))
    api.script("GET", PODS, stream(*lines, split=split))
    events = list(pods(connect()).watch("7"))
    assert seen(iter(events)) == [("BOOKMARK", "7"), ("ADDED", "8"), ("BOOKMARK", "12"), ("DELETED", "13")]
    assert [isinstance(event.object, Pod) for event in events] == [False, True, False, True]
    query = api.requests[0].query
    assert 300 <= int(query.pop("timeoutSeconds")) <= 600
    assert query == {"watch": "true", "allowWatchBookmarks": "true", "resourceVersion": "7"}


@pytest.mark.parametrize(
    "answer",
    [refusal(410, "too old"), stream({"type": "ERROR", "object": status(410, "too old")})],
    ids=["as an HTTP status", "as an event"],
)
def test_watch_from_a_version_too_old_is_gone(api: ApiServer, connect: Connect, answer: Answer) -> None:
    """410 says Gone in both forms that it comes in."""
    api.script("GET", PODS, answer)
    with pytest.raises(Gone, match="too old"):
        list(pods(connect()).watch("1"))


@pytest.mark.parametrize(
    "answer",
    [
        refusal(500, "no"),
        reset,
        stream(line("ADDED", "a", "8"), then=reset),
        stream({"type": "ERROR", "object": status(500, "no")}),
        stream({"type": "ADDED", "object": "not an object"}),
        stream(line("ADDED", "a", "8"), then=hang),
    ],
    ids=["500", "reset", "reset in the middle", "500 as an event", "not an object", "silence"],
)
def test_watch_that_breaks_is_unreachable(api: ApiServer, connect: Connect, answer: Answer) -> None:
    """A watch that does not end as it should says so, a silent one after the time of inactivity."""
    api.script("GET", PODS, answer)
    with pytest.raises(Unreachable):
        list(pods(connect(inactivity=0.2)).watch("7"))


def test_close_ends_a_watch_under_way(api: ApiServer, connect: Connect) -> None:
    """A watch that waits for the server ends as soon as it is closed, and cannot be begun again."""
    api.script("GET", PODS, stream(line("ADDED", "a", "8"), then=hang))
    source = pods(connect())
    found: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        for event in source.watch("7"):
            found.put(event.kind)

    thread = threading.Thread(target=read)
    thread.start()
    assert [found.get(timeout=5), found.get(timeout=5)] == ["BOOKMARK", "ADDED"]
    source.close()
    thread.join(5)
    assert not thread.is_alive()
    assert found.empty()
    assert list(source.watch("8")) == []
