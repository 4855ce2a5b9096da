"""Ports for components that want to be told a number before they start.

The operating system chooses each port, and the tests then hold it for as long
as the component may live: a second bind to a held port works only for a server
that sets SO_REUSEADDR, as Go's do, and the kernel gives a held port to nobody
as the source of an outgoing connection. So a component can be killed and
started again on its old port, even while many clients knock at it.
"""

from __future__ import annotations

import socket
import sys
from types import TracebackType

LOOPBACK = "127.0.0.1"


class HeldPort:
    """A free TCP port on loopback, kept free for one server until closed."""

    def __init__(self) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._socket.bind((LOOPBACK, 0))
        self.number: int = self._socket.getsockname()[1]
        # Only Linux lets a server bind beside a socket that does not listen.
        if sys.platform != "linux":
            self._socket.close()

    def __str__(self) -> str:
        return f"{LOOPBACK}:{self.number}"

    def __enter__(self) -> HeldPort:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._socket.close()
