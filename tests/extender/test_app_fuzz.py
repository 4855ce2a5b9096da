"""No body is a crash: arbitrary JSON, and what nearly is a request, get 200 or 400 and leave no trouble behind."""

import asyncio
import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from random import Random
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.extender.served import Served, serve
from tests.long import drawn, times
from tests.mutate import mutated

CASES: Final = times(600, 200_000)
DRAWN: Final = times(40, 2_000)  # bodies of each kind, from which the mutated ones are made

Send = Callable[[str, Any], Any]

VERBS = ("filter", "prioritize", "preempt", "bind")
TEXT = st.text(st.characters(), max_size=8)
LEAVES = st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | TEXT
JSON = st.recursive(LEAVES, lambda of: st.lists(of, max_size=3) | st.dictionaries(TEXT, of, max_size=3), max_leaves=8)

KEYS = st.sampled_from(
    [
        "memory",
        "utilization",
        "count",
        "model",
        "uuid",
        "policy",
        "sharing",
        "mig-profile",
        "memory.a",
        "count.b",
        "x.a",
    ]
).map("tessera.gpu/{}".format)
AMOUNT = st.sampled_from(
    [
        "4Gi",
        "25%",
        "100",
        "2",
        "1Ei",
        "1e3",
        "1m",
        "0",
        "-1",
        "",
        "fgd",
        "spread",
        "random",
        "none",
        "*",
        "!a*",
        "[",
        "a10",
    ]
)
NAMES = st.sampled_from(["a", "b", ""])
RESOURCES = st.dictionaries(
    st.sampled_from(
        [
            "nvidia.com/gpu-memory",
            "nvidia.com/gpu-utilization",
            "tessera.gpu/share",
            "nvidia.com/gpu",
            "cpu",
            "memory",
        ]
    ),
    AMOUNT | st.integers(-1, 2**40) | st.floats(0, 1e6) | JSON,
    max_size=3,
)
REQUIREMENTS = st.none() | st.fixed_dictionaries(
    {}, optional={"limits": RESOURCES, "requests": st.none() | RESOURCES}
)
CONTAINERS = st.none() | st.lists(
    st.fixed_dictionaries(
        {"name": NAMES}, optional={"resources": REQUIREMENTS, "restartPolicy": st.sampled_from([None, "Always", "x"])}
    ),
    max_size=4,
)
PODS = st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.sampled_from(["p", "q", ""]), "uid": st.sampled_from(["u1", "u2", "u3", ""])},
            optional={"annotations": st.none() | st.dictionaries(KEYS, AMOUNT | TEXT, max_size=4), "namespace": TEXT},
        ),
        "spec": st.fixed_dictionaries(
            {"containers": CONTAINERS},
            optional={
                "initContainers": CONTAINERS,
                "nodeName": st.sampled_from(["", "a10x4-0", "nowhere"]),
                "overhead": RESOURCES,
                "resources": REQUIREMENTS,
                "priority": st.none() | st.integers(-(2**31), 2**31),
            },
        ),
    },
    optional={
        "status": st.fixed_dictionaries(
            {"phase": st.sampled_from(["Pending", "Failed", ""])},
            optional={
                "nominatedNodeName": st.sampled_from(["", "a10x4-0", "nowhere"]),
                "startTime": st.none() | TEXT,
            },
        )
    },
)
NODES = st.sampled_from(["a10x4-0", "t4x4-1", "a100x8-0", "nowhere", ""])
QUESTIONS = st.fixed_dictionaries(
    {"Pod": PODS | JSON},
    optional={
        "NodeNames": st.none() | st.lists(NODES, max_size=4) | JSON,
        "Nodes": st.none()
        | st.fixed_dictionaries(
            {"items": st.lists(NODES.map(lambda n: {"metadata": {"name": n}}) | JSON, max_size=3)}
        ),
    },
)
VICTIMS = st.none() | st.fixed_dictionaries(
    {"Pods": st.none() | st.lists(st.none() | st.fixed_dictionaries({"UID": st.sampled_from(["u1", "u2", "x"])}))},
    optional={"NumPDBViolations": st.integers(-1, 3)},
)
PREEMPTS = st.fixed_dictionaries(
    {"Pod": PODS}, optional={"NodeNameToMetaVictims": st.none() | st.dictionaries(NODES, VICTIMS | JSON, max_size=4)}
)
BINDS = st.fixed_dictionaries(
    {
        "PodName": st.sampled_from(["p", "q"]),
        "PodNamespace": st.just("default") | TEXT,
        "PodUID": st.sampled_from(["u1", "u2", "u3"]) | JSON,
        "Node": NODES,
    }
)


