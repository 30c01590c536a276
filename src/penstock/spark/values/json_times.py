"""Times and dates in the text of JSON: one rule for typed columns and indexes.

A time is the extended format of ISO 8601, with "T" or a blank before the hours: `2026-11-28T09:30:00.25+01:00`. Minutes
are required with hours, seconds are not. The offset is `Z`, `+hh:mm`, `+hhmm` or `+hh`, up to 18 hours as in Java. A
time without an offset, and a date alone, is in UTC. Digits below a microsecond are cut off, as Spark does. A date is
`2026-11-28`, without a time. Years are 1 to 9999, for times in UTC.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["DATE", "TIMESTAMP", "convert_dates", "convert_timestamps", "fit_date", "fit_timestamp"]

TIMESTAMP, DATE = pa.timestamp("us", "UTC"), pa.date32()
"""The types of columns."""

_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_TIME = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})"
    r"(?:[T ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:\.([0-9]+))?)?"
    r"(?:Z|([+-])([0-9]{2})(?::?([0-5][0-9]))?)?)?"
)
_MOST_OFFSET = timedelta(hours=18)

# Arrow's casts read these forms exactly as `_TIME` does, but refuse a whole column for one odd value.
_PLAIN_SECONDS = rf"\A{_DATE}[T ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]{{1,6}})?"
_NAIVE_COLUMN = rf"{_PLAIN_SECONDS}Z?\z"
_OFFSET_COLUMN = rf"{_PLAIN_SECONDS}(?:Z|[+-](?:0[0-9]|1[0-7]):[0-5][0-9])\z"
_DATE_COLUMN = rf"\A{_DATE}\z"


def fit_timestamp(value: Any) -> datetime | None:
    """Return the time of a text in UTC; None for anything else."""
    match = _TIME.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        return None
    *units, fraction, sign, hours, minutes = match.groups("0")
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        year, month, day, hour, minute, second = map(int, units)
        when = datetime(year, month, day, hour, minute, second, int(fraction[:6].ljust(6, "0")), UTC)
        at = when + offset if sign == "-" else when - offset
    except (ValueError, OverflowError):
        return None
    return at if offset <= _MOST_OFFSET else None


def fit_date(value: Any) -> date | None:
    """Return the date of a text; None for anything else."""
    if not isinstance(value, str) or not re.fullmatch(_DATE, value):
        return None
    try:
        return date.fromisoformat(value)
    except ValueError:
        return None


def convert_timestamps(texts: pa.StringArray) -> pa.TimestampArray:
    """Return the times of texts, null where a text is none."""
    if _match_all(texts, _NAIVE_COLUMN):
        trimmed = pc.utf8_rtrim(texts, characters="Z")
        times = _cast_column(trimmed, pa.timestamp("us"))
        times = None if times is None else pc.assume_timezone(times, "UTC")
    else:
        times = _cast_column(texts, TIMESTAMP) if _match_all(texts, _OFFSET_COLUMN) else None
    return _fit_each(texts, fit_timestamp, TIMESTAMP) if times is None else times


def convert_dates(texts: pa.StringArray) -> pa.Date32Array:
    """Return the dates of texts, null where a text is none."""
    dates = _cast_column(texts, DATE) if _match_all(texts, _DATE_COLUMN) else None
    return _fit_each(texts, fit_date, DATE) if dates is None else dates


def _match_all(texts: pa.StringArray, pattern: str) -> bool:
    return pc.all(pc.match_substring_regex(texts, pattern)).as_py() is not False


def _cast_column(texts: pa.StringArray, of: pa.DataType) -> pa.Array | None:
    """Return the cast of a column; None if a value is invalid, or outside of the years 1 to 9999."""
    try:
        found = texts.cast(of)
    except pa.ArrowInvalid:
        return None
    bounds = pc.min_max(found.cast(pa.int32() if of == DATE else pa.int64()))
    years = pc.year(pa.array([bounds["min"], bounds["max"]]).cast(of)).to_pylist()
    return found if all(year is None or 1 <= year <= 9999 for year in years) else None


def _fit_each(texts: pa.StringArray, fit: Callable[[Any], Any], of: pa.DataType) -> pa.Array:
    return pa.array([fit(text) for text in texts.to_pylist()], of)
