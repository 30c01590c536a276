"""JSON documents as typed columns.

A schema names fields and their types. `parse` returns a column for each field, and in `rest` the parts of the document
that do not fit, as JSON text. So no schema loses data:

- A field fits if the schema has it and its value has the type. null is the same as no field.
- `rest` has fields that the schema does not have, and fields of another type. It also has numbers that the column
cannot hold exactly, and the earlier values of a repeated field.
- A DOUBLE holds an integer exactly, and another number if its text is the shortest one of the DOUBLE. So the column
gives back the number of the document.
- Of a struct, `rest` has only the parts that do not fit. Of an array it has the whole array, while the column keeps the
elements that fit.
- A TIMESTAMP and a DATE are in the forms of json_times. A DECIMAL is a number, or a text of a number, that it holds
exactly: zeros at the end of a fraction do not count.
- A value that is not a JSON object is in `rest` as it is. If it is not UTF-8, it is `{"_binary": "<base64>"}`.

typed_documents parses documents. Types are inferred from whole batches that pyarrow.json reads. It fails at the first
conflict, so batches that fail are halved until they are small, and then read one by one.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.spark.values.json_batches import find_safe, read_batch
from penstock.spark.values.json_types import (
    as_struct,
    differences,
    format_type,
    from_ddl,
    map_fields,
    may_be_column,
    to_ddl,
)
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser, ParsedDocuments, slice_values
from penstock.wire.values.json_value import read_members

__all__ = ["Evolution", "differences", "evolution", "fill_rest", "from_ddl", "infer", "infer_all", "parse", "to_ddl"]

Counts: TypeAlias = Counter[tuple[str, ...]]
"""Names of a field and of those around it -> how many values the field has."""

MIN_BATCH_VALUES = 64
"""Batches of so few values are not halved again, but read one by one."""
MAX_TYPE_DEPTH = 64
"""Levels of an inferred type; deeper levels are left out."""


@check_arguments
def parse(values: pa.Array, schema: pa.Schema | pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the fields of documents, and the parts that do not fit; the module's docstring has the rules.

    Args:
        values: documents, binary or text.
        schema: the fields and their types.

    Returns:
        The fields, null for a value that is null or not a JSON object; and the rest as JSON text, null if all fits.

    Raises:
        UsageError: JSON has no values of one of the types.
    """
    of = as_struct(schema)
    given = values.cast(pa.binary())
    found = DocumentParser([ColumnRule(field.name, field.type) for field in of]).parse(given)
    is_object = pc.fill_null(found.objects, False)
    mask = pc.invert(is_object)
    if len(of):
        columns = pa.StructArray.from_arrays(found.columns.columns, fields=list(of), mask=mask)
    else:  # from_arrays would not know how many rows there are
        columns = pa.array([{} if each else None for each in is_object.to_pylist()], of)
    return columns, fill_rest(given, found)


def fill_rest(values: pa.BinaryArray, parsed: ParsedDocuments) -> pa.StringArray:
    """Return the rest of parsed documents, with the values that are not JSON objects.

    Args:
        values: the documents.
        parsed: their columns and rest.
    """
    is_other = pc.and_(pc.invert(pc.fill_null(parsed.objects, False)), values.is_valid())
    if not is_other.true_count:
        return parsed.rest
    others = pa.array([_write_other(value) for value in values.filter(is_other).to_pylist()], pa.string())
    return pc.replace_with_mask(parsed.rest, is_other, others)


