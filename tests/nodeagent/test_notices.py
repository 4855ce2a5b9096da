"""Events and evictions: each said once, in order, and never more waiting than there is room for."""

from random import Random

import pytest

from nodeagent.api import Api
from nodeagent.notices import WAITING, Notice, Notices
from tests.fakes_apiserver import Answer, ApiServer, refusal, reply
from tests.nodeagent.given import held

EVENTS = "/api/v1/namespaces/default/events"
EVICTION = "/api/v1/namespaces/default/pods/p/eviction"


class Post:
    """Notices with a clock that a test turns."""

    def __init__(self, api: Api) -> None:
        self.now = 0.0
        self.notices = Notices(api, "n1", clock=lambda: self.now, wall=lambda: 1.7e9, rng=Random(1))


@pytest.fixture
def post(api: Api) -> Post:
    """Return notices of node n1."""
    return Post(api)


class Breach:
    """A breach that lasts until a test ends it."""

    lasts = True


def evictions(post: Post, api: Api, breach: Breach) -> Notices:
    """Return notices that evict for breaches of 30 s."""
    return Notices(api, "n1", lasts=lambda *_: breach.lasts, over_s=30.0, clock=lambda: post.now, rng=Random(1))


def notice(name: str = "p", reason: str = "GPUMemoryOverGrant", *, evict: bool = False) -> Notice:
    """Return a notice about a pod."""
    return Notice(held(name), "GPU-a", reason, "This pod uses too much.", evict)


def send_all(notices: Notices) -> None:
    """Step until nothing more can go now."""
    while notices.step():
        pass


def test_an_event_names_the_pod_and_says_why(post: Post, server: ApiServer) -> None:
    """It is a warning about the pod, from this node's agent."""
    server.script("POST", EVENTS, reply(201, {}))
    post.notices.add(notice())
    post.notices.step()
    event = server.requests[0].body
    assert event["involvedObject"]["name"] == "p"
    assert event["involvedObject"]["uid"] == "uid-p"
    assert (event["reason"], event["type"]) == ("GPUMemoryOverGrant", "Warning")
    assert event["message"] == "This pod uses too much."
    assert event["source"] == {"component": "tessera-agent", "host": "n1"}


def test_the_same_is_said_once_an_hour(post: Post, server: ApiServer) -> None:
    """Another pod, card or reason is not the same."""
    server.script("POST", EVENTS, reply(201, {}))
    for now in (0.0, 10.0, 3599.0, 3600.0):
        post.now = now
        post.notices.add(notice())
        post.notices.add(notice("q"))
        send_all(post.notices)
    assert [r.body["involvedObject"]["name"] for r in server.requests] == ["p", "q", "p", "q"]


def test_one_is_sent_at_a_time(post: Post, server: ApiServer) -> None:
    """Who tells has other things to do in between, and learns whether there is more; a dropped one takes no turn."""
    server.script("POST", EVENTS, reply(201, {}))
    post.notices.add(notice(reason="GPUMemoryEviction", evict=True))
    post.now = 3000.0
    post.notices.add(notice("p"))
    post.notices.add(notice("q"))
    assert post.notices.step()
    assert len(server.requests) == 1
    assert not post.notices.step()
    assert len(server.requests) == 2


def test_an_outage_loses_the_oldest_and_grows_nothing(post: Post, server: ApiServer) -> None:
    """Of a hundred pods the last 64 are told of once the API server is back."""
    server.script("POST", EVENTS, refusal(500, "away"))
    for n in range(100):
        post.notices.add(notice(f"p{n:02d}"))
    assert not post.notices.step()
    assert len(server.requests) == 1
    server.script("POST", EVENTS, reply(201, {}))
    post.now = 60.0
    send_all(post.notices)
    told = {r.body["involvedObject"]["name"] for r in server.requests[1:]}
    assert len(told) == WAITING
    assert "p99" in told


def test_a_refused_event_is_not_repeated(post: Post, server: ApiServer) -> None:
    """A namespace that is being deleted takes none; the next notice goes out all the same."""
    server.script("POST", EVENTS, refusal(403, "being terminated"), reply(201, {}))
    post.notices.add(notice("p"))
    post.notices.add(notice("q"))
    send_all(post.notices)
    assert [r.body["involvedObject"]["name"] for r in server.requests] == ["p", "q"]


def test_an_eviction_waits_for_the_budget(post: Post, server: ApiServer) -> None:
    """429 is a disruption budget: it is tried again, for this pod and no later one of its name."""
    server.script("POST", EVICTION, refusal(429, "budget"), reply(201, {}))
    post.notices.add(notice(reason="GPUMemoryEviction", evict=True))
    post.notices.step()
    post.now = 60.0
    post.notices.step()
    assert [r.body["deleteOptions"] for r in server.requests] == [{"preconditions": {"uid": "uid-p"}}] * 2
    post.notices.step()
    assert len(server.requests) == 2


def test_an_old_eviction_is_not_done(post: Post, api: Api, server: ApiServer) -> None:
    """After hours of a budget that allows none, a pod that nobody has asked for since stays."""
    server.script("POST", EVICTION, refusal(429, "budget"))
    notices = evictions(post, api, Breach())
    notices.add(notice(reason="GPUMemoryEviction", evict=True))
    for post.now in range(0, 61, 5):
        notices.step()
    tried = len(server.requests)
    server.script("POST", EVICTION, reply(201, {}))
    for post.now in (61.0, 6 * 3600.0):
        notices.step()
    assert (len(server.requests), notices.evicted) == (tried, 0)


def test_a_pod_that_is_within_its_grant_again_stays(post: Post, api: Api, server: ApiServer) -> None:
    """Even a moment after it was asked to go; the next breach evicts it."""
    server.script("POST", EVICTION, refusal(500, "away"), reply(201, {}))
    breach = Breach()
    notices = evictions(post, api, breach)
    notices.add(notice(reason="GPUMemoryEviction", evict=True))
    notices.step()
    post.now, breach.lasts = 40.0, False
    notices.step()
    assert len(server.requests) == 1
    post.now, breach.lasts = 100.0, True
    notices.add(notice(reason="GPUMemoryEviction", evict=True))
    notices.step()
    assert notices.evicted == 1


@pytest.mark.parametrize(("answer", "evicted"), [(reply(201, {}), 1), (refusal(403, "no rights"), 0)])
def test_an_eviction_is_counted_once_it_was_done(
    answer: Answer, evicted: int, post: Post, api: Api, server: ApiServer
) -> None:
    """While the breach lasts it is asked for every second: it goes out once in an hour, and counts if it was done."""
    server.script("POST", EVICTION, answer)
    notices = evictions(post, api, Breach())
    for post.now in range(300):
        notices.add(notice(reason="GPUMemoryEviction", evict=True))
        notices.step()
    assert (len(server.requests), notices.evicted) == (1, evicted)


def test_a_lasting_breach_outlasts_a_budget(post: Post, api: Api, server: ApiServer) -> None:
    """Asked for again and again, a pod goes once its budget lets it, however late."""
    server.script("POST", EVICTION, refusal(429, "budget"))
    notices = evictions(post, api, Breach())
    for post.now in range(600):
        notices.add(notice(reason="GPUMemoryEviction", evict=True))
        notices.step()
    server.script("POST", EVICTION, reply(201, {}))
    for post.now in range(600, 700):
        notices.add(notice(reason="GPUMemoryEviction", evict=True))
        notices.step()
    assert notices.evicted == 1
