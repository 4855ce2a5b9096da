"""The pods of a node: what each was granted, and how the agent keeps up with them."""

import threading
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.assignment import Assignment, Grant, annotations
from nodeagent import pods as module
from nodeagent.api import Api
from nodeagent.pods import PodWatch, pod_in
from tests.e2e.controlplane.waiting import wait_until
from tests.fakes_apiserver import ApiServer, hang, refusal, reply, stream

PODS = "/api/v1/pods"


def raw(
    name: str = "p",
    grants: dict[str, dict[str, int]] | None = None,
    *,
    init: dict[str, bool] | None = None,
    node: str = "n1",
    version: str = "1",
    **more: Any,
) -> dict[str, Any]:
    """Return a pod's JSON; `grants`: MiB by container and card; `init`: name -> is a sidecar."""
    shares = {c: tuple(Grant(gpu, mib, 0) for gpu, mib in of.items()) for c, of in (grants or {}).items()}
    notes = annotations(Assignment("n1", f"uid-{name}", shares)) if grants else {}
    inits = [{"name": n, **({"restartPolicy": "Always"} if side else {})} for n, side in (init or {}).items()]
    mains = [{"name": c} for c in grants or ["main"] if c not in (init or {})]
    meta = {"name": name, "namespace": "default", "uid": f"uid-{name}", "resourceVersion": version}
    return {
        "metadata": meta | {"annotations": notes | more.pop("notes", {})},
        "spec": {"nodeName": node, "containers": mains, "initContainers": inits},
        "status": {"phase": "Running", **more},
    }


def granted(*args: Any, **more: Any) -> dict[str, int]:
    """Return what a pod as a whole was granted."""
    pod = pod_in(raw(*args, **more), "n1")
    assert pod is not None
    return dict(pod.granted)


def test_a_pod_is_granted_what_its_containers_use_together() -> None:
    """Containers add up by card; init containers end before; a sidecar runs beside all that follow it."""
    assert granted("p", {"a": {"G": 10, "H": 1}, "b": {"G": 5}}) == {"G": 15, "H": 1}
    assert granted("p", {"i": {"G": 40}, "a": {"G": 10}}, init={"i": False}) == {"G": 40}
    assert granted("p", {"s": {"G": 8}, "i": {"G": 40}, "a": {"G": 10}}, init={"s": True, "i": False}) == {"G": 48}
    assert granted("p", {"i": {"G": 5}, "s": {"G": 8}, "a": {"G": 10}}, init={"i": False, "s": True}) == {"G": 18}


def test_only_a_record_of_this_pod_on_this_node_counts() -> None:
    """A copied, unreadable or missing record grants nothing."""
    copied = raw("p", {"a": {"G": 1}})
    copied["metadata"]["uid"] = "uid-q"
    assert pod_in(copied, "n1").granted == {}  # type: ignore[union-attr]
    assert granted("p", notes={"tessera.gpu/assignment": "{"}) == {}
    assert granted("p") == {}
    assert pod_in(raw(node="n2"), "n1") is None
    for phase in ("Succeeded", "Failed"):
        assert pod_in(raw(phase=phase), "n1") is None


def test_containers_are_known_by_the_runtimes_id() -> None:
    """Of all kinds, without the runtime's name; one that has none yet is left out."""
    statuses = [{"name": "main", "containerID": "cri-o://abc"}, {"name": "late"}]
    pod = pod_in(raw(containerStatuses=statuses, initContainerStatuses=None), "n1")
    assert pod is not None
    assert pod.names == {"abc": "main"}


def test_a_static_pod_is_known_by_its_hash() -> None:
    """Its cgroup is named after the hash of its file, not after the mirror pod's UID."""
    pod = pod_in(raw(notes={"kubernetes.io/config.mirror": "f" * 32}), "n1")
    assert pod is not None
    assert pod.uid == "f" * 32


@pytest.mark.parametrize("note", ["kubernetes.io/config.hash", "kubernetes.io/config.mirror"])
def test_no_annotation_makes_a_pod_another(note: str) -> None:
    """A user may write the hash on any pod; a UID in the place of the mirror's is no hash."""
    victim = "0f7a1b2c-3d4e-4f50-8a6b-7c8d9e0f1a2b"
    pod = pod_in(raw("attacker", notes={note: victim}), "n1")
    assert pod is not None
    assert pod.uid == "uid-attacker"
    hashed = pod_in(raw("attacker", notes={"kubernetes.io/config.hash": "f" * 32}), "n1")
    assert hashed is not None
    assert hashed.uid == "uid-attacker"


class Follower:
    """A watch that runs in a thread until the test is over."""

    def __init__(self, api: Api) -> None:
        self.watch = PodWatch(api, "n1", rng=Random(1))
        self.thread = threading.Thread(target=self.watch.run, daemon=True)

    def names(self) -> set[str]:
        """Return the names of the pods that it knows."""
        return {pod.name for pod in (self.watch.pods() or {}).values()}

    def wait(self, *names: str) -> None:
        """Wait until it knows just these."""
        wait_until(lambda: self.names() == set(names), f"{names} are known, not {self.names()}")


