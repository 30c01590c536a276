"""The checks of the SQL in a pipeline's file, with Spark's own analyzer, in the forms in which a run uses it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_type

from penstock.errors import UsageError
from penstock.spark.dependents.registry import DependentKind
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.runtime.sql_analyzer import SqlAnalyzer, SqlError
from penstock.spark.values.json_types import format_type, from_ddl, make_column_names
from penstock.wire.columns.schema import CHANGE_SCHEMA

CHANGE = "_change"
"""The struct in which a filter finds the change's own columns: `_change.key`."""


def check_filter(where: str, value_schema: str | None, analyzer: SqlAnalyzer) -> None:
    """Check that a text is a condition on each change.

    Args:
        where: the text.
        value_schema: the fields of values as DDL; None if they are not known: then only the syntax is checked.
        analyzer: Spark's analyzer.

    Raises:
        UsageError: it is not.
    """
    try:
        analyzer.check_condition(where, None if value_schema is None else _write_filter_relation(value_schema))
    except SqlError as error:
        raise UsageError(describe_filter_error(where, value_schema, str(error))) from None


def describe_filter_error(where: str, value_schema: str | None, reason: str) -> str:
    """Return the sentence about a filter that Spark cannot evaluate.

    Args:
        where: the filter.
        value_schema: the fields of values as DDL; None if they are not known yet.
        reason: Spark's error.
    """
    expected = "a condition in SQL" if value_schema is None else f"a condition on {value_schema}"
    return f"where is {where!r}, expected {expected}: {reason}"


def check_query(dependent: DependentKind, query: str, analyzer: SqlAnalyzer) -> None:
    """Check that a dependent can use a query on the view `changes`.

    Args:
        dependent: the dependent.
        query: its query.
        analyzer: Spark's analyzer.

    Raises:
        UsageError: Spark cannot run the query, or its result has other columns than the dependent needs.
    """
    try:
        result = analyzer.read_schema(query, changes=_write_relation(MERGE_SCHEMA))
    except SqlError as error:
        raise UsageError(f"sql is {query!r}, expected a query on the view changes: {error}") from None
    try:
        if result is not None:
            dependent.check_sql_result(result)
    except UsageError as error:
        raise UsageError(f"sql is {query!r}, whose result is refused: {error}") from None


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
