"""Fakes as ordinary classes: they have the methods of the real thing and do what a test told them."""

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from extender.cluster import Binding, PerhapsDone, Source, Unreachable
from extender.wire import Budget, Meta, Pod, PodSpec, PodStatus


@dataclass
class Answer:
    """What the cluster does with one Binding: carry it out or not, then raise `error` if there is one."""

    error: Exception | None = None
    done: bool = True


DONE = Answer()


def silent(*, done: bool) -> Answer:
    """Return an answer that does not come, after the write was done or not."""
    return Answer(PerhapsDone("no answer within 3.5 s"), done)


@dataclass
class ScriptedCluster:
    """A `Cluster` of some pods that answers each Binding as scripted, and then as it should.

    `gate`, if given, is what a bind waits for; `reachable` says whether a GET is answered.
    """

    pods: dict[str, Pod] = field(default_factory=dict)
    script: list[Answer] = field(default_factory=list)
    gate: asyncio.Event | None = None
    reachable: bool = True
    bindings: list[Binding] = field(default_factory=list)
    gets: int = 0
    patches: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    patch_errors: list[Exception | None] = field(default_factory=list)
    protecting: list[Budget] = field(default_factory=list)
    evictions: list[tuple[str, str]] = field(default_factory=list)
    eviction_errors: list[Exception | None] = field(default_factory=list)
    events: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, *pods: Pod, script: Iterable[Answer] = ()) -> "ScriptedCluster":
        """Return a cluster in which these pods are."""
        return cls({p.metadata.name: p for p in pods}, list(script))

    def sources(self) -> tuple[Source, ...]:
        """Return nothing to watch: a test tells the state itself."""
        return ()

    async def bind(self, binding: Binding) -> None:
        """Note the Binding and do with it as scripted."""
        self.bindings.append(binding)
        answer = self.script.pop(0) if self.script else DONE
        if self.gate is not None:
            await self.gate.wait()
        if answer.done:
            self.pods[binding.pod] = _bound(self.pods[binding.pod], binding)
        if answer.error is not None:
            raise answer.error

    async def patch_node_status(self, name: str, body: dict[str, Any]) -> None:
        """Note the patch, then raise the next scripted error if there is one."""
        self._patch(name, body)

    async def patch_pod(self, namespace: str, name: str, body: dict[str, Any]) -> None:
        """Note the patch, then raise the next scripted error if there is one."""
        self._patch(f"{namespace}/{name}", body)

    def _patch(self, name: str, body: dict[str, Any]) -> None:
        self.patches.append((name, body))
        error = self.patch_errors.pop(0) if self.patch_errors else None
        if error is not None:
            raise error

    async def budgets(self) -> list[Budget]:
        """Return the budgets that a test gave."""
        if not self.reachable:
            raise Unreachable("connection refused")
        return self.protecting

    async def evict(self, namespace: str, name: str, uid: str) -> None:
        """Note the eviction, then raise the next scripted error if there is one."""
        self.evictions.append((f"{namespace}/{name}", uid))
        error = self.eviction_errors.pop(0) if self.eviction_errors else None
        if error is not None:
            raise error

    async def event(self, about: Pod, reason: str, message: str, *, warning: bool = False) -> None:
        """Note the Event."""
        self.events.append((about.metadata.name, message))

    async def pod(self, namespace: str, name: str) -> Pod | None:
        """Return a pod as it is now."""
        self.gets += 1
        if not self.reachable:
            raise Unreachable("connection refused")
        return self.pods.get(name)


def _bound(pod: Pod, binding: Binding) -> Pod:
    meta, spec = pod.metadata, pod.spec
    return Pod(
        Meta(
            meta.name,
            meta.namespace,
            meta.uid,
            annotations={**(meta.annotations or {}), **binding.annotations} or None,
        ),
        PodSpec(binding.node, spec.containers, spec.init_containers),
        PodStatus("Pending"),
    )
