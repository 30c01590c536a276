"""Documents rebuilt from the rows of a typed table, in the form in which they are compared with a bucket's documents.

Numbers are equal if their values are. Members without a value, and empty objects, are left out: a column has none.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from penstock.names import unquote_column

TIME = "created"
RENAMED = {"created_at": TIME}
"""The field that `columns` of a table makes a time, in a column of another name."""


def rebuild_document(row: Mapping[str, Any], keys: tuple[str, ...]) -> Any:
    """Return the document of a row.

    Args:
        row: the columns of the row, as `table_readers` prints them.
        keys: the columns of the key.
    """
    columns = {name: value for name, value in row.items() if is_of_field(name) and name not in keys}
    found = {RENAMED.get(name) or unquote_column(name): _read_column(value) for name, value in columns.items()}
    rest = row["_rest"]
    if rest is None:
        return normalize_document(found)
    try:
        parsed = json.loads(rest, parse_float=Decimal)
    except ValueError:
        return rest
    return normalize_document(_join(found, parsed) if isinstance(parsed, dict) else parsed)


def is_of_field(column: str) -> bool:
    """Return whether a column is not one that Penstock adds. A field's column may begin with an escaped character."""
    return column != "vbucket_range" and (not column.startswith("_") or unquote_column(column) != column)


def _read_column(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"$decimal"}:
            return Decimal(value["$decimal"])
        if set(value) == {"$time"}:
            return value["$time"]
        return {unquote_column(name): _read_column(each) for name, each in value.items()}
    return [_read_column(each) for each in value] if isinstance(value, list) else value


def _join(columns: dict[str, Any], rest: dict[str, Any]) -> dict[str, Any]:
    """Return an object with the values of both: a value of `rest` is the one of the document."""
    found = dict(columns)
    for name, value in rest.items():
        known = found.get(name)
        found[name] = _join(known, value) if isinstance(known, dict) and isinstance(value, dict) else value
    return found


def normalize_document(value: Any, name: str = "") -> Any:
    """Return a value of a document in the form that is compared."""
    if isinstance(value, dict):
        members = {key: normalize_document(each, key) for key, each in value.items()}
        return {key: each for key, each in members.items() if each not in (None, {})}
    if isinstance(value, list):
        return [normalize_document(each) for each in value]
    if name == TIME and value is not None and not isinstance(value, bool | float):
        return _read_time(value)
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return value
    return Decimal(repr(value) if isinstance(value, float) else value).normalize()


def _read_time(value: Any) -> Any:
    """Return milliseconds since 1970, or the value if it is no time."""
    if isinstance(value, str):
        try:
            return int(datetime.fromisoformat(value).astimezone(UTC).timestamp() * 1000)
        except ValueError:
            return value
    return int(value) if value == int(value) else value
