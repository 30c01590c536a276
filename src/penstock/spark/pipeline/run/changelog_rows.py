"""From the source's rows to those of the changelog: a filter on values, and columns that were not asked for.

A document that the filter does not want is not left out but written as a deletion: it may have been wanted before, and
current must lose it then. Rows that are no document, rollbacks above all, pass as they are.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_type

from penstock.errors import UsageError
from penstock.spark.pipeline.definition.definition import Source
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

__all__ = ["CHANGE", "prepared"]

CHANGE = "_change"
"""The struct in which a filter finds the change's own columns: `_change.key`."""


def prepared(frame: DataFrame, source: Source, value_schema: str | None) -> DataFrame:
    """Return the frame of `format("dcp")` as the changelog takes it. value_schema: DDL, for the source's `where`.

    Raises UsageError for a filter that is no condition on these fields.
    """
    for field in CHANGE_SCHEMA:
        if field.name not in frame.columns:
            nothing = F.expr("null").cast(from_arrow_type(field.type))
            frame = frame.withColumn(field.name, nothing)
    if source.where is None or value_schema is None:
        return frame
    try:
        return _matching(frame, source.where, value_schema)
    except (AnalysisException, ParseException) as error:
        text = str(error).strip().partition("\n")[0].rstrip(";")
        raise UsageError(f"where is {source.where!r}, expected a condition on {value_schema}: {text}") from None


def _matching(frame: DataFrame, where: str, value_schema: str) -> DataFrame:
    fields = F.from_json(F.col("value").cast("string"), value_schema)
    # Fields become columns of their own, so that SQL finds them; a document may have fields called as a change's.
    flat = frame.select(F.struct(*CHANGE_SCHEMA.names).alias(CHANGE), fields.alias("_value")).select(CHANGE, "_value.*")
    # The condition is parsed by itself: no comment at its end hides what follows.
    wanted = F.expr(f"{CHANGE}.event <> '{Event.MUTATION}'") | F.coalesce(F.expr(where), F.expr("false"))
    marked = flat.select(CHANGE, wanted.alias("_wanted"))
    return marked.select(
        *(F.expr(_IF_WANTED.get(name, f"{CHANGE}.{name}")).alias(name) for name in CHANGE_SCHEMA.names)
    )


_IF_WANTED = {
    "event": f"if(_wanted, {CHANGE}.event, '{Event.DELETION}')",
    "value": f"if(_wanted, {CHANGE}.value, null)",
    "xattrs": f"if(_wanted, {CHANGE}.xattrs, null)",
    "datatype": f"if(_wanted or {CHANGE}.datatype is null, {CHANGE}.datatype, 0)",
}
"""What is in a column that differs where a document is not wanted."""
