"""What a card can give and whose it is: the rules of the product, one by one."""

from typing import Any

import pytest

from contract.names import Resources
from extender.node import BAD_OVERCOMMIT, BAD_RECORD, LOST_CARD, OTHER_PLUGIN, Rules, node_facts
from extender.pod import request_of
from extender.state import BAD_INVENTORY, NO_INVENTORY, ClusterState
from extender.verbs import filter_nodes
from extender.wire import Pod
from tests.builders import bound, container, gpu, gpu_node, node, plain, pod

A10 = "GPU-n1-0"


def state_of(*gpus: dict[str, Any], rules: Rules | None = None, **of_node: Any) -> ClusterState:
    """Return a state with one node of these cards, one idle A10 by default."""
    state = ClusterState(rules or Rules())
    state.saw_node(node(**of_node))
    state.saw_inventory(gpu_node(gpus=gpus or [gpu(A10)]))
    return state


def free(state: ClusterState, card: int = 0, name: str = "n1") -> tuple[int, int, int]:
    """Return what a card has free: MiB, thousandths, slots; -1 is not offered."""
    row, room = state.fleet.index[name], state.fleet.free
    return int(room.mib[row, card]), int(room.milli[row, card]), int(room.slots[row, card])


def fits(state: ClusterState, asking: Pod, name: str = "n1") -> bool:
    """Say whether a pod gets cards on a node; if so, it has them now."""
    request = request_of(asking, Resources())
    assert request is not None
    return state.reserve(asking, request, name) is not None


ABSENT = (-1, -1, -1)


# --- what a card can give ------------------------------------------------------------------------------------


def test_memory_is_the_total_without_the_drivers_and_the_headroom() -> None:
    """Capacity is NVML's total less what the driver reserves less the headroom, and no request above it fits."""
    state = state_of(gpu(A10, reservedMiB=576), rules=Rules(headroom_mib=1000))
    assert free(state) == (23000, 1000, 48)
    assert not fits(state, pod("a", memory="23001Mi"))
    assert fits(state, pod("b", memory="23000Mi"))


@pytest.mark.parametrize(
    ("said", "milli"),
    [(None, 1000), ("1", 1000), ("1.3", 1300), ("1300m", 1300), ("10", 10000)],
)
def test_overcommit_of_a_node(said: str | None, milli: int) -> None:
    """A node's annotation sets the factor of its cards' compute."""
    assert free(state_of(overcommit=said))[1] == milli


def test_a_nodes_overcommit_overrides_the_setting() -> None:
    """The setting holds for nodes that say nothing."""
    assert free(state_of(rules=Rules(overcommit=1500)))[1] == 1500
    assert free(state_of(rules=Rules(overcommit=1500), overcommit="1.2"))[1] == 1200


@pytest.mark.parametrize("said", ["", "much", "0.5", "0", "-1", "11", "150%"])
def test_a_bad_overcommit_closes_the_node(said: str) -> None:
    """A factor that is none is not guessed at: the node takes nothing and says so."""
    state = state_of(overcommit=said)
    assert state.closed == {"n1": BAD_OVERCOMMIT}
    assert free(state) == ABSENT


@pytest.mark.parametrize(("factor", "joined"), [("1.3", 3), ("1.0", 1)])
def test_the_sharing_example(factor: str, joined: int) -> None:
    """A trainer (8 GiB, 70 %) and three inference pods (2 GiB, 20 %) share an A10 at 1.3; at 1.0 only one joins."""
    state = state_of(overcommit=factor)
    assert fits(state, pod("trainer", memory="8Gi", utilization="70%"))
    served = [fits(state, pod(f"inference-{i}", memory="2Gi", utilization="20%")) for i in range(3)]
    assert served == [i < joined for i in range(3)]


def test_the_sharers_limit() -> None:
    """No more containers than the setting allows are on a card, and two of one pod are two."""
    state = state_of(rules=Rules(sharers=3))
    both = plain(
        "both",
        annotations={"tessera.gpu/memory.a": "1Gi", "tessera.gpu/memory.b": "1Gi"},
        containers=[container("a"), container("b")],
    )
    assert [fits(state, p) for p in (both, pod("c"), pod("d"))] == [True, True, False]


def test_a_whole_card_is_nobody_elses() -> None:
    """A whole card is an empty one, whatever the factor, and nobody joins it."""
    state = state_of(gpu(A10), gpu("GPU-n1-1", index=1), overcommit="2")
    assert fits(state, pod("share", memory="1Gi"))
    assert fits(state, pod("whole", memory=None, count="1"))
    assert [free(state, c)[2] for c in (0, 1)] == [47, 0]
    assert not fits(state, pod("whole-2", memory=None, count="1"))


