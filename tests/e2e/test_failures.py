"""What fails, under load: afterwards no card is over capacity, no record is lost, what fits is bound in a minute."""

import base64
import json
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import pytest

from extender.state import NO_INVENTORY
from tests.e2e.controlplane.api import MERGE, fetch
from tests.e2e.controlplane.cluster import ControlPlane
from tests.e2e.controlplane.ports import HeldPort
from tests.e2e.controlplane.process import Process
from tests.e2e.controlplane.waiting import wait_until
from tests.e2e.relay import Relay
from tests.e2e.scene import (
    EXTENDER,
    GPUNODES,
    add_inventories,
    add_nodes,
    batch,
    control_plane,
    create,
    extender,
    machines,
    pod,
    scheduler_configuration,
)
from tests.e2e.test_packing import counted, decided, fitting, message_of, metric

pytestmark = pytest.mark.e2e

PODS: Final = "/api/v1/namespaces/default/pods"
LEASES: Final = "/apis/coordination.k8s.io/v1/namespaces/tessera-agents/leases"
MACHINES: Final = machines(50)
COUNT: Final = 300
LATE: Final = 180  # of them bound is no longer the middle
RECOVERY_SECONDS: Final = 60.0
FROZEN_SECONDS: Final = 20.0
SILENT_SECONDS: Final = 6.0
BEAT_SECONDS: Final = 1.0
EARLY: Final = 60
LEAST_LOST: Final = 10
REFUSED: Final = 'tessera_bind_total{result="refused"}'
LOST: Final = 0.15  # of the pieces of what comes back


@dataclass
class Stage:
    """The control plane, the extender with a relay on either side, and kube-scheduler."""

    plane: ControlPlane
    extender: Process
    scheduler: Process
    to_api: Relay
    to_extender: Relay
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1))
    creating: "Future[None] | None" = None

    def load(self, bound: int = 1) -> int:
        """Begin to create pods for more than there is; return how many are bound once that is at least `bound`."""
        self.creating = self.pool.submit(create, self.plane, batch(COUNT)[:COUNT])
        return wait_until(lambda: seen if (seen := self.bound()) >= bound else 0, f"{bound} pods are bound")

    def pods(self) -> list[dict[str, Any]]:
        """Return the pods as they are now."""
        items: list[dict[str, Any]] = json.loads(self.plane.request("GET", PODS))["items"]
        return items

    def bound(self) -> int:
        """Return how many pods are bound."""
        return sum("nodeName" in item["spec"] for item in self.pods())

    def shown(self) -> list[Any]:
        """Return each node with its cards and who holds what of them, as the extender has them."""
        with urllib.request.urlopen(f"{self.extender.url}/page/state") as reply:
            found: list[Any] = sorted(json.loads(reply.read())["nodes"])
        return found

    def recovered(self) -> None:
        """Start whoever has ended, as a kubelet does: a kube-scheduler ends when it loses its Lease."""
        self.plane.apiserver.resume()
        self.extender.resume()
        for process in (self.plane.apiserver, self.extender, self.scheduler):
            if not process.alive:
                process.start()

    def created(self) -> None:
        """Wait until every pod is created."""
        if self.creating is not None:
            self.creating.result()

    def settled(self) -> None:
        """Wait until kube-scheduler has an answer for every pod."""
        self.created()
        wait_until(lambda: all(map(decided, self.pods())), "every pod is decided")

    def recounted(self, what: str, pods: int = COUNT) -> None:
        """Wait until nothing that fits is pending; then recount, and compare with what the extender counts."""
        self.created()
        begin = time.monotonic()

        def well() -> bool:
            self.recovered()  # kube-scheduler may end some time after it has lost its Lease
            return not fitting(self.plane)

        wait_until(well, f"nothing that fits is pending after: {what}", RECOVERY_SECONDS)
        result = counted(self.plane)
        bound = len(result.bound)
        print(f"{what}: {bound} bound, {len(result.pending)} wait; well after {time.monotonic() - begin:.1f} s")
        assert result.breaches == []
        assert bound + len(result.pending) == pods
        wait_until(lambda: metric(self.extender, "tessera_assumed_pods") == 0, "nothing is undecided")
        wait_until(lambda: metric(self.extender, "tessera_holding_pods") == self.bound(), "all that is bound counts")


