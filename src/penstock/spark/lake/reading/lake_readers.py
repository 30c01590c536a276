"""What a lake's tables hold, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from penstock.spark.lake.changelog.changelog_delta import LOOKED_UP
from penstock.spark.lake.changelog.merge_rules import keys_of
from penstock.spark.lake.current.merged_state import Merged, newest_state, no_table, retried
from penstock.spark.lake.tables.delta_table import DataFile, LakeTable, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.wire.columns.schema import CHANGE_SCHEMA

T = TypeVar("T")


def read_current(lake: LakeDirectory, limit: int | None = None) -> pa.Table:
    """Return documents, the first `limit` of them by key (those whose key is not UTF-8 last), in CURRENT_COLUMNS.

    As of the changelog's newest version. Raises UsageError if the lake has no changelog.
    """

    def read(state: Merged) -> pa.Table:
        where = None
        if limit is not None:
            first = CURRENT_COLUMNS.empty_table().select(LOOKED_UP)
            for rows in state.tables(LOOKED_UP):
                first = _by_key(pa.concat_tables([first, rows]), limit)
            vbucket, key = (first[name].unique() for name in ("vbucket", "key"))
            where = pc.field("vbucket").isin(vbucket) & (pc.field("key").isin(key) | pc.field("key").is_null())
        return _by_key(pa.concat_tables([CURRENT_COLUMNS.empty_table(), *state.tables(where=where)]), limit)

    return newest_state(lake, read)


def _by_key(documents: pa.Table, limit: int | None) -> pa.Table:
    keys = [(name, "ascending") for name in ("key", "key_bytes", "collection_id")]
    return documents.take(pc.sort_indices(documents, sort_keys=keys)[:limit])


def read_changelog(lake: LakeDirectory, limit: int | None = None) -> pa.Table:
    """Return rows of the changelog, newest first, at most `limit`, in CHANGE_SCHEMA.

    Newest means the last batch first and within it by cas downwards, which is a clock; rows without cas (rollbacks)
    come first in their batch. Batches whose files were joined count as one.
    Raises UsageError if the lake has no changelog.
    """

    def read(files: list[DataFile]) -> pa.Table:
        wanted: dict[int, list[DataFile]] = {}
        rows = 0
        for file in reversed(files):
            if limit is not None and rows >= limit and file.modified not in wanted:
                break
            wanted.setdefault(file.modified, []).append(file)
            rows += file.rows
        keys = [("cas", "descending", "at_start"), ("vbucket", "ascending"), ("seqno", "descending")]
        batches = [_dataset(lake.changelog_table, group, CHANGE_SCHEMA).to_table() for group in wanted.values()]
        parts = [batch.take(pc.sort_indices(batch, sort_keys=keys)) for batch in batches]
        return pa.concat_tables([CHANGE_SCHEMA.empty_table(), *parts]).slice(0, limit)

    return _read(lake.changelog_table, read)


def changelog(
    lake: LakeDirectory, columns: Sequence[str] | None = None, where: pc.Expression | None = None
) -> pa.Table:
    """Return `columns` of CHANGE_SCHEMA of the changelog's rows for which `where` holds, in no order.

    Raises UsageError if the lake has no changelog.
    """
    names = list(columns) if columns is not None else CHANGE_SCHEMA.names

    def read(files: list[DataFile]) -> pa.Table:
        return _dataset(lake.changelog_table, files, CHANGE_SCHEMA).to_table(columns=names, filter=where)

    return _read(lake.changelog_table, read)


def current(lake: LakeDirectory, columns: Sequence[str] | None = None, where: pc.Expression | None = None) -> pa.Table:
    """Return `columns` of CURRENT_COLUMNS of the documents for which `where` holds, in no order.

    As of the changelog's newest version. Raises UsageError if the lake has no changelog.
    """
    nothing = CURRENT_COLUMNS.empty_table()
    nothing = nothing if columns is None else nothing.select(list(columns))
    return newest_state(lake, lambda state: pa.concat_tables([nothing, *state.tables(columns, where)]))


def documents(lake: LakeDirectory) -> pa.Table:
    """Return key (binary, whether UTF-8 or not), cas and value of every document, in no order."""
    rows = current(lake, ["key", "key_bytes", "cas", "value"])
    return pa.table({"key": keys_of(rows), "cas": rows["cas"], "value": rows["value"]})


def count_documents(lake: LakeDirectory) -> int:
    """Return the number of documents as of the changelog's newest version; 0 without a changelog."""
    return newest_state(lake, Merged.count) if lake.changelog_table.open() is not None else 0


def count_rows(table: LakeTable) -> int:
    """Return the number of rows of a table, 0 where it does not exist yet; nothing but the log is read."""
    opened = table.open()
    return sum(file.rows for file in table.files(opened)) if opened is not None else 0


def _dataset(table: LakeTable, files: Iterable[DataFile], schema: pa.Schema) -> ds.Dataset:
    return open_dataset(table.paths(files), schema)


def _read(table: LakeTable, read: Callable[[list[DataFile]], T]) -> T:
    def once() -> T:
        opened = table.open()
        if opened is None:
            raise no_table(table.path)
        return read(table.files(opened))

    return retried(once)
