"""Metrics and probes over HTTP: three pages, and nothing else."""

import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

Page = Callable[[], tuple[int, bytes]]

SECONDS: Final = 5  # for a client to ask and to read, all together
CLIENTS: Final = 32  # at a time, each with a thread


class Server(ThreadingHTTPServer):
    """Serves pages by path in threads of its own, from the moment that it is made."""

    daemon_threads = True
    request_queue_size = CLIENTS  # the kernel lets those beyond it wait for seconds

    def __init__(self, host: str, port: int, pages: Mapping[str, Page]) -> None:
        self.pages = pages
        self._since: dict[socket.socket, float] = {}  # whose request is under way, and since when
        super().__init__((host, port), _Handler)
        self._thread = threading.Thread(target=self.serve_forever, name="http", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop serving."""
        self.shutdown()
        self._thread.join()
        self.server_close()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a client a thread, or hang up if there are too many."""
        if len(self._since) >= CLIENTS:
            self.shutdown_request(request)
            return
        self._since[request] = time.monotonic()
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """End a request."""
        self._since.pop(request, None)
        super().shutdown_request(request)

    def service_actions(self) -> None:
        """Hang up on who takes too long, however busy: called twice a second."""
        for request, since in list(self._since.items()):
            if time.monotonic() - since > SECONDS:
                with suppress(OSError):  # it has just gone
                    request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is no matter."""


class _Handler(BaseHTTPRequestHandler):
    timeout = SECONDS
    server: Server

    def do_GET(self) -> None:
        page = self.server.pages.get(self.path.partition("?")[0])
        status, body = page() if page else (404, b"Served here: /metrics, /livez and /readyz.\n")
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    do_HEAD = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Probes are asked all the time; nobody reads a line for each."""
