"""The agent as a process of its own, on the fake driver and with an API server that takes everything."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from contract.assignment import Assignment, Grant, annotations
from tests.e2e.controlplane.waiting import wait_until
from tests.fakes_apiserver import ApiServer, hang, refusal, reply, stream
from tests.nodeagent.fakenvml import Node, card, uuid

LEASE = "/apis/coordination.k8s.io/v1/namespaces/tessera-agents/leases/n1"
OBJECT = "/apis/tessera.gpu/v1alpha1/gpunodes/n1"
UID = "0f7a1b2c-3d4e-4f50-8a6b-7c8d9e0f1a2b"
ID = "9c3fb1a0" * 8
CGROUP = f"kubepods/burstable/pod{UID}"


class Running:
    """An agent that runs, and all around it."""

    def __init__(self, folder: Path, server: ApiServer) -> None:
        (folder / "driver").mkdir()
        self.node, self.server, self.folder = Node(folder / "driver"), server, folder
        self.process: subprocess.Popen[str] | None = None
        self.url = ""
        for name in ("proc", "cgroup"):
            (folder / name).mkdir()
        (folder / "token").write_text("t")
        server.script("GET", OBJECT, refusal(404, "not found"))
        server.script("PATCH", LEASE, reply(200, {}))
        server.script("PATCH", f"{OBJECT}/status", reply(200, {}))
        self.pods()

    def pods(self, *pods: dict[str, Any]) -> None:
        """Say which pods the node has."""
        self.server.script("GET", "/api/v1/pods", reply(200, {"metadata": {"resourceVersion": "7"}, "items": pods}))
        listed = self.server.answers["GET", "/api/v1/pods"][0]
        self.server.script("GET", "/api/v1/pods", listed, stream(then=hang))

    def used_by(self, pid: int, cgroup: str) -> None:
        """Let a process be in a cgroup."""
        (self.folder / "proc" / str(pid)).mkdir(exist_ok=True)
        (self.folder / "proc" / str(pid) / "cgroup").write_text(f"0::/{cgroup}\n")

    def start(self, *flags: str) -> None:
        """Start it, and wait until it listens."""
        command = [sys.executable, "-m", "nodeagent", "--node", "n1", "--port", "0", "--host", "127.0.0.1"]
        command += ["--server", f"http://127.0.0.1:{self.server.server_port}", "--interval", "0.1"]
        for name, path in (("token-file", "token"), ("proc", "proc"), ("cgroup-root", "cgroup")):
            command += [f"--{name}", str(self.folder / path)]
        command += flags
        self.process = subprocess.Popen(command, env=self.node.environment, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if found := re.search(r"metrics on port (\d+)", line):
                self.url = f"http://127.0.0.1:{found[1]}"
                break
        assert self.url, "it ended at once"

    def page(self, path: str) -> tuple[int, str]:
        """Return one of its pages."""
        try:
            with urllib.request.urlopen(self.url + path) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def told(self) -> list[Any]:
        """Return all statuses told until now."""
        path = f"{OBJECT}/status"
        return [r.body["status"] for r in self.server.requests if (r.method, r.path) == ("PATCH", path)]

    def wait_told(self, question: Callable[[Any], object], what: str, seconds: float = 60) -> Any:
        """Wait until a status of which something is true was told, and return it."""
        return wait_until(lambda: next((s for s in self.told() if question(s)), None), what, seconds)

    def stop(self) -> int:
        """End it, and return its exit status."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def agent(tmp_path: Path, server: ApiServer) -> Iterator[Running]:
    """Return an agent that a test starts."""
    running = Running(tmp_path, server)
    yield running
    if running.process is not None and running.process.poll() is None:
        running.process.kill()
        running.process.communicate()


def pod(mib: int = 8192, gpu: int = 0) -> dict[str, Any]:
    """Return a running pod with a share of a card, whose container's id is told."""
    record = Assignment("n1", UID, {"main": (Grant(uuid(gpu), mib, 500),)})
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": UID, "annotations": annotations(record)},
        "spec": {"nodeName": "n1", "containers": [{"name": "main"}]},
        "status": {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{ID}"}],
        },
    }


