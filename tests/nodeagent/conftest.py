"""What the agent's tests stand on: a driver that is not there, and an API server that says what it is told to."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pynvml
import pytest

from nodeagent.api import Api
from nodeagent.nvml import NvmlReader
from tests.fakes_apiserver import ApiServer
from tests.nodeagent.fakenvml import Node

Driver = Callable[[Iterable[str]], Node]
Readers = Callable[..., NvmlReader]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """Return what makes a node whose library the bindings have loaded, without the functions that it is given."""

    def make(hide: Iterable[str] = ()) -> Node:
        folder = tmp_path / "driver"
        folder.mkdir()
        node = Node(folder, hide)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(node.library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return node

    yield make
    monkeypatch.undo()


@pytest.fixture
def node(driver: Driver) -> Node:
    """Return a node of a driver that has everything."""
    return driver(())


@pytest.fixture
def readers() -> Iterator[Readers]:
    """Return what makes readers, which are closed after the test."""
    made: list[NvmlReader] = []

    def make(*args: object, **more: object) -> NvmlReader:
        made.append(NvmlReader(*args, **more))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for reader in made:
        reader.close()


@pytest.fixture
def server() -> Iterator[ApiServer]:
    """Return an API server that says what the test scripts."""
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def api(server: ApiServer, tmp_path: Path) -> Api:
    """Return the agent's client, with a token in a file."""
    (tmp_path / "token").write_text("first\n")
    return Api(f"http://127.0.0.1:{server.server_port}", tmp_path / "token")
