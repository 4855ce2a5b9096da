"""A bind whose outcome is not known yet: what is held meanwhile, who looks, and what the looks decide."""

import asyncio

import pytest

from contract.names import ASSIGNMENT
from extender.cluster import Away, NotDone
from extender.wire import Pod
from tests.builders import bound, pod
from tests.extender.binders import args, binder_of, free, refused, settled
from tests.fakes import DONE, Answer, ScriptedCluster, silent

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("short_looks")]


async def test_what_was_not_even_sent_is_refused_without_a_look() -> None:
    """While the API server is away the share is given back at once and nobody is asked."""
    cluster = ScriptedCluster.of(pod(), script=[Answer(Away("away"), done=False)])
    binder = binder_of(cluster)
    assert await refused(binder, args(pod())) == "away"
    assert (cluster.gets, free(binder), binder.settling) == (0, 24576, set())


async def test_what_was_not_sent_after_perhaps_done_stays_held() -> None:
    """The first Binding may still land, so the share is held until a look decides."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=True), Answer(Away("away"), done=False)])
    cluster.reachable = False
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    assert await refused(binder, args(pod())) == "away"
    assert "uid-p" in binder.state.assumed
    cluster.reachable = True
    await settled(binder)
    assert "uid-p" in binder.state.holdings


async def test_perhaps_done_is_held_and_found_done() -> None:
    """Without an answer the share is held; a look that finds the pod bound confirms it."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=True)])
    binder = binder_of(cluster)
    assert await refused(binder, args(pod())) == "the API server did not answer: no answer within 3.5 s"
    assert (free(binder), list(binder.state.assumed)) == (20480, ["uid-p"])
    await settled(binder)
    assert (free(binder), binder.state.assumed, list(binder.state.holdings)) == (20480, {}, ["uid-p"])
    await binder.bind(args(pod()))
    assert len(cluster.bindings) == 1


async def test_perhaps_done_is_found_not_done() -> None:
    """A pod that is still unbound when no write can be on its way any more is forgotten, not sooner."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=False)])
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    await settled(binder)
    assert (free(binder), binder.state.assumed) == (24576, {})
    assert cluster.gets >= 3


@pytest.mark.parametrize("gone", [None, pod(uid="successor")])
async def test_perhaps_done_and_the_pod_is_gone(gone: Pod | None) -> None:
    """A pod that is deleted, or replaced, meanwhile holds nothing."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=False)])
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    cluster.pods = {} if gone is None else {"p": gone}
    await settled(binder)
    assert (free(binder), cluster.gets) == (24576, 1)


async def test_perhaps_done_while_nobody_answers() -> None:
    """As long as the cluster tells nothing the share is held, and then the first look decides."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=True)])
    cluster.reachable = False
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    while cluster.gets <= 3:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert (free(binder), list(binder.state.assumed)) == (20480, ["uid-p"])
    cluster.reachable = True
    await settled(binder)
    assert list(binder.state.holdings) == ["uid-p"]


async def test_perhaps_done_and_the_watch_tells() -> None:
    """Once the watch has shown the pod nobody looks again."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=True)])
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    binder.state.saw_pod(cluster.pods["p"])
    await settled(binder)
    assert (cluster.gets, free(binder)) == (0, 20480)


@pytest.mark.parametrize("landed", [True, False])
async def test_perhaps_done_is_tried_again(landed: bool) -> None:
    """The scheduler's next try posts the same record, and succeeds whether the first one landed or not."""
    again = Answer(NotDone("already assigned"), done=False) if landed else DONE
    cluster = ScriptedCluster.of(pod(), script=[silent(done=landed), again])
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    await binder.bind(args(pod()))
    first, second = cluster.bindings
    assert first == second
    assert free(binder) == 20480
    await settled(binder)


