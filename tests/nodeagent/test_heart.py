"""The heartbeat: when, and what it says."""

from itertools import pairwise
from random import Random

import pytest

from nodeagent.api import Api
from nodeagent.heart import BEAT_SECONDS, JITTER, Heart
from tests.fakes_apiserver import ApiServer, refusal, reply

LEASES = "/apis/coordination.k8s.io/v1/namespaces/agents/leases"
LEASE = f"{LEASES}/n1"


class Clock:
    """Seconds that a test turns."""

    now = 0.0

    def __call__(self) -> float:
        """Return them."""
        return self.now


@pytest.fixture
def clock() -> Clock:
    """Return a clock at zero."""
    return Clock()


@pytest.fixture
def heart(api: Api, clock: Clock) -> Heart:
    """Return the heart of node n1."""
    return Heart(api, "n1", "agents", clock=clock, wall=lambda: 1.7e9, rng=Random(1))


def test_the_first_beat_makes_the_lease(heart: Heart, server: ApiServer) -> None:
    """It belongs to the Node, lasts 90 s, and its time has six digits after the second, as the API server wants."""
    server.script("PATCH", LEASE, refusal(404, "not found"))
    server.script("GET", "/api/v1/nodes/n1", reply(200, {"metadata": {"uid": "u1"}}))
    server.script("POST", LEASES, reply(201, {}))
    heart.step()
    made = server.requests[-1].body
    assert made["spec"] == {
        "holderIdentity": "n1",
        "leaseDurationSeconds": 90,
        "renewTime": "2023-11-14T22:13:20.000000Z",
    }
    assert made["metadata"]["ownerReferences"][0]["uid"] == "u1"
    assert heart.beats == 1


def test_it_beats_every_thirty_seconds_or_a_little_sooner(heart: Heart, server: ApiServer, clock: Clock) -> None:
    """An hour of steps a second apart: 120 to 150 beats, never more than 31 s apart."""
    server.script("PATCH", LEASE, reply(200, {}))
    at = []
    for second in range(3600):
        clock.now = float(second)
        before = heart.beats
        heart.step()
        at += [second] if heart.beats > before else []
    gaps = [b - a for a, b in pairwise(at)]
    assert min(gaps) >= BEAT_SECONDS * (1 - JITTER)
    assert max(gaps) <= BEAT_SECONDS + 1
    assert len(set(gaps)) > 3, "agents that start together must not beat together"
    assert len(server.requests) == len(at)


def test_a_failed_beat_is_tried_again_soon(heart: Heart, server: ApiServer, clock: Clock) -> None:
    """An outage of a minute costs a few requests, and the next beat comes within the longest pause."""
    server.script("PATCH", LEASE, refusal(500, "away"))
    for second in range(60):
        clock.now = float(second)
        heart.step()
    assert heart.beats == 0
    assert 4 <= len(server.requests) <= 12
    server.script("PATCH", LEASE, reply(200, {}))
    clock.now = 90.0
    heart.step()
    assert heart.beats == 1
