"""Kubernetes quantities (`4Gi`, `500m`, `1e3`) as exact numbers; nothing else is a quantity here."""

import re
from decimal import Decimal
from functools import lru_cache
from typing import Any, Final

MIB: Final = 1 << 20

# resource.Quantity of apimachinery: a decimal number, then a binary suffix, a decimal suffix or an exponent.
_FORM: Final = re.compile(
    r"([+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+))(Ki|Mi|Gi|Ti|Pi|Ei|n|u|m|k|M|G|T|P|E|[eE][+-]?[0-9]{1,3})?"
)
_BINARY: Final = {s: Decimal(1024) ** (i + 1) for i, s in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"))}
_DECIMAL: Final = {s: Decimal(1000) ** i for i, s in zip((-3, -2, -1, 1, 2, 3, 4, 5, 6), "numkMGTPE", strict=True)}
_SUFFIX: Final = _BINARY | _DECIMAL
_LARGEST: Final = Decimal(2**63 - 1)


class BadQuantity(ValueError):
    """Not a quantity; the message says what one looks like."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> Decimal:
    found = _FORM.fullmatch(text) if len(text) <= 64 and text.isascii() else None
    if found is None:
        raise BadQuantity(f"{text[:64]!r} is not a quantity such as 4Gi, 512Mi or 2")
    number, suffix = Decimal(found[1]), found[2] or ""
    if suffix in _SUFFIX or not suffix:
        value = number * _SUFFIX.get(suffix, Decimal(1))
    else:
        value = number.scaleb(int(suffix[1:]))
    if abs(value) > _LARGEST:
        raise BadQuantity(f"{text!r} is larger than 2^63-1, the largest quantity there is")
    return value


def quantity(value: Any) -> Decimal:
    """Return a quantity as an exact number, from a string or (as YAML has it) a number.

    Raises
    ------
    BadQuantity
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise BadQuantity(f"{str(value)[:64]!r} is not a quantity such as 4Gi, 512Mi or 2")
    return _parse(str(value))


def whole(value: Decimal) -> int:
    """Return a number rounded up to a whole one, as Kubernetes rounds requests."""
    return int(value.to_integral_value(rounding="ROUND_CEILING"))


def to_mib(value: Any) -> int:
    """Return a quantity of bytes as whole MiB, rounded up."""
    return whole(quantity(value) / MIB)


def to_milli(value: Any) -> int:
    """Return a quantity as whole thousandths, rounded up."""
    return whole(quantity(value) * 1000)


def to_count(value: Any) -> int:
    """Return a quantity as a whole number, rounded up."""
    return whole(quantity(value))
