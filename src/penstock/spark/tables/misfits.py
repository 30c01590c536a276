"""Misfits: the parts of documents in `_rest`, counted by field and by the reason why no column has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from penstock.spark.values.json_types import format_type, map_fields
from penstock.wire.values.json_value import Member, read_members, read_object

__all__ = ["RestCount", "RestReport", "count_misfits", "name_json_type"]


@dataclass(frozen=True, slots=True)
class RestCount:
    """A field whose values are in `_rest`, and the reason.

    Attributes:
        field: names with points between them; empty for a document that is not a JSON object.
        found: the JSON type of the values: text, number, boolean, object, array, null, or "no object".
        expected: the type of the column, null if the schema lacks the field. The same JSON type as `found` means that
            the column cannot hold the value exactly, or that the document repeats the field.
        rows: rows with such a value.
    """

    field: str
    found: str
    expected: str | None
    rows: int


@dataclass(frozen=True, slots=True)
class RestReport:
    """The rows of a table that have a `_rest`.

    Attributes:
        rows: number of these rows.
        examined: number of rows whose `_rest` was examined.
        misfits: the misfits in these, most frequent first.
    """

    rows: int
    examined: int
    misfits: tuple[RestCount, ...]


def count_misfits(rests: Iterable[str], fields: pa.Schema | pa.StructType) -> tuple[RestCount, ...]:
    """Return the misfits in the rests of documents, most frequent first.

    Args:
        rests: JSON texts.
        fields: the schema of the documents.
    """
    types = map_fields(fields)
    counts: Counter[tuple[str, str, str | None]] = Counter()
    for rest in rests:
        members = read_members(rest.encode())
        counts.update([("", "no object", None)] if members is None else {*_list_misfits(members, types, "")})
    return tuple(RestCount(*key, rows) for key, rows in sorted(counts.items(), key=lambda each: (-each[1], each[0][0])))


def _list_misfits(
    members: Iterable[Member], types: Mapping[str, pa.DataType], path: str
) -> Iterator[tuple[str, str, str | None]]:
    for member in members:
        of, place = types.get(member.name), f"{path}{member.name}"
        if of is not None and pa.types.is_struct(of) and isinstance(member.value, dict):
            yield from _list_misfits(read_object(member.written), map_fields(of), f"{place}.")
        else:
            yield place, name_json_type(member.value), None if of is None else format_type(of)


def name_json_type(value: Any) -> str:
    """Return the JSON type of a parsed value: text, number, boolean, object, array or null."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    for kind, name in ((str, "text"), (dict, "object"), (list, "array")):
        if isinstance(value, kind):
            return name
    return "number"
