"""Numbers in statistics, which servers send as text."""

from __future__ import annotations

from penstock.errors import RemoteProtocolError

__all__ = ["read_number"]

_MAX_U64, _MOST_DIGITS, _SHOWN = 2**64 - 1, 20, 40


def read_number(name: str, text: str) -> int:
    """Return a statistic as a number from 0 to 2^64 - 1. Raises RemoteProtocolError for any other text."""
    is_number = text.isascii() and text.isdecimal() and len(text) <= _MOST_DIGITS
    number = int(text) if is_number else _MAX_U64 + 1
    if number > _MAX_U64:
        raise RemoteProtocolError(f"statistic {name} is {text[:_SHOWN]!r}, expected a number from 0 to 2^64 - 1")
    return number
