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

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.values.json_batches import SMALL_NUMBERS
from penstock.spark.values.json_decimals import UNSAFE_NUMBERS, fit_decimal, narrow_decimals, widen_decimal
from penstock.spark.values.json_times import DATE, TIMESTAMP, convert_dates, convert_timestamps, fit_date, fit_timestamp
from penstock.spark.values.json_types import MAX_DIGITS
from penstock.wire.values.json_value import WrittenFloat, is_text, parse_written_json

_DECIMAL = re.compile(r"decimal\(\s*([0-9]{1,9})\s*,\s*([0-9]{1,9})\s*\)", re.IGNORECASE)

MISFIT_CHARACTERS = 100
"""Characters that are kept of the JSON of a value that does not fit."""
LONG = 1 << 63
EXACT_INTEGERS = 1 << 53
"""Up to here every integer is a double."""
_IS_NOT_ZERO = re.compile("[-0.]*[1-9]")


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type of indexed values.

    Attributes:
        name: the name that users write.
        type: the type of the index's column.
        parsed: the type that Arrow's JSON reader is asked for.
        fit: returns the column's value for a JSON value, None if the JSON value does not fit.
        convert: does the same for a parsed column; returns None if one of its values does not fit.
        unsafe: the pattern of documents that Arrow's reader must not get, in addition to those of all types.
    """

    name: str
    type: pa.DataType
    parsed: pa.DataType
    fit: Callable[[Any], Any]
    convert: Callable[[pa.Array], pa.Array | None]
    unsafe: str = ""

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
        if self.parsed == pa.string():
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
    return ValueType(
        f"decimal({of.precision}, {of.scale})",
        of,
        widen_decimal(of),
        partial(_fit_decimal, of),
        partial(_convert_decimals, of),
        UNSAFE_NUMBERS,
    )


def _fit_decimal(of: pa.Decimal128Type, value: Any) -> Decimal | None:
    """Return a number as a decimal if it is one exactly. A float without its text is none: its digits are unknown."""
    if isinstance(value, WrittenFloat):
        return fit_decimal(value.text, of)
    is_exact = isinstance(value, int | Decimal) and not isinstance(value, bool)
    return fit_decimal(str(value), of) if is_exact else None


def _convert_decimals(of: pa.Decimal128Type, column: pa.Array) -> pa.Array | None:
    decimals = narrow_decimals(column, of)
    return None if decimals.null_count else decimals


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


def _convert_exact(column: pa.Array) -> pa.Array | None:
    """Return doubles; None if one may be a whole number that was rounded, or is infinite or NaN."""
    numbers = column.to_numpy(zero_copy_only=False)
    return pa.array(numbers + 0.0) if (np.abs(numbers) < EXACT_INTEGERS).all() else None


def _convert_times(column: pa.Array) -> pa.Array | None:
    times = convert_timestamps(column)
    return None if times.null_count else times


def _convert_days(column: pa.Array) -> pa.Array | None:
    days = convert_dates(column)
    return None if days.null_count else days


def _keep_column(column: pa.Array) -> pa.Array | None:
    return column


VALUE_TYPES = {
    kind.name: kind
    for kind in (
        ValueType("string", pa.string(), pa.string(), _fit_string, _keep_column),
        ValueType("double", pa.float64(), pa.float64(), _fit_double, _convert_exact, SMALL_NUMBERS),
        ValueType("long", pa.int64(), pa.int64(), _fit_long, _keep_column),
        ValueType("boolean", pa.bool_(), pa.bool_(), _fit_boolean, _keep_column),
        ValueType("timestamp", TIMESTAMP, pa.string(), fit_timestamp, _convert_times),
        ValueType("date", DATE, pa.string(), fit_date, _convert_days),
    )
}
