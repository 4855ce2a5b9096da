"""A scripted API server, and clients of it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from extender.cluster.kube import KubeCluster
from tests.fakes_apiserver import ApiServer

Connect = Callable[..., KubeCluster]


@pytest.fixture
def api() -> Iterator[ApiServer]:
    server = ApiServer()
    yield server
    server.close()


@pytest.fixture
def connect(api: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Connect]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    made: list[KubeCluster] = []

    def connect(**options: Any) -> KubeCluster:
        made.append(KubeCluster.connect(api.kubeconfig(tmp_path), **options))
        return made[-1]

    yield connect
    for cluster in made:
        cluster.close()
