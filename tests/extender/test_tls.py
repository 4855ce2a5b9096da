"""Real handshakes: who is let in, what TLS at least, and files that change while requests come in."""

import asyncio
import json
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import trustme
import uvicorn
from cryptography.hazmat.primitives import serialization as pem

from extender import tls
from extender.tls import BadTls, Certificates, Files, names_of, protocol_for

HOST = "127.0.0.1"


@dataclass
class Secret:
    """A volume as a kubelet makes it: files are links through `..data`, which is swapped at once."""

    folder: Path
    ca: trustme.CA = field(default_factory=trustme.CA)
    count: int = 0

    def write(self, ca: trustme.CA | None = None, **wrong: bytes) -> None:
        """Put a new certificate in place, of the same CA or another; `wrong` replaces a file's content."""
        self.ca, self.count = ca or self.ca, self.count + 1
        cert = self.ca.issue_cert(HOST)
        version = self.folder / f"..{self.count}"
        version.mkdir(parents=True)
        content = {
            "tls.crt": cert.cert_chain_pems[0].bytes(),
            "tls.key": cert.private_key_pem.bytes(),
            "ca.crt": self.ca.cert_pem.bytes(),
        }
        for name, data in (content | {name.replace("_", "."): data for name, data in wrong.items()}).items():
            (version / name).write_bytes(data)
            if not (self.folder / name).is_symlink():
                (self.folder / name).symlink_to(f"..data/{name}")
        (self.folder / "..new").symlink_to(version.name)
        (self.folder / "..new").replace(self.folder / "..data")

    def files(self, *, clients: bool = True) -> Files:
        """Return the files as settings name them."""
        return Files(self.folder / "tls.crt", self.folder / "tls.key", self.folder / "ca.crt" if clients else None)


@pytest.fixture
def secret(tmp_path: Path) -> Secret:
    """A volume with its first certificates."""
    made = Secret(tmp_path / "secret")
    made.write()
    return made


def client(server_ca: trustme.CA, name: str | None = "scheduler", of: trustme.CA | None = None) -> ssl.SSLContext:
    """Return a client that trusts a CA, with a certificate if it has a name."""
    context = ssl.create_default_context()
    server_ca.configure_trust(context)
    if name:
        (of or server_ca).issue_cert(f"{name}.example", common_name=name).configure_cert(context)
    return context


async def hello(scope: Any, receive: Any, send: Any) -> None:
    """Answer 200."""
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


