"""The page's routes: three files and the state. Nothing is fetched from elsewhere, and nothing is written."""

import asyncio
import gzip
import time
from collections.abc import Callable, Coroutine
from functools import cache
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from fastapi import FastAPI, Request, Response

from extender.page.history import History
from extender.page.picture import Picture
from extender.state import ClusterState

FOLDER: Final = Path(__file__).parent
FILES: Final = {
    "/page": "index.html",
    **{f"/page/{name}": name for name in ("page.css", "page.js", "grid.js", "panels.js")},
}
TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript"}  # a host's own list may be old
PATHS: Final = (*FILES, "/page/state")
LEAST_GZIP: Final = 4096
HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:;"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",
}


def add(
    app: FastAPI, state: ClusterState, refusal: Callable[[], str]
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Serve the page; return what has to run beside it."""
    picture, history = Picture(state, uuid4().hex[:8]), History(state, refusal)

    for path, name in FILES.items():
        app.add_api_route(path, _file(name), methods=["GET", "HEAD"])

    @app.get("/page/state")
    async def shown(request: Request, since: str = "") -> Response:
        await picture.refresh(history.samples, time.monotonic())
        said = refusal()
        tag = f'W/"{picture.tag}{"-" if said else ""}"'
        headers = HEADERS | {"ETag": tag, "Vary": "Accept-Encoding"}
        if tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        body = picture.since(since, said)
        if len(body) >= LEAST_GZIP and "gzip" in request.headers.get("accept-encoding", ""):
            body = await asyncio.to_thread(gzip.compress, body, 1)
            headers["Content-Encoding"] = "gzip"
        return Response(body, headers=headers, media_type="application/json")

    return [history.run]


def _file(name: str) -> Callable[[], Coroutine[Any, Any, Response]]:
    kind = TYPES[name.rpartition(".")[2]]

    async def served() -> Response:
        return Response(_content(name), headers=HEADERS, media_type=kind)

    return served


@cache
def _content(name: str) -> bytes:
    return (FOLDER / name).read_bytes()
