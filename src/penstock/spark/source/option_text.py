"""How an option's text is read: each of these takes its name and its text, and raises UsageError for what cannot be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from penstock.client.connect.address import ConnectionOptions, outside_name
from penstock.errors import UsageError
from penstock.wire.columns.schema import CHANGE_SCHEMA

__all__ = ["any_text", "as_in_a_url", "columns", "not_empty", "one_of", "option_text", "positive", "size", "vbuckets"]

_MOST_VBUCKETS = 65536


def any_text(name: str, text: str) -> str:
    return text


def not_empty(name: str, text: str) -> str:
    if not text:
        raise UsageError(f"option {name} is empty")
    return text


def positive(name: str, text: str) -> int:
    if not (text.isascii() and text.isdecimal() and 0 < len(text) <= 18 and int(text) > 0):
        raise UsageError(f"option {name} is {text!r}, expected a whole number above 0")
    return int(text)


_UNITS = {"k": 10, "m": 20, "g": 30}


def size(name: str, text: str) -> int:
    number, unit = (text[:-1], text[-1:].lower()) if text[-1:].lower() in _UNITS else (text, "")
    if not (number.isascii() and number.isdecimal() and len(number) <= 18 and int(number) > 0):
        raise UsageError(f"option {name} is {text!r}, expected bytes as a whole number above 0, or with k, m or g")
    return int(number) << _UNITS.get(unit, 0)


def one_of(*known: str) -> Callable[[str, str], str]:
    def read(name: str, text: str) -> str:
        if text not in known:
            raise UsageError(f"option {name} is {text!r}, expected {', '.join(known[:-1])} or {known[-1]}")
        return text

    return read


def as_in_a_url(name: str, text: str) -> Any:
    """Read what the connection string may say as well."""
    fields = {outside_name(field): field for field in ConnectionOptions.__dataclass_fields__}
    return getattr(ConnectionOptions.from_text({name: text}), fields[name])


def columns(name: str, text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if unknown := [each for each in names if each not in CHANGE_SCHEMA.names]:
        raise UsageError(f"option {name} has {unknown[0]!r}, expected some of {', '.join(CHANGE_SCHEMA.names)}")
    if twice := [each for each in names if names.count(each) > 1]:
        raise UsageError(f"option {name} has {twice[0]} twice, expected it once")
    return names


def vbuckets(name: str, text: str) -> tuple[int, ...]:
    """Read numbers and ranges: `0-15,40` has 17 vbuckets."""
    found: set[int] = set()
    for part in text.split(","):
        first, dash, last = part.strip().partition("-")
        bounds = [first, last] if dash else [first]
        if not all(each.isascii() and each.isdecimal() and len(each) <= 5 for each in bounds):
            raise UsageError(f"option {name} is {text!r}, expected numbers and ranges of them as 0-15,40")
        low, high = int(bounds[0]), int(bounds[-1])
        if not low <= high < _MOST_VBUCKETS:
            raise UsageError(f"option {name} has {part.strip()!r}, expected 0 to {_MOST_VBUCKETS - 1}, the lower first")
        found |= {*range(low, high + 1)}
    return tuple(sorted(found))


def option_text(value: object) -> str:
    """Return a value of a pipeline's file as the text of an option."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, tuple) else str(value)