@pytest.fixture(scope="module")
def whole() -> Iterator[Stage]:
    """Fifty nodes of mixed cards."""
    with control_plane() as plane, HeldPort() as port:
        add_nodes(plane, MACHINES)
        server = int(plane.server.rpartition(":")[2])
        with Relay(lambda: server) as to_api, Relay(lambda: port.number) as to_extender:
            through = plane.folder / "relay.kubeconfig"
            through.write_text(plane.kubeconfig(EXTENDER.name).read_text().replace(plane.server, f"https://{to_api}"))
            flags = ("--kubeconfig", str(through), "--silent-seconds", str(SILENT_SECONDS), "--page")
            service = extender(plane, port, *flags)
            path = scheduler_configuration(plane, "config.yaml", port)
            path.write_text(path.read_text().replace(f"http://{port}", f"http://{to_extender}"))
            yield Stage(plane, service, plane.start_scheduler(path), to_api, to_extender)


@pytest.fixture
def stage(whole: Stage) -> Iterator[Stage]:
    """Begin and end without pods, and with everybody there."""
    yield whole
    whole.to_api.lose = whole.to_extender.lose = 0.0
    whole.recovered()
    whole.created()
    whole.plane.request("DELETE", f"{PODS}?gracePeriodSeconds=0")
    wait_until(lambda: metric(whole.extender, "tessera_holding_pods") == 0, "nothing is held")


def test_the_extender_is_killed_in_the_middle_of_binds(stage: Stage) -> None:
    """It comes back with the state of a rebuild, and so does the next one, and the next."""
    before = stage.load(bound=60)
    stage.extender.kill()
    assert before < LATE, "the kill came too late to test anything"
    stage.recovered()
    stage.recounted(f"killed with {before} of {COUNT} bound")
    shown = stage.shown()
    stage.extender.kill()
    stage.extender.start()
    wait_until(lambda: stage.shown() == shown, "the next one has the same state")


def test_the_api_server_is_frozen_under_load(stage: Stage) -> None:
    """For longer than every deadline: binds are refused or undecided, and none counts twice or not at all."""
    before = stage.load(bound=60)
    assert before < LATE, "the freeze came too late to test anything"
    stage.plane.apiserver.pause()
    time.sleep(FROZEN_SECONDS)
    stage.recovered()
    stage.recounted(f"frozen for {FROZEN_SECONDS:g} s with {before} of {COUNT} bound")


@pytest.mark.parametrize("way", ["from the API server", "from the extender"])
def test_answers_are_lost_on_the_way(stage: Stage, way: str) -> None:
    """What was done although nobody heard of it counts once; what was not done is done later."""
    relay = stage.to_api if way == "from the API server" else stage.to_extender
    refused = metric(stage.extender, REFUSED)
    relay.lost, relay.lose = 0, LOST
    before = stage.load()
    time.sleep(15)
    during = stage.bound() - before
    relay.lose = 0.0
    refused = metric(stage.extender, REFUSED) - refused
    stage.recounted(f"{relay.lost} answers lost {way}, {during} bound meanwhile, {refused:g} binds refused")
    assert relay.lost > LEAST_LOST
    assert refused > 0 or way == "from the extender"  # where a bind that landed may be tried on another node


