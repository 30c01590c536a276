"""What a lake's tables hold, as Arrow tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.errors import UsageError
from penstock.spark.lake.delta import DataFile, Table, open_dataset
from penstock.spark.lake.schemas import CURRENT_COLUMNS
from penstock.spark.lake.tables import Lake
from penstock.wire.schema import CHANGE_SCHEMA

TRIES = 5
"""How often a reader opens a table anew when a fold's clean-up took files away under it."""

T = TypeVar("T")


def read_current(lake: Lake, limit: int | None = None) -> pa.Table:
    """Return documents, the first `limit` of them by key (those whose key is not UTF-8 last), in CURRENT_COLUMNS.

    Raises UsageError if the lake has no current table.
    """

    def read(files: list[DataFile]) -> pa.Table:
        keys = [("key", "ascending"), ("key_bytes", "ascending"), ("collection_id", "ascending")]
        names = [name for name, _ in keys]
        found = [pq.read_table(path, columns=names, partitioning=None) for path in lake.current_table.paths(files)]
        found = [rows.append_column("file", pa.repeat(number, rows.num_rows)) for number, rows in enumerate(found)]
        if not found:
            return CURRENT_COLUMNS.empty_table()
        everything = pa.concat_tables(found)
        order = pc.sort_indices(everything, sort_keys=keys)[:limit]
        first = everything.take(order)
        wanted = [files[number] for number in pc.unique(first["file"]).to_pylist()]
        same_key = pc.field("key").isin(pc.unique(first["key"].combine_chunks())) | pc.field("key").is_null()
        rows = _dataset(lake.current_table, wanted, CURRENT_COLUMNS).to_table(filter=same_key)
        return rows.take(pc.sort_indices(rows, sort_keys=keys)[:limit])

    return _read(lake.current_table, read)


def read_changelog(lake: Lake, limit: int | None = None) -> pa.Table:
    """Return rows of the changelog, newest first, at most `limit`, in CHANGE_SCHEMA.

    Newest means the last batch first and within it by cas downwards, which is a clock; rows without cas (rollbacks)
    come first in their batch. Raises UsageError if the lake has no changelog.
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


def documents(lake: Lake) -> pa.Table:
    """Return key (binary, whether UTF-8 or not), cas and value of every document of `current`, in no order."""

    def read(files: list[DataFile]) -> pa.Table:
        rows = _dataset(lake.current_table, files, CURRENT_COLUMNS).to_table(
            columns=["key", "key_bytes", "cas", "value"]
        )
        key = pc.coalesce(rows["key"].cast(pa.binary()), rows["key_bytes"])
        return pa.table({"key": key, "cas": rows["cas"], "value": rows["value"]})

    return _read(lake.current_table, read)


def count_rows(table: Table) -> int:
    """Return the number of rows of a table, 0 where it does not exist yet; nothing but the log is read."""
    opened = table.open()
    return sum(file.rows for file in table.files(opened)) if opened is not None else 0


def _dataset(table: Table, files: Iterable[DataFile], schema: pa.Schema) -> ds.Dataset:
    return open_dataset(table.paths(files), schema)


def _read(table: Table, read: Callable[[list[DataFile]], T]) -> T:
    for _ in range(TRIES):
        opened = table.open()
        if opened is None:
            raise UsageError(f"there is no table at {table.path}; expected the lake of a pipeline that has run")
        try:
            return read(table.files(opened))
        except FileNotFoundError as error:
            missing = error
    raise UsageError(f"{table.path} lacks files that its log names: {missing}")
