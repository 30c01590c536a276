"""The options of a table in Spark's catalog: `CREATE TABLE beers USING dcp OPTIONS (url '...')`.

Spark 4.2 and 4.3 pass these options to a Python source only when the table is created. Each later read or write gets
the schema of the table, and no options. So the source keeps the options in the metadata of the table's columns.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from penstock.errors import UsageError
from penstock.options import list_options

__all__ = ["find_options", "keep_options", "list_names", "read_table_options", "remove_options"]

_PREFIX = "option."
"""Beginning of each table option among the properties of a table. Spark also passes properties of its own."""
_PROVIDER = "provider"
_METADATA = "penstock.options"
_REFUSED = {
    "password": "the catalog shows the options of a table",
    "passwordcommand": "any reader of the table would run it",
}
"""Options that no table may have, and the reason."""


def read_table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that Spark creates, without Spark's own properties; None outside CREATE TABLE.

    Args:
        given: the options as Spark passes them, with names in any case.

    Raises:
        UsageError: an option is a secret, which the catalog would show to every reader, or a command.
    """
    texts = {name.lower(): text for name, text in given.items()}
    if _PROVIDER not in texts:
        return None
    options = {name.removeprefix(_PREFIX): text for name, text in texts.items() if name.startswith(_PREFIX)}
    if found := [name for name in _REFUSED if name in options]:
        raise UsageError(
            f"option {found[0]} of a table, expected passwordFile, passwordFrom, credentialsFile or PENSTOCK_PASSWORD: "
            f"{_REFUSED[found[0]]}"
        )
    return options


def keep_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """Return the schema of a table with its options in the metadata of each column.

    One column is not enough: an INSERT that leaves a column out loses the metadata of this column.
    """
    metadata = {_METADATA: {**options}}
    return StructType([StructField(each.name, each.dataType, each.nullable, metadata) for each in schema.fields])


def remove_options(schema: StructType) -> StructType:
    """Return the schema without the options of a table."""
    return StructType([StructField(each.name, each.dataType, each.nullable) for each in schema.fields])


def list_names(owner: type) -> set[str]:
    """Return the names of the options that a class declares, in lower case as Spark passes them."""
    return {each.external_name.lower() for each in list_options(owner).values()}


def find_options(given: Mapping[str, str], schema: StructType, owner: type) -> dict[str, str]:
    """Return the options of a read or a write: those of the statement, completed by those of the table.

    Args:
        given: the options of the statement. They replace those of the table.
        schema: the schema that Spark passes.
        owner: the class that declares the options of the read or the write. A table may have those of both.
    """
    names = list_names(owner)
    kept: dict[str, str] = {}
    for each in schema.fields:
        kept |= (each.metadata or {}).get(_METADATA, {})
    kept = {name: text for name, text in kept.items() if name in names}
    return {**kept, **{name.lower(): text for name, text in given.items()}}
