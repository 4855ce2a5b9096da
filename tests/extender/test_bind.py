"""bind answers success only with proof, books nothing twice, and forgets only what was certainly not done."""

import asyncio

import pytest

from contract.assignment import decode
from contract.inventory import LIMITS_ENFORCED
from contract.names import ASSIGNMENT, figure_key
from extender import bind
from extender.bind import NO_LONGER_FITS, Binder, Refused
from extender.cluster import Away, NotDone
from extender.delivery import FRACTION
from extender.node import Rules
from extender.state import ClusterState
from extender.wire import BindingArgs, Pod
from tests.builders import bound, gpu_node, node, plain, pod
from tests.fakes import DONE, Answer, ScriptedCluster, silent

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def _short_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let looks at a pod be milliseconds apart."""
    monkeypatch.setattr(bind, "LOOKS", (0.001, 0.002))
    monkeypatch.setattr(bind, "LAST", 0.003)


def binder_of(cluster: ScriptedCluster, *, known: bool = True, nodes: int = 2) -> Binder:
    """Return a binder over idle nodes n1, n2 of one A10 each; `known`: the watch has shown the cluster's pods."""
    state = ClusterState(Rules())
    for i in range(1, nodes + 1):
        state.saw_node(node(f"n{i}"))
        state.saw_inventory(gpu_node(f"n{i}"))
    if known:
        for seen in cluster.pods.values():
            state.saw_pod(seen)
    return Binder(state, cluster)


def args(asking: Pod, to: str = "n1", uid: str | None = None) -> BindingArgs:
    """Return kube-scheduler's request to bind a pod."""
    return BindingArgs(asking.metadata.name, asking.metadata.namespace, uid or asking.metadata.uid, to)


def free(binder: Binder, name: str = "n1") -> int:
    """Return the free MiB of a node's card."""
    fleet = binder.state.fleet
    return int(fleet.free.mib[fleet.index[name], 0])


async def settled(binder: Binder) -> None:
    """Wait until nothing is looked at any more."""
    while binder.settling:
        await asyncio.wait(set(binder.settling), timeout=5)


async def refused(binder: Binder, what: BindingArgs) -> str:
    """Return the sentence with which a bind is refused."""
    with pytest.raises(Refused) as error:
        await binder.bind(what)
    return str(error.value)


# --- done ----------------------------------------------------------------------------------------------------


async def test_success() -> None:
    """The record and the lists of cards travel on the Binding; the share is held until the watch confirms it."""
    cluster = ScriptedCluster.of(pod())
    binder = binder_of(cluster)
    await binder.bind(args(pod()))
    (posted,) = cluster.bindings
    assert (posted.namespace, posted.pod, posted.uid, posted.node) == ("default", "p", "uid-p", "n1")
    assert (
        posted.annotations.items()
        >= {
            "tessera.gpu/devices.main": "GPU-n1-0",
            "tessera.gpu/devices.main.memory-mib": "4096",
            "tessera.gpu/devices.main.memory-fraction": "0.14583",
        }.items()
    )
    record = decode(posted.annotations[ASSIGNMENT])
    assert (record.node, record.uid, record.containers["main"][0].mib) == ("n1", "uid-p", 4096)
    assert free(binder) == 20480
    binder.state.saw_pod(cluster.pods["p"])
    assert (free(binder), binder.state.assumed, list(binder.state.holdings)) == (20480, {}, ["uid-p"])
    assert binder.running == {}


async def test_a_change_of_what_is_enforced_is_told_from_the_next_bind_on() -> None:
    """Where the agent's condition says so the fraction is one of the grant; the cards are not looked at anew."""
    cluster = ScriptedCluster.of(pod("before"), pod("after"))
    binder = binder_of(cluster)
    await binder.bind(args(pod("before")))
    limited, changes = gpu_node("n1"), binder.state.fleet.changes
    limited.status = (limited.status or {}) | {"conditions": [{"type": LIMITS_ENFORCED, "status": "True"}]}
    binder.state.saw_inventory(limited)
    assert binder.state.fleet.changes == changes
    await binder.bind(args(pod("after")))
    key = figure_key("main", FRACTION)
    assert [posted.annotations[key] for posted in cluster.bindings] == ["0.14583", "0.87500"]