async def test_a_try_after_perhaps_done_that_tells_nothing_keeps_the_share() -> None:
    """A refusal does not undo an earlier write of which nobody can say whether it landed."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=True), Answer(NotDone("already assigned"), done=False)])
    cluster.reachable = False
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    await refused(binder, args(pod()))
    assert (free(binder), list(binder.state.assumed)) == (20480, ["uid-p"])
    cluster.reachable = True
    await settled(binder)
    assert list(binder.state.holdings) == ["uid-p"]


async def test_a_look_that_ends_during_a_new_try_forgets_nothing() -> None:
    """The last look at a pod may be answered while the next try is under way: that try decides."""
    cluster = ScriptedCluster.of(pod(), script=[silent(done=False)])
    binder = binder_of(cluster)
    await refused(binder, args(pod()))
    look = cluster.pod

    async def slow(namespace: str, name: str) -> Pod | None:
        found = await look(namespace, name)
        await asyncio.sleep(0.05)
        return found

    cluster.gate = asyncio.Event()
    cluster.pod = slow  # type: ignore[method-assign]
    await asyncio.sleep(0.13)
    call = asyncio.ensure_future(binder.bind(args(pod())))
    await settled(binder)
    assert free(binder) == 20480
    cluster.gate.set()
    await call
    assert (free(binder), cluster.pods["p"].spec.node_name) == (20480, "n1")


async def test_a_pod_that_comes_and_goes_in_a_gap_of_the_watch_is_let_go() -> None:
    """Bound with proof, then deleted before the watch has ever shown it: a look finds it gone."""
    asking = pod()
    cluster = ScriptedCluster.of(asking)
    binder = binder_of(cluster, known=False)
    await binder.bind(args(asking))
    cluster.pods.clear()
    await settled(binder)
    assert (binder.state.assumed, binder.state.waiting) == ({}, {})
    assert free(binder) == 24576


@pytest.mark.parametrize("memory", ["20Gi", "30Gi"])
async def test_a_pod_that_only_a_look_has_shown_is_let_go(memory: str) -> None:
    """Read, then bound or turned away, and gone before any list: the looks go on until that is known."""
    asking = pod(memory=memory)
    cluster = ScriptedCluster.of(asking)
    binder, state = (made := binder_of(cluster, known=False)), made.state
    if memory == "20Gi":
        await binder.bind(args(asking))
    else:
        await refused(binder, args(asking))
    while cluster.gets <= 4:  # noqa: ASYNC110
        await asyncio.sleep(0.001)
    assert (len(state.holdings), len(state.waiting)) == ((1, 0) if memory == "20Gi" else (0, 1))
    cluster.pods.clear()
    await settled(binder)
    assert (state.holdings, state.waiting, state.unwatched) == ({}, {}, set())
    assert free(binder) == 24576


async def test_once_the_watch_shows_a_pod_nobody_looks_at_it() -> None:
    """Its end will be told."""
    asking = pod()
    cluster = ScriptedCluster.of(asking)
    binder = binder_of(cluster, known=False)
    await binder.bind(args(asking))
    binder.state.saw_pod(cluster.pods["p"])
    await settled(binder)
    assert list(binder.state.holdings) == ["uid-p"]


async def test_a_call_is_answered_in_time_whatever_goes_on() -> None:
    """kube-scheduler does not wait for three requests in a row; what is under way ends, and its outcome counts."""
    cluster = ScriptedCluster.of(pod())
    cluster.gate = asyncio.Event()
    binder = binder_of(cluster)
    binder.seconds = 0.01
    assert await refused(binder, args(pod())) == "the API server did not answer: the bind is still under way"
    assert free(binder) == 20480
    cluster.gate.set()
    binder.seconds = 5.0
    await binder.bind(args(pod()))
    assert len(cluster.bindings) == 1
    await settled(binder)


async def test_a_bind_that_fails_in_an_unforeseen_way_is_settled() -> None:
    """Its share is held, and a look finds that nothing was done."""
    cluster = ScriptedCluster.of(pod(), script=[Answer(ZeroDivisionError(), done=False)])
    binder = binder_of(cluster)
    with pytest.raises(ZeroDivisionError):
        await binder.bind(args(pod()))
    assert free(binder) == 20480
    await settled(binder)
    assert free(binder) == 24576


async def test_a_late_look_does_not_revive_a_pod_that_is_over() -> None:
    """While a look is under way the watch tells that the pod ran and ended; the look's answer is older."""
    asking = pod()
    cluster = ScriptedCluster.of(asking, script=[silent(done=True)])
    binder = binder_of(cluster)
    look = cluster.pod

    async def slow(namespace: str, name: str) -> Pod | None:
        found = await look(namespace, name)
        assert found is not None
        binder.state.saw_pod(found)
        over = bound(asking, "n1", text=(found.metadata.annotations or {})[ASSIGNMENT], phase="Succeeded")
        binder.state.saw_pod(over)
        return found

    cluster.pod = slow  # type: ignore[method-assign]
    await refused(binder, args(asking))
    await settled(binder)
    assert binder.state.holdings == {}
    assert free(binder) == 24576