@pytest.fixture
def follower(api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Follower]:
    """Return a watch of node n1 that a test starts, with short pauses."""
    monkeypatch.setattr(module, "PAUSES", (0.01, 0.02))
    follower = Follower(api)
    yield follower
    follower.watch.stop()
    server.over.set()
    follower.thread.join()


def listing(*pods: dict[str, Any], version: str = "5", more: str = "") -> Any:
    """Return the answer to a list."""
    return reply(200, {"metadata": {"resourceVersion": version, "continue": more}, "items": list(pods)})


def event(kind: str, pod: dict[str, Any], version: str) -> dict[str, Any]:
    """Return one line of a watch."""
    pod["metadata"]["resourceVersion"] = version
    return {"type": kind, "object": pod}


def test_it_lists_in_pages_and_follows(follower: Follower, server: ApiServer) -> None:
    """Two pages, then what happens: one comes, one ends, one is deleted; of other nodes' pods it asks nothing."""
    server.script(
        "GET",
        PODS,
        listing(raw("a"), more="next"),
        listing(raw("b")),
        stream(
            event("ADDED", raw("c"), "6"),
            event("MODIFIED", raw("a", phase="Succeeded"), "7"),
            event("DELETED", raw("b"), "8"),
            then=hang,
        ),
    )
    assert follower.watch.pods() is None
    follower.thread.start()
    follower.wait("c")
    first, second, watch = server.requests[:3]
    assert first.query == {"fieldSelector": "spec.nodeName=n1", "limit": "50"}
    assert second.query["continue"] == "next"
    assert (watch.query["watch"], watch.query["resourceVersion"]) == ("true", "5")


def test_a_watch_goes_on_where_it_ended(follower: Follower, server: ApiServer) -> None:
    """After an end, from the last event or bookmark, without a list."""
    bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}
    more = stream(event("ADDED", raw("c"), "10"), then=hang)
    server.script("GET", PODS, listing(raw("a")), stream(event("ADDED", raw("b"), "6"), bookmark), more)
    follower.thread.start()
    follower.wait("a", "b", "c")
    assert [r.query.get("resourceVersion") for r in server.requests] == [None, "5", "9"]


@pytest.mark.parametrize(
    "gone",
    [refusal(410, "too old"), stream({"type": "ERROR", "object": {"code": 410, "message": "too old"}})],
    ids=["as an answer", "as an event"],
)
def test_a_version_that_is_too_old_is_listed_again(gone: Any, follower: Follower, server: ApiServer) -> None:
    """What went in between is gone, what came is there."""
    server.script("GET", PODS, listing(raw("a")), gone, listing(raw("b"), version="20"), stream(then=hang))
    follower.thread.start()
    follower.wait("b")


def test_while_the_api_server_is_away_the_last_pods_count(follower: Follower, server: ApiServer) -> None:
    """Failures in a row change nothing; then it goes on."""
    server.script("GET", PODS, listing(raw("a")), refusal(500, "away"))  # the last one again and again
    follower.thread.start()
    follower.wait("a")
    wait_until(lambda: len(server.requests) > 8, "it asks again and again")
    assert follower.names() == {"a"}
    server.script("GET", PODS, listing(raw("a"), raw("b")), stream(then=hang))
    follower.wait("a", "b")


def test_a_watch_that_ends_at_once_is_not_asked_for_without_end(
    follower: Follower, server: ApiServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each such end counts as a failure, with its pause, and after some the pods are listed anew."""
    server.script("GET", PODS, listing(raw("a")), *[stream()] * 5, listing(raw("b")), stream(then=hang))
    waited: list[float] = []
    monkeypatch.setattr(follower.watch._stopping, "wait", waited.append)
    follower.thread.start()
    follower.wait("b")
    assert len(waited) == 5
    assert min(waited) > 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["ADDED", "MODIFIED", "DELETED"]),
            st.sampled_from("abc"),
            st.sampled_from(["Running", "Succeeded"]),
            st.booleans(),
        ),
        max_size=30,
    )
)
def test_any_history_leaves_what_a_list_would(history: list[tuple[str, str, str, bool]]) -> None:
    """Whatever happened to three pods, static ones among them: known is who is there and has not finished."""
    watch, there = PodWatch(Api("http://nobody"), "n1"), dict[str, Any]()
    for kind, name, phase, static in history:
        notes = {"kubernetes.io/config.mirror": name * 32} if static else {}
        pod = raw(name, notes=notes, phase=phase)
        watch._take(kind, pod)
        there.pop(name, None)
        if kind != "DELETED":
            there[name] = pod
    listed = [found for made in there.values() if (found := pod_in(made, "n1")) is not None]
    assert watch.pods() == ({found.uid: found for found in listed} if history else None)