async def test_the_same_again_books_once() -> None:
    """A second call for the same pod and node succeeds, before the watch shows the pod and after."""
    cluster = ScriptedCluster.of(pod(), script=[DONE, Answer(NotDone("already assigned"), done=False)])
    binder = binder_of(cluster)
    for _ in range(2):
        await binder.bind(args(pod()))
        assert free(binder) == 20480
    binder.state.saw_pod(cluster.pods["p"])
    await binder.bind(args(pod()))
    assert free(binder) == 20480
    assert len({str(posted) for posted in cluster.bindings}) == 1, "the record that was posted never changes"


async def test_the_same_at_the_same_time_books_once() -> None:
    """Calls for the same pod and node that overlap join one write."""
    cluster = ScriptedCluster.of(pod())
    cluster.gate = asyncio.Event()
    binder = binder_of(cluster)
    calls = [asyncio.ensure_future(binder.bind(args(pod()))) for _ in range(3)]
    await asyncio.sleep(0.01)
    cluster.gate.set()
    await asyncio.gather(*calls)
    assert len(cluster.bindings) == 1
    assert free(binder) == 20480


async def test_a_caller_that_hangs_up_cancels_nothing() -> None:
    """A write under way goes on when the request that began it is cancelled."""
    cluster = ScriptedCluster.of(pod())
    cluster.gate = asyncio.Event()
    binder = binder_of(cluster)
    call = asyncio.ensure_future(binder.bind(args(pod())))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait([call])
    _, task = binder.running["uid-p"]
    cluster.gate.set()
    await task
    assert cluster.pods["p"].spec.node_name == "n1"
    assert free(binder) == 20480


async def test_a_failure_that_nobody_waits_for_is_no_warning() -> None:
    """A refused write whose caller has hung up is forgotten in silence."""
    cluster = ScriptedCluster.of(pod(), script=[Answer(NotDone("forbidden"), done=False)])
    cluster.gate = asyncio.Event()
    binder = binder_of(cluster)
    call = asyncio.ensure_future(binder.bind(args(pod())))
    await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.wait([call])
    _, task = binder.running["uid-p"]
    cluster.gate.set()
    await asyncio.wait([task])
    assert free(binder) == 24576
    assert isinstance(task.exception(), Refused)


async def test_a_pod_unknown_to_the_watch_is_fetched() -> None:
    """A bind may come before the watch shows the pod."""
    cluster = ScriptedCluster.of(pod())
    binder = binder_of(cluster, known=False)
    await binder.bind(args(pod()))
    assert (cluster.gets, free(binder)) == (1, 20480)


async def test_a_pod_without_gpus_is_bound_without_annotations() -> None:
    """Another's pod that is sent to us is bound as it is, and again as it was."""
    cluster = ScriptedCluster.of(plain())
    binder = binder_of(cluster)
    await binder.bind(args(plain()))
    await binder.bind(args(plain()))
    assert [posted.annotations for posted in cluster.bindings] == [{}]
    assert binder.state.assumed == {}
    assert "already bound to n1" in await refused(binder, args(plain(), "n2"))


async def test_pods_compete_for_the_last_room() -> None:
    """Of twelve binds at the same time as many succeed as fit, and the others leave nothing behind."""
    many = [pod(f"p{i}", memory="10Gi") for i in range(12)]
    cluster = ScriptedCluster.of(*many)
    binder = binder_of(cluster)
    ended = await asyncio.gather(*(binder.bind(args(p)) for p in many), return_exceptions=True)
    assert [str(e) for e in ended if e] == [NO_LONGER_FITS] * 10
    assert free(binder) == 4096


