"""JSON documents as typed columns.

A schema names fields and their types. `parse` returns a column for each field, and in `rest` the parts of the document
that do not fit, as JSON text. So no schema loses data:

- A field fits if the schema has it and its value has the type. null is the same as no field.
- `rest` has fields that the schema does not have, and fields of another type. It also has numbers that the column
cannot hold exactly, and the earlier values of a repeated field. A DOUBLE holds integers up to 2^53, and larger ones if
they are not rounded.
- Of a struct, `rest` has only the parts that do not fit. Of an array it has the whole array, while the column keeps the
elements that fit.
- A TIMESTAMP and a DATE are text in the forms of json_times. A DECIMAL is a number that it holds exactly: zeros at the
end of a fraction do not count.
- A value that is not a JSON object is in `rest` as it is. If it is not UTF-8, it is `{"_binary": "<base64>"}`.

The reader of penstock.wire.values.json_value decides which values are JSON. json_batches parses whole batches. It fails
at the first unexpected value, so batches that fail are halved until they are small. json_rows reads small batches and
suspicious rows one by one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.spark.values.json_batches import SMALL_NUMBERS, find_safe, read_batch
from penstock.spark.values.json_decimals import UNSAFE_NUMBERS, narrow_decimals, widen_decimal
from penstock.spark.values.json_rows import EXACT_INTEGERS, parse_rows
from penstock.spark.values.json_times import DATE, TIMESTAMP, convert_dates, convert_timestamps
from penstock.spark.values.json_types import (
    as_struct,
    differences,
    format_type,
    from_ddl,
    map_fields,
    may_be_column,
    to_ddl,
)
from penstock.wire.values.json_value import read_members

__all__ = ["Evolution", "differences", "evolution", "from_ddl", "infer", "infer_all", "parse", "parse_fields", "to_ddl"]

Bools: TypeAlias = npt.NDArray[np.bool_]
Counts: TypeAlias = Counter[tuple[str, ...]]
"""Names of a field and of those around it -> how many values the field has."""

SLICE_BYTES = 16 << 20
"""The most bytes that are parsed at once, except for a single larger value."""
MIN_BATCH_VALUES = 64
"""Batches of so few values are not halved again, but parsed one by one."""
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
    return _parse_values(values, _BatchReader(as_struct(schema)))


@check_arguments
def parse_fields(values: pa.Array, schema: pa.Schema | pa.StructType) -> pa.StructArray:
    """Return the fields of documents alone, as `parse` does.

    It is much faster for documents with other fields, which `parse` reads one by one to return them.

    Args:
        values: documents, binary or text.
        schema: the fields and their types.
    """
    return _parse_values(values, _BatchReader(as_struct(schema), keeps_rest=False))[0]


def _parse_values(values: pa.Array, reader: _BatchReader) -> tuple[pa.StructArray, pa.StringArray]:
    of = reader.of
    given = values.cast(pa.binary())
    parts = [reader.parse_slice(part) for part in _slice_values(given.drop_null())]
    columns = pa.concat_arrays([pa.array([], of), *(columns for columns, _ in parts)])
    rest = pa.concat_arrays([pa.array([], pa.string()), *(rest for _, rest in parts)])
    if given.null_count:
        valid = np.asarray(given.is_valid())
        places = pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)
        columns, rest = columns.take(places), rest.take(places)
    if columns.null_count and len(of):  # otherwise `field` would return hidden values of null rows
        columns = pa.StructArray.from_arrays(columns.flatten(), fields=list(of), mask=columns.is_null())
    return columns, rest


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
        for part in _slice_values(values.cast(pa.binary()).drop_null()):
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


# Whole batches


def _slice_values(values: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """Divide values without nulls into slices.

    Yields:
        Slices of about SLICE_BYTES.
    """
    ends = np.cumsum(pc.binary_length(values).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(values):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + SLICE_BYTES, side="right")))
        yield values.slice(start, end - start)
        start = end


@dataclass(frozen=True, slots=True)
class _BatchReader:
    """Parses batches of documents.

    Attributes:
        of: the fields and their types.
        keeps_rest: whether the parts that do not fit are needed; otherwise they may be missing.
    """

    of: pa.StructType
    keeps_rest: bool = True

    def parse_slice(self, values: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        """Return the fields and the rest of values."""
        likely = find_safe(values, _find_unsafe(self.of), beginnings="{")
        if likely.true_count == len(values):
            return self._parse_likely(values)
        apart = [self._parse_likely(values.filter(likely)), parse_rows(values.filter(pc.invert(likely)), self.of)]
        places = np.argsort(np.argsort(~np.asarray(likely), kind="stable"), kind="stable")
        columns, rest = (pa.concat_arrays(pair).take(pa.array(places)) for pair in zip(*apart, strict=True))
        return columns, rest

    def _parse_likely(self, values: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        if len(values) <= MIN_BATCH_VALUES:
            return parse_rows(values, self.of)
        read = read_batch(values, _make_read_type(self.of), ignores_others=not self.keeps_rest)
        if read is None:
            half = len(values) // 2
            parts = [self._parse_likely(values.slice(0, half)), self._parse_likely(values.slice(half))]
            columns, rest = (pa.concat_arrays(pair) for pair in zip(*parts, strict=True))
            return columns, rest
        columns, odd = _convert_column(read, self.of)
        suspicious = np.asarray(read.is_null()) | odd
        if not suspicious.any():
            return columns, pa.nulls(len(values), pa.string())
        again, rest = parse_rows(values.filter(pa.array(suspicious)), self.of)
        places = np.arange(len(values))
        places[suspicious] = len(values) + np.arange(len(again))
        places = pa.array(places)
        return (
            pa.concat_arrays([columns, again]).take(places),
            pa.concat_arrays([pa.nulls(len(values), pa.string()), rest]).take(places),
        )


def _make_read_type(of: pa.DataType) -> pa.DataType:
    """Return the type as which pyarrow.json reads a type: times as text, and decimals with more bits."""
    if pa.types.is_struct(of):
        return pa.struct([(field.name, _make_read_type(field.type)) for field in of])
    if pa.types.is_list(of):
        return pa.list_(_make_read_type(of.value_type))
    if pa.types.is_decimal(of):
        return widen_decimal(of)
    return pa.string() if pa.types.is_temporal(of) else of


def _find_unsafe(of: pa.DataType) -> str:
    """Return a regular expression of documents that pyarrow.json must not read for a type; empty for none."""
    found = [UNSAFE_NUMBERS] if _has_type(of, pa.types.is_decimal) else []
    return "|".join([*found, *(pattern for kind, pattern in SMALL_NUMBERS.items() if _has_type(of, kind.equals))])


def _has_type(of: pa.DataType, is_wanted: Callable[[pa.DataType], bool]) -> bool:
    """Return whether a type, or a type within it, is a wanted one."""
    if pa.types.is_struct(of):
        return any(_has_type(field.type, is_wanted) for field in of)
    return _has_type(of.value_type, is_wanted) if pa.types.is_list(of) else is_wanted(of)


def _convert_column(read: pa.Array, of: pa.DataType) -> tuple[pa.Array, Bools]:
    """Return a column of pyarrow.json with only the fields of `of`, in its order and types.

    Args:
        read: the column.
        of: the type.

    Returns:
        The column, and the rows that need `parse_rows`. They have a value without a column, or one that does not fit.
    """
    if pa.types.is_struct(of):
        return _convert_struct(read, of)
    if pa.types.is_list(of):
        values, inside = _convert_column(read.flatten(), of.value_type)
        odd = np.zeros(len(read), bool)
        odd[np.asarray(pc.list_parent_indices(read))[inside]] = True
        if values.type == read.type.value_type:
            return read, odd
        ends = np.cumsum(pc.fill_null(pc.list_value_length(read), 0))
        offsets = pa.array(np.concatenate([[0], ends]), pa.int32())
        return pa.ListArray.from_arrays(offsets, values, type=of, mask=read.is_null()), odd
    if of in EXACT_INTEGERS:
        numbers = pc.fill_null(read, 0).to_numpy()
        return read, ~(np.abs(numbers) < EXACT_INTEGERS[of])  # also finds NaN, which is not JSON
    convert = _find_conversion(of)
    if convert is None:
        return read, np.zeros(len(read), bool)
    column = convert(read)
    return column, np.asarray(pc.and_(read.is_valid(), column.is_null()))


def _convert_struct(read: pa.StructArray, of: pa.StructType) -> tuple[pa.Array, Bools]:
    fields = map_fields(of)
    columns: dict[str, pa.Array] = {}
    odd = np.zeros(len(read), bool)
    for field, child in zip(read.type, read.flatten(), strict=True):
        if field.name in fields:
            columns[field.name], inside = _convert_column(child, fields[field.name])
        else:
            inside = np.asarray(child.is_valid())
        odd |= inside
    if read.type == of:
        return read, odd
    children = [columns[name] for name in fields]
    return pa.StructArray.from_arrays(children, fields=list(of), mask=read.is_null()), odd


def _find_conversion(of: pa.DataType) -> Callable[[pa.Array], pa.Array] | None:
    """Return the function from the column that pyarrow.json reads, which gives null for a misfit."""
    if pa.types.is_decimal(of):
        return partial(narrow_decimals, of=of)
    return {TIMESTAMP: convert_timestamps, DATE: convert_dates}.get(of)


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
