"""What people look at: /about and /explain on the service, and the page where it is asked for."""

import time
from importlib.metadata import version

import pytest

from tests.extender.served import serve

pytestmark = pytest.mark.anyio

ASKING = {
    "metadata": {"name": "big", "namespace": "default", "annotations": {"tessera.gpu/memory": "1000Gi"}},
    "spec": {"containers": [{"name": "main"}]},
}


async def test_about_tells_what_the_plugin_needs() -> None:
    """Version, policy, the names of resources and namespaces, the time, and that nothing is in the way."""
    settings = {"memory_resource": "example.com/memory", "pod_namespace": "prod", "agent_namespace": "gpu-agents"}
    async with serve(silent_seconds=60, **settings) as served:
        told = (await served.http.get("/about")).json()
    assert abs(told.pop("time") - time.time()) < 60
    assert told == {
        "version": version("tessera-gpu"),
        "policy": "binpack",
        "refusal": "",
        "resources": ["example.com/memory", "nvidia.com/gpu-utilization", "tessera.gpu/share"],
        "namespace": "prod",
        "agentNamespace": "gpu-agents",
        "silentSeconds": 60,
        "port": 8580,
    }


async def test_explain_a_pod_that_waits() -> None:
    """The numbers add up, and every node has its reason."""
    async with serve() as served:
        await served.post("filter", {"Pod": ASKING, "NodeNames": ["a"]})
        await served.until(lambda state: bool(state.waiting))
        told = (await served.http.get("/explain", params={"pod": "default/big"})).json()
    assert told["asks"] == ["main: 1000Gi of memory on 1 card"]
    assert told["fits"] == 0
    assert len(told["why"]) == told["nodes"] == sum(reason["nodes"] for reason in told["reasons"])


@pytest.mark.parametrize("asked", ["", "?pod=", "?pod=default/nobody", "?pod=%00"])
async def test_explain_a_pod_that_does_not_wait(asked: str) -> None:
    """404, and one sentence."""
    async with serve() as served:
        reply = await served.http.get(f"/explain{asked}")
    assert reply.status_code == 404
    assert "waits for cards" in reply.json()["Error"]


async def test_nothing_is_explained_before_everything_is_known() -> None:
    """503 with the reason that the verbs give."""
    async with serve() as served:
        await served.service.watch.stop()
        served.service.watch.synced = lambda: False  # type: ignore[method-assign]
        reply = await served.http.get("/explain", params={"pod": "default/big"})
        assert (reply.status_code, "not ready" in reply.json()["Error"]) == (503, True)
        assert "not ready" in (await served.http.get("/about")).json()["refusal"]


async def test_the_page_is_off_by_default() -> None:
    """Nobody gets it who did not ask for it."""
    async with serve() as served:
        for path in ("/page", "/page/state", "/page/page.js"):
            assert (await served.http.get(path)).status_code == 404