# --- refused -------------------------------------------------------------------------------------------------


async def test_another_node_is_refused() -> None:
    """A pod that is bound, being bound, or perhaps bound stays where it is."""
    cluster = ScriptedCluster.of(pod())
    cluster.gate = asyncio.Event()
    binder = binder_of(cluster)
    call = asyncio.ensure_future(binder.bind(args(pod())))
    await asyncio.sleep(0.01)
    assert await refused(binder, args(pod(), "n2")) == "the pod is already being bound to n1"
    cluster.gate.set()
    await call
    assert await refused(binder, args(pod(), "n2")) == "an earlier bind of the pod to n1 is not decided yet"
    binder.state.saw_pod(cluster.pods["p"])
    assert await refused(binder, args(pod(), "n2")) == "the pod is already bound to n1"
    assert (free(binder), free(binder, "n2"), len(cluster.bindings)) == (20480, 24576, 1)


async def test_another_uid_is_refused() -> None:
    """A bind that means a pod's predecessor, or names one pod and means another, changes nothing."""
    cluster = ScriptedCluster.of(pod())
    binder = binder_of(cluster)
    assert await refused(binder, args(pod(), uid="old")) == "there is no such pod with this UID"
    assert (cluster.bindings, free(binder)) == ([], 24576)
    binder.state.saw_pod(bound(pod("holder"), "n1", [("GPU-n1-0", 1024, 0)]))
    assert await refused(binder, args(pod(), uid="uid-holder")) == "there is no such pod with this UID"


async def test_a_pod_that_does_not_fit_any_more() -> None:
    """Bind decides anew: what filter saw may be gone."""
    cluster = ScriptedCluster.of(pod(memory="20Gi"))
    binder = binder_of(cluster)
    binder.state.saw_pod(bound(pod("first"), "n1", [("GPU-n1-0", 20000, 0)]))
    assert await refused(binder, args(pod())) == NO_LONGER_FITS
    assert cluster.bindings == []


async def test_a_node_that_nobody_knows() -> None:
    """A node without an inventory takes no GPU pod."""
    binder = binder_of(ScriptedCluster.of(pod()))
    assert await refused(binder, args(pod(), "n9")) == NO_LONGER_FITS


async def test_a_bad_request() -> None:
    """A pod whose request cannot be read is refused with its sentence."""
    cluster = ScriptedCluster.of(pod(memory="4096"))
    sentence = await refused(binder_of(cluster), args(pod()))
    assert sentence == "tessera.gpu/memory is '4096', which is below 1Mi: was 4096Mi or 4096Gi meant?"


@pytest.mark.parametrize("known", [True, False])
async def test_a_pod_that_others_bound(known: bool) -> None:
    """A pod on the node without a record of ours is no success: it has no card."""
    cluster = ScriptedCluster.of(bound(pod(), "n1"))
    binder = binder_of(cluster, known=known)
    assert await refused(binder, args(pod())) == "the pod is already bound to n1"


async def test_nobody_can_be_asked() -> None:
    """A pod that the watch has not shown and the cluster does not tell is not bound."""
    cluster = ScriptedCluster.of(pod())
    cluster.reachable = False
    binder = binder_of(cluster, known=False)
    assert await refused(binder, args(pod())) == "the pod cannot be read: connection refused"


async def test_not_done_is_forgotten_at_once() -> None:
    """What the API server refuses takes no card, and its reason is the reply."""
    cluster = ScriptedCluster.of(pod(), script=[Answer(NotDone("pods p is forbidden"), done=False)])
    binder = binder_of(cluster)
    assert await refused(binder, args(pod())) == "pods p is forbidden"
    assert (free(binder), binder.state.assumed) == (24576, {})
    await binder.bind(args(pod(), "n2"))
    assert free(binder, "n2") == 20480


# --- perhaps done --------------------------------------------------------------------------------------------


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
