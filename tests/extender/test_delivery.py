"""What containers are told: environment at admission, annotations at bind, and the fraction that frameworks take."""

import math
from fractions import Fraction

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from contract.assignment import Assignment, Grant
from contract.names import MAX_NAME, PREFIX, figure_key
from extender.delivery import FIGURES, FRACTION, MEMORY_MIB, MOST_NRI, PARTS, UTILIZATION, environment, fraction, told

NAMES = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
H100 = 80988  # MiB: 81559 less what the driver reserves
B300 = 288 << 10
KEY = figure_key("main", FRACTION)


def record(*grants: Grant, container: str = "main") -> Assignment:
    """Return a record of one container."""
    return Assignment("n1", "u", {container: grants})


def values(env: list[dict[str, object]]) -> dict[object, object]:
    """Return an environment by name; a field is its path."""
    return {v["name"]: v.get("value") or v["valueFrom"]["fieldRef"]["fieldPath"] for v in env}  # type: ignore[index]


def test_env_takes_the_devices_from_the_record() -> None:
    """By the downward API, and so are the figures."""
    told_by = {name: f"metadata.annotations['tessera.gpu/devices.a.{figure}']" for name, figure in FIGURES.items()}
    devices = {"NVIDIA_VISIBLE_DEVICES": "metadata.annotations['tessera.gpu/devices.a']"}
    assert values(environment("a", "env", has_cards=True)) == devices | told_by
    assert values(environment("a", "cdi", has_cards=True)) == {"NVIDIA_VISIBLE_DEVICES": "void"} | told_by


def test_without_a_card_there_is_no_device() -> None:
    """A CUDA image would ask for all of them; where somebody else delivers, nothing is said."""
    assert environment("a", "env", has_cards=False) == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    assert environment("a", "cdi", has_cards=False) == environment("a", "env", has_cards=False)
    assert environment("a", "none", has_cards=True) == environment("a", "none", has_cards=False) == []


def test_figures_are_those_of_every_card() -> None:
    """The least of the cards, since a framework takes one figure for all of its ranks."""
    pair = record(Grant("GPU-a", 8192, 500), Grant("GPU-b", 6144, 500))
    notes = told(pair, {"GPU-a": 22550, "GPU-b": 15000}, "env")
    assert notes == {
        figure_key("main", MEMORY_MIB): "6144",
        figure_key("main", UTILIZATION): "50",
        KEY: "0.34057",
    }


def test_a_limited_container_takes_its_fraction_of_the_grant() -> None:
    """Where the driver limits it, the container sees the grant as the size of the card: the share counts once."""
    pair = record(Grant("GPU-a", 40960, 500), Grant("GPU-b", 8192, 500))
    memory = {"GPU-a": H100, "GPU-b": H100}
    assert told(pair, memory, "env", limited=True)[KEY] == "0.93750"
    assert told(record(Grant("GPU-a", 40960, 500)), memory, "env", limited=True)[KEY] == "0.96999"


@pytest.mark.parametrize(
    ("mib", "limited", "part"),
    [
        pytest.param(512, False, None, id="no larger than the margin"),
        pytest.param(512, True, None, id="no larger than the margin, limited"),
        pytest.param(513, False, None, id="rounded down to nothing on a large card"),
        pytest.param(513, True, "0.00194", id="the same, limited"),
        pytest.param(1536, False, "0.00347", id="1.5 GiB"),
    ],
)
def test_a_fraction_of_nothing_is_not_told(mib: int, limited: bool, part: str | None) -> None:
    """0 would leave a framework no memory at all; the other figures are told."""
    notes = told(record(Grant("GPU-a", mib, 300)), {"GPU-a": B300}, "env", limited=limited)
    assert notes.get(KEY) == part
    assert notes[figure_key("main", MEMORY_MIB)] == str(mib)


def test_what_is_not_known_is_left_out() -> None:
    """A card that tells no memory, no compute reserved, a container without cards, and delivery by somebody else."""
    assert told(record(Grant("GPU-a", 0, 300)), {}, "env") == {figure_key("main", UTILIZATION): "30"}
    assert told(record(Grant("GPU-a", 1024, 0)), {}, "env") == {figure_key("main", MEMORY_MIB): "1024"}
    assert told(record(), {}, "env") == {}
    assert told(record(Grant("GPU-a", 1024, 100)), {"GPU-a": 1 << 14}, "none") == {}


def test_cdi_names_the_devices_for_the_toolkits_plugin() -> None:
    """One annotation a container; its key has room for names of 53 characters."""
    notes = told(record(Grant("GPU-a", 1, 0), Grant("GPU-b", 1, 0)), {}, "cdi")
    assert notes["nvidia.cdi.k8s.io/container.main"] == "nvidia.com/gpu=GPU-a,nvidia.com/gpu=GPU-b"
    assert not any("cdi" in key for key in told(record(Grant("GPU-a", 1, 0)), {}, "env"))
    assert MOST_NRI == 53


@pytest.mark.parametrize(
    ("granted", "total", "parts"),
    [
        pytest.param(32623, 81559, 38798, id="0.4 of an 80 GB card, as NVIDIA's guide has it"),
        pytest.param(H100, H100, 96999, id="a whole card less its margin"),
        pytest.param(8192, 22550, 34057, id="8 GiB of an A10"),
        pytest.param(1536, 143771, 712, id="1.5 GiB of an H200"),
        pytest.param(512, 22550, 0, id="no more than a context takes"),
    ],
)
def test_fraction(granted: int, total: int, parts: int) -> None:
    """Of the card, less a margin of 512 MiB or 3 %, in five decimals and rounded down."""
    assert fraction(granted, total) == parts


@given(st.integers(1, 1 << 20).flatmap(lambda total: st.tuples(st.integers(0, total), st.just(total))))
def test_a_fraction_claims_no_more_than_was_granted(pair: tuple[int, int]) -> None:
    """With the margin on top it still fits the grant."""
    granted, total = pair
    claimed = Fraction(fraction(granted, total) * total, PARTS)
    assert claimed == 0 or claimed + max(512, math.ceil(Fraction(3, 100) * granted)) <= granted


@given(st.integers(24 << 10, B300).flatmap(lambda total: st.tuples(st.integers(1025, total), st.just(total))))
@example((1025, B300))
def test_a_fraction_claims_nearly_all_that_was_granted(pair: tuple[int, int]) -> None:
    """Above 1 GiB, on every card and on one that looks as large as the grant: all but the margin, within 1 %."""
    granted, total = pair
    margin = max(512, math.ceil(Fraction(3, 100) * granted))
    for seen in (total, granted):
        claimed = Fraction(fraction(granted, seen) * seen, PARTS)
        assert 0 < claimed <= granted - margin
        assert granted - margin - claimed < Fraction(granted, 100)


@given(NAMES, NAMES, st.sampled_from(sorted(FIGURES.values())))
def test_figure_keys_fit_and_tell_containers_apart(one: str, other: str, figure: str) -> None:
    """At most 63 characters after the slash, the same for the same container alone, and nobody's list of devices."""
    name = figure_key(one, figure).removeprefix(PREFIX)
    assert len(name) <= MAX_NAME
    assert name.endswith(f".{figure}")
    assert (figure_key(one, figure) == figure_key(other, figure)) == (one == other)