@asynccontextmanager
async def served(certificates: Certificates, names: frozenset[str] = frozenset()) -> AsyncIterator[int]:
    """Serve on a free port for as long as the block lasts."""
    config = uvicorn.Config(
        hello,
        lifespan="off",
        log_config=None,
        http=protocol_for(names) if names else "auto",
        ssl_context_factory=lambda *_: certificates.front,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    with socket.socket() as listening:
        listening.bind((HOST, 0))
        serving = asyncio.ensure_future(server._serve([listening]))
        while not server.started:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
        try:
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            await serving


async def ask(port: int, context: ssl.SSLContext) -> tuple[int, str]:
    """Make one request over a connection of its own; return the status and the body."""
    reader, writer = await asyncio.open_connection(HOST, port, ssl=context)
    try:
        return await ask_again(reader, writer)
    finally:
        writer.close()


async def ask_again(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> tuple[int, str]:
    """Make one request over an open connection."""
    writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
    return int(head.split()[1]), (await reader.readexactly(length)).decode()


async def refused(port: int, context: ssl.SSLContext) -> bool:
    """Say whether a client is not let in; with TLS 1.3 it learns of it when it reads."""
    try:
        await ask(port, context)
    except (OSError, asyncio.IncompleteReadError):
        return True
    return False


@pytest.mark.anyio
async def test_only_clients_of_the_ca_are_let_in(secret: Secret) -> None:
    """One without a certificate is not, nor one of another CA."""
    async with served(Certificates(secret.files())) as port:
        assert await ask(port, client(secret.ca)) == (200, "ok")
        assert await refused(port, client(secret.ca, name=None))
        assert await refused(port, client(secret.ca, of=trustme.CA()))


@pytest.mark.anyio
async def test_without_a_client_ca_everybody_is(secret: Secret) -> None:
    """TLS then only tells who serves."""
    async with served(Certificates(secret.files(clients=False))) as port:
        assert await ask(port, client(secret.ca, name=None)) == (200, "ok")


@pytest.mark.anyio
async def test_tls_1_2_is_the_least(secret: Secret) -> None:
    """A client of that version is served, and no older one is spoken to."""
    least, files = client(secret.ca), secret.files()
    least.maximum_version = ssl.TLSVersion.TLSv1_2
    async with served(Certificates(files)) as port:
        assert await ask(port, least) == (200, "ok")
    assert files.context().minimum_version == ssl.TLSVersion.TLSv1_2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("allowed", "status"),
    [
        pytest.param("scheduler", 200, id="the common name"),
        pytest.param("scheduler.example", 200, id="an alternative name"),
        pytest.param("other", 403, id="another"),
    ],
)
async def test_names_say_which_clients(secret: Secret, allowed: str, status: int) -> None:
    """A client of the right CA and the wrong name reads why."""
    async with served(Certificates(secret.files()), frozenset({allowed, "nobody"})) as port:
        said, body = await ask(port, client(secret.ca))
        assert said == status
        if status == 403:
            assert "tls_client_names" in json.loads(body)["Error"]


@pytest.mark.anyio
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_new_files_are_in_force_with_the_next_handshake(secret: Secret, version: ssl.TLSVersion) -> None:
    """Clients of the old CA are refused then, those of the new one let in, and open connections stay."""
    old, certificates = secret.ca, Certificates(secret.files())
    async with served(certificates) as port:
        before = client(old)
        before.maximum_version = version
        reader, writer = await asyncio.open_connection(HOST, port, ssl=before)
        assert await ask_again(reader, writer) == (200, "ok")
        secret.write(trustme.CA())
        assert await ask(port, before) == (200, "ok"), "nobody has looked yet"
        certificates.look()
        assert await ask(port, client(secret.ca)) == (200, "ok")
        assert await refused(port, client(secret.ca, of=old)), "its CA is trusted no more"
        with pytest.raises(ssl.SSLCertVerificationError):
            await ask(port, before)
        assert await ask_again(reader, writer) == (200, "ok")
        writer.close()


@pytest.mark.anyio
async def test_files_that_cannot_be_used_change_nothing(secret: Secret, caplog: pytest.LogCaptureFixture) -> None:
    """They are told of once, and what comes after them is taken."""
    certificates = Certificates(secret.files())
    async with served(certificates) as port:
        secret.write(tls_key=trustme.CA().issue_cert(HOST).private_key_pem.bytes())
        certificates.look()
        certificates.look()
        assert await ask(port, client(secret.ca)) == (200, "ok")
        (told,) = [record.getMessage() for record in caplog.records if record.name == "extender.tls"]
        assert told.startswith("The certificates of before stay in force: tls_cert ")
        secret.write(trustme.CA())
        certificates.look()
        assert await ask(port, client(secret.ca)) == (200, "ok")


@pytest.mark.anyio
async def test_no_request_is_lost_while_files_change(secret: Secret) -> None:
    """Each over a connection of its own, while the files are swapped again and again."""
    certificates = Certificates(secret.files())
    async with served(certificates) as port:
        context, stop = client(secret.ca), asyncio.Event()

        answered = 0

        async def load() -> None:
            nonlocal answered
            while not stop.is_set():
                assert await ask(port, context) == (200, "ok")
                answered += 1

        callers = [asyncio.ensure_future(load()) for _ in range(4)]
        swaps = 0
        while (swaps < 20 or answered < 20) and not any(caller.done() for caller in callers):
            await asyncio.to_thread(secret.write)
            certificates.look()
            swaps += 1
            await asyncio.sleep(0.01)
        stop.set()
        await asyncio.gather(*callers)


def cut(files: Files, **content: bytes | None) -> None:
    """Replace files, or take them away."""
    for name, data in content.items():
        path: Path = getattr(files, name)
        path.unlink()
        if data is not None:
            path.write_bytes(data)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"cert": None}, "tls_cert {cert} cannot be read: No such file or directory."),
        ({"key": None}, "tls_key {key} cannot be read: No such file or directory."),
        ({"client_ca": None}, "tls_client_ca {client_ca} cannot be read: No such file or directory."),
        (
            {"cert": b"x"},
            "tls_cert {cert} and tls_key {key} cannot be used: a PEM certificate and its PEM key without a password"
            " are needed.",
        ),
        (
            {"key": trustme.CA().issue_cert(HOST).private_key_pem.bytes()},
            "tls_cert {cert} and tls_key {key} cannot be used: the key is not the certificate's.",
        ),
        ({"client_ca": b"x"}, "tls_client_ca {client_ca} has no PEM certificate."),
        ({"client_ca": b""}, "tls_client_ca {client_ca} has no PEM certificate."),
    ],
)
def test_a_bad_file_is_one_sentence(secret: Secret, content: dict[str, bytes | None], sentence: str) -> None:
    """Each file is named, with what is wrong with it."""
    files = secret.files()
    cut(files, **content)
    with pytest.raises(BadTls) as error:
        files.context()
    assert str(error.value) == sentence.format(cert=files.cert, key=files.key, client_ca=files.client_ca)


@pytest.mark.anyio
@pytest.mark.parametrize("name", ["cert", "key", "client_ca"])
async def test_a_file_that_goes_while_it_is_read_ends_nothing(
    secret: Secret, name: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the look at it and its use: the watcher tells, goes on, and takes the next ones."""
    monkeypatch.setattr(tls, "PAUSE_SECONDS", 0.001)
    files = secret.files()
    certificates = Certificates(files)

    def take(_: str, path: Path) -> None:
        if path == getattr(files, name):
            path.unlink()

    watcher = asyncio.ensure_future(certificates.run())
    with monkeypatch.context() as race:
        race.setattr(tls, "_check_readable", take)
        secret.write()
        while "stay in force" not in caplog.text:
            assert not watcher.done()
            await asyncio.sleep(0.001)
    secret.write(trustme.CA())
    async with served(certificates) as port:
        while await refused(port, client(secret.ca)):
            assert not watcher.done()
    watcher.cancel()


def test_a_key_with_a_password_is_refused(secret: Secret) -> None:
    """Nobody is there to type it."""
    files = secret.files()
    key = pem.load_pem_private_key(files.key.read_bytes(), None)
    locked = key.private_bytes(pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.BestAvailableEncryption(b"secret"))
    cut(files, key=locked)
    with pytest.raises(BadTls, match="without a password"):
        files.context()


def test_names_of_a_certificate() -> None:
    """Common names and alternative names, and nothing of other parts."""
    subject = ((("organizationName", "o"),), (("commonName", "c"),))
    assert names_of({"subject": subject, "subjectAltName": (("DNS", "d"), ("IP Address", "10.0.0.1"))}) == {
        "c",
        "d",
        "10.0.0.1",
    }
    assert names_of({}) == set()
