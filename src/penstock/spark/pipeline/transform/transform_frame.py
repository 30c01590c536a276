"""A transform in a Spark query."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema

from penstock.spark.pipeline.transform.transform import Transform
from penstock.spark.pipeline.transform.transform_rows import CHANGED_COLUMNS, transform_batch
from penstock.wire.columns.schema import CHANGE_SCHEMA

_RESULT = pa.schema([CHANGE_SCHEMA.field(name) for name in CHANGED_COLUMNS])


def apply_transform(frame: DataFrame, transform: Transform) -> DataFrame:
    """Return the changes after a transform, which Spark's tasks run.

    Args:
        frame: rows with all columns of CHANGE_SCHEMA.
        transform: the transform.

    Returns:
        A frame with the columns of CHANGE_SCHEMA.
    """

    def run_batch(changes: pa.Array) -> pa.Array:
        batch = pa.RecordBatch.from_arrays(changes.flatten(), names=CHANGE_SCHEMA.names).cast(CHANGE_SCHEMA)
        changed = transform_batch(transform, batch)
        return pa.StructArray.from_arrays([changed[name] for name in _RESULT.names], fields=list(_RESULT))

    arrow_udf: Any = F.arrow_udf  # type: ignore[attr-defined]
    # A function that is not deterministic is called once a row, also if several columns need its result.
    run = arrow_udf(run_batch, from_arrow_schema(_RESULT)).asNondeterministic()
    kept = [name for name in CHANGE_SCHEMA.names if name not in CHANGED_COLUMNS]
    changed = frame.select(*kept, run(F.struct(*CHANGE_SCHEMA.names)).alias("_changed"))
    return changed.select(
        *(F.col(f"_changed.{name}").alias(name) if name in CHANGED_COLUMNS else name for name in CHANGE_SCHEMA.names)
    )
