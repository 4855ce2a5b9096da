"""A pod's charge is kube-scheduler's: the dearest of what runs together; and its record counts where it belongs."""

import pytest

from contract.assignment import Grant
from contract.names import Resources
from extender.pod import Holding, Share, charge, holding_of, request_of
from extender.wire import Container, Pod, Requirements
from scoring.model import Ask, Demand
from tests.builders import bound, container, plain, pod

R = Resources()
Record = dict[str, tuple[Grant, ...]]


def demand_of(asking: Pod) -> Demand:
    """Return what a pod demands, which must be something."""
    request = request_of(asking, R)
    assert request is not None
    return request.demand


def held(seen: Pod) -> Holding:
    """Return what a pod holds, which must be something."""
    holding = holding_of(seen, R)
    assert holding is not None
    return holding


def gpus(**memory: str) -> dict[str, str]:
    """Return the annotations that give containers GPU memory."""
    return {f"tessera.gpu/memory.{name}": amount for name, amount in memory.items()}


MAIN, INIT, SIDECAR = container("main"), container("init"), container("sidecar", sidecar=True)


@pytest.mark.parametrize(
    ("init", "memory", "charged"),
    [
        pytest.param([INIT], {"main": "20Gi", "init": "30Gi"}, 30, id="a dearer init container before the main one"),
        pytest.param([INIT], {"main": "20Gi", "init": "10Gi"}, 20, id="a cheaper init container costs nothing"),
        pytest.param([SIDECAR], {"main": "20Gi", "sidecar": "8Gi"}, 28, id="a sidecar runs beside the main one"),
        pytest.param(
            [SIDECAR, INIT],
            {"main": "20Gi", "sidecar": "8Gi", "init": "15Gi"},
            28,
            id="an init container after a sidecar",
        ),
        pytest.param(
            [SIDECAR, INIT], {"main": "20Gi", "sidecar": "8Gi", "init": "30Gi"}, 38, id="a sidecar counts for both"
        ),
        pytest.param(
            [INIT, SIDECAR],
            {"main": "20Gi", "sidecar": "8Gi", "init": "30Gi"},
            30,
            id="a later sidecar for the main only",
        ),
    ],
)
def test_the_dearest_phase_is_charged(init: list[Container], memory: dict[str, str], charged: int) -> None:
    """A pod's containers on one card take of it what its dearest phase takes, in the demand and in the record."""
    asking = plain(annotations=gpus(**memory), containers=[MAIN], init=init)
    request = request_of(asking, R)
    assert request is not None
    by_name = dict(zip(request.containers, request.demand.asks, strict=True))
    assert max(sum(request.demand.asks[i].mib for i in p) for p in request.demand.phases) == charged * 1024
    record: Record = {name: (Grant("GPU-1", ask.mib, 0),) for name, ask in by_name.items()}
    assert charge(asking, record)["GPU-1"].mib == charged * 1024


def test_phases_that_another_one_covers_are_left_out() -> None:
    """A demand names each set of containers once, and only sets that no other contains."""
    asking = plain(annotations=gpus(main="1Gi", sidecar="1Gi"), containers=[MAIN], init=[SIDECAR, INIT])
    assert demand_of(asking).phases == ((0, 1),)


def test_each_amount_has_its_own_dearest_phase() -> None:
    """Memory may be dearest in one phase and compute in another, as for kube-scheduler."""
    asking = plain(containers=[MAIN], init=[INIT])
    record = {"main": (Grant("GPU-1", 100, 900),), "init": (Grant("GPU-1", 200, 100), Grant("GPU-2", 5, 5, True))}
    assert charge(asking, record) == {"GPU-1": Share(200, 900, 1), "GPU-2": Share(5, 5, 1, True)}


def test_a_recorded_container_that_the_pod_has_not_is_charged() -> None:
    """An ephemeral or unknown container in a record counts in every phase: better too much than too little."""
    asking = plain(containers=[MAIN], init=[INIT])
    record: Record = {
        "stranger": (Grant("GPU-1", 10, 1),),
        "main": (Grant("GPU-1", 20, 2),),
        "init": (Grant("GPU-1", 5, 9),),
    }
    assert charge(asking, record) == {"GPU-1": Share(30, 10, 2)}


# --- CPU and memory of the node ------------------------------------------------------------------------------


