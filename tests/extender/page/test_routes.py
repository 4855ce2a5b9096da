"""The page over HTTP: files with a strict policy, the state with tags, deltas and compression."""

import re

import pytest

from extender.page import routes
from extender.page.routes import FILES, PATHS
from tests.extender.served import serve

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("path", FILES)
async def test_files_come_with_a_strict_policy(path: str) -> None:
    """Nothing from elsewhere, nothing inline, nothing evaluated, in nobody's frame."""
    async with serve(page=True) as served:
        reply = await served.http.get(path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"
    kind = {"css": "text/css", "js": "text/javascript"}.get(path.rpartition(".")[2], "text/html")
    assert reply.headers["content-type"].startswith(kind)


async def test_nothing_is_fetched_from_elsewhere() -> None:
    """Each address in the page is its own, and relative, so that the API server's proxy can stand before it."""
    async with serve(page=True) as served:
        html = (await served.http.get("/page")).text
        addresses = re.findall(r'(?:href|src)="([^"#]+)"', html)
        assert addresses
        for address in addresses:
            assert address == "data:," or f"/{address}" in PATHS
        assert not re.search(r"<script(?![^>]*src=)|<style|\son\w+=|style=", html)


async def test_only_get_is_taken() -> None:
    """The page cannot change anything."""
    async with serve(page=True) as served:
        for path in PATHS:
            assert (await served.http.post(path)).status_code == 405


async def test_what_has_not_changed_is_not_sent() -> None:
    """304 by tag; with a tag as `since`, no node; of another process, everything."""
    async with serve(page=True) as served:
        first = await served.http.get("/page/state")
        state = first.json()
        assert state["whole"]
        assert len(state["nodes"]) == len(served.service.state.fleet)
        tag = {"If-None-Match": first.headers["etag"]}
        assert (await served.http.get("/page/state", headers=tag)).status_code == 304
        again = (await served.http.get("/page/state", params={"since": state["tag"]})).json()
        assert (again["whole"], again["nodes"]) == (False, [])
        for other in ("nobody-3", "x", f"{state['tag']}9", "-", "-1"):
            assert (await served.http.get("/page/state", params={"since": other})).json()["whole"]


async def test_a_large_answer_is_compressed_for_who_takes_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """And only for those."""
    monkeypatch.setattr(routes, "LEAST_GZIP", 1)
    async with serve(page=True) as served:
        plain = await served.http.get("/page/state", headers={"Accept-Encoding": "identity"})
        packed = await served.http.get("/page/state", headers={"Accept-Encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.json() == plain.json()
