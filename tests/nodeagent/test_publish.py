"""When a node's report goes out, what it says, and what happens when it cannot."""

import json
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from contract.inventory import Gpu, Inventory, decode
from nodeagent.api import Api
from nodeagent.conditions import Host, conditions
from nodeagent.publish import LONGEST_PAUSE, LOOK_SECONDS, RETELL_SECONDS, Publisher, written_at
from nodeagent.smooth import Report
from tests.fakes_apiserver import ApiServer, refusal, reply
from tests.nodeagent.given import gpu, reading, report

OBJECT = "/apis/tessera.gpu/v1alpha1/gpunodes/n1"
STATUS = f"{OBJECT}/status"
NODE = "/api/v1/nodes/n1"
LIMITS = ("MemoryLimitsEnforced", "False", "NotSupported", "The driver has no memory limits; use is observed.")


class Desk:
    """A publisher with a clock that a test turns, and the server that it tells."""

    def __init__(self, api: Api, server: ApiServer) -> None:
        self.now, self.server = 0.0, server
        self.publisher = Publisher(api, "n1", clock=lambda: self.now, wall=lambda: 1.7e9 + self.now, rng=Random(1))
        server.script("GET", OBJECT, refusal(404, "not found"), reply(200, {"metadata": {"name": "n1"}}))
        server.script("PATCH", STATUS, reply(200, {}))

    def writes(self) -> list[Any]:
        """Return the bodies of all status writes."""
        return [r.body["status"] for r in self.server.requests if (r.method, r.path) == ("PATCH", STATUS)]

    def step(self, seconds: float = 0.0, report: Report | None = None) -> int:
        """Let time pass, offer a report, step, and return how many writes were tried."""
        self.now += seconds
        if report is not None:
            self.publisher.offer(report)
        before = len(self.writes())
        self.publisher.step()
        return len(self.writes()) - before


@pytest.fixture
def desk(api: Api, server: ApiServer) -> Desk:
    """Return a desk whose server takes everything."""
    return Desk(api, server)


def test_a_report_is_applied_by_our_manager(desk: Desk) -> None:
    """The first report goes out at once, decodes to what was told, and is not repeated."""
    assert desk.step() == 0
    assert desk.step(report=report(gpu(index=2), conditions=(LIMITS,))) == 1
    request = desk.server.requests[-1]
    assert request.query == {"fieldManager": "tessera-agent", "force": "true"}
    assert request.body["metadata"] == {"name": "n1"}
    status = request.body["status"]
    assert decode("n1", status) == report(gpu(index=2)).inventory
    assert [c["type"] for c in status["conditions"]] == ["MemoryLimitsEnforced"]
    assert [desk.step(1.0, report(gpu(index=2), conditions=(LIMITS,))) for _ in range(5)] == [0] * 5


def test_a_gpunode_that_is_not_there_is_made_with_its_node_as_owner(desk: Desk) -> None:
    """It goes when the Node goes; then the status is written."""
    desk.server.script("PATCH", STATUS, refusal(404, "not found"), reply(200, {}))
    desk.server.script("GET", NODE, reply(200, {"metadata": {"uid": "u1"}}))
    desk.server.script("PATCH", OBJECT, reply(201, {}))
    assert desk.step(report=report()) == 2
    (made,) = [r.body for r in desk.server.requests if (r.method, r.path) == ("PATCH", OBJECT)]
    assert made["metadata"] == {
        "name": "n1",
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "u1"}],
    }
    assert desk.publisher.writes == 1


def test_it_is_remembered_as_told_only_once_it_was_told(desk: Desk) -> None:
    """A failed report is tried again, after longer and longer, with what is newest then."""
    desk.server.script("PATCH", STATUS, refusal(500, "away"))
    assert desk.step(report=report(gpu(used_mib=1))) == 1
    tried = sum(desk.step(0.5, report(gpu(used_mib=n))) for n in range(2, 122))
    assert 3 <= tried <= 8
    desk.server.script("PATCH", STATUS, reply(200, {}))
    assert desk.step(LONGEST_PAUSE, report(gpu(used_mib=999))) == 1
    assert desk.writes()[-1]["gpus"][0]["usedMiB"] == 999
    assert (desk.publisher.writes, desk.publisher.failures) == (1, tried + 1)
    assert desk.step(1.0) == 0


def test_a_minute_without_an_api_server_holds_one_report(desk: Desk) -> None:
    """However many reports were offered meanwhile, one goes out, and nothing was kept for the others."""
    desk.server.script("GET", OBJECT, refusal(500, "away"))
    for second in range(60):
        assert desk.step(1.0, report(gpu(index=second))) == 0
    desk.server.script("GET", OBJECT, refusal(404, "not found"))
    assert desk.step(LONGEST_PAUSE, report(gpu(index=60))) == 1
    assert [status["gpus"][0]["index"] for status in desk.writes()] == [60]


