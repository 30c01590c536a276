"""Tables of a lake in a catalog of Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.spark.lake.tables.directory import LakeDirectory

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


def _quote_name(name: str) -> str:
    """Return a name, of which each part is quoted."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in name.split("."))


def _quote(text: str) -> str:
    """Return a text as a literal of SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