def test_foreign_memory_is_not_offered() -> None:
    """What a process of nobody we know uses is not offered; it takes nothing from those who are there."""
    state = state_of(gpu(A10, foreignMiB=6145))
    assert free(state) == (24576 - 6145, 1000, 48)
    state.saw_pod(bound(pod(), "n1", [(A10, 20000, 0)]))
    assert free(state) == (0, 1000, 47)


@pytest.mark.parametrize("trouble", [{"healthy": False, "reason": "Xid 79"}, {"mig": True}])
def test_cards_that_are_not_offered(trouble: dict[str, Any]) -> None:
    """An unhealthy card and one in MIG mode take nothing; their capacity and the other cards stay."""
    state = state_of(gpu(A10, **trouble), gpu("GPU-n1-1", index=1))
    assert free(state, 0) == ABSENT
    assert free(state, 1) == (24576, 1000, 48)
    assert int(state.fleet.capacity.mib[0, 0]) == 24576
    assert state.closed == {}


def test_a_card_of_unknown_memory() -> None:
    """A card that tells no memory takes requests that name none, and no others."""
    state = state_of({"uuid": A10, "index": 0, "healthy": True})
    assert not fits(state, pod("a", memory="1Mi"))
    assert not fits(state, pod("b", memory="1%"))
    assert fits(state, pod("c", memory=None, utilization="30%"))
    assert not fits(state, pod("d", memory=None, count="1"))


def test_a_node_with_another_plugin() -> None:
    """A node that advertises nvidia.com/gpu is closed, unless it advertises none or a setting allows it."""
    assert state_of(more={"nvidia.com/gpu": "1"}).closed == {"n1": OTHER_PLUGIN}
    assert state_of(more={"nvidia.com/gpu": "0"}).closed == {}
    assert state_of(more={"nvidia.com/gpu": "1"}, rules=Rules(allow_whole_gpus=True)).closed == {}


def test_what_a_node_says() -> None:
    """CPU and memory are read as Kubernetes writes them; what cannot be read is none."""
    facts = node_facts(node(cpu="7910m", memory="32Gi"), Rules())
    assert (facts.cpu, facts.ram) == (7910, 32768)
    assert node_facts(node(cpu="many"), Rules()).cpu == 0


def test_cpu_and_memory_of_all_pods_are_counted() -> None:
    """The Fleet knows what pods without GPUs take of the node, too."""
    state = state_of(cpu="8", memory="16Gi")
    state.saw_pod(plain("other", node="n1", phase="Running", requests={"cpu": "3", "memory": "4Gi"}))
    assert (int(state.fleet.free.cpu[0]), int(state.fleet.free.ram[0])) == (5000, 12288)


# --- records -------------------------------------------------------------------------------------------------


def test_a_record_takes_its_share() -> None:
    """A bound pod's record takes memory, compute and a slot of its card."""
    state = state_of()
    state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
    assert free(state) == (20480, 500, 47)


def test_holdings_come_before_nodes_and_inventories() -> None:
    """The order of events does not matter."""
    state = ClusterState(Rules())
    state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
    state.saw_inventory(gpu_node())
    state.saw_node(node())
    assert free(state) == (20480, 500, 47)


def test_a_finished_pod_gives_back() -> None:
    """What a pod held is free once it has finished, or is gone."""
    state = state_of()
    for ended in (bound(pod(), "n1", [(A10, 4096, 500)], phase="Succeeded"), None):
        state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
        if ended is not None:
            state.saw_pod(ended)
        else:
            state.lost_pod(pod())
        assert free(state) == (24576, 1000, 48)
        assert state.holdings == {}


def two_nodes() -> ClusterState:
    """Return a state with two nodes of one card each."""
    state = state_of()
    state.saw_node(node("n2"))
    state.saw_inventory(gpu_node("n2"))
    return state


@pytest.mark.parametrize(
    ("trouble", "why"),
    [
        pytest.param(bound(pod(), "n1", text='{"v":2}'), BAD_RECORD, id="a record of another version"),
        pytest.param(bound(pod(), "n1", [("GPU-gone", 1, 1)]), LOST_CARD, id="a record of a card that is not there"),
    ],
)
def test_a_bad_record_closes_its_node_alone(trouble: Pod, why: str) -> None:
    """A node with a record that tells nothing takes no GPU pod until it is gone; other nodes are not affected."""
    state = two_nodes()
    state.saw_pod(trouble)
    assert state.closed == {"n1": why}
    assert (free(state), free(state, name="n2")) == (ABSENT, (24576, 1000, 48))
    state.lost_pod(pod())
    assert state.closed == {}
    assert free(state) == (24576, 1000, 48)


