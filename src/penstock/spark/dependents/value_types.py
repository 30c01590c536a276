"""The types of indexed values: which JSON values fit a type, and the columns that sort them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.errors import UsageError
from penstock.spark.values.json_times import DATE, TIMESTAMP, convert_dates, convert_timestamps, fit_date, fit_timestamp

MISFIT_CHARACTERS = 100
"""Characters that are kept of the JSON of a value that does not fit."""
LONG = 1 << 63


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type of indexed values.

    Attributes:
        name: the name that users write.
        type: the type of the index's column.
        parsed: the type that Arrow's JSON reader is asked for.
        fit: returns the column's value for a JSON value, None if the JSON value does not fit.
        convert: does the same for a parsed column; returns None if one of its values does not fit.
    """

    name: str
    type: pa.DataType
    parsed: pa.DataType
    fit: Callable[[Any], Any]
    convert: Callable[[pa.Array], pa.Array | None]

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
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return text if found is None else found


def find_value_type(name: str) -> ValueType:
    """Return the type with this name.

    Args:
        name: string, double, long, boolean, timestamp or date.

    Returns:
        The type.

    Raises:
        UsageError: the name is unknown.
    """
    if name not in VALUE_TYPES:
        raise UsageError(f"the type is {name!r}; expected one of {', '.join(VALUE_TYPES)}")
    return VALUE_TYPES[name]


def _fit_string(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return value


def _fit_double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number + 0.0 if math.isfinite(number) else None  # -0.0 becomes 0.0


def _fit_long(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and -LONG <= value < LONG
    return value if fits else None


def _fit_boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _convert_finite(column: pa.Array) -> pa.Array | None:
    numbers = column.to_numpy(zero_copy_only=False)
    return pa.array(numbers + 0.0) if np.isfinite(numbers).all() else None


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
        ValueType("double", pa.float64(), pa.float64(), _fit_double, _convert_finite),
        ValueType("long", pa.int64(), pa.int64(), _fit_long, _keep_column),
        ValueType("boolean", pa.bool_(), pa.bool_(), _fit_boolean, _keep_column),
        ValueType("timestamp", TIMESTAMP, pa.string(), fit_timestamp, _convert_times),
        ValueType("date", DATE, pa.string(), fit_date, _convert_days),
    )
}
