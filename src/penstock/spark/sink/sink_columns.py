"""Columns that an operation needs, and their types. They are checked before the first write."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa

from penstock.client.documents.json_text import check_json_type, is_nested
from penstock.errors import UsageError
from penstock.spark.sink.sink_options import Operation, SinkOptions
from penstock.wire.columns.schema import CHANGE_SCHEMA

_VALUE = ("key", "value")
_NEEDED: dict[Operation, tuple[str, ...]] = {
    Operation.UPSERT: _VALUE,
    Operation.INSERT: _VALUE,
    Operation.REPLACE: _VALUE,
    Operation.DELETE: ("key",),
    Operation.CHANGE: (*_VALUE, "event"),
    Operation.WITH_META: (*_VALUE, "cas", "rev_seqno"),
    Operation.SUBDOC: ("key",),
}


def _is_text(of: pa.DataType) -> bool:
    return bool(pa.types.is_string(of) or pa.types.is_large_string(of))


def _is_bytes(of: pa.DataType) -> bool:
    return bool(pa.types.is_binary(of) or pa.types.is_large_binary(of) or _is_text(of))


def _is_time(of: pa.DataType) -> bool:
    return bool(pa.types.is_integer(of) or pa.types.is_timestamp(of))


def _is_attributes(of: pa.DataType) -> bool:
    return bool(pa.types.is_map(of) and _is_text(of.key_type) and _is_bytes(of.item_type))


_NUMBER: tuple[str, Callable[[pa.DataType], bool]] = ("a whole number", lambda of: bool(pa.types.is_integer(of)))
_TEXT = ("a string", _is_text)
_TYPES: dict[str, tuple[str, Callable[[pa.DataType], bool]]] = {
    "key": ("a string or binary", _is_bytes),
    "value": ("a string, binary, or a struct or map to be written as JSON", lambda of: _is_bytes(of) or is_nested(of)),
    **dict.fromkeys(("cas", "rev_seqno", "flags", "datatype"), _NUMBER),
    **dict.fromkeys(("expiry", "delete_time"), ("a whole number or a timestamp", _is_time)),
    **dict.fromkeys(("event", "scope", "collection"), _TEXT),
    "xattrs": ("a map of string to string or binary", _is_attributes),
}


def check_columns(options: SinkOptions, schema: pa.Schema) -> None:
    """Check the columns of a write.

    All columns of a change may be there. The operation ignores those that it does not need.

    Args:
        options: the options of the write.
        schema: the columns.

    Raises:
        UsageError: a column is missing, is unknown, stands twice, or has another type, or one that JSON does not have.
    """
    operation, names = options.operation, schema.names
    mapped = [each.column for each in options.subdocument]
    needed = (*_NEEDED[operation], *mapped)
    if missing := [name for name in needed if name not in names]:
        raise UsageError(f"no column {missing[0]!r}, expected {', '.join(dict.fromkeys(needed))} for {operation}")
    if unknown := [name for name in names if name not in CHANGE_SCHEMA.names and name not in mapped]:
        raise UsageError(
            f"column {unknown[0]!r} means nothing to operation {operation}; known are "
            f"{', '.join(dict.fromkeys((*_TYPES, *mapped)))}: select the columns to write"
        )
    if twice := [name for name in names if names.count(name) > 1]:
        raise UsageError(f"column {twice[0]!r} twice, expected it once")
    for field in schema:
        if field.name in mapped:
            check_json_type(field.type, field.name)
            continue
        if field.name not in _TYPES:
            continue
        expected, fits = _TYPES[field.name]
        if not fits(field.type):
            raise UsageError(f"column {field.name!r} is {field.type}, expected {expected}")
        if field.name == "value":
            check_json_type(field.type, field.name)
