"""The schema of a read: what its options say, and of JSON values, if they are to be inferred, what a bucket holds."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from penstock.client.blocking import changes_at
from penstock.errors import UsageError
from penstock.spark.source.shape import Shape
from penstock.spark.source.source_options import INFERRED, SourceOptions
from penstock.spark.values import json_columns
from penstock.wire.columns.schema import Event

__all__ = ["inferred_fields", "schema_of", "shape_of"]

SAMPLE_VALUES, SAMPLE_BYTES = 1_000, 4 << 20
"""How much of a bucket is looked at to infer a schema, from its beginning."""


def schema_of(options: SourceOptions) -> StructType:
    """Return the columns that Spark is promised. Raises UsageError, and as a read does where the bucket is asked."""
    shape = options.shape_of(inferred_fields(options)) if _is_to_infer(options) else options.shape
    return from_arrow_schema(shape.schema)


def shape_of(options: SourceOptions, schema: StructType) -> Shape:
    """Return the shape that has the columns which Spark was promised. Raises UsageError if none has."""
    shape = options.shape_of(_told(schema)) if _is_to_infer(options) else options.shape
    expected = from_arrow_schema(shape.schema)
    if schema != expected:
        raise UsageError(
            f"schema {schema.simpleString()}, expected that of the options, {expected.simpleString()}; "
            "columns and valueSchema choose one"
        )
    return shape


def _is_to_infer(options: SourceOptions) -> bool:
    return options.value_schema == INFERRED and options.shape_of("").needs_values


def _told(schema: StructType) -> str:
    """Return the fields of values in the schema that was inferred before, as DDL."""
    value = schema["value"].dataType if "value" in schema.names else None
    if not isinstance(value, StructType):
        raise UsageError(f"schema {schema.simpleString()}, expected a column value with the fields of JSON")
    return json_columns.to_ddl(to_arrow_schema(value, timezone="UTC"))


def inferred_fields(options: SourceOptions) -> str:
    """Return the fields of the first values in the bucket, as DDL. Raises UsageError where there are none."""
    keys_too = Shape(key_pattern=options.key_pattern)
    found: list[pa.Array] = []
    changes = changes_at(options.address, stop="now", vbuckets=options.vbuckets, protocol=options.dialect)
    try:
        for batch in map(keys_too.apply, changes):
            mutations = pa.compute.equal(batch["event"], Event.MUTATION)
            found.append(batch["value"].filter(mutations))
            if sum(map(len, found)) >= SAMPLE_VALUES or sum(each.nbytes for each in found) >= SAMPLE_BYTES:
                break
    finally:
        changes.close()
    schema = json_columns.infer(pa.chunked_array(found, pa.binary()).combine_chunks())
    if not len(schema):
        raise UsageError(f"{options.address}: no JSON objects to infer option valueSchema from; expected it as DDL")
    return json_columns.to_ddl(schema)
