"""A way to the API server: the official client's authentication and transport, one request at a time, as bytes."""

import os
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from kubernetes import client, config
from urllib3 import HTTPResponse
from urllib3.exceptions import ConnectTimeoutError, HTTPError

MAX_MESSAGE: Final = 300

# An API server that has gone without a word is noticed within 25 s, also by a watch that only listens.
_SOCKET: Final = [
    (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *(
        (socket.IPPROTO_TCP, getattr(socket, name), value)
        for name, value in (
            ("TCP_KEEPIDLE", 10),
            ("TCP_KEEPINTVL", 5),
            ("TCP_KEEPCNT", 3),
            ("TCP_USER_TIMEOUT", 25_000),
        )
        if hasattr(socket, name)  # they are Linux's
    ),
]

# Half of the client is typed and half is not.
_client: Any = client
_config: Any = config

# Whatever the transport, the credentials' loader and the decoders raise (their errors are ValueErrors).
TROUBLE: Final = (HTTPError, _client.ApiException, _config.ConfigException, OSError, ValueError)
# Those of them that come before the first byte of the request.
UNSENT: Final = (ConnectTimeoutError, _config.ConfigException)


class BadConnection(ValueError):
    """The kubeconfig file, or the pod's service account, cannot be used; the message is one sentence."""


def short(text: str) -> str:
    """Return a text as one line, cut."""
    return " ".join(text.split())[:MAX_MESSAGE]


class Api:
    """One request at a time, as bytes, never sent twice."""

    def __init__(self, configuration: Any) -> None:
        self._client = _client.ApiClient(configuration)
        self._client.user_agent = "tessera-extender"
        self.close = self._client.close

    def send(
        self, method: str, path: str, timeout: tuple[float, float], content: str = "application/json", **request: Any
    ) -> HTTPResponse:
        """Return the answer, whatever its status, unread. `timeout`: seconds to connect, between reads."""
        request["header_params"] = {"Accept": "application/json", "Content-Type": content}
        request["auth_settings"] = ["BearerToken"]
        ready = self._client.param_serialize(method, path, **request)
        response: HTTPResponse = self._client.call_api(*ready, _request_timeout=timeout).response
        return response


def api_of(kubeconfig: str | None, context: str | None, connections: int) -> Api:
    """Return a way to an API server that keeps so many connections; `KubeCluster.connect` says the rest."""
    configuration = _client.Configuration()
    configuration.retries = False
    configuration.keep_alive = True
    configuration.connection_pool_maxsize = connections
    configuration.socket_options = _SOCKET
    _authenticate(configuration, kubeconfig, context)
    return Api(configuration)


def _authenticate(configuration: Any, kubeconfig: str | None, context: str | None) -> None:
    usual = _config.KUBE_CONFIG_DEFAULT_LOCATION or "~/.kube/config"
    file = kubeconfig or (usual if any(map(_is_there, usual.split(os.pathsep))) else None)
    try:
        if file is None:
            _config.load_incluster_config(configuration)
        else:
            _config.load_kube_config(file, context, configuration, persist_config=False)
    except Exception as error:  # the loader parses files and runs plugins, and fails in as many ways
        error = Exception("it is not a mapping.") if isinstance(error, TypeError) else error
        what = f"The kubeconfig {file}" if file else "There is no kubeconfig, and the service account"
        raise BadConnection(short(f"{what} cannot be used: {error}")) from error


def _is_there(file: str) -> bool:
    with suppress(RuntimeError):  # a container's user may have no home
        return Path(file).expanduser().exists()
    return False
