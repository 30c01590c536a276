"""The schema of a read: from its options, or inferred from values of the bucket."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.client.blocking import read_changes_at
from penstock.errors import UsageError
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.tables.inference import infer_fields as infer_from_values
from penstock.spark.values.json_types import to_ddl
from penstock.wire.columns.schema import Event

SAMPLE_VALUES, SAMPLE_BYTES = 1_000, 4 << 20
"""Limits of the sample that a schema is inferred from. The sample starts at the bucket's first change."""


def make_read_schema(options: SourceOptions) -> StructType:
    """Return the schema that the source promises to Spark.

    Args:
        options: the options of the read.

    Raises:
        UsageError: the options are invalid, or the sample has no JSON objects. A schema that must be inferred also
            raises the errors of a read.
    """
    shape = options.make_shape(infer_fields(options)) if _needs_inference(options) else options.shape
    return from_arrow_schema(shape.schema)


def make_read_shape(options: SourceOptions, schema: StructType) -> Shape:
    """Return the shape that has the promised columns.

    Args:
        options: the options of the read.
        schema: the schema that Spark was promised.

    Raises:
        UsageError: no shape of these options has this schema.
    """
    shape = options.make_shape(_read_value_fields(schema)) if _needs_inference(options) else options.shape
    check_schema(schema, from_arrow_schema(shape.schema))
    return shape


def check_schema(promised: StructType, expected: StructType) -> None:
    """Check that Spark expects the columns that a read has.

    Args:
        promised: the columns that Spark expects.
        expected: the columns of the read.

    Raises:
        UsageError: the columns differ.
    """
    if promised != expected:
        raise UsageError(
            f"{_describe_difference(promised, expected)}: schema {promised.simpleString()}, expected that of the"
            f" options, {expected.simpleString()}; columns and valueSchema choose one, and a table keeps that of its"
            " creation: neither ALTER TABLE nor WITH (...) can change its columns"
        )


def _describe_difference(promised: StructType, expected: StructType) -> str:
    """Return the first difference of two schemas in words."""
    has, wanted = ({each.name: each.dataType for each in schema.fields} for schema in (promised, expected))
    if more := [name for name in has if name not in wanted]:
        return f"found the column {more[0]}, which the options do not give"
    if missing := [name for name in wanted if name not in has]:
        return f"the column {missing[0]} is missing"
    for name, of in has.items():
        if of != wanted[name]:
            return f"the column {name} is {of.simpleString()}, expected {wanted[name].simpleString()}"
    return "the columns have another order" if [*has] != [*wanted] else "a column cannot be null"


def _needs_inference(options: SourceOptions) -> bool:
    """Return whether the schema of values must be inferred from the bucket."""
    return options.value_schema == INFERRED and "value" in options.make_shape("").columns


def _read_value_fields(schema: StructType) -> str:
    """Return the fields of values of a schema that was inferred before, as DDL.

    Raises:
        UsageError: the schema has no column value with fields.
    """
    value = schema["value"].dataType if "value" in schema.names else None
    if not isinstance(value, StructType):
        raise UsageError(f"schema {schema.simpleString()}, expected a column value with the fields of JSON")
    return to_ddl(to_arrow_schema(value, timezone="UTC"))


def infer_fields(options: SourceOptions) -> str:
    """Return the fields of the bucket's first values, as DDL.

    Args:
        options: the options of the read; its key patterns limit the sample.

    Returns:
        The fields, each once.

    Raises:
        UsageError: the sample has no JSON objects.
    """
    keys_too = Shape(key_pattern=options.key_pattern, key_pattern_exclude=options.key_pattern_exclude)
    found: list[pa.Array] = []
    changes = read_changes_at(options.address, stop="now", vbuckets=options.vbuckets, protocol=options.dialect)
    try:
        for batch in map(keys_too.apply, changes):
            mutations = pa.compute.equal(batch["event"], Event.MUTATION)
            found.append(batch["value"].filter(mutations))
            if sum(map(len, found)) >= SAMPLE_VALUES or sum(each.nbytes for each in found) >= SAMPLE_BYTES:
                break
    finally:
        changes.close()
    schema = infer_from_values(value for values in found for value in values.to_pylist())
    if not len(schema):
        raise UsageError(f"{options.address}: no JSON objects to infer option valueSchema from; expected it as DDL")
    return to_ddl(schema)
