"""Times and dates in JSON: one rule for typed columns and indexes.

A time is a text in one of these forms:

- The extended format of ISO 8601, with "T" or a blank before the hours: `2026-11-28T09:30:00.25+01:00`. Minutes are
required with hours, seconds are not. A fraction of a second follows a point or a comma. The offset is `Z`, `+hh:mm`,
`+hhmm` or `+hh`, up to 18 hours as in Java. "T" and "Z" may be small letters, as in RFC 3339.
- The basic format of ISO 8601: `20261128T083000Z`, with the same offsets.
- The format of RFC 1123: `Sat, 28 Nov 2026 08:30:00 GMT`. The weekday may be missing, but not be wrong. The offset is
GMT, UTC or `+hhmm`.

A time without an offset, and a date alone, is in UTC. Digits below a microsecond are zeros; with others the time is not
held exactly. Years are 1 to 9999, for times in UTC. `{"$date": ...}` of MongoDB is a time too: of a text, of
milliseconds since 1970, or of `{"$numberLong": "..."}`. A date is `2026-11-28` or `20261128`, without a time.

Numbers are times only where a rule names their unit. They have no fraction of a microsecond, and are dates if they are
whole days.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pyarrow as pa

from penstock.spark.values.json_decimals import split_number
from penstock.wire.values.json_value import NUMBER, RepeatedNames, write_number

TIMESTAMP, DATE = pa.timestamp("us", "UTC"), pa.date32()
"""The types of columns."""

_MILLISECOND_DIGITS = 3
"""Digits of a number of milliseconds that are a fraction of a second in microseconds."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
_OFFSET = r"(?:[Zz]|([+-])([0-9]{2})(?::?([0-5][0-9]))?)?"
_EXTENDED = re.compile(
    r"([0-9]{4})-([0-9]{2})-([0-9]{2})(?:[Tt ]([0-9]{2}):([0-9]{2})(?::([0-9]{2})(?:[.,]([0-9]+))?)?" + _OFFSET + ")?"
)
_BASIC = re.compile(
    r"([0-9]{4})([0-9]{2})([0-9]{2})(?:[Tt]([0-9]{2})([0-9]{2})(?:([0-9]{2})(?:[.,]([0-9]+))?)?" + _OFFSET + ")?"
)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_RFC1123 = re.compile(
    rf"(?:({'|'.join(_WEEKDAYS)}), )?([0-9]{{1,2}}) ({'|'.join(_MONTHS)}) ([0-9]{{4}})"
    r" ([0-9]{2}):([0-9]{2})(?::([0-9]{2}))? (?:GMT|UTC|([+-])([0-9]{2})([0-5][0-9]))",
    re.IGNORECASE | re.ASCII,
)
_MOST_OFFSET = timedelta(hours=18)


class InexactTime(ValueError):
    """A time that no TIMESTAMP holds exactly."""


def fit_timestamp(value: Any) -> datetime | None:
    """Return the time of `read_timestamp`; None also for a time that no TIMESTAMP holds exactly."""
    try:
        return read_timestamp(value)
    except InexactTime:
        return None


def read_timestamp(value: Any) -> datetime | None:
    """Return the time of a text or of a `$date` object in UTC; None for anything else.

    Args:
        value: a value of JSON.

    Raises:
        InexactTime: the value is a time that no TIMESTAMP holds exactly.
    """
    if isinstance(value, str):
        return _read_time(value)
    if not is_date_object(value):
        return None
    (inner,) = value.values()
    if isinstance(inner, str):
        return _read_time(inner)
    if isinstance(inner, dict) and list(inner) == ["$numberLong"] and not isinstance(inner, RepeatedNames):
        text = inner["$numberLong"]
        return _read_milliseconds(text) if isinstance(text, str) and NUMBER.fullmatch(text) else None
    is_number = isinstance(inner, int | float) and not isinstance(inner, bool)
    return _read_milliseconds(write_number(inner)) if is_number else None


def _read_milliseconds(text: str) -> datetime:
    at = fit_unix_time(text, _MILLISECOND_DIGITS)
    if at is None:
        raise InexactTime(text)
    return at


def is_date_object(value: Any) -> bool:
    """Return whether a value is an object with the only field `$date`."""
    return isinstance(value, dict) and list(value) == ["$date"] and not isinstance(value, RepeatedNames)


def _read_time(text: str) -> datetime | None:
    match = _EXTENDED.fullmatch(text) or _BASIC.fullmatch(text)
    if match is not None:
        *units, fraction, sign, hours, minutes = match.groups("0")
        at = _make_time([*units, fraction[:6].ljust(6, "0")], sign, hours, minutes)
        if at is not None and fraction[6:].strip("0"):
            raise InexactTime(text)
        return at
    match = _RFC1123.fullmatch(text)
    if match is None:
        return None
    weekday, day, month, year, *units, sign, hours, minutes = match.groups("0")
    date_units = [year, str(_MONTHS.index(month.lower()) + 1), day]
    local = _make_time(date_units)
    if local is None or (weekday != "0" and _WEEKDAYS[local.weekday()] != weekday.lower()):
        return None
    return _make_time([*date_units, *units], sign, hours, minutes)


def _make_time(units: Sequence[str], sign: str = "+", hours: str = "0", minutes: str = "0") -> datetime | None:
    """Return the time in UTC.

    Args:
        units: year, month and so on, to the microsecond.
        sign: of the offset; any but "-" is plus.
        hours: of the offset.
        minutes: of the offset.
    """
    year, month, day, *clock = map(int, units)
    offset = timedelta(hours=int(hours), minutes=int(minutes))
    try:
        when = datetime(year, month, day, *clock, tzinfo=UTC)  # type: ignore[misc, arg-type]
        at = when + offset if sign == "-" else when - offset
    except (ValueError, OverflowError):
        return None
    return at if offset <= _MOST_OFFSET else None


def fit_date(value: Any) -> date | None:
    """Return the date of a text; None for anything else."""
    if not isinstance(value, str) or not re.fullmatch(rf"{_DATE}|[0-9]{{8}}", value):
        return None
    at = _read_time(value)
    return None if at is None else at.date()


def fit_unix_time(text: str, unit_digits: int) -> datetime | None:
    """Return the time of a number since 1970; None if it is not in the years 1 to 9999, or no whole microsecond.

    Args:
        text: a number of JSON.
        unit_digits: how many digits of a fraction of the unit are microseconds: 6 for seconds.
    """
    most_digits = 18
    number = split_number(text)
    power = number.exponent + unit_digits
    if number.digits and (power < 0 or len(str(number.digits)) + power > most_digits):
        return None
    try:
        return _EPOCH + timedelta(
            microseconds=number.sign * number.digits * 10 ** max(power, 0) if number.digits else 0
        )
    except OverflowError:
        return None


def fit_unix_date(text: str, unit_digits: int) -> date | None:
    """Return the date of a number since 1970 that is whole days in UTC, as `fit_unix_time` does."""
    at = fit_unix_time(text, unit_digits)
    return at.date() if at is not None and at.timetz() == _EPOCH.timetz() else None
