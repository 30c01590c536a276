"""JSON documents one by one: the fields of a schema, and the text of the rest.

It is slower than the parser of whole batches in json_columns, but exact. It decides about every value that the other
leaves.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Mapping, Sequence
from datetime import date
from decimal import Decimal
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from penstock.spark.values.json_decimals import fit_decimal
from penstock.spark.values.json_times import DATE, TIMESTAMP, fit_date, fit_timestamp
from penstock.spark.values.json_types import map_fields
from penstock.wire.values.json_value import (
    Member,
    RepeatedNames,
    WrittenFloat,
    call_with_levels,
    is_text,
    read_members,
    read_object,
)

__all__ = ["EXACT_INTEGERS", "fit_float", "parse_rows"]

Fields: TypeAlias = Mapping[str, pa.DataType]

EXACT_INTEGERS = {pa.float32(): 2**24, pa.float64(): 2**53}
"""Up to here every integer is a number of the type."""

_IS_NOT_ZERO = re.compile("[-0.]*[1-9]")


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
        document, left = _fit_document(value, fields)
        documents.append(document)
        rest.append(left)
    return pa.array(documents, of), pa.array(rest, pa.string())


def _fit_document(value: bytes, fields: Fields) -> tuple[dict[str, Any] | None, str | None]:
    """Return the values of a document that fit, None if it is no object; and the text of the others."""
    members = read_members(value)
    if members is not None:
        return call_with_levels(partial(_fit_members, fields=fields), members)
    try:
        return None, value.decode()
    except UnicodeDecodeError:
        return None, json.dumps({"_binary": base64.b64encode(value).decode()})


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
            values[name], inner = _fit_members(read_object(written), map_fields(of))
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
        fits = named and not isinstance(value, RepeatedNames) and all(fits for _, fits in inside.values())
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
    return fit_float(value, of) if of in EXACT_INTEGERS else None


def fit_float(value: int | float, of: pa.DataType) -> float | None:
    """Return a number as a FLOAT or DOUBLE, in which a fraction may be rounded.

    None for a whole number that would be rounded, and for a number that would become infinite or 0.
    """
    try:
        with np.errstate(over="ignore"):
            held = float(of.to_pandas_dtype()(float(value)))
    except OverflowError:
        return None
    if held == 0 and isinstance(value, WrittenFloat) and _IS_NOT_ZERO.match(value.text):
        return None
    return held if math.isfinite(held) and (isinstance(value, float) or int(held) == value) else None