def test_a_lost_card_that_comes_back_opens_the_node() -> None:
    """A node is closed for as long as a pod holds a card that it does not report."""
    state = state_of(gpu(A10), gpu("GPU-n1-1", index=1))
    state.saw_pod(bound(pod(), "n1", [("GPU-n1-1", 4096, 500)]))
    state.saw_inventory(gpu_node(gpus=1))
    assert state.closed == {"n1": LOST_CARD}
    state.saw_inventory(gpu_node(gpus=2))
    assert (state.closed, free(state, 1)) == ({}, (20480, 500, 47))


@pytest.mark.parametrize("beyond", [(20000, 0), (0, 900)])
def test_a_card_promised_beyond_its_capacity_takes_nothing(beyond: tuple[int, int]) -> None:
    """Records that together exceed a card close that card, and nothing else."""
    state = state_of(gpu(A10), gpu("GPU-n1-1", index=1))
    for name in ("a", "b"):
        state.saw_pod(bound(pod(name), "n1", [(A10, *beyond)]))
    assert free(state, 0) == ABSENT
    assert free(state, 1) == (24576, 1000, 48)
    assert (state.closed, state.overpromised) == ({}, {"n1": (A10,)})
    state.lost_pod(pod("a"))
    assert state.overpromised == {}


def test_two_whole_owners_of_one_card() -> None:
    """Two records that each want a card for themselves exceed it."""
    state = state_of()
    for name in ("a", "b"):
        state.saw_pod(bound(pod(name), "n1", [(A10, 0, 0)], exclusive=True))
    assert free(state) == ABSENT
    assert state.overpromised == {"n1": (A10,)}


def test_an_unhealthy_card_may_keep_its_promises() -> None:
    """It takes nothing more, and gives what it has promised."""
    state = state_of(gpu(A10, healthy=False))
    state.saw_pod(bound(pod("a"), "n1", [(A10, 20000, 1000)]))
    assert (free(state), state.overpromised) == (ABSENT, {})


def test_an_inventory_that_goes_and_comes_back() -> None:
    """Without an inventory nothing is offered; what is held stays held."""
    state = state_of()
    state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
    state.lost_inventory("n1")
    assert state.closed == {"n1": NO_INVENTORY}
    assert not fits(state, pod("q"))
    state.saw_inventory(gpu_node())
    assert free(state) == (20480, 500, 47)


def test_an_inventory_that_cannot_be_read() -> None:
    """A GPUNode of another version is no inventory, and the node says which fault it is."""
    state = state_of()
    state.saw_inventory(gpu_node(api_version="tessera.gpu/v2"))
    assert state.closed == {"n1": BAD_INVENTORY}


def test_a_node_that_goes_and_comes_back() -> None:
    """What pods hold on a node stays, should it come back."""
    state = state_of()
    state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
    state.lost_node("n1")
    assert not fits(state, pod("q"))
    state.saw_node(node())
    assert free(state) == (20480, 500, 47)


@pytest.mark.parametrize("first", ["node", "inventory"])
def test_of_a_node_that_is_gone_with_its_cards_nothing_is_told(first: str) -> None:
    """A cluster whose nodes come and go does not count the old ones as closed for ever; none is offered."""
    state = ClusterState(Rules())
    state.saw_node(node(overcommit="nonsense"))
    state.saw_inventory(gpu_node())
    assert state.closed == {"n1": BAD_OVERCOMMIT}
    for what in ("node", "inventory") if first == "node" else ("inventory", "node"):
        assert state.closed
        (state.lost_node if what == "node" else state.lost_inventory)("n1")
    assert state.closed == {}
    assert filter_nodes(state, pod(), ["n1"]).failed_and_unresolvable_nodes == {"n1": NO_INVENTORY}


def test_inventories_of_no_cards() -> None:
    """A node whose agent sees no card takes nothing, and asking is no crash."""
    state = ClusterState(Rules())
    state.saw_node(node())
    state.saw_inventory(gpu_node(gpus=0))
    assert not fits(state, pod())
    state.saw_inventory(gpu_node(gpus=2))
    assert fits(state, pod())


