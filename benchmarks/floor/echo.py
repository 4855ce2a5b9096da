"""A raw asyncio server: it reads a request's bytes and writes as many as the header Reply says."""

import asyncio
import re
from typing import Final, cast

PIECE: Final = memoryview(bytes(1 << 21))


class Echo(asyncio.Protocol):
    """One connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._got: list[bytes] = []
        self._missing = self._reply = 0

    def data_received(self, data: bytes) -> None:
        """Count what came; write the reply once all of it is there."""
        if not self._got:
            head, _, body = data.partition(b"\r\n\r\n")
            self._missing = _number(head, b"Content-Length") - len(body)
            self._reply = _number(head, b"Reply")
        else:
            self._missing -= len(data)
        self._got.append(data)
        if self._missing <= 0:
            b"".join(self._got)  # whoever reads the body needs it in one piece
            self._got = []
            head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % self._reply
            self._transport.writelines((head, PIECE[: self._reply]))


def _number(head: bytes, name: bytes) -> int:
    found = re.search(rb"(?i)^%b: *(\d+)" % name, head, re.MULTILINE)
    return int(found[1]) if found else 0


async def serve() -> None:
    """Serve on a free port and print it."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
