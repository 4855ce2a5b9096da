"""Who uses what of a card."""

from dataclasses import replace
from typing import Any

from nodeagent.pods import HeldPod
from nodeagent.processes import Owner
from nodeagent.reader import Process
from nodeagent.use import uses
from tests.nodeagent.given import card, held, reading

OWNERS = {1: Owner("uid-p", "c"), 2: Owner("uid-q", "d"), 3: Owner(), 4: Owner("uid-unseen", "e")}


def foreign(*processes: Process, pods: dict[str, HeldPod] | None = None, **more: Any) -> int | None:
    """Return the foreign memory of one card with these processes and pods."""
    return uses(reading(card("GPU-a", *processes, **more)), OWNERS, pods)["GPU-a"].foreign_mib


P = {"uid-p": held("p", GPU_a=4096)}


def test_a_pod_within_its_grant_is_not_foreign() -> None:
    """Its use is its own, whatever is left of the grant."""
    found = uses(reading(card("GPU-a", Process(1, 3000, 40), Process(1, 500, 5))), OWNERS, P)["GPU-a"]
    assert found.foreign_mib == 0
    (by_pod,) = found.pods
    assert (by_pod.pod.name, by_pod.used_mib, by_pod.utilization, by_pod.granted_mib) == ("p", 3500, 45, 4096)


def test_processes_of_no_pod_are_foreign() -> None:
    """They count beside what a pod leaves of its grant."""
    assert foreign(Process(1, 1000), Process(3, 2000), pods=P) == 2000


def test_pods_without_a_grant_on_the_card_are_foreign() -> None:
    """No record, a record for another card, and a pod that nobody knows."""
    assert foreign(Process(2, 700), pods=P | {"uid-q": held("q")}) == 700
    assert foreign(Process(2, 700), pods=P | {"uid-q": held("q", GPU_b=9000)}) == 700
    assert foreign(Process(4, 700), pods=P) == 700


def test_use_beyond_all_grants_is_foreign() -> None:
    """Use within the sum of the grants is not, even if one pod takes of another's."""
    both = P | {"uid-q": held("q", GPU_a=1000)}
    assert foreign(Process(1, 5000), pods=both) == 0
    assert foreign(Process(1, 5000), Process(2, 500), pods=both) == 404
    assert foreign(Process(1, 100), pods=P, used_mib=6000) == 1904, "memory that no process is told for"


def test_before_pods_are_known_only_the_hosts_own_is_foreign() -> None:
    """A grant that is not known yet must not make a pod's memory foreign."""
    assert foreign(Process(1, 3000), Process(4, 100), Process(3, 200), pods=None) == 200


def test_what_the_driver_does_not_tell_is_not_made_up() -> None:
    """Without figures there is no use and nothing foreign; the pod is seen all the same."""
    found = uses(reading(card("GPU-a", Process(1), used_mib=None)), OWNERS, {"uid-p": held("p")})["GPU-a"]
    assert found.foreign_mib is None
    assert [(p.used_mib, p.utilization, p.granted_mib) for p in found.pods] == [(None, None, None)]
    dead = replace(card("GPU-a", used_mib=None), processes=None)
    found = uses(reading(dead), OWNERS, P)["GPU-a"]
    assert found.foreign_mib is None
    assert [(p.used_mib, p.granted_mib) for p in found.pods] == [(None, 4096)]


def test_some_figures_are_better_than_none() -> None:
    """Of two strangers one tells: that much is foreign at least."""
    assert foreign(Process(3), Process(3, 700), pods=P, used_mib=None) == 700
    assert foreign(Process(3), Process(3, 700), pods=P, used_mib=4500) == 700


def test_a_granted_pod_without_a_process_is_seen() -> None:
    """It uses nothing of its grant; on the card that it was granted, and no other."""
    found = uses(reading(card("GPU-a"), card("GPU-b")), OWNERS, P | {"uid-q": held("q")})
    assert [(p.pod.name, p.used_mib, p.granted_mib) for p in found["GPU-a"].pods] == [("p", 0, 4096)]
    assert found["GPU-b"].pods == ()
