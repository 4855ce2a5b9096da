"""The picture: after any history it is what a new one would be, and a viewer of deltas has seen it all."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.node import OVERPROMISED, Rules
from extender.page.history import SAMPLES, History
from extender.page.picture import PENDING, REASONS, WAIT_SECONDS, Picture, view
from extender.state import ClusterState
from tests.builders import bound, gpu, gpu_node, node, pod

NODES = ("n0", "n1", "n2")


def shown(picture: Picture, since: str = "") -> dict[str, Any]:
    """Return what a viewer gets."""
    found: dict[str, Any] = json.loads(picture.since(since))
    return found


def by_name(state: dict[str, Any]) -> dict[str, Any]:
    """Return the nodes that have cards, as a viewer keeps them."""
    return {n[0]: n for n in state["nodes"] if n[2]}


def apply(state: ClusterState, event: tuple[str, int, int]) -> None:
    """Let something happen to a node."""
    what, n, value = event
    name = NODES[n]
    if what == "inventory":
        cards = [gpu(f"GPU-{n}-{i}", index=i, usedMiB=value, healthy=value % 3 > 0) for i in range(2)]
        state.saw_inventory(gpu_node(name, cards))
    elif what == "gone":
        state.lost_inventory(name)
    elif what == "node":
        state.saw_node(node(name))
    elif what == "lost":
        state.lost_node(name)
    elif what == "silent":
        state.hush(name, silent=value % 2 == 0)
    elif what == "runs":
        state.saw_pod(bound(pod(f"p{value % 6}"), name, [(f"GPU-{n}-{value % 2}", 100 * value, value)]))
    elif what == "ends":
        state.lost_pod(bound(pod(f"p{value % 6}"), name, [(f"GPU-{n}-{value % 2}", 100 * value, value)]))
    else:
        state.saw_pod(pod(f"w{value % 6}", memory=f"{value}Gi"))


KINDS = ("inventory", "inventory", "node", "node", "gone", "lost", "silent", "runs", "runs", "ends", "waits")
EVENTS = st.lists(st.tuples(st.sampled_from(KINDS), st.integers(0, 2), st.integers(1, 40)), max_size=25)


@pytest.mark.anyio
async def test_a_cluster_from_nothing() -> None:
    """An empty picture is a picture."""
    picture = Picture(ClusterState(Rules()), "x")
    await picture.refresh([], 0)
    assert shown(picture) == {
        "tag": "x-0",
        "whole": True,
        "refusal": "",
        "pending": [],
        "waiting": 0,
        "history": [],
        "nodes": [],
    }


@given(EVENTS, st.lists(st.booleans(), min_size=25, max_size=25))
def test_any_history_ends_as_a_new_picture(events: list[tuple[str, int, int]], looked: list[bool]) -> None:
    """A viewer who looked now and then, and took what changed, knows what one who looks first now is told."""

    async def play() -> None:
        state = ClusterState(Rules())
        picture, known, tag, clock = Picture(state, "x"), dict[str, Any](), "", 0.0

        async def look() -> None:
            nonlocal tag, clock
            clock += WAIT_SECONDS
            await picture.refresh([], clock)
            told = shown(picture, tag)
            for found in told["nodes"]:
                known.pop(found[0], None)
                if found[2]:
                    known[found[0]] = found
            tag = told["tag"]

        for event, now in zip(events, looked, strict=False):
            apply(state, event)
            if now:
                await look()
        await look()
        fresh = Picture(state, "y")
        await fresh.refresh([], 0)
        assert known == by_name(shown(fresh))
        assert shown(picture, tag)["pending"] == shown(fresh)["pending"]
        assert shown(picture, tag)["nodes"] == []

    asyncio.run(play())


def test_a_card_tells_who_and_how_much() -> None:
    """Promised and measured, by pod; a card that takes nothing tells why."""
    state = ClusterState(Rules())
    state.saw_node(node("n0"))
    well = gpu("GPU-a", usedMiB=900, utilization=7, foreignMiB=3)
    state.saw_inventory(gpu_node("n0", [well, gpu("GPU-b", index=1, healthy=False, reason="XID 79")]))
    state.saw_pod(bound(pod("p", namespace="ml"), "n0", [("GPU-a", 4096, 500)]))
    first, second = view(state, "n0").cards
    assert first.shares == [("ml", "p", 4096, 500)]
    assert (first.mib, first.milli, first.used_mib, first.busy, first.foreign_mib) == (24576, 1000, 900, 7, 3)
    assert (first.reason, second.reason) == ("", "XID 79")
    state.saw_pod(bound(pod("q"), "n0", [("GPU-a", 24576, 0)]))
    assert view(state, "n0").cards[0].reason == OVERPROMISED


@pytest.mark.anyio
async def test_pods_that_wait_are_listed_to_a_bound_and_explained_by_demand() -> None:
    """All are counted; the same demand is explained once, and so many different ones."""
    state = ClusterState(Rules())
    state.saw_node(node("n0"))
    state.saw_inventory(gpu_node("n0"))
    for i in range(PENDING + 20):
        state.saw_pod(pod(f"w{i:04d}", memory=f"{100 + i % (REASONS + 5)}Gi"))
    picture = Picture(state, "x")
    await picture.refresh([], 0)
    told = shown(picture)
    assert (told["waiting"], len(told["pending"])) == (PENDING + 20, PENDING)
    explained = {w["asks"] for w in told["pending"] if w["why"]}
    assert len(explained) == REASONS
    assert "the node's cards cannot hold the request even when empty" in told["pending"][0]["why"]


@pytest.mark.anyio
async def test_who_waits_is_looked_at_now_and_then() -> None:
    """Not at every request of every viewer."""
    state = ClusterState(Rules())
    picture = Picture(state, "x")
    seen = []
    for now in (0, 1, WAIT_SECONDS - 0.1, WAIT_SECONDS):
        state.saw_pod(pod(f"w{now}"))
        await picture.refresh([], now)
        seen.append(len(shown(picture)["pending"]))
    assert seen == [1, 1, 1, 4]


@pytest.mark.anyio
async def test_samples_are_bounded_and_in_thousandths() -> None:
    """Half a card promised of one is half; the oldest sample leaves first."""
    state = ClusterState(Rules())
    state.saw_node(node("n0"))
    state.saw_inventory(gpu_node("n0"))
    state.saw_pod(bound(pod("p", memory="12Gi", utilization="30%"), "n0", [("GPU-n0-0", 12288, 300)]))
    now = 0.0
    history = History(state, clock=lambda: now)
    for step in range(SAMPLES + 3):
        now = float(step)
        await history.step()
    assert len(history.samples) == SAMPLES
    assert history.samples[0][0] == 3
    assert history.samples[-1][:3] == (SAMPLES + 2, 500, 300)
    assert 0 <= history.samples[-1][3] <= 1000


@pytest.mark.anyio
async def test_a_cluster_without_cards_has_a_sample() -> None:
    """Of zeros, and without a division by any."""
    history = History(ClusterState(Rules()), clock=lambda: 5)
    await history.step()
    assert history.samples == [(5, 0, 0, 0)]
