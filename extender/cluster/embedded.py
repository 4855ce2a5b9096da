"""A cluster made of a YAML file, as `kubectl get -o yaml` prints it: for the demo, and for offline work.

It refuses what the API server would refuse and remembers what was bound, in memory alone. No network, no
Kubernetes client and nothing that decides may enter here.
"""

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Generic, Self, TypeVar
from uuid import NAMESPACE_URL, uuid5

import msgspec
import yaml
from msgspec.structs import replace

from contract import names
from extender.cluster import Binding, Event, Gone, NotDone, Source, Watched
from extender.wire import Budget, GpuNode, Node, Pod

try:
    from yaml import CSafeLoader as _Fast
except ImportError:  # PyYAML was built without libyaml
    from yaml import SafeLoader as _Fast  # type: ignore[assignment]

QUIET_SECONDS: Final = 5.0  # a watch on which nothing happens says so this often

T = TypeVar("T", bound=Watched)


class BadSnapshot(ValueError):
    """A file that cannot be read as a cluster; one sentence names the file, the document and the fault."""


class _Log(Generic[T]):
    """The objects of one kind, and everything that happened to them. The key is a pod's UID, or the name."""

    def __init__(self, objects: Iterable[T]) -> None:
        self.changed = threading.Condition()
        self.objects: dict[str, T] = {_key(found): found for found in objects}
        self.events: list[Event] = []

    def tell(self, kind: str, found: T) -> None:
        """Note what happened, and the object as it is now; the number of the event is its version."""
        with self.changed:
            version = str(len(self.events) + 1)
            found = replace(found, metadata=replace(found.metadata, resource_version=version))
            if kind == "DELETED":
                del self.objects[_key(found)]
            else:
                self.objects[_key(found)] = found
            self.events.append(Event(kind, found, version))
            self.changed.notify_all()


def _key(found: Watched) -> str:
    return found.metadata.uid if isinstance(found, Pod) else found.metadata.name


def _name(found: Watched) -> str:
    return f"{found.metadata.namespace}/{found.metadata.name}"


class EmbeddedSource(Generic[T]):
    """One kind of object of the file. See `extender.cluster.Source`."""

    def __init__(self, kind: str, log: _Log[T]) -> None:
        self.kind = kind
        self._log = log
        self._closed = False

    def watch(self, version: str) -> Iterator[Event]:
        """Yield a bookmark of `version`, then what happened after it, until `close`."""
        if not version.isdecimal() or int(version) > len(self._log.events):
            raise Gone(f"There is no version {version}.")
        yield Event("BOOKMARK", None, version)
        at = int(version)
        while (events := self._after(at)) is not None:
            yield from events or (Event("BOOKMARK", None, str(at)),)
            at += len(events)

    def _after(self, at: int) -> Sequence[Event] | None:
        """Wait for events, but not for long, and return them; None once the source is closed."""
        with self._log.changed:
            self._log.changed.wait_for(lambda: self._closed or len(self._log.events) > at, QUIET_SECONDS)
            return None if self._closed else self._log.events[at:]

    def list(self) -> tuple[list[Watched], str]:
        """Return every object, and the number of events so far."""
        with self._log.changed:
            return [*self._log.objects.values()], str(len(self._log.events))

    def close(self) -> None:
        """End a watch under way, from another thread, and every later one."""
        with self._log.changed:
            self._closed = True
            self._log.changed.notify_all()