def test_the_history_is_compacted_while_the_watch_is_cut(stage: Stage) -> None:
    """The API server answers 410; what happened meanwhile is found by a list, and what was freed is used."""
    stage.load(bound=60)
    stage.recounted("before the cut")
    stage.extender.pause()  # so that its first question after the cut has the version of before
    stage.to_api.lose = 1.0
    gone = [item["metadata"]["name"] for item in stage.pods() if "nodeName" in item["spec"]][::3]
    for name in gone:
        stage.plane.request("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    compact(stage.plane)
    stage.plane.apiserver.kill()
    stage.plane.apiserver.start()
    stage.to_api.lose = 0.0
    stage.recounted(f"{len(gone)} pods deleted unseen", COUNT - len(gone))
    assert "The last version of pods is gone, so they are listed again" in stage.extender.log.read_text()


def test_inventories_are_deleted_and_created_again(stage: Stage) -> None:
    """Without one nothing more is placed; when they are back, what is held is what was held."""
    stage.load(bound=60)
    stage.recounted("before the inventories go")
    shown, bound = stage.shown(), stage.bound()
    for name, *_ in MACHINES:
        stage.plane.request("DELETE", f"{GPUNODES}/{name}")
    closed = f'tessera_closed_nodes{{reason="{NO_INVENTORY}"}}'
    wait_until(lambda: metric(stage.extender, closed) == len(MACHINES), "the extender has seen it")
    create(stage.plane, [pod("late", {"main": {"memory": "1Gi"}})])
    wait_until(lambda: NO_INVENTORY in message_of(stage.plane, "late"), "a pod is told why it waits")
    assert stage.bound() == bound
    add_inventories(stage.plane, MACHINES)
    stage.recounted("all inventories deleted and created again", COUNT + 1)
    stage.plane.request("DELETE", f"{PODS}/late?gracePeriodSeconds=0")
    wait_until(lambda: stage.shown() == shown, "every card is held as before")


def test_agents_fall_silent_under_load(stage: Stage) -> None:
    """What is silent gets nothing more and keeps what it has; at the next beat it takes pods again."""
    mute = [name for name, *_ in MACHINES[::2]]

    def taken() -> int:
        return sum(item["spec"].get("nodeName") in mute for item in stage.pods())

    with Beats(stage.plane, mute):
        create(stage.plane, [pod(f"early-{i}", {"main": {"utilization": "60%"}}) for i in range(EARLY)])
        wait_until(lambda: stage.bound() == EARLY, "the first pods are bound")
    before = taken()
    closed = 'tessera_closed_nodes{reason="the node\'s agent is silent"}'
    wait_until(lambda: metric(stage.extender, closed) == len(mute), "half of the agents are silent")
    stage.load(bound=EARLY + 60)
    stage.settled()
    assert taken() == before > 0
    with Beats(stage.plane, mute):
        stage.recounted("half of the agents silent for a while", COUNT + EARLY)
        assert taken() > before


class Beats:
    """Renews the Leases of some nodes' agents for as long as the block lasts."""

    def __init__(self, plane: ControlPlane, nodes: list[str]) -> None:
        self._plane, self._nodes, self._ended = plane, nodes, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        with ThreadPoolExecutor(8) as pool:
            self._beat(pool)

    def _beat(self, pool: ThreadPoolExecutor) -> None:
        there = {item["metadata"]["name"] for item in json.loads(self._plane.request("GET", LEASES))["items"]}
        for name in set(self._nodes) - there:
            self._plane.request("POST", LEASES, {"metadata": {"name": name}, "spec": {"renewTime": now()}})
        while not self._ended.wait(BEAT_SECONDS):
            list(pool.map(self._renew, self._nodes))

    def _renew(self, name: str) -> None:
        self._plane.request("PATCH", f"{LEASES}/{name}", {"spec": {"renewTime": now()}}, content_type=MERGE)


def now() -> str:
    """Return the time as a Lease has it."""
    return datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def compact(plane: ControlPlane) -> None:
    """Make etcd forget all but the present."""
    key = base64.b64encode(b"/").decode()
    found = json.loads(fetch(f"{plane.etcd.url}/v3/kv/range", method="POST", body={"key": key}))
    body = {"revision": found["header"]["revision"], "physical": True}
    fetch(f"{plane.etcd.url}/v3/kv/compaction", method="POST", body=body)