def test_it_reports_serves_and_ends(agent: Running) -> None:
    """Heartbeat first, then the cards; probes and metrics; SIGTERM ends it well."""
    agent.node.write(card(0, util_gpu=40, mem_used="1000Mi"), card(1))
    agent.start()
    status = agent.wait_told(lambda s: s["gpus"], "the cards are told")
    assert [gpu["uuid"] for gpu in status["gpus"]] == [uuid(0), uuid(1)]
    assert status["gpus"][0]["usedMiB"] == status["gpus"][0]["foreignMiB"] == 1000
    assert {c["type"]: c["status"] for c in status["conditions"]}["Ready"] == "True"
    paths = [r.path for r in agent.server.requests]
    assert paths.index(LEASE) < paths.index(f"{OBJECT}/status")
    assert agent.page("/livez") == (200, "ok\n")
    wait_until(lambda: agent.page("/readyz")[0] == 200, "it is ready")
    assert f'tessera_gpu_memory_used_bytes{{gpu_uuid="{uuid(0)}"}} 1.048576e+09' in agent.page("/metrics")[1]
    assert agent.page("/else")[0] == 404
    assert agent.stop() == 0


def test_a_driver_that_is_slow_to_start_is_waited_for(agent: Running) -> None:
    """The first report has the cards: a node is not told to have none because its driver was asked too early."""
    agent.node.write(card(0), card(1), system={"delay_ms.nvmlInitWithFlags": 1000})
    agent.start()
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    assert [len(status["gpus"]) for status in agent.told()] == [2]


def test_use_by_pod_is_its_own_and_the_rest_is_foreign(agent: Running) -> None:
    """A granted pod's process is found through /proc; one of the host's is foreign, and both are in the metrics."""
    agent.pods(pod())
    agent.used_by(41, f"{CGROUP}/{ID}")
    agent.used_by(42, "user.slice")
    agent.node.write(card(0, mem_used="5000Mi", proc=("41 3000 C 30 1", "42 2000 C 0 0")), card(1))
    agent.start()
    status = agent.wait_told(lambda s: s["gpus"][0].get("foreignMiB") == 2000, "the host's use is foreign")
    assert "foreignMiB" not in status["gpus"][1]
    share = f'gpu_uuid="{uuid(0)}",namespace="default",pod="p"'
    metrics = agent.page("/metrics")[1].splitlines()
    assert f"tessera_pod_gpu_memory_used_bytes{{{share}}} {3000.0 * 2**20:.6e}" in metrics
    assert f'tessera_gpu_memory_foreign_bytes{{gpu_uuid="{uuid(0)}"}} {2000.0 * 2**20:.6e}' in metrics
    assert f'tessera_gpu_memory_granted_bytes{{gpu_uuid="{uuid(1)}"}} 0.0' in metrics


def test_limits_are_set_on_the_cgroups_of_pod_and_container(agent: Running) -> None:
    """As soon as the directories are there, the container's that comes later too; nothing else gets one."""
    agent.pods(pod())
    agent.node.write(card(0, memory_limits=1), card(1, memory_limits=1))
    group = agent.folder / "cgroup" / CGROUP
    (agent.folder / "cgroup" / "kubepods" / "besteffort" / ("pod" + UID.replace("0", "1"))).mkdir(parents=True)
    agent.start()
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    (group / ID).mkdir(parents=True)
    limits = agent.node.directory / "limits"
    wait_until(lambda: limits.exists() and str(group / ID) in limits.read_text(), "the container is limited")
    assert sorted(limits.read_text().splitlines()) == sorted(
        f"0 0 {8192 << 20} {path}" for path in (group, group / ID)
    )
    condition = agent.wait_told(lambda s: s["conditions"][-1]["status"] == "True", "limits are in force")
    assert condition["conditions"][-1]["type"] == "MemoryLimitsEnforced"
    wait_until(lambda: "tessera_agent_memory_limits 2.0" in agent.page("/metrics")[1], "both are counted")


