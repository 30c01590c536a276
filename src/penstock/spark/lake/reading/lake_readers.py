"""Readers of a lake's tables: documents and changes as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.argument_types import check_arguments
from penstock.errors import UsageError
from penstock.spark.lake.changelog.changelog_delta import LOOKUP_COLUMNS
from penstock.spark.lake.changelog.merge_rules import read_keys
from penstock.spark.lake.current.merged_state import (
    MergedState,
    read_newest_state,
    refuse_missing_table,
    retry_missing_files,
)
from penstock.spark.lake.current.typed_table import TypedTable, list_typed_tables
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.wire.columns.schema import CHANGE_SCHEMA

T = TypeVar("T")


@check_arguments
def read_current(lake: LakeDirectory, limit: int | None = None) -> pa.Table:
    """Return documents as of the changelog's newest version, sorted by key, in CURRENT_COLUMNS.

    Keys that are not UTF-8 come last. Raises UsageError if the lake has no changelog.

    Args:
        lake: the lake of the tables.
        limit: greatest number of documents; None for all.

    Returns:
        One row for each document.
    """

    def read(state: MergedState) -> pa.Table:
        where = None
        if limit is not None:
            # The first pass reads only keys, so that memory never holds the values of all documents.
            first = CURRENT_COLUMNS.empty_table().select(LOOKUP_COLUMNS)
            for rows in state.read_tables(LOOKUP_COLUMNS):
                first = _sort_by_key(pa.concat_tables([first, rows]), limit)
            vbucket, key = (first[name].unique() for name in ("vbucket", "key"))
            where = pc.field("vbucket").isin(vbucket) & (pc.field("key").isin(key) | pc.field("key").is_null())
        return _sort_by_key(pa.concat_tables([CURRENT_COLUMNS.empty_table(), *state.read_tables(where=where)]), limit)

    return read_newest_state(lake, read)


def _sort_by_key(documents: pa.Table, limit: int | None) -> pa.Table:
    keys = [(name, "ascending") for name in ("key", "key_bytes", "collection_id")]
    return documents.take(pc.sort_indices(documents, sort_keys=keys)[:limit])


@check_arguments
def read_changelog(lake: LakeDirectory, limit: int | None = None) -> pa.Table:
    """Return rows of the changelog, newest first, in CHANGE_SCHEMA.

    The last batch comes first. Within a batch, rows are sorted by descending cas, which is a clock. Rows without cas,
    such as rollbacks, come first in their batch. Batches whose files were joined count as one batch. Raises UsageError
    if the lake has no changelog.

    Args:
        lake: the lake of the changelog.
        limit: greatest number of rows; None for all.

    Returns:
        One row for each change or rollback.
    """

    def read(files: list[DataFile]) -> pa.Table:
        wanted: dict[int, list[DataFile]] = {}
        rows = 0
        for file in reversed(files):
            # Files of one batch share the commit time. A batch is read whole, because its files are sorted together.
            if limit is not None and rows >= limit and file.modified not in wanted:
                break
            wanted.setdefault(file.modified, []).append(file)
            rows += file.rows
        keys = [("cas", "descending", "at_start"), ("vbucket", "ascending"), ("seqno", "descending")]
        batches = [_open_files(lake.changelog_table, group, CHANGE_SCHEMA).to_table() for group in wanted.values()]
        parts = [batch.take(pc.sort_indices(batch, sort_keys=keys)) for batch in batches]
        return pa.concat_tables([CHANGE_SCHEMA.empty_table(), *parts]).slice(0, limit)

    return _read_table(lake.changelog_table, read)


def scan_changelog(
    lake: LakeDirectory, columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """Return the changelog's rows that match `where`, in no order.

    Raises UsageError if the lake has no changelog.

    Args:
        lake: the lake of the changelog.
        columns: names of CHANGE_SCHEMA; None for all.
        where: an Arrow expression over CHANGE_SCHEMA.

    Returns:
        The rows in the given columns.
    """
    names = list(columns) if columns is not None else CHANGE_SCHEMA.names

    def read(files: list[DataFile]) -> pa.Table:
        return _open_files(lake.changelog_table, files, CHANGE_SCHEMA).to_table(columns=names, filter=where)

    return _read_table(lake.changelog_table, read)


def scan_current(
    lake: LakeDirectory, columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """Return the documents that match `where` as of the changelog's newest version, in no order.

    Raises UsageError if the lake has no changelog.

    Args:
        lake: the lake of the tables.
        columns: names of CURRENT_COLUMNS; None for all.
        where: an Arrow expression over CURRENT_COLUMNS.

    Returns:
        The documents in the given columns.
    """
    nothing = CURRENT_COLUMNS.empty_table()
    nothing = nothing if columns is None else nothing.select(list(columns))
    return read_newest_state(lake, lambda state: pa.concat_tables([nothing, *state.read_tables(columns, where)]))


def read_typed_table(lake: LakeDirectory, name: str, limit: int | None = None) -> pa.Table:
    """Return rows of a typed table as of its last merge, sorted by key. Raises UsageError if the lake has none.

    Args:
        lake: the lake of the table.
        name: the name of the table.
        limit: greatest number of rows; None for all.

    Returns:
        The rows, with all columns but the partition.
    """

    def read() -> pa.Table:
        found = TypedTable.find(lake, name)
        opened = None if found is None else found.table.open()
        if found is None or opened is None:
            known = ", ".join(["changelog", "current", *(each.name for each in list_typed_tables(lake))])
            raise UsageError(f"there is no table {name!r} in {lake.path}, expected {known}")
        rows = _open_files(found.table, found.table.list_files(opened), found.shape.columns)
        keys = rows.to_table(columns=[*dict.fromkeys((*found.shape.key_columns, "_collection_id"))])
        order = pc.sort_indices(keys, sort_keys=[(each, "ascending") for each in keys.column_names])[:limit]
        return rows.take(order)

    return retry_missing_files(read)


def read_documents(lake: LakeDirectory) -> pa.Table:
    """Return key (always binary), cas and value of every document, in no order."""
    rows = scan_current(lake, ["key", "key_bytes", "cas", "value"])
    return pa.table({"key": read_keys(rows), "cas": rows["cas"], "value": rows["value"]})


def count_documents(lake: LakeDirectory) -> int:
    """Return the number of documents as of the changelog's newest version; 0 without a changelog."""
    return read_newest_state(lake, MergedState.count_documents) if lake.changelog_table.open() is not None else 0


def count_rows(table: AnyTable) -> int:
    """Return the number of rows of a table from its log, 0 if the table does not exist yet."""
    opened = table.open()
    return sum(file.rows for file in table.list_files(opened)) if opened is not None else 0


def _open_files(table: AnyTable, files: Iterable[DataFile], schema: pa.Schema) -> ds.Dataset:
    return open_dataset(table.list_paths(files), schema)


def _read_table(table: AnyTable, read: Callable[[list[DataFile]], T]) -> T:
    """Return the result of `read` for the table's files; it is called again if files were removed meanwhile."""

    def read_once() -> T:
        opened = table.open()
        if opened is None:
            refuse_missing_table(table.path)
        return read(table.list_files(opened))

    return retry_missing_files(read_once)
