"""Inference: the types of the fields of documents.

A field has the type of most of its values; the other values do not fit. Whole numbers are BIGINT, or DECIMAL(38, 0) if
some need more than 64 bits. If some numbers have a fraction, all are DOUBLE. A field with only nulls, empty objects or
empty arrays has no type yet, and is left out. Spark and SQL ignore the case of names. So of names that differ in case
alone, only the most frequent one is a field.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.spark.values.json_types import as_struct, format_type, may_be_column
from penstock.wire.values.json_value import read_members

MOST_DEPTH = 16
"""Levels of an inferred type. Deeper values are left out."""
MOST_FIELDS = 500
"""Fields of an object, the most frequent ones. More names are probably data."""
MOST_SAMPLED = 20_000
"""Documents of a sample. Each costs about 20 microseconds."""
MOST_TEXTS = 20
"""Texts of a field that are kept."""
_WIDE = pa.decimal128(38, 0)
_WIDENED = {(pa.int64(), pa.float64()), (pa.int64(), _WIDE), (_WIDE, pa.float64())}
"""Types of a column with the type of newer values that holds both."""


@dataclass(slots=True)
class FieldValues:
    """The values of a field, by JSON type.

    Attributes:
        counts: number of values of each JSON type.
        fields: the fields of its objects.
        elements: the elements of its arrays, None without arrays.
        texts: its first texts.
    """

    counts: Counter[str] = field(default_factory=Counter)
    fields: dict[str, FieldValues] = field(default_factory=dict)
    elements: FieldValues | None = None
    texts: list[str] = field(default_factory=list)

    def add(self, value: Any, depth: int = 0) -> None:
        """Add a value of the field."""
        if value is None or depth > MOST_DEPTH:
            return
        self.counts[_classify(value)] += 1
        if isinstance(value, str) and len(self.texts) < MOST_TEXTS:
            self.texts.append(value)
        elif isinstance(value, dict):
            self.add_members(value.items(), depth)
        elif isinstance(value, list):
            self.elements = self.elements or FieldValues()
            for each in value:
                self.elements.add(each, depth + 1)

    def add_members(self, members: Iterable[tuple[str, Any]], depth: int) -> None:
        """Add the fields of an object."""
        for name, value in members:
            if may_be_column(name):
                self.fields.setdefault(name, FieldValues()).add(value, depth + 1)

    def count_types(self) -> dict[str, int]:
        """Return the number of values of each JSON type of which there is a column; numbers are one type."""
        numbers = sum(self.counts[kind] for kind in ("whole", "wide", "fraction"))
        return {kind: self.counts[kind] for kind in ("text", "boolean", "object", "array")} | {"number": numbers}

    def choose_type(self) -> pa.DataType | None:
        """Return the type of most values, None if there is none yet."""
        groups = self.count_types()
        kind = max(groups, key=lambda each: groups[each])
        if not groups[kind]:
            return None
        if kind == "number":
            return pa.float64() if self.counts["fraction"] else _WIDE if self.counts["wide"] else pa.int64()
        if kind == "object":
            found = self.choose_fields()
            return pa.struct(found) if found else None
        if kind == "array":
            element = self.elements.choose_type() if self.elements is not None else None
            return None if element is None else pa.list_(element)
        return pa.string() if kind == "text" else pa.bool_()

    def choose_fields(self) -> list[pa.Field]:
        """Return the fields of the objects that have a type, in the order of their first appearance."""
        frequent = sorted(self.fields, key=lambda name: -self.fields[name].counts.total())[:MOST_FIELDS]
        types = {name: of for name in frequent if (of := self.fields[name].choose_type()) is not None}
        kept = {name.lower(): name for name in reversed(types)}.values()
        return [pa.field(name, types[name]) for name in self.fields if name in {*kept}]


def _classify(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "whole" if -(2**63) <= value < 2**63 else "wide"
    kinds: tuple[tuple[type, str], ...] = ((float, "fraction"), (str, "text"), (dict, "object"))
    return next((name for kind, name in kinds if isinstance(value, kind)), "array")


def collect_values(values: Iterable[bytes | None]) -> FieldValues:
    """Return the JSON objects among some documents as the values of one field."""
    found = FieldValues()
    for value in values:
        members = read_members(value) if value is not None else None
        if members is not None:
            found.counts["object"] += 1
            found.add_members(((each.name, each.value) for each in members), 0)
    return found


def infer_fields(values: Iterable[bytes | None]) -> pa.Schema:
    """Return the fields of the JSON objects among some documents, in the order of their first appearance."""
    return pa.schema(collect_values(values).choose_fields())


def infer_from_sample(values: pa.ChunkedArray) -> pa.Schema:
    """Return the fields of at most MOST_SAMPLED documents, which are spread evenly over all of them."""
    return infer_fields(_sample_rows(values))


def _sample_rows(values: pa.ChunkedArray) -> Iterator[bytes | None]:
    places = np.array(spread_rows(len(values), MOST_SAMPLED), np.int64)
    start = 0
    for chunk in values.chunks:  # Arrow's take joins all chunks, which may be too many bytes for one
        inside = places[(places >= start) & (places < start + len(chunk))] - start
        yield from chunk.take(pa.array(inside)).to_pylist()
        start += len(chunk)


def spread_rows(count: int, most: int) -> list[int]:
    """Return at most `most` of the numbers below `count`, spread evenly."""
    return [int(each) for each in np.linspace(0, count - 1, min(count, most))] if count else []


@dataclass(frozen=True, slots=True)
class FieldChanges:
    """Fields that newer documents add to a schema.

    Attributes:
        fields: the schema with the new fields, and with wider types.
        changes: the differences in words.
    """

    fields: pa.Schema
    changes: tuple[str, ...]


def add_fields(known: pa.Schema, found: pa.Schema) -> FieldChanges:
    """Return a schema with the fields that only the other schema has. Types stay, unless a wider one holds both.

    Of names that differ in case alone the known one stays.

    Args:
        known: the schema.
        found: the fields of newer documents.
    """
    changes: list[str] = []
    joined = _join_types(as_struct(known), as_struct(found), "", changes)
    return FieldChanges(pa.schema(list(joined)), tuple(changes))


def _join_types(known: pa.DataType, found: pa.DataType, path: str, changes: list[str]) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        fields = {each.name: each.type for each in known}
        taken = {name.lower() for name in fields}
        for each in found:
            place = f"{path}.{each.name}" if path else each.name
            if each.name in fields:
                fields[each.name] = _join_types(fields[each.name], each.type, place, changes)
            elif each.name.lower() not in taken:
                taken.add(each.name.lower())
                fields[each.name] = each.type
                changes.append(f"{place} {format_type(each.type)} is new")
        return pa.struct(list(fields.items()))
    if pa.types.is_list(known) and pa.types.is_list(found):
        return pa.list_(_join_types(known.value_type, found.value_type, f"{path}[]", changes))
    if (known, found) in _WIDENED:
        changes.append(f"{path} {format_type(known)} becomes {format_type(found)}")
        return found
    return known
