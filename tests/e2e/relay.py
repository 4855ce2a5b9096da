"""A way to a port of this host, as a Service is; answers may come late or get lost on it. It looks into nothing."""

import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from random import Random
from types import TracebackType
from typing import Final

from tests.e2e.controlplane.api import ApiError

LOOPBACK: Final = "127.0.0.1"
CHUNK: Final = 1 << 16


class Relay:
    """Carries connections to a port, and what comes back, from now on, late or not at all.

    `port` is asked at each connection; a LookupError or ApiError of it means that there is nobody to connect to.
    `lets`: while it is clear, answers wait. `lose`: how likely a piece of one is lost, and the connection with it.
    `lost`: how many were.
    """

    def __init__(self, port: Callable[[], int]) -> None:
        self.lets = threading.Event()
        self.lets.set()
        self.lose = 0.0
        self.lost = 0
        self._rng = Random(1)
        self._port = port
        self._listening = socket.create_server((LOOPBACK, 0))
        threading.Thread(target=self._accept, daemon=True).start()

    def __str__(self) -> str:
        return f"{LOOPBACK}:{self._listening.getsockname()[1]}"

    def __enter__(self) -> "Relay":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)  # which ends the wait of `accept`; a close does not

    def _accept(self) -> None:
        with self._listening, suppress(OSError):
            while True:
                near, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        nobody = suppress(OSError, LookupError, ApiError)
        with near, nobody, socket.create_connection((LOOPBACK, self._port())) as far:
            back = threading.Thread(target=self._carry, args=(far, near, True), daemon=True)
            back.start()
            self._carry(near, far, False)
            back.join()

    def _carry(self, source: socket.socket, target: socket.socket, back: bool) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                if back and self._rng.random() < self.lose:
                    self.lost += 1
                    break
                if back:
                    self.lets.wait()
                target.sendall(data)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
