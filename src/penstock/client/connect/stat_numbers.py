"""Numbers in statistics, which servers send as text."""

from __future__ import annotations

import re
from collections.abc import Mapping

from penstock.errors import RemoteProtocolError

_MAX_U64, _MOST_DIGITS, _SHOWN = 2**64 - 1, 20, 40
_DECIMAL = re.compile(r"\d{1,20}(\.\d{1,20})?", re.ASCII)


def read_number(name: str, text: str) -> int:
    """Return a statistic as a number from 0 to 2^64 - 1. Raises RemoteProtocolError for any other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    number = int(text) if is_number else _MAX_U64 + 1
    if number > _MAX_U64:
        raise RemoteProtocolError(f"statistic {name} is {text[:_SHOWN]!r}, expected a number from 0 to 2^64 - 1")
    return number


def find_number(stats: Mapping[str, str], name: str) -> int | None:
    """Return a statistic as `read_number` does; None if it is missing or no such number."""
    try:
        return read_number(name, stats[name])
    except (KeyError, RemoteProtocolError):
        return None


def find_decimal(stats: Mapping[str, str], name: str) -> float | None:
    """Return a statistic as a number that may have a fraction; None if it is missing or no such number."""
    text = stats.get(name, "")
    return float(text) if _DECIMAL.fullmatch(text) else None
