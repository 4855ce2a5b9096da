"""Quantities are exact, and nothing else is one."""

from contextlib import suppress
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from extender.quantity import MIB, BadQuantity, quantity, to_mib, to_milli, whole

SUFFIXES = {
    **{s: Decimal(1024) ** i for i, s in enumerate(("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))},
    **{s: Decimal(1000) ** i for i, s in zip((-3, -2, -1, 1, 2, 3, 4, 5, 6), "numkMGTPE", strict=True)},
}


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_suffix(suffix: str) -> None:
    """Each suffix of apimachinery multiplies as it says there."""
    assert quantity(f"2{suffix}") == 2 * SUFFIXES[suffix]
    assert quantity(f"-.5{suffix}") == SUFFIXES[suffix] / -2


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("1e3", 1000),
        ("1E3", 1000),
        ("15e-1", Decimal("1.5")),
        ("+1", 1),
        ("1.", 1),
        (".5", Decimal("0.5")),
        (7, 7),
        (0.1, Decimal("0.1")),
        (1e21 / 1e3, 10**18),
        ("0100", 100),
    ],
)
def test_other_ways_to_write_a_number(said: Any, value: Decimal | int) -> None:
    """Exponents, signs and bare YAML numbers are exact, too."""
    assert quantity(said) == value


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        ("", "'' is not a quantity such as 4Gi, 512Mi or 2"),
        ("4 Gi", "'4 Gi' is not a quantity such as 4Gi, 512Mi or 2"),
        ("4gi", "'4gi' is not a quantity such as 4Gi, 512Mi or 2"),
        ("4GiB", "'4GiB' is not a quantity such as 4Gi, 512Mi or 2"),
        ("1e", "'1e' is not a quantity such as 4Gi, 512Mi or 2"),
        ("nan", "'nan' is not a quantity such as 4Gi, 512Mi or 2"),
        ("٤", "'٤' is not a quantity such as 4Gi, 512Mi or 2"),
        ("1\n", "'1\\n' is not a quantity such as 4Gi, 512Mi or 2"),
        ("9" * 65, f"'{'9' * 64}' is not a quantity such as 4Gi, 512Mi or 2"),
        ("1e999", "'1e999' is larger than 2^63-1, the largest quantity there is"),
        ("8Ei", "'8Ei' is larger than 2^63-1, the largest quantity there is"),
        (float("inf"), "'inf' is not a quantity such as 4Gi, 512Mi or 2"),
        (True, "'True' is not a quantity such as 4Gi, 512Mi or 2"),
        (None, "'None' is not a quantity such as 4Gi, 512Mi or 2"),
        (["4Gi"], "\"['4Gi']\" is not a quantity such as 4Gi, 512Mi or 2"),
    ],
)
def test_what_is_no_quantity(said: Any, sentence: str) -> None:
    """Everything else is refused, with a sentence that shows it."""
    with pytest.raises(BadQuantity) as refused:
        quantity(said)
    assert str(refused.value) == sentence


def test_rounding_is_up() -> None:
    """A started MiB, or a started thousandth, counts as a whole one, as for Kubernetes."""
    assert (to_mib(MIB), to_mib(MIB + 1), to_mib("1"), to_mib(0)) == (1, 2, 1, 0)
    assert (to_milli("100m"), to_milli("1u"), to_milli("0.0011")) == (100, 1, 2)
    assert (whole(Decimal("-1.5")), whole(Decimal("1.5"))) == (-1, 2)


@given(st.text(max_size=20) | st.integers() | st.floats() | st.none())
def test_nothing_else_is_raised(said: Any) -> None:
    """Whatever is said is a quantity or a BadQuantity."""
    with suppress(BadQuantity):
        assert abs(quantity(said)) < 2**63


@given(
    st.from_regex(
        r"[+-]?[0-9]{1,12}(\.[0-9]{0,6})?(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,3})?", fullmatch=True
    )
)
def test_what_looks_like_a_quantity_is_one(said: str) -> None:
    """Every text of apimachinery's form is read, or refused for its size alone."""
    refused = ""
    try:
        quantity(said)
    except BadQuantity as error:
        refused = str(error)
    assert refused == "" or refused.endswith("larger than 2^63-1, the largest quantity there is")


@given(st.integers(0, 2**40))
def test_bytes_roundtrip(amount: int) -> None:
    """A number of MiB comes back as itself, in every spelling."""
    assert to_mib(f"{amount}Mi") == to_mib(amount * MIB) == amount
