"""Columns of text in offsets: values separated by spaces, `value*n` for n equal values in a row."""

from collections.abc import Iterable
from itertools import groupby, repeat

from penstock.digits import read_u64

MAX_VALUES = 65536  # the wire names a vbucket by 16 bits


def encode_runs(values: Iterable[str]) -> str:
    """Return the values as a column."""
    runs = ((value, sum(1 for _ in run)) for value, run in groupby(values))
    return " ".join(f"{value}*{count}" if count > 1 else value for value, count in runs)


def decode_runs(column: object) -> list[str]:
    """Return the values of a column.

    Raises:
        ValueError: it is not text, a count is not a number, or there are more than MAX_VALUES values.
    """
    if not isinstance(column, str):
        raise ValueError(f"{column!r} is not a column")
    values: list[str] = []
    for run in column.split():
        value, star, count = run.partition("*")
        times = read_u64(count) if star else 1
        if len(values) + times > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} vbuckets")
        values += repeat(value, times)
    return values


def decode_numbers(column: object) -> list[int]:
    """Return the values of a column of numbers. Raises ValueError like `decode_runs` and `read_u64`."""
    return [read_u64(text) for text in decode_runs(column)]


def shorten_text(value: object) -> str:
    """Return a value as text of at most 80 characters, for an error."""
    text = str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
