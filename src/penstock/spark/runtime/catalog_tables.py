"""The options of a table in Spark's catalog: `CREATE TABLE beers USING dcp OPTIONS (url '...')`.

Spark 4.2 and 4.3 pass these options to a Python source only when the table is created. Each later read or write gets
the schema of the table, and no options. So the source keeps the options in the metadata of the table's columns. If the
statement names columns, Spark does not call the source at all, and the options are lost. Reads and writes of such a
table are refused. A source never sees later changes of properties and location, which have no effect.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql.types import StructField, StructType

from penstock.errors import UsageError
from penstock.options import list_options

_PREFIX = "option."
"""Beginning of each table option among the properties of a table. Spark also passes properties of its own."""
_PROVIDER = "provider"
_METADATA = "penstock.options"
_REFUSED = {
    "password": "the catalog shows the options of a table",
    "passwordcommand": "any reader of the table would run it",
}
"""Options that no table may have, and the reason."""
_PROPERTIES = frozenset(
    (_PROVIDER, "owner", "location", "path", "comment", "external", "is_managed_location", "table_type", "collation")
)
"""Properties of Spark's own."""


def read_table_options(given: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that Spark creates, without Spark's own properties; None outside CREATE TABLE.

    Args:
        given: the options as Spark passes them, with names in any case.

    Raises:
        UsageError: an option is a secret, which the catalog would show to every reader, or a command. Or the table has
            properties, which no read would see.
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
    others = {name: text for name, text in texts.items() if not name.startswith((_PREFIX, "spark."))}
    if unknown := [name for name, text in others.items() if name not in _PROPERTIES and text != options.get(name)]:
        raise UsageError(f"TBLPROPERTIES has {unknown[0]!r}, which nothing reads; expected OPTIONS (...)")
    return options


def refuse_location(given: Mapping[str, str]) -> None:
    """Check that a table has no LOCATION.

    Raises:
        UsageError: it has one.
    """
    if "path" in {name.lower() for name in given} and f"{_PREFIX}path" not in {name.lower() for name in given}:
        raise UsageError("found LOCATION, but a bucket has none; expected OPTIONS (url '...')")


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


def find_options(
    given: Mapping[str, str], schema: StructType, owner: type, place: str, *, is_described: bool = False
) -> dict[str, str]:
    """Return the options of a read or a write: those of the statement, completed by those of the table.

    Args:
        given: the options of the statement. They replace those of the table.
        schema: the schema that Spark passes.
        owner: the class that declares the options of the read or the write. A table may have those of both.
        place: the option that names the bucket or the lake.
        is_described: whether the schema is one that the source returned for these options.

    Raises:
        UsageError: the table has lost its options.
    """
    names = list_names(owner)
    kept: dict[str, str] = {}
    tables = [each.metadata[_METADATA] for each in schema.fields if _METADATA in (each.metadata or {})]
    if not tables and not is_described and place not in {name.lower() for name in given}:
        raise UsageError(
            f"no option {place}: Spark loses the options of a table whose columns were named or replaced, and those of"
            f" CREATE TABLE ... AS SELECT; expected CREATE TABLE without columns, or option {place}"
        )
    for each in tables:
        kept |= each
    kept = {name: text for name, text in kept.items() if name in names}
    return {**kept, **{name.lower(): text for name, text in given.items()}}
