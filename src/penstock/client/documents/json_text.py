"""Columns as JSON text, like Spark's `to_json`: fields of structs that are null are left out."""

from __future__ import annotations

import base64
import json
import math
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

__all__ = ["encode_json", "is_nested"]

_PRINTED_ALIKE = pa.types.is_integer, pa.types.is_boolean
_ESCAPED = r'["\\\x00-\x1f]'


def is_nested(of: pa.DataType) -> bool:
    """Return whether values of this type are JSON objects or arrays."""
    return bool(pa.types.is_struct(of) or pa.types.is_map(of) or pa.types.is_list(of) or pa.types.is_large_list(of))


def encode_json(column: pa.Array) -> pa.Array:
    """Return each value as JSON, in a binary column; null stays null. Binary values are JSON already."""
    of = column.type
    if pa.types.is_binary(of) or pa.types.is_large_binary(of):
        return column.cast(pa.binary())
    if any(known(of) for known in _PRINTED_ALIKE):
        return column.cast(pa.string()).cast(pa.binary())
    if pa.types.is_string(of) and not pc.any(pc.match_substring_regex(column, _ESCAPED)).as_py():
        return pc.binary_join_element_wise('"', column, '"', "").cast(pa.binary())
    texts = [None if each is None else _encode_value(_to_json_value(each, of)) for each in column.to_pylist()]
    return pa.array(texts, pa.binary())


def _encode_value(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _to_json_value(value: Any, of: pa.DataType) -> Any:
    """Return a value that the json module accepts. Numbers that JSON does not have become null."""
    if value is None:
        return None
    if pa.types.is_struct(of):
        return {
            field.name: _to_json_value(value[field.name], field.type) for field in of if value[field.name] is not None
        }
    if pa.types.is_map(of):
        return {_to_member_name(key): _to_json_value(each, of.item_type) for key, each in value}
    if isinstance(value, list):
        return [_to_json_value(each, of.value_type) for each in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value if isinstance(value, str | int) else str(value)


def _to_member_name(key: Any) -> str:
    if isinstance(key, str):
        return key
    return json.dumps(key) if isinstance(key, bool | int | float) else str(key)
