"""GET /api/v1/pods: the pods of an embedded cluster, for which there is no API server to ask."""

import pytest
from httpx import ASGITransport, AsyncClient, Response

from extender.app import Service, build
from extender.bind import Binder
from extender.cluster import Binding
from extender.cluster.embedded import EmbeddedCluster
from extender.node import Rules
from extender.settings import read
from extender.state import ClusterState
from extender.watch import Watch
from extender.wire import Meta, Pod


async def asked(cluster: EmbeddedCluster, *, shown: bool) -> Response:
    """Return what a service answers whose watch does not run."""
    state = ClusterState(Rules())
    service = Service(read([], {}), state, Binder(state, cluster), Watch(cluster.sources(), state))
    service.pods = cluster.pods if shown else None
    async with AsyncClient(transport=ASGITransport(build(service)), base_url="http://tessera") as client:
        return await client.get("/api/v1/pods")


@pytest.mark.anyio
async def test_bound_pods_show_their_node_and_annotations() -> None:
    """The list is what an API server would answer, reduced to what Tessera reads."""
    cluster = EmbeddedCluster(pods=[Pod(Meta(name="p", namespace="ns", uid="u"))])
    await cluster.bind(Binding("ns", "p", "u", "n1", {"a": "1"}))
    cluster.admit(Pod(Meta(name="q", namespace="ns", uid="v")))
    reply = await asked(cluster, shown=True)
    assert reply.status_code == 200
    assert reply.headers["content-type"] == "application/json"
    found = reply.json()
    assert (found["kind"], found["apiVersion"]) == ("PodList", "v1")
    shown = [
        (pod["metadata"]["name"], pod["metadata"]["annotations"], pod["spec"]["nodeName"]) for pod in found["items"]
    ]
    assert shown == [("p", {"a": "1"}, "n1"), ("q", None, "")]


@pytest.mark.anyio
async def test_with_an_api_server_there_is_no_such_route() -> None:
    """Whoever wants pods asks the API server."""
    assert (await asked(EmbeddedCluster(), shown=False)).status_code == 404
