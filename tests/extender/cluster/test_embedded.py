"""The cluster of a YAML file: what is read from it, and what it refuses as the API server would."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from extender.cluster import Binding, Cluster, Event, Gone, NotDone
from extender.cluster.embedded import BadSnapshot, EmbeddedCluster
from extender.wire import Container, GpuNode, Meta, Node, Pod, PodSpec, Requirements

EXAMPLE = """
apiVersion: v1
kind: Node
metadata:
  name: n1
  creationTimestamp: 2026-01-01T00:00:00Z
  annotations: {tessera.gpu/overcommit: "1.5"}
status:
  allocatable: {cpu: 8, memory: 64Gi}
---
apiVersion: tessera.gpu/v1alpha1
kind: GPUNode
metadata: {name: n1}
status:
  gpus: [{uuid: GPU-1, memoryMiB: 81920}]
---
apiVersion: v1
kind: List
items:
- apiVersion: v1
  kind: Pod
  metadata: {name: a, namespace: team, uid: u-a, resourceVersion: "99", deletionTimestamp: 2026-01-01T00:00:00Z}
  spec:
    nodeName: n1
    containers: [{name: main, resources: {limits: {cpu: 0.5, nvidia.com/gpu-memory: 8192}}}]
  status: {phase: Running}
- apiVersion: v1
  kind: ConfigMap
  metadata: {name: ignored}
---
# nothing
---
apiVersion: v1
kind: PodList
items:
- metadata: {name: b}
"""


def load(folder: Path, text: str) -> EmbeddedCluster:
    file = folder / "cluster.yaml"
    file.write_text(text)
    return EmbeddedCluster.load(file)


def pod(name: str = "p", uid: str = "u", node: str = "") -> Pod:
    return Pod(Meta(name=name, namespace="ns", uid=uid), PodSpec(node_name=node))


def after(cluster: EmbeddedCluster, version: str, count: int) -> list[tuple[str, str, str]]:
    """Return the events of pods after a version: kind, UID, version."""
    watch = cluster.sources()[2].watch(version)
    assert next(watch) == Event("BOOKMARK", None, version)
    events = [next(watch) for _ in range(count)]
    return [(e.kind, e.object.metadata.uid if e.object else "", e.version) for e in events]


# --- the file ------------------------------------------------------------------------------------------------


def test_kubectl_output_is_read(tmp_path: Path) -> None:
    """Documents, lists, dates and bare numbers come in as kubectl prints them; other kinds stay out."""
    cluster: Cluster = load(tmp_path, EXAMPLE)
    (nodes, version), (gpunodes, _), (pods, _) = (source.list() for source in cluster.sources())
    [node], [gpu_node], [a, b] = nodes, gpunodes, pods
    assert isinstance(node, Node)
    assert isinstance(gpu_node, GpuNode)
    assert isinstance(a, Pod)
    assert version == node.metadata.resource_version == a.metadata.resource_version == "0"
    assert node.status.allocatable == {"cpu": 8, "memory": "64Gi"}
    assert (gpu_node.api_version, gpu_node.status) == (
        "tessera.gpu/v1alpha1",
        {"gpus": [{"uuid": "GPU-1", "memoryMiB": 81920}]},
    )
    limits = {"cpu": 0.5, "nvidia.com/gpu-memory": 8192}
    assert a.spec.containers == [Container("main", Requirements(limits))]
    assert a.metadata.deletion_timestamp == "2026-01-01T00:00:00Z"
    assert (b.metadata.namespace, b.metadata.name) == ("default", "b")


def test_a_pod_without_uid_gets_the_same_one_each_time(tmp_path: Path) -> None:
    """The UID follows from namespace and name alone."""
    text = "{apiVersion: v1, kind: Pod, metadata: {name: %s}}"
    uids = [load(tmp_path, text % name).sources()[2].list()[0][0].metadata.uid for name in "aab"]
    assert uids[0] == uids[1] != uids[2]
    assert len(uids[0]) == 36


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: [", "document 1: not YAML"),
        ("null\n---\n{", "document 2: not YAML"),
        ("- 1", "document 1: not a Kubernetes object"),
        ("kind: Pod", "document 1: not a Kubernetes object"),
        ("{apiVersion: v1, kind: PodList, items: 3}", "document 1: the items of PodList are not a list"),
        ("{apiVersion: v1, kind: PodList, items: [3]}", "document 1, item 1: not a Kubernetes object"),
        (
            "&a {apiVersion: v1, kind: PodList, items: [*a]}",
            "document 1: a list that contains itself",
        ),
        ("{apiVersion: v1, kind: Pod}", "document 1: the Pod has no name"),
        (
            "{apiVersion: v1, kind: Pod, metadata: {name: p, annotations: {a: 1}}}",
            "Pod p: Expected `str`, got `int` - at `$.metadata.annotations",
        ),
        ("\n---\n".join(["{apiVersion: v1, kind: Node, metadata: {name: n}}"] * 2), "document 2: Node n is"),
        (
            "\n---\n".join(f"{{apiVersion: v1, kind: Pod, metadata: {{name: p, uid: {u}}}}}" for u in "ab"),
            "document 2: Pod default/p is in the file twice",
        ),
    ],
)
def test_a_bad_file_is_refused_with_a_sentence(tmp_path: Path, text: str, sentence: str) -> None:
    """The sentence names the file, the document and the fault."""
    with pytest.raises(BadSnapshot) as caught:
        load(tmp_path, text)
    assert str(caught.value).startswith(f"{tmp_path / 'cluster.yaml'}, document ")
    assert sentence in str(caught.value)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """No file is a bad snapshot like another."""
    with pytest.raises(BadSnapshot, match=r"none cannot be read: No such file or directory\.$"):
        EmbeddedCluster.load(tmp_path / "none")


def test_kinds_of_other_groups_are_ignored(tmp_path: Path) -> None:
    """Someone else's Node is no node."""
    cluster = load(tmp_path, "{apiVersion: other.io/v1, kind: Node, metadata: {name: n}}")
    assert cluster.sources()[0].list() == ([], "0")


