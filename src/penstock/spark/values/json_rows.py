"""JSON documents one by one, with Python's own parser: the fields of a schema, and the text of the rest.

It is slower than the parser of whole batches in json_columns, but exact. It decides about every value that the other
leaves.
"""

from __future__ import annotations

import base64
import json
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date
from decimal import Decimal
from threading import RLock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.spark.values.json_decimals import fit_decimal
from penstock.spark.values.json_times import DATE, TIMESTAMP, fit_date, fit_timestamp
from penstock.spark.values.json_types import map_fields

__all__ = ["EXACT_INTEGERS", "MAX_LEVELS", "Member", "WrittenFloat", "is_text", "parse_rows", "read_members"]

Fields: TypeAlias = Mapping[str, pa.DataType]

EXACT_INTEGERS = {pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to here every integer is a number of the type."""


class Member(NamedTuple):
    """A field of a JSON object.

    Attributes:
        name: the name.
        value: the value.
        written_name: the name as the document has it, with quotes and escapes.
        written: the value as the document has it.
    """

    name: str
    value: Any
    written_name: str
    written: str


class _RepeatedNames(dict[str, Any]):
    """An object that had a name twice; it keeps only the last value."""


def _make_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _RepeatedNames(found)


class WrittenFloat(float):
    """A number with a point or an exponent, with its text: a decimal is made of the text, not of the float."""

    __slots__ = ("text",)
    text: str

    def __new__(cls, text: str) -> WrittenFloat:
        """Return the number that a text is."""
        number = super().__new__(cls, text)
        number.text = text
        return number


def _parse_integer(text: str) -> int | float:
    return (
        int(text) if len(text) < 1000 else math.inf
    )  # Python refuses to parse very long integers, and no column holds one


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not JSON")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_make_object,
    parse_int=_parse_integer,
    parse_float=WrittenFloat,
    parse_constant=_refuse_constant,
)
MAX_LEVELS = 1000
"""The most levels of a document. It is fixed: Python's own limit depends on its version and on the stack."""
_USUAL_LEVELS = 100
"""Levels for which every stack has room."""
_RAISING = RLock()
"""Held while Python's limit is raised, so that no other thread lowers it meanwhile."""
_BRACKETS = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)
_SPACE = re.compile(r"[ \t\n\r]*")


