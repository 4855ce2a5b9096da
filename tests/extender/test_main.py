"""The whole process over the example cluster: where it listens, who is let in, and how it ends."""

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import trustme

from tests.e2e.controlplane.ports import HeldPort

ROOT = Path(__file__).parents[2]
HOST = "127.0.0.1"
SECONDS = 20.0
COMMAND = [sys.executable, "-m", "extender", "--cluster", str(ROOT / "deploy/examples/cluster.yaml"), "--port"]


@contextmanager
def process(port: int, *flags: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run the extender as long as the block lasts."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*COMMAND, str(port), *flags], env=environ, stderr=subprocess.DEVNULL) as running:
        try:
            yield running
        finally:
            running.kill()


def get(url: str, body: Any = None, context: ssl.SSLContext | None = None) -> tuple[int, str]:
    """Ask once the server listens; return the status and the text."""
    data = None if body is None else json.dumps(body).encode()
    end = time.monotonic() + SECONDS
    while True:
        try:
            with urllib.request.urlopen(url, data, timeout=5, context=context) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except urllib.error.URLError as error:
            if not isinstance(error.reason, ConnectionRefusedError) or time.monotonic() > end:
                raise
            time.sleep(0.05)


def test_verbs_over_mtls_and_probes_in_plain_text(tmp_path: Path) -> None:
    """Each port serves its own, and SIGTERM ends both within 5 s though a client holds a connection open."""
    ca = trustme.CA()
    cert = ca.issue_cert(HOST)
    cert.private_key_pem.write_to_path(tmp_path / "key")
    cert.cert_chain_pems[0].write_to_path(tmp_path / "cert")
    ca.cert_pem.write_to_path(tmp_path / "ca")
    context = ssl.create_default_context()
    ca.configure_trust(context)
    ca.issue_cert("caller.example").configure_cert(context)
    files = ["--tls-cert", str(tmp_path / "cert"), "--tls-key", str(tmp_path / "key")]
    files += ["--tls-client-ca", str(tmp_path / "ca"), "--probe-port"]
    with HeldPort() as held, HeldPort() as aside, process(held.number, *files, str(aside.number)) as running:
        port, probes = held.number, aside.number
        while get(f"http://{HOST}:{probes}/readyz")[0] != 200:
            time.sleep(0.05)
        question = {"Pod": {"metadata": {"name": "p", "uid": "u"}}, "NodeNames": ["a10x1-0"]}
        status, text = get(f"https://{HOST}:{port}/filter", question, context)
        assert (status, json.loads(text)["NodeNames"]) == (200, ["a10x1-0"])
        assert get(f"http://{HOST}:{probes}/livez") == (200, "ok\n")
        assert "tessera_leader 1.0" in get(f"http://{HOST}:{probes}/metrics")[1]
        assert get(f"http://{HOST}:{probes}/filter", question)[0] == 404
        with context.wrap_socket(socket.create_connection((HOST, port)), server_hostname=HOST):
            begin = time.monotonic()
            running.send_signal(signal.SIGTERM)
            assert running.wait(SECONDS) == 0
            assert time.monotonic() - begin < 5


def test_what_cannot_be_served_is_one_sentence(tmp_path: Path) -> None:
    """A bad certificate, and a port that somebody has."""
    (tmp_path / "x").write_text("x")
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        for flags, says in (
            (["--tls-cert", str(tmp_path / "x"), "--tls-key", str(tmp_path / "x")], "cannot be used: a PEM"),
            ([], f"cannot listen on {HOST}:{port}: Address already in use."),
        ):
            done = subprocess.run(
                [*COMMAND, str(port), *flags], capture_output=True, text=True, check=False, cwd=ROOT, timeout=SECONDS
            )
            told = [line for line in done.stderr.splitlines() if not line.startswith("{")]
            assert (done.returncode, len(told)) == (2, 1)
            assert says in told[0]
