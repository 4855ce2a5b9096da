"""The API server over urllib3: one request at a time, a watch, and a token that is read again for each.

The official client is 43 MB resident; what an agent needs of it is this file. Nothing is tried again here.
"""

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import urllib3
from urllib3.exceptions import HTTPError

CONNECT_SECONDS: Final = 3.0
READ_SECONDS: Final = 5.0
MAX_MESSAGE: Final = 300

APPLY: Final = "application/apply-patch+yaml"
MERGE: Final = "application/merge-patch+json"


class Unreachable(Exception):
    """The API server did not answer, or not as it should: try again later."""


class Refused(Exception):
    """The API server said no; the message is its reason."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


class Api:
    """The API server at a URL. `token_file` and `ca_file` are read again whenever they may have been replaced."""

    def __init__(self, server: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        self._server, self._token_file = server.rstrip("/"), token_file
        self._ca_file = ca_file if server.startswith("https:") else None
        self._pool: urllib3.PoolManager | None = None
        self._ca_time = 0.0

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        query: dict[str, Any] | None = None,
    ) -> Any:
        """Return the answer's JSON.

        Raises
        ------
        Refused
            The server answered with a status of 400 or more; it may be asked again only after a change.
        Unreachable
            No answer, or one of 429 or 500 and more: whether it was done is not known.
        """
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=READ_SECONDS)
        response = self._open(method, path, body, content, query, timeout, preload=True)
        try:
            return response.json() if response.data else None
        except ValueError as error:
            raise Unreachable(f"{path}: the answer is not JSON.") from error

    def watch(self, path: str, query: dict[str, Any], inactivity: float) -> Iterator[dict[str, Any]]:
        """Yield the events of a watch until the server ends it; no byte for `inactivity` seconds is a failure.

        Raises
        ------
        Refused, Unreachable
        """
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=inactivity)
        response = self._open("GET", path, None, "application/json", query, timeout, preload=False)
        try:
            rest = b""
            for chunk in response.stream(amt=None):
                *lines, rest = (rest + chunk).split(b"\n")
                yield from (json.loads(line) for line in lines if line)
        except (HTTPError, OSError, ValueError) as error:
            raise Unreachable(_line(f"{path}: {error}")) from error
        finally:
            response.close()

    def _open(
        self,
        method: str,
        path: str,
        body: Any,
        content: str,
        query: dict[str, Any] | None,
        timeout: urllib3.Timeout,
        *,
        preload: bool,
    ) -> urllib3.BaseHTTPResponse:
        url = self._server + path + (f"?{urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body, separators=(",", ":")).encode()
        try:
            headers = {"Accept": "application/json", "Content-Type": content, "User-Agent": "tessera-agent"}
            if self._token_file is not None:
                headers["Authorization"] = f"Bearer {self._token_file.read_text().strip()}"
            response = self._connection().request(
                method,
                url,
                body=data,
                headers=headers,
                timeout=timeout,
                retries=False,
                redirect=False,
                preload_content=preload,
            )
            status = response.status
            if status < 400:
                return response
            said = _said(status, response.data)
            response.release_conn()
        except (HTTPError, OSError, ValueError) as error:
            raise Unreachable(_line(f"{path}: {error}")) from error
        raise Unreachable(said) if status == 429 or status >= 500 else Refused(status, said)

    def _connection(self) -> urllib3.PoolManager:
        written = self._ca_file.stat().st_mtime if self._ca_file is not None else 0.0
        if self._pool is None or written != self._ca_time:
            trust = ssl.create_default_context(cafile=str(self._ca_file) if self._ca_file else None)
            self._pool, self._ca_time = urllib3.PoolManager(num_pools=1, maxsize=2, ssl_context=trust), written
        return self._pool


def _said(status: int, body: bytes) -> str:
    """Return the API server's own sentence, cut, or its status code if it sent none."""
    try:
        message = json.loads(body).get("message")
    except (ValueError, AttributeError):
        message = None
    return _line(str(message or f"The API server answered {status}."))


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_MESSAGE]