def _write_other(value: bytes) -> str:
    """Return the text of a value that is not a JSON object."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return json.dumps({"_binary": base64.b64encode(value).decode()})


@check_arguments
def infer(values: pa.Array) -> pa.Schema:
    """Return a schema that fits the JSON objects among the values, with fields in the order of first appearance.

    Whole numbers are BIGINT, others DOUBLE. Conflicting types become STRING. A field with only nulls, empty objects or
    empty arrays has no type yet and is left out. Names that no column can have are left out too: empty ones, and those
    with a zero character or half a surrogate pair. Of names that differ in case alone the most frequent one stays.
    """
    return infer_all([values])


def infer_all(parts: Iterable[pa.Array]) -> pa.Schema:
    """Return the schema for the values of several arrays, as `infer` does."""
    found: pa.DataType = pa.struct([])
    counts: Counts = Counter()
    for values in parts:
        for part in slice_values(values.cast(pa.binary()).drop_null()):
            found = _merge_types(found, _infer_type(part, counts))
    return pa.schema(_prune_type(found, counts) or pa.struct([]))


@dataclass(frozen=True, slots=True)
class Evolution:
    """The difference between documents and a schema.

    Attributes:
        schema: the known schema with the new fields.
        new_fields: dotted paths with their types.
        conflicts: fields whose values did not fit their type, with the type that would fit. The known type stays.
        has_others: whether some values are no JSON objects, and so have no fields.
    """

    schema: pa.Schema
    new_fields: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()
    has_others: bool = False


@check_arguments
def evolution(known: pa.Schema, values: pa.Array) -> Evolution:
    """Return the difference between values and a known schema.

    Args:
        known: the schema.
        values: documents, or the `rest` that `parse` returned.
    """
    columns, rest = parse(values, known)
    found = infer(rest.filter(columns.is_valid()).drop_null())
    new_fields: list[str] = []
    conflicts: list[str] = []
    schema = pa.schema(_evolve_type(as_struct(known), as_struct(found), "", new_fields, conflicts))
    return Evolution(schema, tuple(new_fields), tuple(conflicts), columns.null_count > values.null_count)


def _evolve_type(
    known: pa.DataType, found: pa.DataType, path: str, new_fields: list[str], conflicts: list[str]
) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        fields = map_fields(known)
        for name, of in map_fields(found).items():
            at = f"{path}.{name}" if path else name
            if name not in fields:
                new_fields.append(f"{at} {format_type(of)}")
            fields[name] = _evolve_type(fields[name], of, at, new_fields, conflicts) if name in fields else of
        return pa.struct(list(fields.items()))
    if pa.types.is_list(known) and pa.types.is_list(found):
        before = len(new_fields) + len(conflicts)
        element = _evolve_type(known.value_type, found.value_type, f"{path}[]", new_fields, conflicts)
        if "[]" not in path and len(new_fields) + len(conflicts) == before:  # a part of it did not fit
            conflicts.append(f"{path} is {format_type(known)}, found values that it cannot hold")
        return pa.list_(element)
    if known != found and not _may_hold(known, found):
        conflicts.append(f"{path} is {format_type(known)}, found {format_type(found)}")
    elif "[]" not in path:  # rest has whole arrays: elements of the known type are no conflict
        conflicts.append(f"{path} is {format_type(known)}, found values that it cannot hold")
    return known


def _may_hold(known: pa.DataType, found: pa.DataType) -> bool:
    """Return whether a type holds some values of an inferred type: DATE some text, DECIMAL some numbers."""
    if pa.types.is_decimal(known):
        return bool(pa.types.is_integer(found) or pa.types.is_floating(found))
    return bool(pa.types.is_temporal(known) and pa.types.is_string(found))


# Types of documents


def _infer_type(values: pa.BinaryArray, counts: Counts) -> pa.DataType:
    """Return the type of documents, and add the values of their fields to the counts."""
    likely = find_safe(values, beginnings="{")
    if likely.true_count < len(values) or len(values) <= MIN_BATCH_VALUES:
        rows = values if len(values) <= MIN_BATCH_VALUES else values.filter(pc.invert(likely))
        found = _infer_one_by_one(rows, counts)
        if len(values) <= MIN_BATCH_VALUES:
            return found
        return _merge_types(_infer_type(values.filter(likely), counts), found)
    read = read_batch(values)
    if read is None:
        half = len(values) // 2
        return _merge_types(_infer_type(values.slice(0, half), counts), _infer_type(values.slice(half), counts))
    return _infer_column(read, (), counts)


def _infer_one_by_one(values: pa.BinaryArray, counts: Counts) -> pa.DataType:
    found: pa.DataType = pa.struct([])
    for value in values.to_pylist():
        members = read_members(value)
        if members is not None:
            found = _merge_types(found, _infer_members([(each.name, each.value) for each in members], (), counts))
    return found


def _infer_members(
    members: Iterable[tuple[str, Any]], path: tuple[str, ...], counts: Counts, depth: int = 0
) -> pa.DataType:
    fields: dict[str, pa.DataType] = {}
    for name, value in members:
        if may_be_column(name):
            counts[(*path, name)] += value is not None
            of = _infer_value(value, (*path, name), counts, depth + 1)
            fields[name] = _merge_types(fields[name], of) if name in fields else of
    return pa.struct(list(fields.items()))


def _infer_value(value: Any, path: tuple[str, ...], counts: Counts, depth: int) -> pa.DataType:
    if value is None or depth > MAX_TYPE_DEPTH:
        return pa.null()
    if isinstance(value, bool):
        return pa.bool_()
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return pa.int64()
    if isinstance(value, int | float):
        return pa.float64()
    if isinstance(value, str):
        return pa.string()
    if isinstance(value, dict):
        return _infer_members(value.items(), path, counts, depth)
    found: pa.DataType = pa.null()
    for element in value:
        found = _merge_types(found, _infer_value(element, path, counts, depth + 1))
    return pa.list_(found)


def _infer_column(read: pa.Array, path: tuple[str, ...], counts: Counts, depth: int = 0) -> pa.DataType:
    """Return the type of a column of pyarrow.json, with text for the times that it detects."""
    of = read.type
    if depth > MAX_TYPE_DEPTH:
        return pa.null()
    if pa.types.is_struct(of):
        fields = []
        for field, column in zip(of, read.flatten(), strict=True):
            if may_be_column(field.name):
                place = (*path, field.name)
                counts[place] += len(column) - column.null_count
                fields.append((field.name, _infer_column(column, place, counts, depth + 1)))
        return pa.struct(fields)
    if pa.types.is_list(of):
        return pa.list_(_infer_column(read.flatten(), path, counts, depth + 1))
    return pa.string() if pa.types.is_temporal(of) else of


def _merge_types(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type that fits the values of both types."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = map_fields(a)
        for name, of in map_fields(b).items():
            fields[name] = _merge_types(fields[name], of) if name in fields else of
        return pa.struct(list(fields.items()))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(_merge_types(a.value_type, b.value_type))
    numbers = {pa.int64(), pa.float64()}
    return pa.float64() if {a, b} == numbers else pa.string()


def _prune_type(of: pa.DataType, counts: Counts, path: tuple[str, ...] = ()) -> pa.DataType | None:
    """Return the type without parts that have no type yet, and with one of the names that differ in case alone.

    None if nothing is left.
    """
    if pa.types.is_null(of):
        return None
    if pa.types.is_struct(of):
        fields: dict[str, tuple[str, pa.DataType]] = {}  # Spark compares names without case
        for field in of:
            kept = _prune_type(field.type, counts, (*path, field.name))
            other = fields.get(field.name.lower())
            if kept is not None and (other is None or counts[(*path, other[0])] < counts[(*path, field.name)]):
                fields[field.name.lower()] = (field.name, kept)
        return pa.struct(list(fields.values())) if fields else None
    if pa.types.is_list(of):
        kept = _prune_type(of.value_type, counts, path)
        return None if kept is None else pa.list_(kept)
    return of