def test_an_early_node_becomes_wider() -> None:
    """A node that gets more cards than any other disturbs none of those that came after it."""
    state = ClusterState(Rules())
    for i in range(5):
        state.saw_node(node(f"n{i}"))
        state.saw_inventory(gpu_node(f"n{i}"))
    state.saw_inventory(gpu_node("n0", 4))
    assert [free(state, 0, f"n{i}") for i in range(5)] == [(24576, 1000, 48)] * 5
    assert [free(state, 3, f"n{i}")[2] for i in range(2)] == [48, -1]


# --- assumptions ---------------------------------------------------------------------------------------------


def test_to_reserve_is_to_take_at_once() -> None:
    """Between the reply and the watch the share is held; forgotten, it is free again."""
    state = state_of()
    assert fits(state, pod(memory="20Gi"))
    assert free(state) == (4096, 1000, 47)
    assert not fits(state, pod("q", memory="20Gi"))
    state.forget("uid-p")
    assert free(state) == (24576, 1000, 48)
    assert state.assumed_record("uid-p") is None
    state.forget("uid-p")


def test_percent_becomes_the_cards_own_mib() -> None:
    """The record says in MiB what a percentage of the chosen card is, rounded up."""
    state = state_of(gpu(A10, memoryMiB=10001))
    assert fits(state, pod(memory="25%"))
    record = state.assumed_record("uid-p")
    assert record is not None
    assert record.containers["main"][0].mib == 2501
    assert free(state)[0] == 7500


def test_another_pod_of_the_same_name() -> None:
    """Pods are told apart by UID: the successor's record and the predecessor's are two."""
    state = state_of()
    state.saw_pod(bound(pod(uid="old"), "n1", [(A10, 4096, 500)]))
    state.saw_pod(bound(pod(uid="new"), "n1", [(A10, 4096, 500)]))
    state.lost_pod(pod(uid="old"))
    assert free(state) == (20480, 500, 47)


def test_a_late_sight_of_an_unbound_pod() -> None:
    """A GET that was answered before the bind, and read after the watch showed it, changes nothing."""
    state = state_of()
    state.saw_pod(bound(pod(), "n1", [(A10, 4096, 500)]))
    state.saw_pod(pod())
    assert state.waiting == {}
    assert free(state) == (20480, 500, 47)


def test_who_waits() -> None:
    """Pods that ask us and are not bound wait; those that ask nothing, or nothing readable, do not."""
    state = state_of()
    for p in (pod("a"), plain("b"), pod("c", memory="nonsense")):
        state.saw_pod(p)
    assert list(state.waiting) == ["uid-a"]
    state.saw_pod(plain("a"))
    assert state.waiting == {}
    assert state.workload.seen == 1


def test_the_workload_knows_who_was_placed_and_who_left() -> None:
    """Policies protect room for large pods by how many run and leave: told once a pod, whatever is repeated."""
    state = state_of()
    for name in ("a", "b"):
        state.saw_pod(pod(name))
        for _ in range(2):
            state.saw_pod(bound(pod(name), "n1", [("GPU-n1-0", 4096, 0)]))
    assert (state.workload.running, state.workload.departed) == (2, 0)
    state.saw_pod(bound(pod("a"), "n1", [("GPU-n1-0", 4096, 0)], phase="Succeeded"))
    for _ in range(2):
        state.lost_pod(pod("a"))
    assert (state.workload.running, state.workload.departed, state.workload.placed) == (1, 1, 2)


@pytest.mark.parametrize("amounts", [{"cpu": "10P"}, {"memory": "9E"}, {"cpu": "9223372036854775807"}])
def test_no_amount_costs_another_pod_what_it_holds(amounts: dict[str, str]) -> None:
    """The API server takes a pod that asks for more CPU than an array's number can tell; policies learn from it."""
    state = state_of()
    for number in range(10):
        state.saw_pod(pod(f"absurd-{number}", requests=amounts))
    state.saw_pod(bound(pod("absurd", requests=amounts), "n1", [(A10, 1024, 0)]))
    for number in range(10):
        state.saw_pod(bound(pod(f"held-{number}"), "n1", [(A10, 1024, 0)]))
    assert len(state.holdings) == 11
    assert free(state)[0] == 24576 - 11 * 1024


def test_a_policy_that_fails_to_learn_costs_no_event(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a pod holds is known before policies look at what it is like."""
    state = state_of()
    board = state.board()

    def fail(*_: object) -> None:
        raise OverflowError

    monkeypatch.setattr(type(board.policy), "attend", fail)
    with pytest.raises(OverflowError):
        state.saw_pod(bound(pod("a"), "n1", [(A10, 20480, 0)]))
    assert free(state)[0] == 4096
