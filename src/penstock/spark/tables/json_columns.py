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

A field is inferred to have the type of most of its values. The other values are in `rest`.
"""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from penstock.argument_types import check_arguments
from penstock.spark.tables.inference import infer_fields
from penstock.spark.values.json_types import as_struct, differences, format_type, from_ddl, map_fields, to_ddl
from penstock.spark.values.typed_documents import ColumnRule, DocumentParser

__all__ = ["Evolution", "differences", "evolution", "from_ddl", "infer", "parse", "to_ddl"]


@check_arguments
def parse(values: pa.Array, schema: pa.Schema | pa.StructType) -> tuple[pa.StructArray, pa.StringArray]:
    """Return the fields of documents, and the parts that do not fit; the module's docstring has the rules.

    Raises UsageError if JSON has no values of one of the types.

    Args:
        values: documents, binary or text.
        schema: the fields and their types.

    Returns:
        The fields, null for a value that is null or not a JSON object; and the rest as JSON text, null if all fits.
    """
    of = as_struct(schema)
    given = values.cast(pa.binary())
    found = DocumentParser([ColumnRule(field.name, field.type) for field in of]).parse(given)
    is_object = pc.fill_null(found.objects, False)
    if len(of):
        columns = pa.StructArray.from_arrays(found.columns.columns, fields=list(of), mask=pc.invert(is_object))
    else:  # from_arrays would not know how many rows there are
        columns = pa.array([{} if each else None for each in is_object.to_pylist()], of)
    return columns, found.fill_rest(given)


@check_arguments
def infer(values: pa.Array) -> pa.Schema:
    """Return a schema that fits the JSON objects among the values, with fields in the order of first appearance.

    A field has the type of most of its values, by the rules of the module inference. Names that no column can have are
    left out: empty ones, and those with a zero character or half a surrogate pair.
    """
    return infer_fields(values.cast(pa.binary()).to_pylist())


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
