"""The whole service in this process: the application over an embedded cluster, and a client that speaks to it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec

from extender.app import Service, build
from extender.bind import Binder
from extender.cluster.embedded import EmbeddedCluster
from extender.settings import Settings
from extender.state import ClusterState
from extender.watch import Watch

EXAMPLE = Path(__file__).parents[2] / "deploy/examples/cluster.yaml"
SECONDS = 5.0


@dataclass
class Served:
    """A running service, and what a test asks it with."""

    service: Service
    cluster: EmbeddedCluster
    http: httpx.AsyncClient
    app: Any

    async def post(self, verb: str, body: Any, status: int = 200) -> Any:
        """Return the reply to a verb; `body` is sent as it is, or as JSON."""
        content = body if isinstance(body, bytes) else msgspec.json.encode(body)
        reply = await self.http.post(f"/{verb}", content=content)
        assert (reply.status_code, reply.headers["content-type"]) == (status, "application/json")
        return reply.json()

    async def until(self, true: Callable[[ClusterState], bool]) -> None:
        """Wait until something is true of the state."""
        await until(lambda: true(self.service.state))


def service_of(cluster: EmbeddedCluster, **settings: Any) -> Service:
    """Return a service that has not begun to watch."""
    chosen = Settings(**settings)
    state = ClusterState(chosen.rules)
    service = Service(chosen, state, Binder(state, cluster), Watch(cluster.sources(), state))
    service.on_ask = cluster.admit
    return service


@asynccontextmanager
async def serve(**settings: Any) -> AsyncIterator[Served]:
    """Serve the example cluster for as long as the block lasts, from when everything is listed."""
    cluster = EmbeddedCluster.load(EXAMPLE)
    service = service_of(cluster, **settings)
    app = build(service)
    async with app.router.lifespan_context(app), client(app) as http:
        await until(lambda: not service.refusal())
        yield Served(service, cluster, http, app)


async def until(true: Callable[[], bool]) -> None:
    """Wait until something is true that another thread brings about."""
    async with asyncio.timeout(SECONDS):
        while not true():  # noqa: ASYNC110  # nobody sets an event for a test
            await asyncio.sleep(0.002)


def client(app: Any) -> httpx.AsyncClient:
    """Return a client of an application, which lets the application's exceptions through."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://tessera")
