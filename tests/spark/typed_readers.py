"""Typed tables of any format, as programs read them that do not know Penstock."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import strategies as st
from pyiceberg.catalog import load_catalog
from pyiceberg.table import Table

from penstock.spark.lake.current.typed_table import TypedTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.iceberg.iceberg_catalog import OWN_CATALOG, name_namespace, read_catalog_uri
from penstock.spark.storage.object_path import ObjectPath

os.environ["POLARS_ICEBERG_PLANNER"] = "pyiceberg"  # without it Polars warns that a package would plan faster

FORMATS = st.sampled_from([*["delta"] * 4, "iceberg"])
"""Formats of tables with versions. A commit of Iceberg takes longer."""


def open_iceberg(lake: LakeDirectory, name: str) -> Table:
    """Return an Iceberg table of a lake's own catalog."""
    if isinstance(lake.path, ObjectPath):
        catalog = load_catalog(
            "any",
            type="rest",
            uri=read_catalog_uri(lake.path),
            token=os.environ["PYICEBERG_CATALOG__PENSTOCK__TOKEN"],
            **find_s3_properties(os.environ),
        )
        return catalog.load_table((name_namespace(lake.path), name))
    # An SQLite catalog keeps its tables under the name of the catalog that created them.
    catalog = load_catalog("penstock", type="sql", uri=f"sqlite:///{lake.path / OWN_CATALOG}")
    return catalog.load_table((name_namespace(lake.path), name))


def find_s3_properties(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the properties with which PyIceberg finds the object store of an environment."""
    return {
        "s3.endpoint": environ["AWS_ENDPOINT_URL"],
        "s3.access-key-id": environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": environ["AWS_REGION"],
    }


def is_iceberg(lake: LakeDirectory) -> bool:
    return lake.changelog_table.format == "iceberg"


def find_version(lake: LakeDirectory, name: str) -> int:
    """Return the newest version of a table."""
    if not is_iceberg(lake):
        return DeltaTable(str(lake.path / "tables" / name)).version()
    snapshot = open_iceberg(lake, name).current_snapshot()
    assert snapshot is not None
    return (snapshot.sequence_number or 0) - 1


def read_lines(lake: LakeDirectory, name: str, version: int | None = None) -> list[dict[str, Any]]:
    """Return the rows of a table, of its newest version or of a past one."""
    if not is_iceberg(lake):
        found: Any = DeltaTable(str(lake.path / "tables" / name), version=version).to_pyarrow_table()
    else:
        table = open_iceberg(lake, name)
        at = [each.snapshot_id for each in table.snapshots() if each.sequence_number == (version or 0) + 1]
        found = table.scan(snapshot_id=at[0] if version is not None else None).to_arrow()
    return list(pa.table(found).to_pylist())


def read_rows(table: TypedTable) -> list[dict[str, Any]]:
    """Return the rows of a typed table, none before its first commit."""
    return read_lines(table.lake, table.name) if table.table.open() is not None else []


def scan_table(lake: LakeDirectory, name: str) -> pl.LazyFrame:
    """Return a table as Polars reads it."""
    place = str(lake.path / "tables" / name)
    return pl.scan_iceberg(open_iceberg(lake, name)) if is_iceberg(lake) else pl.scan_delta(place)


def query_table(lake: LakeDirectory, name: str, sql: str) -> list[tuple[Any, ...]]:
    """Return the result of a query of a table as DuckDB reads it."""
    if is_iceberg(lake):
        return open_iceberg(lake, name).scan().to_duckdb(name).execute(sql).fetchall()
    with duckdb.connect() as connection:
        connection.register(name, DeltaTable(str(lake.path / "tables" / name)).to_pyarrow_dataset())
        return connection.execute(sql).fetchall()


def list_changes(table: TypedTable, version: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows that came (1) and went (-1) after a version.

    Delta has them in its change feed. Readers of Iceberg compare the rows of two snapshots.
    """
    lake, name = table.lake, table.name
    if find_version(lake, name) <= version:
        return
    if not is_iceberg(lake):
        changes = DeltaTable(str(lake.path / "tables" / name)).load_cdf(starting_version=version + 1).read_all()
        for line in pa.table(changes).to_pylist():
            kind = line.pop("_change_type")
            del line["_commit_timestamp"], line["_commit_version"]
            yield 1 if kind in ("insert", "update_postimage") else -1, line
        return
    before = read_lines(lake, name, version) if version >= 0 else []
    after = read_lines(lake, name)
    for sign, lines, others in ((-1, before, after), (1, after, before)):
        known = {repr(line) for line in others}
        yield from ((sign, line) for line in lines if repr(line) not in known)
