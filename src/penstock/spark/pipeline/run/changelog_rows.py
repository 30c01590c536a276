"""Changelog rows: the source's rows after a transform and a filter on values, with null in columns that were not read.

A document that the filter excludes is written as a deletion: it may have matched before, and then `current` must drop
it. Rows that are not documents, such as rollbacks, pass unchanged.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from penstock.errors import UsageError
from penstock.spark.pipeline.checks.sql_checks import CHANGE, describe_filter_error
from penstock.spark.pipeline.definition.definition import SourceDefinition
from penstock.spark.pipeline.transform.transform_frame import apply_transform
from penstock.spark.tables.spark_fields import select_fields
from penstock.spark.values.json_types import from_ddl, make_column_names
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event


def prepare_rows(frame: DataFrame, source: SourceDefinition, value_schema: str | None) -> DataFrame:
    """Return the rows for the changelog, from a frame of `format("dcp")`.

    Args:
        frame: rows of the source.
        source: the definition with the transform and the filter.
        value_schema: the fields of values as DDL; None without a filter.

    Returns:
        A frame with all columns of CHANGE_SCHEMA.

    Raises:
        UsageError: the filter is not a condition on these fields, or the transform cannot be imported.
    """
    for field in CHANGE_SCHEMA:
        if field.name not in frame.columns:
            nothing = F.expr("null").cast(from_arrow_type(field.type))
            frame = frame.withColumn(field.name, nothing)
    transform = source.find_transform()
    if transform is not None:
        frame = apply_transform(frame, transform)
    if source.where is None or value_schema is None:
        return frame
    try:
        return _apply_filter(frame, source.where, value_schema)
    except (AnalysisException, ParseException) as error:
        text = str(error).strip().partition("\n")[0].rstrip(";")
        raise UsageError(describe_filter_error(source.where, value_schema, text)) from None


def select_matches(frame: DataFrame, where: str, value_schema: str) -> DataFrame:
    """Return the mutations whose value meets a condition.

    Args:
        frame: rows with all columns of CHANGE_SCHEMA.
        where: the condition in SQL.
        value_schema: the fields of values as DDL.

    Returns:
        A frame with the columns of CHANGE_SCHEMA.

    Raises:
        UsageError: the text is not a condition on these fields.
    """
    try:
        flat = _flatten_values(frame.where(F.col("event") == str(Event.MUTATION)), value_schema)
        return flat.where(F.coalesce(F.expr(where), F.expr("false"))).select(f"{CHANGE}.*")
    except (AnalysisException, ParseException) as error:
        text = str(error).strip().partition("\n")[0].rstrip(";")
        raise UsageError(describe_filter_error(where, value_schema, text)) from None


def _flatten_values(frame: DataFrame, value_schema: str) -> DataFrame:
    """Return the change as one struct, and the fields of its value as columns, so that SQL finds them."""
    # The struct keeps fields apart from a change's columns of that name.
    changes = frame.select(F.struct(*CHANGE_SCHEMA.names).alias(CHANGE))
    fields = from_ddl(value_schema)
    return select_fields(changes, [CHANGE], f"{CHANGE}.value", fields, make_column_names(fields, [CHANGE]))


def _apply_filter(frame: DataFrame, where: str, value_schema: str) -> DataFrame:
    flat = _flatten_values(frame, value_schema)
    # The condition is parsed separately, so that a comment at its end cannot hide the rest of the expression.
    wanted = F.expr(f"{CHANGE}.event <> '{Event.MUTATION}'") | F.coalesce(F.expr(where), F.expr("false"))
    marked_rows = flat.select(CHANGE, wanted.alias("_wanted"))
    return marked_rows.select(
        *(F.expr(_IF_WANTED.get(name, f"{CHANGE}.{name}")).alias(name) for name in CHANGE_SCHEMA.names)
    )


_IF_WANTED = {
    "event": f"if(_wanted, {CHANGE}.event, '{Event.DELETION}')",
    "value": f"if(_wanted, {CHANGE}.value, null)",
    "xattrs": f"if(_wanted, {CHANGE}.xattrs, null)",
    "datatype": f"if(_wanted or {CHANGE}.datatype is null, {CHANGE}.datatype, 0)",
}
"""The expression of each column that differs for a document that the filter excludes."""
