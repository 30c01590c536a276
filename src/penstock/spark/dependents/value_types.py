"""The types of indexed values: which JSON values fit a type, and the columns that sort them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any

import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.values.json_decimals import fit_decimal
from penstock.spark.values.json_times import DATE, TIMESTAMP, fit_date, fit_timestamp
from penstock.spark.values.json_types import MAX_DIGITS
from penstock.wire.values.json_value import NUMBER, WrittenFloat, is_text, parse_written_json

_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)", re.IGNORECASE)

MISFIT_CHARACTERS = 100
"""Characters that are kept of the JSON of a value that does not fit."""
LONG = 1 << 63
_WRITTEN_AS_TEXT = (pa.string(), TIMESTAMP, DATE)
"""Types whose values users type as they are, without quotes."""
_IS_NOT_ZERO = re.compile("[-0.]*[1-9]")


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type of indexed values.

    Attributes:
        name: the name that users write.
        type: the type of the index's column.
        fit: returns the column's value for a JSON value, None if the JSON value does not fit.
    """

    name: str
    type: pa.DataType
    fit: Callable[[Any], Any]

    def convert_bound(self, value: Any, subject: str) -> pa.Scalar:
        """Return a bound of a search.

        Args:
            value: the value of the caller.
            subject: the name of the bound for the error.

        Returns:
            The bound in the type of the column.

        Raises:
            UsageError: the value has another type.
        """
        text = value.isoformat() if isinstance(value, date) else value
        fits = self.fit(text)
        if fits is None:
            raise UsageError(f"{subject} is {value!r}; expected a {self.name}")
        return pa.scalar(fits, self.type)

    def parse_text(self, text: str) -> Any:
        """Return the value that a user typed: a number or boolean if the text is one in JSON, otherwise the text."""
        if self.type in _WRITTEN_AS_TEXT:
            return text
        try:
            found = parse_written_json(text.encode(errors="replace"))
        except ValueError:
            return text
        return text if found is None else found


def find_value_type(name: str) -> ValueType:
    """Return the type with this name.

    Args:
        name: string, double, long, boolean, timestamp, date, or decimal(p, s): all digits, and those after the point.

    Returns:
        The type.

    Raises:
        UsageError: the name is unknown, or a decimal has other digits than Spark's.
    """
    if name in VALUE_TYPES:
        return VALUE_TYPES[name]
    match = _DECIMAL.fullmatch(name)
    if match is None:
        raise UsageError(f"the type is {name!r}; expected one of {', '.join(VALUE_TYPES)}, decimal(p, s)")
    precision, scale = int(match[1]), int(match[2])
    if not 1 <= precision <= MAX_DIGITS or scale > precision:
        raise UsageError(f"the type is {name!r}; expected 1 to {MAX_DIGITS} digits, not more of them after the point")
    return _make_decimal(pa.decimal128(precision, scale))


def _make_decimal(of: pa.Decimal128Type) -> ValueType:
    return ValueType(f"decimal({of.precision}, {of.scale})", of, partial(_fit_decimal, of))


def _fit_decimal(of: pa.Decimal128Type, value: Any) -> Decimal | None:
    """Return a number, or the number in a text, as a decimal if it is one exactly.

    A float without its text is none: its digits are unknown.
    """
    if isinstance(value, WrittenFloat):
        return fit_decimal(value.text, of)
    if isinstance(value, str):
        return fit_decimal(value, of) if NUMBER.fullmatch(value) else None
    is_exact = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return fit_decimal(str(value), of) if is_exact else None


def _fit_string(value: Any) -> str | None:
    return value if isinstance(value, str) and is_text(value) else None


def _fit_double(value: Any) -> float | None:
    """Return a number as a double, in which a fraction may be rounded: bounds of searches are rounded alike.

    None for a whole number that would be rounded, and for a number that would become infinite or 0.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        held = float(value)
    except OverflowError:
        return None
    if not math.isfinite(held) or (isinstance(value, int) and int(held) != value):
        return None
    if held == 0 and isinstance(value, WrittenFloat) and _IS_NOT_ZERO.match(value.text):
        return None
    return held + 0.0  # -0.0 becomes 0.0


def _fit_long(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and -LONG <= value < LONG
    return value if fits else None


def _fit_boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


VALUE_TYPES = {
    kind.name: kind
    for kind in (
        ValueType("string", pa.string(), _fit_string),
        ValueType("double", pa.float64(), _fit_double),
        ValueType("long", pa.int64(), _fit_long),
        ValueType("boolean", pa.bool_(), _fit_boolean),
        ValueType("timestamp", TIMESTAMP, fit_timestamp),
        ValueType("date", DATE, fit_date),
    )
}
