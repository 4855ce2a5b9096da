"""Pages over HTTP, and clients that would hold them up."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from nodeagent import serve
from nodeagent.serve import CLIENTS, Server
from tests.e2e.controlplane.waiting import wait_until


@pytest.fixture
def server() -> Iterator[Server]:
    """Return a server of one page."""
    server = Server("127.0.0.1", 0, {"/livez": lambda: (200, b"ok\n")})
    yield server
    server.close()


def opened(server: Server, text: bytes = b"GET /livez HTTP/1.1\r\n") -> socket.socket:
    """Return a client that has sent the beginning of a request."""
    client = socket.create_connection(("127.0.0.1", server.server_port), timeout=10)
    client.sendall(text)
    return client


def answer(server: Server) -> bytes:
    """Return the first line of an answer, empty if the server hangs up."""
    with opened(server, b"GET /livez HTTP/1.0\r\n\r\n") as client:
        try:
            return client.recv(4096).partition(b"\r\n")[0]
        except ConnectionResetError:
            return b""


def test_a_page_is_served(server: Server) -> None:
    """And one that is not there is not."""
    assert answer(server) == b"HTTP/1.0 200 OK"


def test_a_client_that_is_always_busy_is_hung_up_on(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then keeps no request alive beyond its time."""
    monkeypatch.setattr(serve, "SECONDS", 0.3)
    with opened(server) as client:

        def gone() -> bool:
            try:
                client.sendall(b"x")
            except OSError:
                return True
            return False

        wait_until(gone, "the server hangs up")
    wait_until(lambda: not server._since, "the thread has ended")


def test_clients_are_bounded(server: Server) -> None:
    """However many come, so many are served at a time; when they have gone, the next is."""
    with ExitStack() as crowd:
        for _ in range(CLIENTS):
            crowd.enter_context(opened(server))
        wait_until(lambda: len(server._since) == CLIENTS, "all have a thread")
        assert answer(server) == b""
    wait_until(lambda: not server._since, "all have gone")
    assert answer(server) == b"HTTP/1.0 200 OK"