def test_cpu_and_memory_are_those_of_the_dearest_phase() -> None:
    """CPU and memory are charged as kube-scheduler charges them, with limits standing in for missing requests."""
    asking = pod(
        containers=[
            container("main", requests={"cpu": "500m", "memory": "1Gi"}, limits={"cpu": "4"}),
            container("other", limits={"cpu": "1"}),
        ],
        init=[
            container("sidecar", requests={"cpu": "250m"}, sidecar=True),
            container("init", requests={"cpu": "1", "memory": "3Gi"}),
        ],
    )
    demand = demand_of(asking)
    assert (demand.cpu_milli, demand.ram_mib) == (1750, 3072)


def test_pod_level_resources_and_overhead() -> None:
    """Pod-level requests replace the containers', and the runtime's overhead comes on top."""
    asking = pod(requests={"cpu": "500m", "memory": "1Gi"})
    asking.spec.overhead = {"cpu": "100m", "memory": "64Mi"}
    assert (demand_of(asking).cpu_milli, demand_of(asking).ram_mib) == (600, 1088)
    asking.spec.resources = Requirements(requests={"cpu": "3"})
    assert (demand_of(asking).cpu_milli, demand_of(asking).ram_mib) == (3100, 1088)


def test_cpu_that_cannot_be_read_costs_nothing() -> None:
    """The API server lets none in; should one come from a file, it does not stop the rest."""
    assert demand_of(pod(requests={"cpu": "many"})).cpu_milli == 0


def test_a_pod_without_containers_asks_for_nothing() -> None:
    """A pod of an odd shape is no crash."""
    empty = plain(containers=[], node="n1", phase="Running")
    assert request_of(empty, R) is None
    assert held(empty).cpu_milli == 0


# --- what is held --------------------------------------------------------------------------------------------

SHARE = {"GPU-1": Share(4096, 500, 1)}
GIVEN = [("GPU-1", 4096, 500)]


def test_a_record_counts_where_it_belongs() -> None:
    """A bound, running pod with a record of its own holds what it says."""
    assert held(bound(pod(), "n1", GIVEN)) == Holding("uid-p", "default", "p", "n1", SHARE)


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_finished_pods_hold_nothing(phase: str) -> None:
    """Succeeded and Failed pods hold nothing."""
    assert holding_of(bound(pod(), "n1", GIVEN, phase=phase), R) is None


@pytest.mark.parametrize("phase", ["Pending", "Running", "Unknown"])
def test_terminating_pods_hold_everything(phase: str) -> None:
    """A terminating pod holds everything until it is gone."""
    seen = bound(pod(), "n1", GIVEN, phase=phase)
    seen.metadata.deletion_timestamp = "2026-12-01T00:00:00Z"
    assert held(seen).cards == SHARE


def test_the_record_of_an_unbound_pod_is_nobodys() -> None:
    """A record on an unbound pod holds nothing."""
    assert holding_of(bound(pod(), "", GIVEN), R) is None


@pytest.mark.parametrize("other", [{"record_node": "n2"}, {"record_uid": "another"}])
def test_the_record_of_another_pod_or_node_is_ignored(other: dict[str, str]) -> None:
    """A record that names another node or UID does not count, and the pod is unaccounted."""
    seen = held(bound(pod(), "n1", GIVEN, **other))  # type: ignore[arg-type]
    assert (seen.cards, seen.problem, seen.unaccounted) == ({}, "", True)


def test_a_record_that_cannot_be_read_is_a_problem() -> None:
    """A bound pod with an undecodable record says why."""
    seen = held(bound(pod(), "n1", text="{"))
    assert (seen.cards, seen.problem, seen.unaccounted) == ({}, "The assignment is not JSON.", False)


@pytest.mark.parametrize(
    ("asking", "unaccounted"),
    [
        pytest.param(pod(), True, id="it asks us"),
        pytest.param(pod(memory="nonsense"), True, id="it asks us in words that cannot be read"),
        pytest.param(plain(), False, id="it asks nothing"),
    ],
)
def test_a_pod_bound_by_others(asking: Pod, unaccounted: bool) -> None:
    """A pod that asks us and was bound without a record is unaccounted; its CPU counts."""
    seen = held(bound(asking, "n1"))
    assert (seen.cards, seen.unaccounted) == ({}, unaccounted)


def test_containers_that_ask_for_nothing_shift_no_one() -> None:
    """Only asking containers are in the demand, each with its own numbers."""
    asking = plain(
        annotations={**gpus(b="2Gi", d="3Gi"), "tessera.gpu/count.d": "2"}, containers=[container(n) for n in "abcd"]
    )
    request = request_of(asking, R)
    assert request is not None
    assert request.containers == ("b", "d")
    assert request.demand.asks == (Ask(mib=2048), Ask(2, mib=3072))
