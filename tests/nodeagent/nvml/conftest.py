"""The real pynvml, on a driver that a text file describes."""

import ctypes
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pynvml
import pytest

from nodeagent.nvml import NvmlReader
from tests.nodeagent.fakenvml import Node

Driver = Callable[..., Node]
Readers = Callable[..., NvmlReader]


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Driver:
    """A function that puts a node's driver under pynvml; `hide` has the functions that the driver is too old for."""

    def load(hide: Iterable[str] = ()) -> Node:
        node = Node(tmp_path, hide)
        monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(node.library)))
        monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
        return node

    return load


@pytest.fixture
def node(driver: Driver) -> Node:
    """A node with a new driver, and no cards yet."""
    return driver()


@pytest.fixture
def readers() -> Iterator[Readers]:
    """A function that makes readers, which are closed at the end."""
    made: list[NvmlReader] = []

    def make(*args: Any, **settings: Any) -> NvmlReader:
        made.append(NvmlReader(*args, **{"slow_every_s": 0.0, **settings}))
        return made[-1]

    yield make
    for reader in made:
        reader.close()