def test_a_violation_and_over_use_become_events(agent: Running) -> None:
    """Too much on the granted card, and a process on the other card: one event each."""
    agent.server.script("POST", "/api/v1/namespaces/default/events", reply(201, {}))
    agent.pods(pod(mib=1024))
    agent.used_by(41, f"{CGROUP}/{ID}")
    agent.node.write(
        card(0, mem_used="3000Mi", proc=("41 3000 C 0 0",)), card(1, mem_used="10Mi", proc=("41 10 C 0 0",))
    )
    agent.start("--over-seconds", "0.5")
    events = "/api/v1/namespaces/default/events"

    def reasons() -> dict[str, str]:
        return {r.body["reason"]: r.body["message"] for r in agent.server.requests if r.path == events}

    wait_until(lambda: len(reasons()) == 2, "both are told")
    assert reasons() == {
        "GPUMemoryOverGrant": f"This pod uses 3000 MiB of card {uuid(0)}; it was granted 1024 MiB.",
        "GPUNotGranted": f"A process of this pod uses 10 MiB of card {uuid(1)}, which was not granted to the pod.",
    }
    assert 'tessera_agent_events_total{reason="GPUNotGranted"} 1.0' in agent.page("/metrics")[1]


def test_xid_79_is_told_within_a_moment(agent: Running) -> None:
    """The event wakes the agent: it does not wait for the next sample."""
    agent.node.write(card(0), card(1))
    agent.start("--interval", "5")
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    wait_until(lambda: agent.page("/readyz")[0] == 200, "it is ready")
    agent.node.event(1, "xid", 79)
    status = agent.wait_told(lambda s: not s["gpus"][1]["healthy"], "the dead card is told", 2.0)
    assert status["gpus"][1]["reason"].startswith("XID 79")
    assert 'xid="79"' in agent.page("/metrics")[1]


def test_one_hanging_call_keeps_no_other_card_waiting(agent: Running) -> None:
    """With a call of 30 s on one card, the other's foreign use is still told at once."""
    agent.node.write(card(0), card(1))
    agent.start("--interval", "0.5")
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    agent.node.write(card(0, delay_ms__nvmlDeviceGetUtilizationRates=30000), card(1, mem_used="2000Mi"))
    status = agent.wait_told(lambda s: s["gpus"][1].get("foreignMiB") == 2000, "the other card is told", 3.0)
    assert [gpu["uuid"] for gpu in status["gpus"]] == [uuid(0), uuid(1)]


def test_a_card_that_a_restart_does_not_find_is_lost(agent: Running) -> None:
    """What the agent before this one reported is read at the start: a missing card is told as lost."""
    gone = {"uuid": "GPU-gone", "index": 7, "healthy": True, "model": "NVIDIA A10", "memoryMiB": 23028}
    agent.server.script("GET", OBJECT, reply(200, {"status": {"gpus": [gone]}}))
    agent.node.write(card(0))
    agent.start()
    status = agent.wait_told(lambda s: len(s["gpus"]) == 2, "both cards are told")
    assert [(gpu["uuid"], gpu["healthy"]) for gpu in status["gpus"] if gpu["uuid"] == "GPU-gone"] == [
        ("GPU-gone", False)
    ]


@pytest.mark.parametrize(("booted", "healthy"), [(1_700_000_000, False), (1_800_000_000, True)])
def test_a_fatal_xid_survives_a_restart_and_no_boot(booted: int, healthy: bool, agent: Running) -> None:
    """An old driver's card that an XID took out stays out for the next agent, but for one that a boot came before."""
    bad = {"uuid": uuid(0), "index": 0, "healthy": False, "reason": "XID 79 (the card has fallen off the bus)"}
    ours = {"manager": "tessera-agent", "time": "2025-01-01T00:00:00Z"}
    found = {"metadata": {"managedFields": [ours]}, "status": {"gpus": [bad]}}
    agent.server.script("GET", OBJECT, reply(200, found))
    (agent.folder / "proc" / "stat").write_text(f"cpu 1 2 3\nbtime {booted}\n")
    agent.node.write(card(0, **{"field.230": "NOT_SUPPORTED"}))
    agent.start()
    status = agent.wait_told(lambda s: s["gpus"], "the card is told")
    assert (status["gpus"][0]["healthy"], status["gpus"][0].get("reason", "")) == (
        (True, "") if healthy else (False, bad["reason"])
    )


