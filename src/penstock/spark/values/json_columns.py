"""JSON documents as typed columns.

A schema names fields and their types; `parse` gives each its column, and everything that did not fit as JSON text in
`rest`, so that no schema loses anything:

    fits     the field is in the schema and its value of that type; null is the same as no field at all
    rest     fields that the schema does not name, or that have another type, a number that the column cannot hold
             exactly (an integer in a DOUBLE is held up to 2^53 and beyond only if nothing is rounded), a repeated
             field's earlier values; of a struct only what of it does not fit, of an array all of it, while its column
             keeps the elements that do
    whole    of a value that is no JSON object the text itself; one that is not UTF-8 as {"_binary": "<base64>"}

Whole batches are parsed by pyarrow.json. It fails at the first value that is not as expected, and some things it takes
or leaves silently: batches that fail are halved until little is left, and suspicious rows are looked at again, one by
one, by Python's own parser, which has the last word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from penstock.spark.values.json_rows import EXACT, is_text, members_of, parse_rows
from penstock.spark.values.json_types import as_struct, differences, fields_of, from_ddl, to_ddl, type_name
from penstock.wire.values.json_value import is_utf8

__all__ = ["Evolution", "differences", "evolution", "from_ddl", "infer", "infer_all", "parse", "to_ddl"]

Bools: TypeAlias = npt.NDArray[np.bool_]

SLICE_BYTES = 16 << 20
"""What is parsed at once at most, but for a single value."""
FEW = 64
"""Values for which it is not worth halving once more."""
MOST_OPENED = 1000
"""Braces and brackets opened in a value, above which pyarrow.json does not see it: it crashes on deep nesting."""

DEEPEST = 64
"""Levels of a type; what lies deeper is left out of inferred ones."""


def parse(values: pa.Array, schema: pa.Schema | pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the documents' fields of `schema`, and what did not fit, as the module's docstring says.

    values: binary or text. A value of null gives null and null; one that is no JSON object a null and its text. rest is
    null where everything fits. Raises UsageError for a type that JSON does not give.
    """
    of = as_struct(schema)
    given = values.cast(pa.binary())
    parts = [_parse(part, of) for part in _slices(given.drop_null())]
    columns = pa.concat_arrays([pa.array([], of), *(columns for columns, _ in parts)])
    rest = pa.concat_arrays([pa.array([], pa.string()), *(rest for _, rest in parts)])
    if given.null_count:
        valid = np.asarray(given.is_valid())
        places = pa.array(np.cumsum(valid) - 1, pa.int64(), mask=~valid)
        columns, rest = columns.take(places), rest.take(places)
    if columns.null_count and len(of):  # or `field` would show what happens to lie under a null
        columns = pa.StructArray.from_arrays(columns.flatten(), fields=list(of), mask=columns.is_null())
    return columns, rest


def infer(values: pa.Array) -> pa.Schema:
    """Return a schema that the JSON objects among `values` fit in, fields in the order of their first appearance.

    Whole numbers are BIGINT, others DOUBLE; where types conflict, STRING. A field of which only nulls, empty objects or
    empty arrays are known has no type yet and is left out.
    """
    return infer_all([values])


def infer_all(parts: Iterable[pa.Array]) -> pa.Schema:
    """Return what `infer` does for the values of several arrays."""
    found: pa.DataType = pa.struct([])
    for values in parts:
        for part in _slices(values.cast(pa.binary()).drop_null()):
            found = _merged(found, _infer(part))
    return pa.schema(_pruned(found) or pa.struct([]))


@dataclass(frozen=True, slots=True)
class Evolution:
    """What documents bring beyond a schema.

    schema: the known one with the new fields. new_fields: dotted paths with their types. conflicts: fields whose values
    did not fit their type, and the type that would have; the known type stays.
    """

    schema: pa.Schema
    new_fields: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


def evolution(known: pa.Schema, values: pa.Array) -> Evolution:
    """Return what `values` hold that `known` has no place for. values: documents, or the `rest` that `parse` gave."""
    _, rest = parse(values, known)
    found = infer(rest.drop_null())
    new_fields: list[str] = []
    conflicts: list[str] = []
    schema = pa.schema(_evolved(as_struct(known), as_struct(found), "", new_fields, conflicts))
    return Evolution(schema, tuple(new_fields), tuple(conflicts))


