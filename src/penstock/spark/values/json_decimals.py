"""Numbers of JSON as decimals, from their text: a decimal holds a number exactly, or not at all."""

from __future__ import annotations

from decimal import Decimal
from typing import NamedTuple

import pyarrow as pa


class WrittenNumber(NamedTuple):
    """A number of JSON: sign * digits * 10^exponent.

    Attributes:
        sign: 1 or -1, also of a zero.
        digits: without zeros at its end; 0 for a zero, whose exponent is 0.
        exponent: the exponent.
        is_plain: whether the text has neither a point nor an exponent.
    """

    sign: int
    digits: int
    exponent: int
    is_plain: bool


MAX_DIGITS = 1000
"""Digits above which no type holds a number. Python refuses to read thousands of them."""


def split_number(text: str) -> WrittenNumber:
    """Return the parts of a number.

    Args:
        text: a number of JSON.
    """
    mantissa, _, power = text.lower().partition("e")
    whole, point, fraction = mantissa.lstrip("-").partition(".")
    written = (whole + fraction).lstrip("0")
    digits = written.rstrip("0")
    limit = 10**15  # far above the exponents of all types
    exponent = len(written) - len(digits) - len(fraction) + _read_power(power, limit)
    sign = -1 if text.startswith("-") else 1
    if not digits:
        return WrittenNumber(sign, 0, 0, not point and not power)
    if len(digits) > MAX_DIGITS:  # the first digits are enough to see that
        digits, exponent = digits[: MAX_DIGITS - 1] + "1", exponent + len(digits) - MAX_DIGITS
    return WrittenNumber(sign, int(digits), exponent, not point and not power)


def _read_power(power: str, limit: int) -> int:
    digits = power.lstrip("+-").lstrip("0")
    number = limit if len(digits) > len(str(limit)) else min(int(digits or "0"), limit)
    return -number if power.startswith("-") else number


def fit_decimal(text: str, of: pa.Decimal128Type) -> Decimal | None:
    """Return a number as a decimal of this type; None if the type cannot hold it exactly.

    Args:
        text: the number as the document has it.
        of: the type.
    """
    number = split_number(text)
    power = number.exponent + of.scale
    if number.digits and (power < 0 or len(str(number.digits)) + power > of.precision):
        return None
    held = number.digits * 10**power if number.digits else 0
    return Decimal((int(number.sign < 0 and held > 0), tuple(map(int, str(held))), -of.scale))
