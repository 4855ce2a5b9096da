"""bind answers success only with proof, books nothing twice, and forgets only what was certainly not done."""

import asyncio

import pytest

from contract.assignment import decode
from contract.inventory import LIMITS_ENFORCED
from contract.names import ASSIGNMENT, figure_key
from extender.bind import NO_LONGER_FITS, Refused
from extender.cluster import NotDone
from extender.delivery import FRACTION
from tests.builders import bound, gpu_node, plain, pod
from tests.extender.binders import args, binder_of, free, refused
from tests.fakes import DONE, Answer, ScriptedCluster

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("short_looks")]


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