def _evolved(
    known: pa.DataType, found: pa.DataType, path: str, new_fields: list[str], conflicts: list[str]
) -> pa.DataType:
    if pa.types.is_struct(known) and pa.types.is_struct(found):
        fields = fields_of(known)
        for name, of in fields_of(found).items():
            at = f"{path}.{name}" if path else name
            if name not in fields:
                new_fields.append(f"{at} {type_name(of)}")
            fields[name] = _evolved(fields[name], of, at, new_fields, conflicts) if name in fields else of
        return pa.struct(list(fields.items()))
    if pa.types.is_list(known) and pa.types.is_list(found):
        before = len(new_fields) + len(conflicts)
        element = _evolved(known.value_type, found.value_type, f"{path}[]", new_fields, conflicts)
        if "[]" not in path and len(new_fields) + len(conflicts) == before:  # something of it did not fit
            conflicts.append(f"{path} is {type_name(known)}, found values that it cannot hold")
        return pa.list_(element)
    if known != found:
        conflicts.append(f"{path} is {type_name(known)}, found {type_name(found)}")
    elif "[]" not in path:  # an array is in the rest with all its elements: those of the known type say nothing
        conflicts.append(f"{path} is {type_name(known)}, found values that it cannot hold")
    return known


# Whole batches


def _slices(values: pa.BinaryArray) -> Iterator[pa.BinaryArray]:
    """Cut values without nulls into pieces of about SLICE_BYTES."""
    ends = np.cumsum(pc.binary_length(values).to_numpy(), dtype=np.int64)
    start = 0
    while start < len(values):
        before = ends[start - 1] if start else 0
        end = max(start + 1, int(np.searchsorted(ends, before + SLICE_BYTES, side="right")))
        yield values.slice(start, end - start)
        start = end


