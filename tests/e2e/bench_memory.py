"""How much memory the extender takes, and how soon it is ready: `python -m tests.e2e.bench_memory`.

5,000 nodes of 15 kB with 8 cards each, half full, and 50,000 pods, from the real API server. The objects are written
to its etcd, for to create them one by one would take longer than everything else.
"""

import argparse
import itertools
import json
import os
import re
import sys
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from benchmarks import synthetic
from tests.e2e.controlplane.api import answers, fetch
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.scene import EXTENDER, GPUNODES, ROOT, control_plane

BATCH: Final = 64  # writes in one transaction of etcd
KEYS: Final = {"Node": "minions/", "GPUNode": "tessera.gpu/gpunodes/", "Pod": "pods/default/"}
SETTLE_SECONDS: Final = 20


def main() -> None:
    """Print the seconds until it is ready and its memory then, at its peak, and a while later."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--pods", type=int, default=50_000)
    parser.add_argument("--node-bytes", type=int, default=15_000)
    asked = parser.parse_args()
    with control_plane() as plane, HeldPort() as port:
        objects = itertools.chain(
            synthetic.nodes(asked.nodes, asked.node_bytes),
            synthetic.inventories(asked.nodes),
            itertools.islice(pods(asked.nodes), asked.pods),
        )
        written = fill(plane, objects)
        print(f"{written} objects written; the API server shows {shown(plane)} nodes, gpunodes and pods", flush=True)
        url = f"http://{port}"
        command = [sys.executable, "-m", "extender", "--kubeconfig", str(plane.kubeconfig(EXTENDER.name))]
        os.environ.setdefault("PYTHONPATH", str(ROOT))
        started = time.perf_counter()
        process = plane.start(
            "tessera-extender", [*command, "--port", str(port.number)], url, lambda: answers(f"{url}/readyz")
        )
        print(f"ready after {time.perf_counter() - started:.1f} s, {memory(process.pid)}", flush=True)
        time.sleep(SETTLE_SECONDS)
        holding = re.findall(r"^tessera_holding_pods (\d+)", fetch(f"{url}/metrics"), re.MULTILINE)
        print(f"{SETTLE_SECONDS} s later {memory(process.pid)}; it knows of {holding[0]} pods that hold cards")


def pods(nodes: int) -> Iterator[dict[str, Any]]:
    """Yield the pods that hold half of the cards, then pods without a GPU, all as large as real ones are."""
    others = (synthetic.held(f"plain-{i}", synthetic.node_name(i % nodes), ()) for i in itertools.count())
    for pod in itertools.chain(synthetic.pods(nodes), others):
        pod["spec"]["containers"][0]["env"] = [{"name": f"SETTING_{i}", "value": "x" * 60} for i in range(25)]
        yield pod


def fill(plane: ControlPlane, objects: Iterable[dict[str, Any]]) -> int:
    """Write objects to the control plane's etcd, and return how many."""
    written, rest = 0, iter(objects)
    while part := list(itertools.islice(rest, BATCH)):
        puts = [{"requestPut": {"key": _b64(_key(found)), "value": _b64(_stored(found))}} for found in part]
        body = json.dumps({"success": puts}).encode()
        with urllib.request.urlopen(f"{plane.etcd.url}/v3/kv/txn", body) as reply:
            assert json.load(reply)["succeeded"]
        written += len(part)
    return written


def _key(found: dict[str, Any]) -> str:
    return f"/registry/{KEYS[found['kind']]}{found['metadata']['name']}"


def _stored(found: dict[str, Any]) -> str:
    meta = found["metadata"]
    return json.dumps(found | {"metadata": {"uid": meta["name"], "creationTimestamp": "2026-01-01T00:00:00Z"} | meta})


def _b64(text: str) -> str:
    return b64encode(text.encode()).decode()


def shown(plane: ControlPlane) -> list[int]:
    """Return how many nodes, gpunodes and pods the API server knows, once its caches have all."""
    paths = ("/api/v1/nodes", GPUNODES, "/api/v1/pods")

    def counted() -> list[int]:
        pages = [json.loads(plane.request("GET", f"{path}?limit=1")) for path in paths]
        return [1 + page["metadata"].get("remainingItemCount", 0) for page in pages if page["items"]]

    return wait_until(counted, "the objects are shown")


def memory(pid: int) -> str:
    """Return the resident size of a process, now and at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    sizes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.startswith(("VmRSS", "VmHWM"))}
    return f"{sizes['VmRSS'] / 1024:.0f} MiB resident, {sizes['VmHWM'] / 1024:.0f} MiB at its peak"


if __name__ == "__main__":
    main()
