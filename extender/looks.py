"""What people look at: who serves here, why a pod waits, and the page. Questions on the port of the metrics."""

import time
from collections.abc import Callable, Coroutine
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from fastapi import FastAPI, Response
from msgspec import structs

from extender import wire
from extender.explain import explain
from extender.page import routes
from extender.settings import Settings
from extender.state import ClusterState

PATHS: Final = ("/about", "/explain", *routes.PATHS)


def add(
    app: FastAPI,
    state: ClusterState,
    settings: Settings,
    refusal: Callable[[], str],
    clock: Callable[[], float] = time.time,
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Serve them; return what has to run beside the service.

    `refusal`: why nothing can be told now, or "". `clock`: seconds since 1970.
    """

    @app.get("/about")
    async def about() -> Response:
        ours = state.rules.resources
        return _json(
            {
                "version": _version(),
                "policy": settings.policy,
                "refusal": refusal(),
                "resources": [ours.memory, ours.utilization, ours.share],
                "namespace": settings.pod_namespace,
                "agentNamespace": settings.agent_namespace,
                "silentSeconds": settings.silent_seconds,
                "port": settings.port,
                "time": clock(),
            }
        )

    @app.get("/explain")
    async def why(pod: str = "") -> Response:
        if said := refusal():
            return _json({"Error": said}, 503)
        found = next((p for p in state.waiting.values() if f"{p.metadata.namespace}/{p.metadata.name}" == pod), None)
        if found is None:
            return _json({"Error": f"No pod {pod!r} waits for cards; give it as ?pod=NAMESPACE/NAME."}, 404)
        return _json(structs.asdict(explain(state, found, state.asks[found.metadata.uid])))

    return routes.add(app, state, refusal) if settings.page else []


def _json(body: object, status: int = 200) -> Response:
    return Response(wire.encode(body), status, media_type="application/json")


def _version() -> str:
    try:
        return version("tessera-gpu")
    except PackageNotFoundError:
        return "unknown"