def test_conditions_keep_their_times_over_a_restart(desk: Desk) -> None:
    """What an agent before this one said is read first."""
    before = {"type": "Ready", "status": "True", "lastTransitionTime": "2020-01-01T00:00:00Z"}
    desk.server.script("GET", OBJECT, reply(200, {"status": {"conditions": [before]}}))
    desk.step(report=report(conditions=(("Ready", "True", "Reporting", ""),)))
    assert desk.writes()[0]["conditions"][0]["lastTransitionTime"] == "2020-01-01T00:00:00Z"
    desk.step(1.0, report(conditions=(("Ready", "False", "NoCards", ""),)))
    assert desk.writes()[1]["conditions"][0]["lastTransitionTime"] == "2023-11-14T22:13:21Z"


def test_the_same_words_are_told_again_after_ten_minutes(desk: Desk) -> None:
    """Word by word, though use moved since a little: an API server that has them stores nothing."""
    desk.step(report=report(gpu(used_mib=100)))
    assert desk.step(0.7 * RETELL_SECONDS, report(gpu(used_mib=101))) == 0
    assert desk.step(0.6 * RETELL_SECONDS, report(gpu(used_mib=102))) == 1
    assert desk.writes()[0] == desk.writes()[1]


def test_a_gpunode_that_was_deleted_is_soon_back(desk: Desk) -> None:
    """Though nothing is new to tell: within two minutes it is missed, by a look that any version answers."""
    desk.step(report=report())
    assert [desk.step(2 * LOOK_SECONDS) for _ in range(2)] == [0, 0], "it is there"
    assert desk.server.requests[-1].query == {"resourceVersion": "0"}
    desk.server.script("GET", OBJECT, refusal(500, "away"))
    assert desk.step(2 * LOOK_SECONDS) == 0, "nobody knows"
    desk.server.script("GET", OBJECT, refusal(404, "not found"))
    desk.server.script("PATCH", STATUS, refusal(500, "away"), reply(200, {}))
    assert [desk.step(2 * LOOK_SECONDS), desk.step(1.0), desk.step(1.0)] == [1, 1, 0], "a failure is tried again soon"


def test_cards_are_summed_up_for_kubectl(desk: Desk) -> None:
    """Columns cannot count: how many cards, of what, how full, how busy, how many well."""
    cards = (
        gpu(used_mib=10240, utilization=50),
        gpu("GPU-b", model="Tesla T4", memory_mib=15360, healthy=False, reason="XID 79", utilization=None),
    )
    desk.step(report=report(*cards))
    assert desk.writes()[0]["summary"] == {
        "cards": 2,
        "healthy": "1/2",
        "model": "NVIDIA A10, Tesla T4",
        "memory": "10/37 GiB",
        "utilization": "50%",
    }
    for unknown in (gpu(memory_mib=None, used_mib=None, utilization=None), gpu(used_mib=None, utilization=None)):
        desk.step(1.0, report(unknown))
        assert desk.writes()[-1]["summary"] == {"cards": 1, "healthy": "1/1", "model": "NVIDIA A10"}


def test_when_a_gpunode_was_written() -> None:
    """By an agent, whoever else wrote later; without a word of it, nobody knows."""
    ours = {"manager": "tessera-agent", "time": "2023-11-14T22:13:20Z"}
    other = {"manager": "tessera-extender", "time": "2024-01-01T00:00:00Z"}
    assert (
        written_at({"metadata": {"managedFields": [ours | {"time": "2020-01-01T00:00:00Z"}, ours, other]}}) == 1.7e9
    )
    assert written_at({"metadata": {"managedFields": [other]}}) is None
    assert written_at({}) is None


def eight_cards() -> Inventory:
    """Return a node of eight cards that tell all they can, behind a switch."""
    uuids = [f"GPU-{i:08x}-0d1e-2f3a-4b5c-6d7e8f9a0b1c" for i in range(8)]
    cards = (
        Gpu(
            uuid,
            i,
            "NVIDIA H100 80GB HBM3",
            81559,
            571,
            healthy=False,
            reason="XID 79 (the card has fallen off the bus)",
            numa_node=i // 4,
            pci_bus_id=f"0000:{i:02x}:00.0",
            nvlink=tuple(sorted(set(uuids) - {uuid})),
            used_mib=70123,
            foreign_mib=12345,
            utilization=87,
        )
        for i, uuid in enumerate(uuids)
    )
    return Inventory("gpu-node-with-a-long-name.example.internal", tuple(cards), "580.126.09", "13.0")


def test_eight_cards_are_at_most_4_kb(desk: Desk) -> None:
    """A report with everything in it, conditions in trouble included, as the bytes that are sent."""
    inventory = eight_cards()
    told = conditions(reading(driver="465.19.01"), Host("5.4.0-100-generic"), LIMITS)
    desk.step(report=Report(inventory, told))
    body = json.dumps(desk.server.requests[-1].body, separators=(",", ":"))
    assert 2000 < len(body) <= 4096, len(body)
    assert decode(inventory.node, desk.writes()[0]) == replace(inventory)