def parse_rows(values: pa.BinaryArray, of: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the fields of documents and the rest, like `json_columns.parse`.

    Args:
        values: documents without nulls.
        of: the fields and their types.
    """
    fields = map_fields(of)
    documents: list[dict[str, Any] | None] = []
    rest: list[str | None] = []
    for value in values.to_pylist():
        try:
            text = value.decode()
        except UnicodeDecodeError:
            documents.append(None)
            rest.append(json.dumps({"_binary": base64.b64encode(value).decode()}))
            continue
        with _allow_depth(text):
            members = read_members(text)
            document, left = (None, text) if members is None else _fit_members(members, fields)
        documents.append(document)
        rest.append(left)
    return pa.array(documents, of), pa.array(rest, pa.string())


def read_members(text: str) -> list[Member] | None:
    """Return the fields of a JSON object, in order; None for other text, or for objects that are too deep to read."""
    start = _skip_space(text, 0)
    if text[start : start + 1] != "{" or _is_too_deep(text):
        return None
    try:
        with _allow_depth(text):
            members, end = _read_object(text, start)
    except ValueError:
        return None
    return members if _skip_space(text, end) == len(text) else None


def _count_opened(text: str) -> int:
    return text.count("{") + text.count("[")


def _is_too_deep(text: str) -> bool:
    """Return whether JSON has more than MAX_LEVELS levels."""
    if _count_opened(text) <= MAX_LEVELS:
        return False
    depth = 0
    for match in _BRACKETS.finditer(text):
        depth += {"{": 1, "[": 1, "}": -1, "]": -1}.get(match[0], 0)
        if depth > MAX_LEVELS:
            return True
    return False


@contextmanager
def _allow_depth(text: str) -> Iterator[None]:
    """Let Python's parser read all levels of a text, however deep the stack of the caller is.

    Args:
        text: the text.

    Yields:
        Once, for the parser.
    """
    if _count_opened(text) <= _USUAL_LEVELS:
        yield
        return
    with _RAISING:
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + 2 * MAX_LEVELS)
        try:
            yield
        finally:
            sys.setrecursionlimit(limit)


def _read_object(text: str, start: int) -> tuple[list[Member], int]:
    """Return the fields of the object that starts at `start`, and the position after its end.

    Raises:
        ValueError: the text there is not a JSON object.
    """
    members: list[Member] = []
    at = _skip_space(text, start + 1)
    while text[at : at + 1] != "}" or members:
        if text[at : at + 1] != '"':
            raise ValueError("no name")
        begin = at
        name, at = _DECODER.raw_decode(text, at)
        written_name = text[begin:at]
        at = _skip_space(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        begin = _skip_space(text, at + 1)
        value, at = _DECODER.raw_decode(text, begin)
        members.append(Member(name, value, written_name, text[begin:at]))
        at = _skip_space(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip_space(text, at + 1)
    return members, at + 1


def _skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _fit_members(members: Sequence[Member], fields: Fields) -> tuple[dict[str, Any], str | None]:
    """Return the values that fit, and the text of the others; None if all fit."""
    last = {member.name: at for at, member in enumerate(members)}
    values: dict[str, Any] = {}
    left: list[str] = []
    for at, (name, value, written_name, written) in enumerate(members):
        of = fields.get(name)
        if value is None:
            continue
        if of is None or last[name] != at:
            left.append(f"{written_name}:{written}")
        elif pa.types.is_struct(of) and isinstance(value, dict):
            values[name], inner = _fit_members(_read_object(written, 0)[0], map_fields(of))
            left += [] if inner is None else [f"{written_name}:{inner}"]
        else:
            values[name], fits = _fit_value(value, of)
            left += [] if fits else [f"{written_name}:{written}"]
    return values, f"{{{','.join(left)}}}" if left else None


def _fit_value(value: Any, of: pa.DataType) -> tuple[Any, bool]:
    """Return the part of a value that has the type, and whether it is the whole value."""
    if value is None:
        return None, True
    if pa.types.is_list(of) and isinstance(value, list):
        parts = [_fit_value(element, of.value_type) for element in value]
        return [part for part, _ in parts], all(fits for _, fits in parts)
    if pa.types.is_struct(of) and isinstance(value, dict):
        fields = map_fields(of)
        inside = {name: _fit_value(value.get(name), field) for name, field in fields.items()}
        named = all(name in fields or each is None for name, each in value.items())
        fits = named and not isinstance(value, _RepeatedNames) and all(fits for _, fits in inside.values())
        return {name: part for name, (part, _) in inside.items()}, fits
    held = _fit_scalar(value, of)
    return held, held is not None


def _fit_scalar(value: Any, of: pa.DataType) -> bool | int | float | str | date | Decimal | None:
    """Return the value that a column of the type holds; None if it cannot hold the value."""
    if isinstance(value, bool):
        return value if pa.types.is_boolean(of) else None
    if isinstance(value, str):
        return _fit_text(value, of)
    if isinstance(value, int | float):
        return _fit_number(value, of)
    return None


def _fit_text(value: str, of: pa.DataType) -> str | date | None:
    if of == TIMESTAMP:
        return fit_timestamp(value)
    if of == DATE:
        return fit_date(value)
    return value if pa.types.is_string(of) and is_text(value) else None


def _fit_number(value: int | float, of: pa.DataType) -> int | float | Decimal | None:
    if isinstance(value, int) and pa.types.is_integer(of):
        return value if -(2 ** (of.bit_width - 1)) <= value < 2 ** (of.bit_width - 1) else None
    if pa.types.is_decimal(of):
        return fit_decimal(value.text if isinstance(value, WrittenFloat) else str(value), of)
    if of not in EXACT_INTEGERS:
        return None
    try:
        with np.errstate(over="ignore"):
            held = float(of.to_pandas_dtype()(float(value)))
    except OverflowError:
        return None
    return held if math.isfinite(held) and (isinstance(value, float) or int(held) == value) else None


def is_text(value: str) -> bool:
    """Return whether a string has no half of a surrogate pair, which a JSON escape can write."""
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which a JSON escape can write
        return False
    return True
