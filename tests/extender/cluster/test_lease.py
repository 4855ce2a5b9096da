"""A Lease over the wire: what is written, what is made of the answers, and that no call lasts."""

import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from extender.cluster import Lease, Unreachable
from extender.cluster.lease import KubeLock
from tests.fakes_apiserver import Answer, ApiServer, hang, refusal, reply, reset

ALL = "/apis/coordination.k8s.io/v1/namespaces/ns/leases"
ONE = f"{ALL}/l"


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A scripted API server."""
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = ApiServer()
    yield server
    server.close()


def lock(api: ApiServer, folder: Path, *walls: datetime, seconds: float = 2) -> KubeLock:
    """Return a lock, and a wall clock that shows these times."""
    times = iter(walls)
    return KubeLock(api.kubeconfig(folder), None, "ns", "l", seconds=seconds, wall=lambda: next(times))


def lease(holder: str | None, version: str = "7", **spec: Any) -> Answer:
    """Answer with a Lease."""
    spec |= {"holderIdentity": holder, "leaseDurationSeconds": 15}
    return reply(200, {"metadata": {"name": "l", "resourceVersion": version}, "spec": spec})


@pytest.mark.anyio
async def test_read(api: ApiServer, tmp_path: Path) -> None:
    """A Lease, one that was given away, one that says nothing, and none."""
    bare = reply(200, {"metadata": {"resourceVersion": "9"}})
    api.script("GET", ONE, lease("a_1"), lease(None, "8"), bare, refusal(404, "not found"))
    one = lock(api, tmp_path)
    assert [await one.read() for _ in range(4)] == [
        Lease("a_1", 15, "7"),
        Lease("", 15, "8"),
        Lease("", 0, "9"),
        None,
    ]


@pytest.mark.anyio
async def test_write_a_new_lease(api: ApiServer, tmp_path: Path) -> None:
    """It is created; a time without a fraction keeps its six digits, or the API server would refuse it."""
    api.script("POST", ALL, lease("a_1"))
    one = lock(api, tmp_path, datetime(2026, 1, 2, 3, 4, 5, 0, UTC))
    assert await one.write("a_1", 15, None) == Lease("a_1", 15, "7")
    (request,) = api.requests
    assert request.body["metadata"] == {"namespace": "ns", "name": "l"}
    assert request.body["spec"] == {
        "holderIdentity": "a_1",
        "leaseDurationSeconds": 15,
        "renewTime": "2026-01-02T03:04:05.000000Z",
        "acquireTime": "2026-01-02T03:04:05.000000Z",
        "leaseTransitions": 0,
    }


@pytest.mark.anyio
async def test_write_over_what_was_read(api: ApiServer, tmp_path: Path) -> None:
    """The version is the condition; a change of holder is counted, and a renewal keeps the time of the first."""
    first = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
    api.script("GET", ONE, lease("b_9", leaseTransitions=4, acquireTime="2025-01-01T00:00:00.000001Z"))
    taken = "2026-01-02T03:04:05.000006Z"
    api.script("PUT", ONE, lease("a_1", "8", leaseTransitions=5, acquireTime=taken))
    # Between them the wall clock steps back by a year: nothing comes of it but a strange date.
    one = lock(api, tmp_path, first, first - timedelta(days=365))
    found = await one.read()
    found = await one.write("a_1", 15, found)
    assert found == Lease("a_1", 15, "8")
    await one.write("a_1", 15, found)
    _, put, renewed = api.requests
    assert (put.body["metadata"]["resourceVersion"], renewed.body["metadata"]["resourceVersion"]) == ("7", "8")
    assert (put.body["spec"]["acquireTime"], put.body["spec"]["leaseTransitions"]) == (taken, 5)
    assert (renewed.body["spec"]["acquireTime"], renewed.body["spec"]["leaseTransitions"]) == (taken, 5)
    assert renewed.body["spec"]["renewTime"] == "2025-01-02T03:04:05.000006Z"


@pytest.mark.anyio
@pytest.mark.parametrize("code", [404, 409])
async def test_a_write_that_came_too_late(api: ApiServer, tmp_path: Path, code: int) -> None:
    """Somebody else has written, or deleted, the Lease."""
    api.script("PUT", ONE, refusal(code, "no"))
    one = lock(api, tmp_path, datetime.now(UTC))
    assert await one.write("a_1", 15, Lease("b_9", 15, "7")) is None


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        pytest.param(refusal(403, "forbidden"), "Lease ns/l: the API server answered 403.", id="no right"),
        pytest.param(refusal(500, "etcd"), "Lease ns/l: the API server answered 500.", id="trouble"),
        pytest.param(reply(200, ["no lease"]), "Lease ns/l: Expected `object`", id="something else"),
        pytest.param(reset, "Lease ns/l: ", id="a broken connection"),
        pytest.param(hang, "Lease ns/l: ", id="no answer"),
    ],
)
async def test_trouble_is_unreachable_and_soon(api: ApiServer, tmp_path: Path, answer: Answer, says: str) -> None:
    """Whatever happens ends in one error, in the time that was given."""
    api.script("GET", ONE, answer)
    one, begin = lock(api, tmp_path, seconds=0.3 if answer is hang else 10.0), time.monotonic()
    with pytest.raises(Unreachable, match=re.escape(says)):
        await one.read()
    assert time.monotonic() - begin < 5
