"""The fields of JSON values as columns of a Spark frame, by the rules of json_columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pyarrow as pa

from penstock.spark.tables.column_rules import parse_columns
from penstock.spark.values.json_types import as_struct

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def select_fields(
    frame: DataFrame, kept: Sequence[str], value: str, fields: pa.Schema, names: Sequence[str]
) -> DataFrame:
    """Return columns of a frame, and the fields of its values, which Spark's tasks parse.

    Args:
        frame: the frame.
        kept: its columns that the result has first.
        value: its column with values as binary.
        fields: the fields of the values.
        names: the names of the fields in the result. One name more adds the parts that do not fit, as JSON.

    Returns:
        The frame. Fields are null for a value that is null or not a JSON object.
    """
    from pyspark.sql.functions import arrow_udf, col  # type: ignore[attr-defined]  # late: most readers need no Spark
    from pyspark.sql.pandas.types import from_arrow_schema

    # Spark compares names without case, so that two fields may have the same name for it.
    types = [*(field.type for field in as_struct(fields)), pa.string()][: len(names)]
    numbered = pa.schema([(f"c{number}", of) for number, of in enumerate(types)])

    def parse_batch(values: pa.Array) -> pa.Array:
        columns, rest = parse_columns(values, (), fields)
        return pa.StructArray.from_arrays([*columns, rest][: len(names)], fields=list(numbered))

    # Not mapInArrow, because PySpark requires pandas for it.
    parsed = arrow_udf(parse_batch, from_arrow_schema(numbered))(col(value))
    columns = [col(f"_parsed.c{number}").alias(name) for number, name in enumerate(names)]
    return frame.select(*kept, parsed.alias("_parsed")).select(*kept, *columns)
