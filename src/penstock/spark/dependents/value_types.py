"""The types of indexed values: which JSON values fit a type, and the columns that sort them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError

MISFIT_CHARACTERS = 100
"""How much is kept of the JSON of a value that does not fit."""
LONG = 1 << 63

_PLAIN_TIME = r"\A\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:\.\d{1,6})?Z?\z"


@dataclass(frozen=True, slots=True)
class ValueType:
    """One type. type: of the index's column. parsed: what Arrow's JSON reader is asked for. fit: a JSON value as the
    column's, None where it does not fit. convert: the same for a column that was parsed, None where one may not."""

    name: str
    type: pa.DataType
    parsed: pa.DataType
    fit: Callable[[Any], Any]
    convert: Callable[[pa.Array], pa.Array | None]

    def scalar(self, value: Any, what: str) -> pa.Scalar:
        """Return a bound of a search. Raises UsageError if it is no value of this type."""
        text = value.isoformat() if isinstance(value, datetime) else value
        fits = self.fit(text)
        if fits is None:
            raise UsageError(f"{what} is {value!r}; expected a {self.name}")
        return pa.scalar(fits, self.type)

    def of_text(self, text: str) -> Any:
        """Return the value that somebody typed: numbers and booleans as JSON has them, the text where it is neither."""
        if self.parsed == pa.string():
            return text
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return text if found is None else found


def value_type_of(name: str) -> ValueType:
    """Return the type of that name. Raises UsageError."""
    if name not in KINDS:
        raise UsageError(f"the type is {name!r}; expected one of {', '.join(KINDS)}")
    return KINDS[name]


def _string(value: Any) -> str | None:
    if not isinstance(value, str):
        return None
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair
        return None
    return value


def _double(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number + 0.0 if math.isfinite(number) else None  # -0.0 becomes 0.0


def _long(value: Any) -> int | None:
    fits = isinstance(value, int) and not isinstance(value, bool) and -LONG <= value < LONG
    return value if fits else None


def _boolean(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _timestamp(value: Any) -> datetime | None:
    """ISO 8601; without a zone it is UTC."""
    try:
        when = datetime.fromisoformat(value)
        return when.astimezone(UTC) if when.tzinfo is not None else when.replace(tzinfo=UTC)
    except (TypeError, ValueError, OverflowError):
        return None


def _finite(column: pa.Array) -> pa.Array | None:
    numbers = column.to_numpy(zero_copy_only=False)
    return pa.array(numbers + 0.0) if np.isfinite(numbers).all() else None


def _times(column: pa.Array) -> pa.Array | None:
    plain = pc.match_substring_regex(column, _PLAIN_TIME)
    if not pc.all(plain).as_py():
        return None
    try:
        naive = pc.utf8_rtrim(column, characters="Z").cast(pa.timestamp("us"))
    except pa.ArrowInvalid:
        return None
    return pc.assume_timezone(naive, "UTC")


def _same(column: pa.Array) -> pa.Array | None:
    return column


KINDS = {
    kind.name: kind
    for kind in (
        ValueType("string", pa.string(), pa.string(), _string, _same),
        ValueType("double", pa.float64(), pa.float64(), _double, _finite),
        ValueType("long", pa.int64(), pa.int64(), _long, _same),
        ValueType("boolean", pa.bool_(), pa.bool_(), _boolean, _same),
        ValueType("timestamp", pa.timestamp("us", "UTC"), pa.string(), _timestamp, _times),
    )
}