class EmbeddedCluster:
    """The cluster of a file. See `extender.cluster.Cluster`."""

    def __init__(
        self, nodes: Iterable[Node] = (), gpunodes: Iterable[GpuNode] = (), pods: Iterable[Pod] = ()
    ) -> None:
        self._nodes, self._gpunodes, self._pods = _Log(nodes), _Log(gpunodes), _Log(map(_identified, pods))
        self._uids = {_name(pod): uid for uid, pod in self._pods.objects.items()}

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Return the cluster of a file: its Nodes, GPUNodes and Pods, alone or in lists, and no other kinds.

        Raises
        ------
        BadSnapshot
        """
        found: dict[type[Watched], list[Any]] = {Node: [], GpuNode: [], Pod: []}
        seen: set[tuple[type[Watched], str]] = set()
        for where, raw in _objects(Path(path)):
            if (kind := _kind(raw)) is not None:
                found[kind].append(_decoded(where, raw, kind))
                _refuse_twin(where, found[kind][-1], seen)
        return cls(found[Node], found[GpuNode], found[Pod])

    def sources(self) -> tuple[Source, ...]:
        """Return new streams of nodes, gpunodes and pods, in this order."""
        return (
            EmbeddedSource("nodes", self._nodes),
            EmbeddedSource("gpunodes", self._gpunodes),
            EmbeddedSource("pods", self._pods),
        )

    async def bind(self, binding: Binding) -> None:
        """Bind the pod that is meant, once, as the API server does. See `extender.cluster.Cluster.bind`."""
        name = f"{binding.namespace}/{binding.pod}"
        with self._pods.changed:
            pod = self._pods.objects.get(binding.uid)
            if pod is None or _name(pod) != name:
                raise NotDone(f"There is no pod {name} with UID {binding.uid}.")
            if pod.metadata.deletion_timestamp:
                raise NotDone(f"Pod {name} is being deleted.")
            if pod.spec.node_name:
                raise NotDone(f"Pod {name} is already assigned to node {pod.spec.node_name}.")
            annotations = {**(pod.metadata.annotations or {}), **binding.annotations}
            metadata = replace(pod.metadata, annotations=annotations)
            spec = replace(pod.spec, node_name=binding.node)
            self._pods.tell("MODIFIED", replace(pod, metadata=metadata, spec=spec))

    async def budgets(self) -> list[Budget]:
        """Return none: the file has no disruption budgets."""
        return []

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Delete the pod that is meant. See `extender.cluster.Cluster.evict`."""
        with self._pods.changed:
            if uid not in self._pods.objects or self._uids.get(f"{namespace}/{name}") != uid:
                raise NotDone(f"There is no pod {namespace}/{name} with UID {uid}.")
            self.delete(uid)

    async def event(self, about: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Do nothing: nobody could read it."""

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Return the pod as it is now, or None if there is none."""
        return self._pods.objects.get(self._uids.get(f"{namespace}/{name}", ""))

    def pods(self) -> list[Pod]:
        """Return every pod as it is now, in the order in which they came."""
        with self._pods.changed:
            return [*self._pods.objects.values()]

    def admit(self, pod: Pod) -> None:
        """Make a pod known that is not in the file, or as it is now if it is not bound yet.

        There is no API server in which it could have been created, so the first question about a pod makes it
        exist. A pod of the same name and another UID is its predecessor, and is deleted.
        """
        pod = _identified(pod)
        with self._pods.changed:
            known = self._pods.objects.get(pod.metadata.uid)
            if known is not None:
                bound = known.spec.node_name or pod.spec.node_name
                if not bound and known != pod and _name(known) == _name(pod):
                    self._pods.tell("MODIFIED", pod)
                return
            self.delete(self._uids.get(_name(pod), ""))
            self._uids[_name(pod)] = pod.metadata.uid
            self._pods.tell("ADDED", pod)

    def delete(self, uid: str) -> None:
        """Make a pod leave the cluster; nothing happens if it is not there."""
        with self._pods.changed:
            if (pod := self._pods.objects.get(uid)) is not None:
                del self._uids[_name(pod)]
                self._pods.tell("DELETED", pod)


def _identified(pod: Pod) -> Pod:
    """Return the pod with a namespace and a UID, which is the same at every reading of the file."""
    meta = pod.metadata
    namespace = meta.namespace or "default"
    uid = meta.uid or str(uuid5(NAMESPACE_URL, f"{namespace}/{meta.name}"))
    return replace(pod, metadata=replace(meta, namespace=namespace, uid=uid))


# --- the file -----------------------------------------------------------------------------------------------


class _Loader(_Fast):
    """YAML without dates: Kubernetes writes them as strings, and reads them as strings."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in _Fast.yaml_implicit_resolvers.items()
}


def _documents(path: Path) -> Iterator[tuple[str, Any]]:
    """Yield where each document stands, and what it holds."""
    number = 1
    try:
        with path.open("rb") as file:
            for document in yaml.load_all(file, _Loader):
                yield f"{path}, document {number}", document
                number += 1
    except OSError as error:
        raise BadSnapshot(f"{path} cannot be read: {error.strerror}.") from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise BadSnapshot(f"{path}, document {number}: not YAML: {' '.join(str(error).split())}.") from error


def _objects(path: Path) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield where each object stands, and the object, with the lists taken apart."""
    for where, document in _documents(path):
        try:
            yield from () if document is None else _unwrapped(where, document)
        except RecursionError as error:
            raise BadSnapshot(f"{where}: a list that contains itself.") from error


def _unwrapped(where: str, raw: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(raw, Mapping) or not all(isinstance(raw.get(key), str) for key in ("apiVersion", "kind")):
        raise BadSnapshot(f"{where}: not a Kubernetes object, which has apiVersion and kind.")
    if not raw["kind"].endswith("List"):
        yield where, raw
        return
    items = raw.get("items") or []
    if not isinstance(items, list):
        raise BadSnapshot(f"{where}: the items of {raw['kind']} are not a list.")
    # The items of a `kind: List` name their own kind; a NodeList says it once for all.
    kind = raw["kind"].removesuffix("List")
    shared = {"apiVersion": raw["apiVersion"], "kind": kind} if kind else {}
    for number, item in enumerate(items, 1):
        yield from _unwrapped(f"{where}, item {number}", shared | item if isinstance(item, dict) else item)


def _kind(raw: Mapping[str, Any]) -> type[Watched] | None:
    """Return what an object is to Tessera. The group counts: others have kinds called Node, too."""
    group = raw["apiVersion"].rpartition("/")[0]
    kinds: dict[tuple[str, str], type[Watched]]
    kinds = {("", "Node"): Node, (names.GROUP, names.KIND): GpuNode, ("", "Pod"): Pod}
    return kinds.get((group, raw["kind"]))


def _decoded(where: str, raw: Mapping[str, Any], kind: type[Watched]) -> Watched:
    metadata = raw.get("metadata")
    if not isinstance(metadata, Mapping) or not metadata.get("name"):
        raise BadSnapshot(f"{where}: the {raw['kind']} has no name.")
    try:
        found = msgspec.convert({**raw, "metadata": {**metadata, "resourceVersion": "0"}}, kind)
    except (msgspec.ValidationError, RecursionError) as error:
        raise BadSnapshot(f"{where}: {raw['kind']} {metadata['name']}: {error}.") from error
    return _identified(found) if isinstance(found, Pod) else found


def _refuse_twin(where: str, found: Watched, seen: set[tuple[type[Watched], str]]) -> None:
    for identity in dict.fromkeys((_name(found).lstrip("/"), _key(found))):
        if (type(found), identity) in seen:
            raise BadSnapshot(f"{where}: {type(found).__name__} {identity} is in the file twice.")
        seen.add((type(found), identity))
