"""An API server that says what a test tells it to say, over real sockets: what the wire can do to a client.

It knows no objects and no rules; what the API server decides is tested against a real one.
"""

import json
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit


@dataclass(frozen=True)
class Request:
    """What the client asked."""

    method: str
    path: str
    query: dict[str, str]
    body: Any


Answer = Callable[["Handler"], None]


def reply(status: int, body: Any) -> Answer:
    """Answer with a status and a JSON body."""
    data = json.dumps(body).encode()

    def answer(handler: "Handler") -> None:
        handler.send_response(status)
        handler.send_header("Content-Length", str(len(data)))
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def refusal(code: int, message: str, reason: str = "") -> Answer:
    """Answer with a Status, as the API server refuses."""
    return reply(code, status(code, message, reason))


def status(code: int, message: str, reason: str = "") -> dict[str, Any]:
    """Return a Status object."""
    return {"kind": "Status", "code": code, "message": message, "reason": reason}


def stream(*lines: dict[str, Any], then: Answer | None = None, split: int = 1 << 20) -> Answer:
    """Answer with the lines of a watch, in chunks of `split` bytes; then end it well, or as `then` does."""
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)

    def answer(handler: "Handler") -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for at in range(0, len(data), split):
            chunk = data[at : at + split]
            handler.wfile.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        if then is None:
            handler.wfile.write(b"0\r\n\r\n")
        else:
            then(handler)

    return answer


def reset(handler: "Handler") -> None:
    """Break the connection, without a goodbye."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True


def hang(handler: "Handler") -> None:
    """Say nothing until the test is over."""
    handler.api.hanging.release()
    handler.api.over.wait()
    handler.close_connection = True


class Handler(BaseHTTPRequestHandler):
    """Looks the answer up; the last one of a path is given again and again."""

    protocol_version = "HTTP/1.1"
    api: "ApiServer"

    def do_GET(self) -> None:
        """Answer from the script."""
        url = urlsplit(self.path)
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.api.requests.append(
            Request(self.command, url.path, dict(parse_qsl(url.query)), json.loads(body) if body else None)
        )
        answers = self.api.answers[self.command, url.path] or [refusal(404, "no such path")]
        (answers.pop(0) if len(answers) > 1 else answers[0])(self)

    do_POST = do_PATCH = do_PUT = do_GET  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Keep the test's output clean."""


class ApiServer(ThreadingHTTPServer):
    """The server; `hanging` counts requests that hang, `over` lets them go."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), type("Bound", (Handler,), {"api": self}))
        self.answers: defaultdict[tuple[str, str], list[Answer]] = defaultdict(list)
        self.requests: list[Request] = []
        self.hanging = threading.Semaphore(0)
        self.over = threading.Event()
        self._thread = threading.Thread(target=self.serve_forever, args=(0.01,))
        self._thread.start()

    def script(self, method: str, path: str, *answers: Answer) -> None:
        """Say what a path answers, one after the other."""
        self.answers[method, path] = list(answers)

    def kubeconfig(self, folder: Path) -> str:
        """Write a kubeconfig that leads here, and return its path."""
        file = folder / "kubeconfig"
        named = {
            "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{self.server_port}"}}],
            "users": [{"name": "u", "user": {"token": "secret"}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        }
        file.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", "current-context": "x", **named}))
        return str(file)

    def close(self) -> None:
        """Let go of all that hang, and stop."""
        self.over.set()
        self.shutdown()
        self._thread.join()
        self.server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that has gone is part of the test."""