@contextmanager
def serving() -> Iterator[tuple[asyncio.Runner, Served]]:
    """Serve, and see in the end that nothing was logged as a failure."""
    failures: list[str] = []

    class Heard(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            failures.append(self.format(record))

    handler = Heard(logging.ERROR)
    logging.getLogger().addHandler(handler)
    with asyncio.Runner() as runner:
        service = serve()
        served: Served = runner.run(service.__aenter__())
        yield runner, served
        runner.run(served.until(lambda state: not state.assumed))
        runner.run(service.__aexit__(None, None, None))
    logging.getLogger().removeHandler(handler)
    assert failures == []


@pytest.fixture(scope="module")
def send() -> Iterator[Send]:
    """Serve for the whole file."""
    with serving() as (runner, served):

        def post(verb: str, body: Any) -> Any:
            reply = runner.run(served.http.post(f"/{verb}", content=json.dumps(body).encode()))
            assert reply.status_code in (200, 400), reply.text
            return reply.json() if reply.status_code == 200 else None

        yield post


@settings(max_examples=150, deadline=None, database=None)
@given(verb=st.sampled_from(VERBS), body=JSON)
def test_arbitrary_json(send: Send, verb: str, body: Any) -> None:
    """JSON of any shape is answered."""
    send(verb, body)


@settings(max_examples=500, deadline=None, database=None)
@given(verb=st.sampled_from(VERBS[:2]), body=QUESTIONS)
def test_what_is_nearly_a_question(send: Send, verb: str, body: dict[str, Any]) -> None:
    """A question that is right but for its values is answered with every node in exactly one place, and no null."""
    reply = send(verb, body)
    if reply is None:
        return
    asked = body.get("NodeNames")
    if verb == "prioritize":
        assert all(type(score["Score"]) is int and 0 <= score["Score"] <= 10 for score in reply)
        assert asked is None or [score["Host"] for score in reply] == asked
        return
    assert reply["FailedNodes"] == {}
    if reply["Error"] == "" and asked is not None:
        passed, failed = reply["NodeNames"], reply["FailedAndUnresolvableNodes"]
        assert set(passed) | set(failed) == set(asked)
        assert not set(passed) & set(failed)
        assert all(failed.values())


@settings(max_examples=150, deadline=None, database=None)
@given(body=BINDS)
def test_what_is_nearly_a_bind(send: Send, body: dict[str, Any]) -> None:
    """A bind of whatever pods the questions left behind is answered."""
    reply = send("bind", body)
    assert reply is None or isinstance(reply["Error"], str)


@settings(max_examples=300, deadline=None, database=None)
@given(body=PREEMPTS)
def test_what_is_nearly_a_preemption(send: Send, body: dict[str, Any]) -> None:
    """Only nodes that were asked about come back, each with victims, and nothing is null."""
    reply = send("preempt", body)
    if reply is None:
        return
    nodes = reply["NodeNameToMetaVictims"]
    assert set(nodes) <= set(body.get("NodeNameToMetaVictims") or ())
    for victims in nodes.values():
        assert victims["Pods"]
        assert all(isinstance(pod["UID"], str) for pod in victims["Pods"])


def cases(rng: Random, pools: dict[str, list[Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield a verb and a body that was nearly right and is less so now; one in ten is not even JSON any more."""
    spare = [body for pool in pools.values() for body in pool]
    while True:
        verb = rng.choice(VERBS)
        body = json.dumps(mutated(rng, rng.choice(pools[verb]), spare)).encode()
        if rng.randrange(10) == 0:
            at = rng.randrange(len(body) + 1)
            body = body[:at] + rng.randbytes(rng.randrange(2)) + body[at + rng.randrange(2) :]
        yield verb, body


async def answer(app: Any, verb: str, body: bytes) -> tuple[int, bytes]:
    """Return the application's status and reply, without a client in between, which would take most of the time."""
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        sent.append(message)

    await app({"type": "http", "method": "POST", "path": f"/{verb}", "headers": []}, receive, send)
    return sent[0]["status"], b"".join(message.get("body", b"") for message in sent)


async def answer_all(app: Any, asked: Iterator[tuple[str, bytes]]) -> Counter[int]:
    """Send one body after another; return how many had which status."""
    statuses: Counter[int] = Counter()
    for verb, body in asked:
        status, reply = await answer(app, verb, body)
        assert status in (200, 400), (verb, body, reply)
        # A Node comes back as it came, be it text or not; Go reads both alike.
        assert json.loads(reply.decode(errors="replace")) is not None, (verb, body)
        statuses[status] += 1
    return statuses


def test_bodies_that_were_nearly_right() -> None:
    """Two hundred thousand in `make test-long`, over the four verbs."""
    questions = drawn(QUESTIONS, DRAWN)
    pools: dict[str, list[Any]] = {
        "filter": questions,
        "prioritize": questions,
        "preempt": drawn(PREEMPTS, DRAWN),
        "bind": drawn(BINDS, DRAWN),
    }
    begin = time.monotonic()
    with serving() as (runner, served):
        asked = islice(cases(Random("bodies"), pools), CASES)
        statuses = runner.run(answer_all(served.app, asked))
    print(f"{CASES} bodies, answered {dict(statuses)}, {time.monotonic() - begin:.0f} s")
    assert min(statuses[200], statuses[400]) > CASES / 20, "the cases are all of one kind"