# --- bind, admit, delete -------------------------------------------------------------------------------------


@pytest.mark.anyio
async def test_bind_sets_node_and_annotations() -> None:
    """The bound pod has the node and all annotations, old and new; what was listed before stays as it was."""
    before = Pod(Meta(name="p", namespace="ns", uid="u", annotations={"a": "1", "b": "1"}))
    cluster = EmbeddedCluster(pods=[before])
    await cluster.bind(Binding("ns", "p", "u", "n1", {"b": "2"}))
    found = await cluster.pod("ns", "p")
    assert found is not None
    assert (found.spec.node_name, found.metadata.annotations) == ("n1", {"a": "1", "b": "2"})
    assert before.spec.node_name == ""
    assert after(cluster, "0", 1) == [("MODIFIED", "u", "1")]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("binding", "sentence"),
    [
        (Binding("ns", "p", "other", "n1"), "There is no pod ns/p with UID other."),
        (Binding("ns", "q", "u", "n1"), "There is no pod ns/q with UID u."),
        (Binding("x", "p", "u", "n1"), "There is no pod x/p with UID u."),
        (Binding("ns", "bound", "u2", "n1"), "Pod ns/bound is already assigned to node n2."),
    ],
    ids=["unknown UID", "another name", "another namespace", "bound elsewhere"],
)
async def test_bind_refuses_what_the_api_server_would(binding: Binding, sentence: str) -> None:
    """The refusal is certain and says why, and nothing has happened."""
    cluster = EmbeddedCluster(pods=[pod(), pod("bound", "u2", "n2")])
    with pytest.raises(NotDone) as caught:
        await cluster.bind(binding)
    assert str(caught.value) == sentence
    assert cluster.sources()[2].list()[1] == "0"