def _parse(values: pa.BinaryArray, of: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    opened = pc.add(pc.count_substring(values, b"{"), pc.count_substring(values, b"["))
    likely = pc.and_(pc.starts_with(values, b"{"), pc.less_equal(opened, MOST_OPENED))
    if likely.true_count == len(values):
        return _parse_likely(values, of)
    apart = [_parse_likely(values.filter(likely), of), parse_rows(values.filter(pc.invert(likely)), of)]
    places = np.argsort(np.argsort(~np.asarray(likely), kind="stable"), kind="stable")
    columns, rest = (pa.concat_arrays(pair).take(pa.array(places)) for pair in zip(*apart, strict=True))
    return columns, rest


def _parse_likely(values: pa.BinaryArray, of: pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Parse values that begin like an object and are not too deep."""
    if len(values) <= FEW:
        return parse_rows(values, of)
    read = _read_batch(values, of)
    if read is None:
        half = len(values) // 2
        parts = [_parse_likely(values.slice(0, half), of), _parse_likely(values.slice(half), of)]
        columns, rest = (pa.concat_arrays(pair) for pair in zip(*parts, strict=True))
        return columns, rest
    suspicious = np.asarray(read.is_null()) | _suspicious(read, of)
    columns = _projected(read, of)
    if not suspicious.any():
        return columns, pa.nulls(len(values), pa.string())
    again, rest = parse_rows(values.filter(pa.array(suspicious)), of)
    places = np.arange(len(values))
    places[suspicious] = len(values) + np.arange(len(again))
    places = pa.array(places)
    return (
        pa.concat_arrays([columns, again]).take(places),
        pa.concat_arrays([pa.nulls(len(values), pa.string()), rest]).take(places),
    )


def _read_batch(values: pa.BinaryArray, of: pa.StructType | None = None) -> pa.Array | None:
    """Return a row for each value, as pyarrow.json reads it, fields that it found added; None if it does not.

    Each value becomes a line `{"d":value}`. A line can hold several rows if a value is not one of JSON, but never part
    of another line's: after the line's last brace an object begins, which JSON allows at the top only. So as many rows
    as lines are one in each, unless a zero byte ended the text before its time.
    """
    lines = pc.binary_join_element_wise(b'{"d":', values, b"}\n", b"")
    data = lines.buffers()[2]
    if _has_zero(data):
        return None
    try:
        lines.cast(pa.string())  # its parser does not look whether text is UTF-8
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=max(1, data.size)),
            parse_options=pj.ParseOptions(explicit_schema=None if of is None else pa.schema([("d", of)])),
        )
        table.validate()  # arrays of which the first elements are null come out too short
    except pa.ArrowInvalid:
        return None
    if table.num_rows != len(values) or table.column_names != ["d"]:
        return None
    return table["d"].combine_chunks()


def _has_zero(data: pa.Buffer) -> bool:
    return bool((np.frombuffer(data, np.uint8) == 0).any())


def _suspicious(read: pa.Array, of: pa.DataType | None) -> Bools:
    """Return which rows hold something that `of` has no place for, or a number that may have been rounded."""
    if of is None:
        return np.asarray(read.is_valid())
    found = np.zeros(len(read), bool)
    if pa.types.is_struct(of):
        fields = fields_of(of)
        for field, child in zip(read.type, read.flatten(), strict=True):
            found |= _suspicious(child, fields.get(field.name))
    elif pa.types.is_list(of):
        inside = _suspicious(read.flatten(), of.value_type)
        found[np.asarray(pc.list_parent_indices(read))[inside]] = True
    elif of in EXACT:
        numbers = pc.fill_null(read, 0).to_numpy()
        found = ~(np.abs(numbers) < EXACT[of])  # not a number is no JSON either
    return found


def _projected(read: pa.Array, of: pa.DataType) -> pa.Array:
    """Return an array with nothing but the fields of `of`, in its order."""
    if read.type == of:
        return read
    if pa.types.is_struct(of):
        children = [_projected(read.field(field.name), field.type) for field in of]
        return pa.StructArray.from_arrays(children, fields=list(of), mask=read.is_null())
    values = _projected(read.values, of.value_type)
    return pa.ListArray.from_arrays(read.offsets, values, type=of, mask=read.is_null())


# What types documents have


def _infer(values: pa.BinaryArray) -> pa.DataType:
    opened = pc.add(pc.count_substring(values, b"{"), pc.count_substring(values, b"["))
    likely = pc.and_(pc.starts_with(values, b"{"), pc.less_equal(opened, MOST_OPENED))
    if likely.true_count < len(values) or len(values) <= FEW:
        rows = values if len(values) <= FEW else values.filter(pc.invert(likely))
        found = _infer_rows(rows)
        return found if len(values) <= FEW else _merged(_infer(values.filter(likely)), found)
    read = _read_batch(values)
    if read is None:
        half = len(values) // 2
        return _merged(_infer(values.slice(0, half)), _infer(values.slice(half)))
    return _plain(read.type)


def _infer_rows(values: pa.BinaryArray) -> pa.DataType:
    found: pa.DataType = pa.struct([])
    for value in values.to_pylist():
        members = members_of(value.decode("utf-8", "surrogateescape"))
        if members is not None and is_utf8(value):
            found = _merged(found, _type_of_members((each.name, each.value) for each in members))
    return found


def _type_of_members(members: Iterable[tuple[str, Any]], depth: int = 0) -> pa.DataType:
    fields: dict[str, pa.DataType] = {}
    for name, value in members:
        if is_text(name):
            of = _type_of(value, depth + 1)
            fields[name] = _merged(fields[name], of) if name in fields else of
    return pa.struct(list(fields.items()))


def _type_of(value: Any, depth: int) -> pa.DataType:
    if value is None or depth > DEEPEST:
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
        return _type_of_members(value.items(), depth)
    found: pa.DataType = pa.null()
    for element in value:
        found = _merged(found, _type_of(element, depth + 1))
    return pa.list_(found)


def _plain(of: pa.DataType, depth: int = 0) -> pa.DataType:
    """Return the type without what pyarrow.json reads into text."""
    if depth > DEEPEST:
        return pa.null()
    if pa.types.is_struct(of):
        return pa.struct([(field.name, _plain(field.type, depth + 1)) for field in of])
    if pa.types.is_list(of):
        return pa.list_(_plain(of.value_type, depth + 1))
    return pa.string() if pa.types.is_temporal(of) else of


def _merged(a: pa.DataType, b: pa.DataType) -> pa.DataType:
    """Return the type that values of both have."""
    if a == b or pa.types.is_null(b):
        return a
    if pa.types.is_null(a):
        return b
    if pa.types.is_struct(a) and pa.types.is_struct(b):
        fields = fields_of(a)
        for name, of in fields_of(b).items():
            fields[name] = _merged(fields[name], of) if name in fields else of
        return pa.struct(list(fields.items()))
    if pa.types.is_list(a) and pa.types.is_list(b):
        return pa.list_(_merged(a.value_type, b.value_type))
    numbers = {pa.int64(), pa.float64()}
    return pa.float64() if {a, b} == numbers else pa.string()


def _pruned(of: pa.DataType) -> pa.DataType | None:
    """Return the type without what has none yet, None if nothing is left."""
    if pa.types.is_null(of):
        return None
    if pa.types.is_struct(of):
        fields = [(field.name, kept) for field in of if (kept := _pruned(field.type)) is not None]
        return pa.struct(fields) if fields else None
    if pa.types.is_list(of):
        kept = _pruned(of.value_type)
        return None if kept is None else pa.list_(kept)
    return of