def test_a_report_waits_until_the_api_server_says_what_was_told(agent: Running) -> None:
    """It refuses at first: the first report has the lost card and the bad one all the same."""
    bad = {"uuid": uuid(0), "healthy": False, "reason": "XID 48 (double-bit ECC error)"}
    found = {"status": {"gpus": [bad, {"uuid": "GPU-gone", "index": 7, "healthy": True}]}}
    agent.server.script("GET", OBJECT, refusal(500, "away"), refusal(429, "too many"), reply(200, found))
    agent.node.write(card(0, **{"field.230": "NOT_SUPPORTED"}))
    agent.start()
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    assert {gpu["uuid"]: gpu["healthy"] for gpu in agent.told()[0]["gpus"]} == {uuid(0): False, "GPU-gone": False}


def test_it_ends_while_it_waits_for_what_was_told(agent: Running) -> None:
    """The API server never says it: no heartbeat, no report, and SIGTERM ends the agent at once."""
    agent.server.script("GET", OBJECT, refusal(500, "away"))
    agent.node.write(card(0))
    agent.start()
    wait_until(lambda: sum(r.path == OBJECT for r in agent.server.requests) > 2, "it asks again")
    assert not [r for r in agent.server.requests if r.method == "PATCH"]
    began = time.monotonic()
    assert agent.stop() == 0
    assert time.monotonic() - began < 5


def test_after_a_boot_lost_cards_that_nobody_holds_are_forgotten(agent: Running) -> None:
    """They were exchanged while the machine was off; one that a pod holds is still told as lost."""
    told = [{"uuid": name, "healthy": True} for name in (uuid(0), uuid(1), "GPU-gone")]
    ours = {"manager": "tessera-agent", "time": "2025-01-01T00:00:00Z"}
    agent.server.script("GET", OBJECT, reply(200, {"metadata": {"managedFields": [ours]}, "status": {"gpus": told}}))
    (agent.folder / "proc" / "stat").write_text("btime 1800000000\n")
    agent.pods(pod(gpu=1))
    agent.node.write(card(0))
    agent.start()
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    assert {gpu["uuid"]: gpu["healthy"] for gpu in agent.told()[0]["gpus"]} == {uuid(0): True, uuid(1): False}


def test_without_a_driver_it_says_so(agent: Running) -> None:
    """No library: no cards, not ready, and the sentence; the agent lives on and waits for the driver."""
    (agent.node.directory / "libnvidia-ml.so.1").write_text("no library, and it hides the host's\n" * 2)
    agent.start()
    status = agent.wait_told(lambda s: s["conditions"], "the node is told")
    assert status["gpus"] == []
    assert status["conditions"][0]["reason"] == "NoCards"
    assert "no NVIDIA driver library" in status["conditions"][0]["message"]
    assert agent.page("/livez")[0] == 200


def test_a_replaced_driver_ends_the_process(agent: Running) -> None:
    """Only a new process can load the new library, so the agent ends and is started again."""
    agent.node.write(card(0))
    agent.start()
    agent.wait_told(lambda s: s["gpus"], "the cards are told")
    mismatch = {"error.nvmlDeviceGetCount_v2": "LIB_RM_VERSION_MISMATCH", "driver_version": "580.126.09"}
    agent.node.write(card(0), system=mismatch)
    assert agent.process is not None
    agent.process.communicate(timeout=60)
    assert agent.process.returncode == 1
    assert agent.told()[-1]["conditions"][0]["reason"] == "DriverReplaced"


def test_its_log_is_json(tmp_path: Path, agent: Running) -> None:
    """An API server that refuses is logged, one object a line."""
    agent.server.script("PATCH", LEASE, refusal(403, "no rights"))
    agent.start()
    wait_until(lambda: any(r.path == LEASE for r in agent.server.requests), "it tried")
    assert agent.process is not None
    assert agent.process.stderr is not None
    lines = iter(agent.process.stderr)
    said = next(json.loads(line) for line in lines if "heartbeat" in line)
    assert (said["event"], said["level"]) == ("The heartbeat failed: no rights", "warning")
    assert agent.told() == [], "no report without a heartbeat: nobody would notice its silence"
    os.kill(agent.process.pid, signal.SIGTERM)
    agent.process.communicate(timeout=60)
