"""Options of a read with a grammar of their own: columns and vbuckets."""

from __future__ import annotations

from penstock.errors import UsageError
from penstock.wire.columns.schema import CHANGE_SCHEMA

__all__ = ["columns_of", "vbuckets_of"]

_MOST_VBUCKETS = 65536


def columns_of(name: str, text: str) -> tuple[str, ...]:
    names = tuple(each.strip() for each in text.split(","))
    if unknown := [each for each in names if each not in CHANGE_SCHEMA.names]:
        raise UsageError(f"option {name} has {unknown[0]!r}, expected some of {', '.join(CHANGE_SCHEMA.names)}")
    if twice := [each for each in names if names.count(each) > 1]:
        raise UsageError(f"option {name} has {twice[0]} twice, expected it once")
    return names


def vbuckets_of(name: str, text: str) -> tuple[int, ...]:
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
