"""Tables of a lake in a catalog of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import UsageError
from penstock.spark.lake.current.typed_table import list_typed_tables
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.iceberg.iceberg_catalog import name_namespace, read_catalog_uri

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_TABLES = {"": "current", "_changelog": "changelog", "_json": "json"}
"""End of a table's name -> the option `table` of its reads."""


def create_tables(lake: LakeDirectory, spark: SparkSession, name: str, schema: str | None) -> list[str]:
    """Create the tables of a lake in the catalog of a session.

    Args:
        lake: the lake.
        spark: the session.
        name: the name of the first table.
        schema: the fields of the JSON as DDL; None to infer them.

    Returns:
        The names of the tables.
    """
    names: list[str] = []
    for ending, table in _TABLES.items():
        options = {"path": str(lake.path), "table": table}
        if table == "json" and schema is not None:
            options["valueSchema"] = schema
        given = ", ".join(f"{option} {_quote(text)}" for option, text in options.items())
        names.append(name + ending)
        spark.sql(f"CREATE TABLE IF NOT EXISTS {_quote_name(names[-1])} USING `penstock-lake` OPTIONS ({given})")
    return names


def register_tables(lake: LakeDirectory, spark: SparkSession, schema: str) -> list[str]:
    """Create the typed tables of a lake in a catalog as plain Delta tables. Readers of them do not need Penstock.

    Args:
        lake: the lake.
        spark: a session with Delta's own package.
        schema: the schema of the catalog, which is created if it does not exist.

    Returns:
        The names of the tables.

    Raises:
        UsageError: the session does not have Delta's package.
    """
    statements = list_registrations(lake, schema)
    try:
        for statement in (f"CREATE SCHEMA IF NOT EXISTS {_quote_name(schema)}", *statements.values()):
            spark.sql(statement)
    except Exception as error:  # PySpark has no class of its own for a missing format
        if "[DATA_SOURCE_NOT_FOUND]" not in str(error):
            raise
        raise UsageError(
            "this Spark session does not have Delta; expected one with the package io.delta:delta-spark of its version"
        ) from error
    return [*statements]


def list_registrations(lake: LakeDirectory, schema: str) -> dict[str, str]:
    """Return the SQL that creates each typed table in a catalog, by the table's name.

    Args:
        lake: the lake.
        schema: the schema of the catalog.

    Raises:
        UsageError: the tables are Iceberg tables, which are in a catalog already.
    """
    if lake.changelog_table.format == "iceberg":
        raise UsageError(
            f"the tables of {lake.path} are Iceberg tables, in the namespace {name_namespace(lake.path)!r} of the"
            f" catalog {read_catalog_uri(lake.path)}; expected Delta tables"
        )
    return {
        f"{schema}.{each.name}": f"CREATE TABLE IF NOT EXISTS {_quote_name(f'{schema}.{each.name}')} USING delta"
        f" LOCATION {_quote(each.table.path.as_uri())}"
        for each in list_typed_tables(lake)
    }


def _quote_name(name: str) -> str:
    """Return a name, of which each part is quoted."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in name.split("."))


def _quote(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
