"""JSON documents one by one, by Python's own parser: what fits a schema, and the text of the rest.

Slower than the parser of whole batches in json_columns, and exact: it decides about every value that the other leaves.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.spark.values.json_types import fields_of

__all__ = ["EXACT", "Member", "is_text", "members_of", "parse_rows"]

Fields: TypeAlias = Mapping[str, pa.DataType]

EXACT = {pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to here every integer is a number of the type."""


class Member(NamedTuple):
    """A field of a JSON object: its name, its value, and both as they are written."""

    name: str
    value: Any
    written_name: str
    written: str


class _Repeated(dict[str, Any]):
    """An object that has a name twice, and only the last value of it here."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    return found if len(found) == len(pairs) else _Repeated(found)


def _integer(text: str) -> int | float:
    return int(text) if len(text) < 1000 else math.inf  # Python refuses to read very long ones; no column holds one


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON")


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_constant=_no_constant)
_SPACE = re.compile(r"[ \t\n\r]*")


def parse_rows(values: pa.BinaryArray, of: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the fields of documents without nulls, and what did not fit: as `json_columns.parse`."""
    fields = fields_of(of)
    documents: list[dict[str, Any] | None] = []
    rest: list[str | None] = []
    for value in values.to_pylist():
        try:
            text = value.decode()
        except UnicodeDecodeError:
            documents.append(None)
            rest.append(json.dumps({"_binary": base64.b64encode(value).decode()}))
            continue
        members = members_of(text)
        if members is None:
            documents.append(None)
            rest.append(text)
            continue
        document, left = _fitted(members, fields)
        documents.append(document)
        rest.append(left)
    return pa.array(documents, of), pa.array(rest, pa.string())


def members_of(text: str) -> list[Member] | None:
    """Return the fields of a JSON object, in order; None for text that is none, or deeper than can be read."""
    start = _skip(text, 0)
    if text[start : start + 1] != "{":
        return None
    try:
        members, end = _members(text, start)
    except (ValueError, RecursionError):
        return None
    return members if _skip(text, end) == len(text) else None


def _members(text: str, start: int) -> tuple[list[Member], int]:
    """Return the fields of the object that begins at `start`, and where it ends. Raises ValueError."""
    members: list[Member] = []
    at = _skip(text, start + 1)
    while text[at : at + 1] != "}" or members:
        if text[at : at + 1] != '"':
            raise ValueError("no name")
        begin = at
        name, at = _DECODER.raw_decode(text, at)
        written_name = text[begin:at]
        at = _skip(text, at)
        if text[at : at + 1] != ":":
            raise ValueError("no colon")
        begin = _skip(text, at + 1)
        value, at = _DECODER.raw_decode(text, begin)
        members.append(Member(name, value, written_name, text[begin:at]))
        at = _skip(text, at)
        if text[at : at + 1] == "}":
            break
        if text[at : at + 1] != ",":
            raise ValueError("no comma")
        at = _skip(text, at + 1)
    return members, at + 1


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def _fitted(members: Sequence[Member], fields: Fields) -> tuple[dict[str, Any], str | None]:
    """Return the values that fit, and the text of what does not, None if that is nothing."""
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
            values[name], inner = _fitted(_members(written, 0)[0], fields_of(of))
            left += [] if inner is None else [f"{written_name}:{inner}"]
        else:
            values[name], fits = _fit(value, of)
            left += [] if fits else [f"{written_name}:{written}"]
    return values, f"{{{','.join(left)}}}" if left else None


def _fit(value: Any, of: pa.DataType) -> tuple[Any, bool]:
    """Return what of a value is of a type, and whether that is all of it."""
    if value is None:
        return None, True
    if pa.types.is_list(of) and isinstance(value, list):
        parts = [_fit(element, of.value_type) for element in value]
        return [part for part, _ in parts], all(fits for _, fits in parts)
    if pa.types.is_struct(of) and isinstance(value, dict):
        fields = fields_of(of)
        inside = {name: _fit(value.get(name), field) for name, field in fields.items()}
        named = all(name in fields or each is None for name, each in value.items())
        fits = named and not isinstance(value, _Repeated) and all(fits for _, fits in inside.values())
        return {name: part for name, (part, _) in inside.items()}, fits
    held = _held(value, of)
    return held, held is not None


def _held(value: Any, of: pa.DataType) -> bool | int | float | str | None:
    """Return a value as a column of the type holds it, None if it does not."""
    if isinstance(value, bool):
        return value if pa.types.is_boolean(of) else None
    if isinstance(value, str):
        return value if pa.types.is_string(of) and is_text(value) else None
    if isinstance(value, int) and pa.types.is_integer(of):
        return value if -(2 ** (of.bit_width - 1)) <= value < 2 ** (of.bit_width - 1) else None
    if of in EXACT and isinstance(value, int | float):
        try:
            with np.errstate(over="ignore"):
                held = float(of.to_pandas_dtype()(float(value)))
        except OverflowError:
            return None
        return held if math.isfinite(held) and (isinstance(value, float) or int(held) == value) else None
    return None


def is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:  # half of a surrogate pair, which an escape can write
        return False
    return True
