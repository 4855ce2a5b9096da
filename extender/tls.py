"""TLS on the verbs: who serves, who may call, and files that change under a running process.

A kubelet swaps all files of a Secret at once, by a symbolic link. Every second the files are looked at; the next
handshake has the new ones, connections that are open stay, and files that cannot be used are told of and change
nothing. TLS 1.2 is the least.
"""

import asyncio
import json
import logging
import ssl
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

PAUSE_SECONDS: Final = 1.0

log = logging.getLogger(__name__)

Marks = tuple[tuple[int, int, int] | None, ...]


class BadTls(ValueError):
    """The files cannot be used; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class Files:
    """Certificate, key and the CAs of clients, in PEM. Without CAs everybody may call."""

    cert: Path
    key: Path
    client_ca: Path | None = None

    def marks(self) -> Marks:
        """Return what changes whenever a file, or what its link leads to, does."""
        return tuple(_mark(path) for path in (self.cert, self.key, self.client_ca) if path)

    def context(self) -> ssl.SSLContext:
        """Return a server's side of TLS made of the files as they are now.

        Raises
        ------
        BadTls
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A session that is taken up again would not be checked against new CAs.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        for name, path in (("tls_cert", self.cert), ("tls_key", self.key)):
            _check_readable(name, path)
        try:
            context.load_cert_chain(self.cert, self.key, password="")  # or it would ask a terminal
        except (ssl.SSLError, ValueError) as error:
            why = "the key is not the certificate's"
            if not isinstance(error, ssl.SSLError) or error.reason != "KEY_VALUES_MISMATCH":
                why = "a PEM certificate and its PEM key without a password are needed"
            raise BadTls(f"tls_cert {self.cert} and tls_key {self.key} cannot be used: {why}.") from error
        except OSError as error:  # gone since it was looked at
            raise BadTls(f"tls_cert {self.cert} or tls_key {self.key} cannot be read: {error.strerror}.") from error
        if self.client_ca is not None:
            _trust(context, self.client_ca)
        return context


def _mark(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_ctime_ns, found.st_size


def _check_readable(name: str, path: Path) -> None:
    try:
        path.read_bytes()
    except OSError as error:
        raise BadTls(f"{name} {path} cannot be read: {error.strerror}.") from error


def _trust(context: ssl.SSLContext, client_ca: Path) -> None:
    _check_readable("tls_client_ca", client_ca)
    try:
        context.load_verify_locations(client_ca)
    except ssl.SSLError as error:
        raise BadTls(f"tls_client_ca {client_ca} has no PEM certificate.") from error
    except OSError as error:
        raise BadTls(f"tls_client_ca {client_ca} cannot be read: {error.strerror}.") from error
    context.verify_mode = ssl.CERT_REQUIRED


@dataclass(slots=True)
class Certificates:
    """The files in force. `front` is what a server is given: a handshake goes on with the context of its moment."""

    files: Files
    front: ssl.SSLContext = field(init=False)
    _now: ssl.SSLContext = field(init=False)
    _marks: Marks = field(init=False)

    def __post_init__(self) -> None:
        """Read the files. Raises BadTls."""
        self._marks = self.files.marks()
        self.front = self._now = self.files.context()
        self.front.sni_callback = self._choose

    def _choose(self, handshake: ssl.SSLObject, name: str | None, front: ssl.SSLContext) -> None:
        """Be asked at each handshake's first message, with a name or without."""
        handshake.context = self._now

    def look(self) -> None:
        """Take new files into force, if there are any that can be used."""
        marks = self.files.marks()  # before they are read: a change under way is seen next time
        if marks == self._marks:
            return
        self._marks = marks
        try:
            self._now = self.files.context()
        except BadTls as error:
            log.warning("The certificates of before stay in force: %s", error)
        else:
            log.info("New certificates are in force.")

    async def run(self) -> None:
        """Look again and again, until cancelled."""
        while True:
            await asyncio.sleep(PAUSE_SECONDS)
            self.look()


def names_of(certificate: dict[str, Any]) -> set[str]:
    """Return a certificate's common and alternative names, as `ssl` shows a certificate."""
    subject = {value for part in certificate.get("subject", ()) for key, value in part if key == "commonName"}
    return subject | {value for _, value in certificate.get("subjectAltName", ())}


def protocol_for(allowed: frozenset[str]) -> type[HttpToolsProtocol]:
    """Return uvicorn's protocol, with an answer of its own for callers whose certificate has no allowed name."""

    class Named(HttpToolsProtocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            if not names_of(transport.get_extra_info("peercert") or {}) & allowed:
                self.app = _not_allowed

    return Named


async def _not_allowed(scope: Any, receive: Any, send: Any) -> None:  # noqa: ARG001  # as ASGI calls it
    """Answer 403 to everything."""
    body = json.dumps({"Error": "The client's certificate has none of the names in tls_client_names."}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 403, "headers": headers})
    await send({"type": "http.response.body", "body": body})