@pytest.mark.anyio
async def test_admit_makes_a_pod_exist_once() -> None:
    """The second question about a pod changes nothing, not even after it was bound."""
    cluster = EmbeddedCluster()
    cluster.admit(pod())
    await cluster.bind(Binding("ns", "p", "u", "n1"))
    cluster.admit(pod())
    found = await cluster.pod("ns", "p")
    assert found is not None
    assert found.spec.node_name == "n1"
    assert after(cluster, "0", 2) == [("ADDED", "u", "1"), ("MODIFIED", "u", "2")]


@pytest.mark.anyio
async def test_an_unbound_pod_is_as_it_is_asked_about() -> None:
    """Labels and annotations may change before a pod is bound; its name may not."""
    cluster = EmbeddedCluster()
    cluster.admit(pod())
    changed = pod()
    changed.metadata.annotations = {"tessera.gpu/memory": "1Gi"}
    cluster.admit(changed)
    found = await cluster.pod("ns", "p")
    assert found is not None
    assert found.metadata.annotations == changed.metadata.annotations
    cluster.admit(pod(name="other"))
    assert await cluster.pod("ns", "other") is None
    assert await cluster.pod("ns", "p") is not None


def test_a_pod_created_again_replaces_its_predecessor() -> None:
    """The old UID is deleted before the new one is added."""
    cluster = EmbeddedCluster(pods=[pod(uid="old")])
    cluster.admit(pod(uid="new"))
    assert after(cluster, "0", 2) == [("DELETED", "old", "1"), ("ADDED", "new", "2")]
    assert [found.metadata.uid for found in cluster.sources()[2].list()[0]] == ["new"]


@pytest.mark.anyio
async def test_delete_tells_once() -> None:
    """A deleted pod is gone from every question, and deleting it again is nothing."""
    cluster = EmbeddedCluster(pods=[pod()])
    cluster.delete("u")
    cluster.delete("u")
    assert await cluster.pod("ns", "p") is None
    assert cluster.sources()[2].list() == ([], "1")
    assert after(cluster, "0", 1) == [("DELETED", "u", "1")]


@pytest.mark.anyio
async def test_evict_deletes_the_pod_that_is_meant() -> None:
    """A pod of another UID or name is refused; there are no budgets that could forbid it."""
    cluster = EmbeddedCluster(pods=[pod()])
    for name, uid in (("p", "other"), ("q", "u")):
        with pytest.raises(NotDone, match="There is no pod"):
            await cluster.evict("ns", name, uid)
    await cluster.evict("ns", "p", "u")
    assert await cluster.pod("ns", "p") is None
    assert await cluster.budgets() == []


# --- watch ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", ["1", "x", ""])
def test_watch_of_a_version_that_never_was_is_gone(version: str) -> None:
    """The watcher must list again."""
    with pytest.raises(Gone):
        next(iter(EmbeddedCluster().sources()[2].watch(version)))


def test_watch_waits_for_what_happens_and_ends_when_closed() -> None:
    """A watch under way hears of a change at once, and of `close` as well."""
    cluster = EmbeddedCluster()
    source = cluster.sources()[2]
    heard, told = threading.Event(), []

    def read(events: Iterator[Event]) -> None:
        for event in events:
            told.append(event.kind)
            heard.set()

    thread = threading.Thread(target=read, args=(source.watch("0"),))
    thread.start()
    assert heard.wait(20)
    heard.clear()
    cluster.admit(pod())
    assert heard.wait(20)
    source.close()
    thread.join(20)
    assert not thread.is_alive()
    assert told == ["BOOKMARK", "ADDED"]


def test_a_quiet_watch_gives_signs_of_life(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bookmarks come where nothing happens, so that silence means a fault."""
    monkeypatch.setattr("extender.cluster.embedded.QUIET_SECONDS", 0.0)
    assert after(EmbeddedCluster(), "0", 2) == [("BOOKMARK", "", "0")] * 2


def test_no_kubernetes_client_is_needed() -> None:
    """Offline work does not pay for a client that it does not use."""
    script = "import sys, extender.cluster.embedded; sys.exit('kubernetes' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0
