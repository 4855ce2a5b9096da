"""What the wire can do to the agent's client."""

import socket
from pathlib import Path
from typing import Any

import pytest

from nodeagent import api as module
from nodeagent.api import Api, Refused, Unreachable
from tests.fakes_apiserver import ApiServer, Handler, hang, refusal, reply, reset, stream


def test_the_token_is_read_for_each_request(api: Api, server: ApiServer, tmp_path: Path) -> None:
    """A token that was renewed in its file is shown at the next request."""
    shown = []

    def answer(handler: Handler) -> None:
        shown.append(handler.headers["Authorization"])
        reply(200, {})(handler)

    server.script("GET", "/x", answer)
    api.send("GET", "/x")
    (tmp_path / "token").write_text("second")
    api.send("GET", "/x", query={"limit": 5})
    assert shown == ["Bearer first", "Bearer second"]
    assert server.requests[1].query == {"limit": "5"}


@pytest.mark.parametrize("code", [400, 403, 404, 409, 410])
def test_a_no_is_told_with_its_reason(api: Api, server: ApiServer, code: int) -> None:
    """The server's sentence comes through, in one line and cut."""
    server.script("POST", "/x", refusal(code, "you\nmay not " + "x" * 999))
    with pytest.raises(Refused, match=r"^you may not x{288}$") as caught:
        api.send("POST", "/x", {"a": 1})
    assert caught.value.status == code
    assert server.requests[0].body == {"a": 1}


@pytest.mark.parametrize("answer", [refusal(500, "oops"), refusal(429, "slowly"), reset], ids=["500", "429", "reset"])
def test_what_is_not_known_is_unreachable(api: Api, server: ApiServer, answer: Any) -> None:
    """A server in trouble, one that is too busy, and a broken connection are tried again later."""
    server.script("PATCH", "/x", answer)
    with pytest.raises(Unreachable):
        api.send("PATCH", "/x", {})
    assert len(server.requests) == 1, "nothing is sent twice by itself"


def test_nobody_there_and_no_token_are_unreachable(tmp_path: Path) -> None:
    """No server, no token file, no certificate file: one error, which names the trouble."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(Unreachable, match="/x"):
            Api(url).send("GET", "/x")
    with pytest.raises(Unreachable, match="token"):
        Api(url, tmp_path / "token").send("GET", "/x")
    with pytest.raises(Unreachable, match=r"ca\.crt"):
        Api(url.replace("http:", "https:"), None, tmp_path / "ca.crt").send("GET", "/x")


def test_a_server_that_hangs_is_given_up(api: Api, server: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request and a watch end after their time without a byte."""
    monkeypatch.setattr(module, "READ_SECONDS", 0.1)
    server.script("GET", "/x", hang)
    with pytest.raises(Unreachable):
        api.send("GET", "/x")
    server.script("GET", "/w", stream({"type": "ADDED"}, then=hang))
    watch = api.watch("/w", {}, 1.0)
    assert next(watch) == {"type": "ADDED"}
    with pytest.raises(Unreachable):
        next(watch)


def test_an_answer_that_is_no_json_is_unreachable(api: Api, server: ApiServer) -> None:
    """A proxy's page of HTML is no answer."""

    def page(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", "6")
        handler.end_headers()
        handler.wfile.write(b"<html>")

    server.script("GET", "/x", page)
    with pytest.raises(Unreachable, match="not JSON"):
        api.send("GET", "/x")


def test_a_watch_yields_lines_however_they_are_cut(api: Api, server: ApiServer) -> None:
    """Three events in chunks of seven bytes are three events."""
    events = [{"type": "ADDED", "object": {"n": n}} for n in range(3)]
    server.script("GET", "/w", stream(*events, split=7))
    assert list(api.watch("/w", {"watch": "true"}, 1.0)) == events
