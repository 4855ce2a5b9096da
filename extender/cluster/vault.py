"""The webhooks' certificate in the cluster: the Secret that keeps it, and the configurations that trust it.

Read and written as bytes, like a Lease (`lease.py`). Nothing is decided here.
"""

import asyncio
from base64 import b64decode, b64encode
from typing import Any, Final

from msgspec import DecodeError, Struct, field
from msgspec.json import Decoder

from contract.names import WEBHOOKS
from extender.cluster import Kept, Unreachable
from extender.cluster.api import api_of

SECONDS: Final = 5.0
MAX_MESSAGE: Final = 300
_FIELDS: Final = {
    "cert": "tls.crt",
    "key": "tls.key",
    "bundle": "ca.crt",
    "next_cert": "next.crt",
    "next_key": "next.key",
}
_STRATEGIC: Final = "application/strategic-merge-patch+json"
_CONFIGURATIONS: Final = [
    f"/apis/admissionregistration.k8s.io/v1/{kind}webhookconfigurations/{WEBHOOKS}"
    for kind in ("mutating", "validating")
]


class _Meta(Struct, rename="camel"):
    resource_version: str = ""


class _Secret(Struct):
    metadata: _Meta = field(default_factory=_Meta)
    data: dict[str, str] | None = None


class _Client(Struct, rename={"bundle": "caBundle"}):
    bundle: str = ""


class _Webhook(Struct, rename={"client": "clientConfig"}):
    name: str
    client: _Client = field(default_factory=_Client)


class _Configuration(Struct):
    webhooks: list[_Webhook] | None = None


_secret: Final = Decoder(_Secret)
_configuration: Final = Decoder(_Configuration)


class KubeVault:
    """A Secret by namespace and name. See `extender.controllers.certificates.Vault`."""

    def __init__(self, kubeconfig: str | None, context: str | None, namespace: str, name: str) -> None:
        """Describe a Secret, without asking for it.

        Raises
        ------
        BadConnection
        """
        self._api = api_of(kubeconfig, context, 1)
        self._namespace, self._name = namespace, name
        self._all = f"/api/v1/namespaces/{namespace}/secrets"

    async def read(self) -> Kept | None:
        """Return what the Secret keeps."""
        status, body = await self._sent("GET", f"{self._all}/{self._name}")
        if status == 404:
            return None
        _expect(status, body, 200)
        try:
            secret = _secret.decode(body)
            data = {key: b64decode(text) for key, text in (secret.data or {}).items()}
        except (DecodeError, ValueError) as error:
            raise Unreachable(f"Secret {self._namespace}/{self._name}: {error}.") from error
        return Kept(**{to: data.get(at, b"") for to, at in _FIELDS.items()}, version=secret.metadata.resource_version)

    async def write(self, kept: Kept) -> bool:
        """Write the Secret, over the version that was read; False: somebody else was first."""
        metadata = {"namespace": self._namespace, "name": self._name}
        data = {at: b64encode(getattr(kept, to)).decode() for to, at in _FIELDS.items()}
        body: dict[str, Any] = {"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls", "data": data}
        if kept.version:
            metadata["resourceVersion"] = kept.version
        method, path = ("PUT", f"{self._all}/{self._name}") if kept.version else ("POST", self._all)
        status, said = await self._sent(method, path, body=body | {"metadata": metadata})
        if status in (404, 409):
            return False
        _expect(status, said, 200, 201)
        return True

    async def trust(self, bundle: bytes) -> None:
        """Make the webhooks' configurations, as far as there are any, trust these CAs."""
        text = b64encode(bundle).decode()
        for path in _CONFIGURATIONS:
            status, body = await self._sent("GET", path)
            if status == 404:
                continue
            _expect(status, body, 200)
            webhooks = _configuration.decode(body).webhooks or ()
            stale = [webhook.name for webhook in webhooks if webhook.client.bundle != text]
            if stale:
                patch = {"webhooks": [{"name": name, "clientConfig": {"caBundle": text}} for name in stale]}
                _expect(*await self._sent("PATCH", path, content=_STRATEGIC, body=patch), 200)

    async def _sent(self, method: str, path: str, **request: Any) -> tuple[int, bytes]:
        try:
            async with asyncio.timeout(2 * SECONDS):
                return await asyncio.to_thread(self._blocking, method, path, request)
        except TimeoutError as error:
            raise Unreachable(f"{path}: no answer within {2 * SECONDS:g} s.") from error

    def _blocking(self, method: str, path: str, request: dict[str, Any]) -> tuple[int, bytes]:
        try:
            response = self._api.send(method, path, (SECONDS, SECONDS), **request)
            return response.status, response.data
        except Exception as error:  # transport and credentials fail in many ways, and each means: not now
            raise Unreachable(f"{path}: {' '.join(str(error).split())[:MAX_MESSAGE]}") from error


def _expect(status: int, body: bytes, *good: int) -> None:
    if status not in good:
        said = " ".join(body.decode(errors="replace").split())[:MAX_MESSAGE]
        raise Unreachable(f"The API server answered {status}: {said}")
