"""Steadier samples, and what is worth telling."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.inventory import Gpu, Inventory, MigInstance, MigProfile
from nodeagent.smooth import ABSENT_SECONDS, FALL_SECONDS, MEASURED_SECONDS, Steady, worth_telling
from tests.nodeagent.given import A10_MIB, gpu, report

CONDITION = ("Ready", "True", "Reporting", "")

AT_ONCE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "health": ({}, {"healthy": False, "reason": "XID 79"}),
    "another reason": ({"healthy": False, "reason": "a"}, {"healthy": False, "reason": "b"}),
    "MIG mode": ({}, {"mig": True}),
    "index": ({}, {"index": 3}),
    "an instance of MIG": ({"mig": True}, {"mig": True, "mig_instances": (MigInstance("MIG-1"),)}),
    "memory that is no longer told": ({}, {"used_mib": None}),
    "utilization that is told now": ({"utilization": None}, {}),
    "foreign memory up by 2 %": ({}, {"foreign_mib": A10_MIB * 2 // 100 + 1}),
    "foreign memory down by 2 %": ({"foreign_mib": 1000}, {"foreign_mib": 539}),
    "foreign memory up by 512 MiB of 80 GiB": ({"memory_mib": 81559}, {"memory_mib": 81559, "foreign_mib": 512}),
    "foreign memory of a card that tells no size": ({"memory_mib": None}, {"memory_mib": None, "foreign_mib": 512}),
}

IN_A_MINUTE: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "memory by 5 %": ({}, {"used_mib": A10_MIB * 5 // 100 + 1}),
    "10 points": ({"utilization": 50}, {"utilization": 40}),
    "an instance's memory": (
        {"mig": True, "mig_instances": (MigInstance("MIG-1", memory_mib=1000, used_mib=0),)},
        {"mig": True, "mig_instances": (MigInstance("MIG-1", memory_mib=1000, used_mib=50),)},
    ),
}

NEVER: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "nothing": ({}, {}),
    "memory by less than 5 %": ({}, {"used_mib": A10_MIB * 5 // 100}),
    "9 points": ({"utilization": 50}, {"utilization": 59}),
    "foreign memory by less than 2 %": ({}, {"foreign_mib": 460}),
    "foreign memory by 511 MiB of 80 GiB": ({"memory_mib": 81559}, {"memory_mib": 81559, "foreign_mib": 511}),
}


@pytest.mark.parametrize(("was", "now"), AT_ONCE.values(), ids=AT_ONCE)
def test_what_others_act_on_is_told_at_once(was: dict[str, Any], now: dict[str, Any]) -> None:
    """Facts, health, and foreign memory beyond its bounds do not wait."""
    assert worth_telling(report(gpu(**was)), report(gpu(**now)), 0.0)


@pytest.mark.parametrize(("was", "now"), IN_A_MINUTE.values(), ids=IN_A_MINUTE)
def test_measured_use_is_told_once_a_minute(was: dict[str, Any], now: dict[str, Any]) -> None:
    """A large move waits until a minute after the last report."""
    told, new = report(gpu(**was)), report(gpu(**now))
    assert not worth_telling(told, new, MEASURED_SECONDS - 0.1)
    assert worth_telling(told, new, MEASURED_SECONDS)


@pytest.mark.parametrize(("was", "now"), NEVER.values(), ids=NEVER)
def test_small_moves_are_not_told(was: dict[str, Any], now: dict[str, Any]) -> None:
    """However long ago the last report was."""
    assert not worth_telling(report(gpu(**was)), report(gpu(**now)), 1e6)


def test_cards_conditions_and_the_first_report_are_told_at_once() -> None:
    """Another set of cards, another condition, and whatever comes first."""
    one = report(conditions=(CONDITION,))
    assert worth_telling(None, one, 0.0)
    assert worth_telling(one, report(gpu(), gpu("GPU-b"), conditions=(CONDITION,)), 0.0)
    assert worth_telling(one, report(conditions=(("Ready", "False", "NoCards", ""),)), 0.0)
    assert not worth_telling(one, replace(one), 1e6)


NO_FACTS = ("node", "gpus", "limits_enforced")  # the last one is told as a condition


@pytest.mark.parametrize("part", [part.name for part in fields(Inventory) if part.name not in NO_FACTS])
def test_every_fact_of_a_node_is_told(part: str) -> None:
    """A new field of the inventory is a fact until somebody says that it is measured."""
    one = report()
    changed: dict[str, Any] = {part: (MigProfile("x"),) if part == "mig_profiles" else "other"}
    assert worth_telling(one, replace(one, inventory=replace(one.inventory, **changed)), 0.0)


def test_utilization_is_averaged() -> None:
    """One odd second moves it little, a lasting change all the way; no sample for long means no average."""
    steady = Steady()
    assert steady.utilization(0, 0.0) == 0
    assert steady.utilization(100, 1.0) == 10
    for second in range(2, 60):
        last = steady.utilization(100, float(second))
    assert last in (99, 100)
    assert steady.utilization(None, 60.0) == last
    assert steady.utilization(None, 59.0 + ABSENT_SECONDS) == last
    assert steady.utilization(None, 60.0 + ABSENT_SECONDS) is None
    assert steady.utilization(30, 61.0 + ABSENT_SECONDS) == 30


def test_memory_that_is_not_told_for_a_moment_is_as_it_was() -> None:
    """The card's and each instance's, for half a minute; then it is absent. What never was told is absent at once."""
    steady, absent = Steady(), (MigInstance("MIG-1"), MigInstance("MIG-2"))
    told = gpu(used_mib=700, mig=True, mig_instances=(MigInstance("MIG-1", used_mib=300), absent[1]))
    untold = replace(told, used_mib=None, mig_instances=absent)

    def used(card: Gpu, now: float) -> list[int | None]:
        steadied = steady.card(card, 0, now)
        return [steadied.used_mib, *(each.used_mib for each in steadied.mig_instances)]

    assert used(told, 0.0) == [700, 300, None]
    assert used(untold, 1.0) == [700, 300, None]
    assert used(untold, ABSENT_SECONDS) == [700, 300, None]
    assert used(untold, ABSENT_SECONDS + 1) == [None, None, None]


def test_foreign_memory_rises_at_once_and_falls_late() -> None:
    """A process that comes and goes every few seconds is one rise, and one fall once it stays away."""
    steady = Steady()
    seen = [steady.foreign(mib, float(at)) for at, mib in enumerate([0, 900, 0, 900, 0, 0, 800])]
    assert seen == [0] + [900] * 6
    assert steady.foreign(0, 13.0) == 900
    assert steady.foreign(0, 13.5) == 800
    assert steady.foreign(0, 6.0 + FALL_SECONDS + 0.1) == 0


@given(st.lists(st.tuples(st.floats(0, 30), st.integers(0, 90_000)), min_size=1, max_size=60))
def test_foreign_memory_is_the_most_of_the_last_ten_seconds(steps: list[tuple[float, int]]) -> None:
    """Whatever comes: the answer is what a look at all samples gives."""
    steady, now, samples = Steady(), 0.0, []
    for passed, mib in steps:
        now += passed
        samples.append((now, mib))
        assert steady.foreign(mib, now) == max(m for at, m in samples if at >= now - FALL_SECONDS)


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 100)), min_size=1, max_size=60))
def test_the_average_stays_between_the_samples(steps: list[tuple[float, int]]) -> None:
    """It never leaves the range of what was measured."""
    steady, now = Steady(), 0.0
    for at, (passed, percent) in enumerate(steps, 1):
        now += passed
        average = steady.utilization(percent, now)
        assert average is not None
        assert min(p for _, p in steps[:at]) <= average <= max(p for _, p in steps[:at])
