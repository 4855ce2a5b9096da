"""Just enough HTTP to ask a component whether it is ready and to set a scene.

The standard library only, and a connection per call: the fixture must tell
what the API server does, not what a client library makes of it.
"""

from __future__ import annotations

import http.client
import json
import ssl
import urllib.error
import urllib.request

TIMEOUT_SECONDS = 30.0
JSON = "application/json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"  # lists are merged by the names of their items

# No proxy whatever the environment says: everything is on loopback.
_plain = urllib.request.ProxyHandler({})


class ApiError(RuntimeError):
    """The server answered, and the answer was no."""

    def __init__(self, method: str, url: str, status: int, body: str) -> None:
        super().__init__(f"{method} {url}: {status} {body}")
        self.status = status
        self.body = body


def fetch(
    url: str,
    *,
    method: str = "GET",
    token: str = "",
    body: object = None,
    content_type: str = JSON,
    context: ssl.SSLContext | None = None,
) -> str:
    """Send one request and return the text of a 2xx reply.

    Raises ApiError for any other status and OSError when nobody answered.
    """
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, method=method)
    request.add_header("Content-Type", content_type)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    opener = urllib.request.build_opener(_plain, urllib.request.HTTPSHandler(context=context))
    try:
        with opener.open(request, timeout=TIMEOUT_SECONDS) as reply:
            text: str = reply.read().decode()
            return text
    except urllib.error.HTTPError as error:
        with error:
            raise ApiError(method, url, error.code, error.read().decode()) from error
    except http.client.HTTPException as error:
        raise ConnectionError(f"{method} {url}: {error!r}") from error


def answers(url: str, *, token: str = "", context: ssl.SSLContext | None = None) -> bool:
    """Whether the address answers with a success just now."""
    try:
        fetch(url, token=token, context=context)
    except (ApiError, OSError):
        return False
    return True
