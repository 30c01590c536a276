"""Columns of text: values with a space between them, `value*n` for n equal ones in a row, as offsets have them."""

from collections.abc import Iterable
from itertools import groupby, repeat

__all__ = ["brief", "join", "number", "numbers", "split"]

MAX_VALUES = 65536  # the wire names a vbucket by 16 bits


def join(values: Iterable[str]) -> str:
    runs = ((value, sum(1 for _ in run)) for value, run in groupby(values))
    return " ".join(f"{value}*{count}" if count > 1 else value for value, count in runs)


def split(column: object) -> list[str]:
    """Raises ValueError."""
    if not isinstance(column, str):
        raise ValueError(f"{column!r} is not a column")
    values: list[str] = []
    for run in column.split():
        value, star, count = run.partition("*")
        times = number(count) if star else 1
        if len(values) + times > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} vbuckets")
        values += repeat(value, times)
    return values


def numbers(column: object) -> list[int]:
    return [number(text) for text in split(column)]


def number(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 20 and int(text) < 2**64):
        raise ValueError(f"{text!r} is not a number from 0 to 2^64-1")
    return int(text)


def brief(value: object) -> str:
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
