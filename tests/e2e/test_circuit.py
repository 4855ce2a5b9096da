"""The circuit on a real API server that stops answering: binds are refused quickly, and go again by themselves."""

import json
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import pytest

from contract.inventory import Gpu, Inventory
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import add_nodes, control_plane, create, extender, pod
from tests.e2e.test_packing import counted, pods

pytestmark = pytest.mark.e2e

DEADLINE = 3.5
AWAY = "the API server is away; nothing was sent"


def bind(service: Process, name: str, uid: str) -> tuple[str, float]:
    """Ask the extender to bind a pod; return what it says and the seconds that it took."""
    body = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "n1"}
    start = time.monotonic()
    request = urllib.request.Request(f"{service.url}/bind", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=30) as reply:
        error: str = json.loads(reply.read())["Error"]
    return error, time.monotonic() - start


def test_binds_while_the_api_server_is_frozen() -> None:
    """The first wait for their deadline, the next are refused at once in the same words, and none is booked twice."""
    with control_plane() as plane, HeldPort() as port:
        gpus = tuple(Gpu(f"GPU-{i}", i, "NVIDIA A10", 23028, 478) for i in range(2))
        add_nodes(plane, [("n1", Inventory("n1", gpus, "570.86"), 64, 256)])
        service = extender(plane, port)
        create(plane, [pod(f"p{i}", {"main": {"memory": "4Gi"}}) for i in range(8)])
        uids = {p["metadata"]["name"]: p["metadata"]["uid"] for p in pods(plane)}
        assert bind(service, "p0", uids["p0"])[0] == ""
        plane.apiserver.pause()
        with ThreadPoolExecutor(3) as pool:
            slow = list(pool.map(lambda n: bind(service, n, uids[n]), ("p1", "p2", "p3")))
        quick = [bind(service, n, uids[n]) for n in ("p4", "p5", "p6", "p7")]
        plane.apiserver.resume()
        print(f"frozen: {[f'{took:.2f} s' for _, took in slow]}, then {[f'{took:.3f} s' for _, took in quick]}")
        assert all(took < DEADLINE + 1 for _, took in slow)
        # One of them may be the one that finds out.
        assert sum(said == AWAY and took < 0.2 for said, took in quick) >= len(quick) - 1
        start = time.monotonic()
        for name in sorted(uids):
            wait_until(lambda name=name: bind(service, name, uids[name])[0] == "", f"{name} is bound")  # type: ignore[misc]
        print(f"thawed: all bound after {time.monotonic() - start:.2f} s")
        result = counted(plane)
        assert (len(result.bound), result.pending, result.breaches) == (8, [], [])
