"""Checks of the SQL in a pipeline's file, with Spark's own analyzer and without a session."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from penstock.errors import UsageError
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.pipeline.definition.definition import PipelineDefinition
from penstock.spark.pipeline.run.changelog_rows import CHANGE, describe_filter_error
from penstock.spark.runtime.sql_analyzer import SqlAnalyzer, open_analyzer
from penstock.spark.source.source_options import INFERRED
from penstock.spark.values.json_types import format_type, from_ddl, make_column_names
from penstock.wire.columns.schema import CHANGE_SCHEMA

__all__ = ["check_sql", "find_sql_errors"]


def check_sql(definition: PipelineDefinition, file: str) -> None:
    """Check all SQL of a pipeline. Java starts only if there is SQL.

    Args:
        definition: the pipeline.
        file: its file, for errors.

    Raises:
        UsageError: Spark cannot parse a text, or a name in it is unknown.
    """
    wheres = [source for source in definition.sources if source.where is not None]
    if not wheres and all(each.sql_query is None for each in definition.dependents):
        return
    with open_analyzer() as analyzer:
        for error in find_sql_errors(definition, analyzer):
            raise UsageError(f"{file}: {error}")


def find_sql_errors(definition: PipelineDefinition, analyzer: SqlAnalyzer) -> Iterator[str]:
    """Yield a sentence for each SQL text that Spark cannot run.

    Args:
        definition: the pipeline.
        analyzer: Spark's analyzer.

    Yields:
        The sentences, which begin with the table of the file.
    """
    for source in definition.sources:
        if source.where is not None:
            schema = None if source.value_schema in (None, INFERRED) else source.value_schema
            relation = None if schema is None else _write_filter_relation(schema)
            reason = analyzer.find_condition_error(source.where, relation)
            if reason is not None:
                yield f"[source.{source.name}] {describe_filter_error(source.where, schema, reason)}"
    for each in definition.dependents:
        query = each.sql_query
        if query is not None and (reason := analyzer.find_query_error(query, changes=_write_relation(MERGE_SCHEMA))):
            yield f"[[{each.title}]] {each.name} sql is {query!r}, expected a query on the view changes: {reason}"


def _write_filter_relation(value_schema: str) -> str:
    """Return a query with the columns that a filter has."""
    fields = from_ddl(value_schema)
    named = pa.struct(list(zip(make_column_names(fields, [CHANGE]), fields.types, strict=True)))
    columns = f"CAST(NULL AS {format_type(named)}) AS _value, CAST(NULL AS {_write_struct(CHANGE_SCHEMA)}) AS {CHANGE}"
    return f"SELECT {CHANGE}, _value.* FROM (SELECT {columns})"


def _write_relation(schema: pa.Schema) -> str:
    return f"SELECT _row.* FROM (SELECT CAST(NULL AS {_write_struct(schema)}) AS _row)"


def _write_struct(schema: pa.Schema) -> str:
    return f"STRUCT<{', '.join(f'{field.name}: {from_arrow_type(field.type).simpleString()}' for field in schema)}>"
