"""One Lease of the API server, read and written as bytes, over connections of its own.

`kubernetes.leaderelection` is not used: it measures with the wall clock, ends without a word where the API server
refuses connections, and holds on to a leadership while a renewal hangs. Nothing is decided here.
"""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import DecodeError, Struct, field
from msgspec.json import Decoder

from extender.cluster import Lease, Unreachable
from extender.cluster.api import api_of

MAX_MESSAGE: Final = 300


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Spec(Struct, rename="camel"):
    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    lease_transitions: int | None = None
    acquire_time: str | None = None


class _Lease(Struct):
    metadata: _Meta = field(default_factory=_Meta)
    spec: _Spec = field(default_factory=_Spec)


_lease: Final = Decoder(_Lease)


def _now() -> datetime:
    return datetime.now(UTC)


class KubeLock:
    """A Lease by namespace and name. See `extender.leader.Lock`. `wall` is for people who read the Lease."""

    def __init__(
        self,
        kubeconfig: str | None,
        context: str | None,
        namespace: str,
        name: str,
        *,
        seconds: float,
        wall: Callable[[], datetime] = _now,
    ) -> None:
        """Describe a Lease, without asking for it; a call takes at most so many `seconds`.

        Raises
        ------
        BadConnection
        """
        self._api = api_of(kubeconfig, context, 1)
        self._namespace, self._name, self._seconds, self._wall = namespace, name, seconds, wall
        self._what = f"Lease {namespace}/{name}"
        self._all = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
        self._spec = _Spec()  # of the last Lease that was read

    async def read(self) -> Lease | None:
        """Return the Lease as it is now."""
        status, body = await self._sent("GET", f"{self._all}/{self._name}")
        return None if status == 404 else self._taken(status, body)

    async def write(self, holder: str, seconds: int, over: Lease | None) -> Lease | None:
        """Write the Lease over what was read."""
        metadata = {"namespace": self._namespace, "name": self._name}
        if over is not None:
            metadata["resourceVersion"] = over.version
        spec = self._written(holder, seconds, over)
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec}
        method, path = ("POST", self._all) if over is None else ("PUT", f"{self._all}/{self._name}")
        status, said = await self._sent(method, path, body=body)
        return None if status in (404, 409) else self._taken(status, said)

    def _written(self, holder: str, seconds: int, over: Lease | None) -> dict[str, Any]:
        # The API server takes no time without its six digits.
        now = self._wall().astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        stays = over is not None and over.holder == holder
        count = self._spec.lease_transitions or 0
        return {
            "holderIdentity": holder,
            "leaseDurationSeconds": seconds,
            "renewTime": now,
            "acquireTime": (self._spec.acquire_time if stays else None) or now,
            "leaseTransitions": count if stays or over is None else count + 1,
        }

    def _taken(self, status: int, body: bytes) -> Lease:
        if status not in (200, 201):
            raise Unreachable(f"{self._what}: the API server answered {status}.")
        try:
            read = _lease.decode(body)
        except DecodeError as error:
            raise Unreachable(f"{self._what}: {error}.") from error
        self._spec = spec = read.spec
        return Lease(spec.holder_identity or "", spec.lease_duration_seconds or 0, read.metadata.resource_version)

    async def _sent(self, method: str, path: str, **request: Any) -> tuple[int, bytes]:
        """Return the answer's status and body. Raises Unreachable in time, even if a thread still waits for one."""
        try:
            async with asyncio.timeout(self._seconds):
                return await asyncio.to_thread(self._blocking, method, path, request)
        except TimeoutError as error:
            raise Unreachable(f"{self._what}: no answer within {self._seconds:g} s.") from error

    def _blocking(self, method: str, path: str, request: dict[str, Any]) -> tuple[int, bytes]:
        try:
            response = self._api.send(method, path, (self._seconds, self._seconds), **request)
            return response.status, response.data
        except Exception as error:  # transport and credentials fail in many ways, and each means: not now
            raise Unreachable(f"{self._what}: {' '.join(str(error).split())[:MAX_MESSAGE]}") from error
