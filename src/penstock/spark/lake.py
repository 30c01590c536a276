"""A lake: the directory that holds a pipeline's tables, `changelog` and `current`, and its query's checkpoint.

Spark names a query by the id in its checkpoint's metadata. The changelog's commits carry that id, so a lake is known to
belong to a query whatever the two directories are called and wherever they are moved.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.errors import LakeRefused, UsageError
from penstock.spark.delta import RANGE, DataFile, Table, open_dataset
from penstock.wire.schema import CHANGE_SCHEMA

CURRENT_COLUMNS = pa.schema(
    [
        ("key", pa.string()),
        ("key_bytes", pa.binary()),
        ("value", pa.binary()),
        ("vbucket", pa.int32()),
        ("collection_id", pa.int64()),
        ("seqno", pa.int64()),
        ("rev_seqno", pa.int64()),
        ("cas", pa.int64()),
        ("datatype", pa.int32()),
        ("flags", pa.int64()),
        ("expiry", pa.int64()),
        ("history", pa.int32()),
        ("vbuuid", pa.int64()),
    ]
)
"""A document: `key` is null where the key is not UTF-8, and only then `key_bytes` is not."""

CHANGELOG_SCHEMA = CHANGE_SCHEMA.append(pa.field(RANGE, pa.int32()))
CURRENT_SCHEMA = CURRENT_COLUMNS.append(pa.field(RANGE, pa.int32()))

# Opening a table reads its newest checkpoint and the commits after that, and lists the log's directory: both stay
# short. A version that `current` has not folded when its log entry expires costs a fold of the whole changelog.
CHANGELOG_PROPERTIES = {"delta.checkpointInterval": "50", "delta.logRetentionDuration": "interval 6 hours"}
# Every fold rewrites files, and the log remembers a removed file for this long.
CURRENT_PROPERTIES = {
    "delta.checkpointInterval": "50",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}

TRIES = 5
"""How often a reader opens a table anew when a fold's clean-up took files away under it."""

T = TypeVar("T")


class Lake:
    """The places in a lake's directory. Raises UsageError if `path` cannot be a local directory."""

    def __init__(self, path: str | Path) -> None:
        text = str(path)
        if not text or re.match(r"[A-Za-z][A-Za-z0-9+.-]*:/", text):
            raise UsageError(f"the lake is {text!r}; expected a directory on this machine, such as ./lake")
        self.path = Path(text).expanduser().absolute()
        if re.search(r"\\|%[0-9A-Fa-f]{2}", str(self.path)):
            raise UsageError(f"the lake is {self.path}; expected a path without backslashes and percent escapes")
        self.checkpoint = self.path / "_checkpoint"
        self.changelog = Table(self.path / "changelog", CHANGELOG_SCHEMA, CHANGELOG_PROPERTIES)
        self.current = Table(self.path / "current", CURRENT_SCHEMA, CURRENT_PROPERTIES)

    def query_id(self) -> str | None:
        """Return the id of the query whose checkpoint lies in the lake, or None if there is no checkpoint."""
        return query_id(self.checkpoint)

    def check_owner(self) -> None:
        """Make the directory, and raise LakeRefused unless checkpoint and changelog belong together.

        They do if one query wrote both and every batch whose end the checkpoint knows is in the changelog, and every
        batch there is known to the checkpoint: of a batch planned anew that counts as written, rows would be lost.
        Raises UsageError if the directory cannot be made or holds something else in a table's place.
        """
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"{self.path} cannot be made a lake's directory: {error.strerror}") from error
        if not os.access(self.path, os.W_OK | os.X_OK):
            raise UsageError(f"{self.path} cannot be written; expected a directory of one's own")
        changelog = self.changelog.open()
        self.current.open()
        query = self.query_id()
        written = changelog.transaction_version(query) if changelog is not None and query is not None else None
        table, remedy = self.changelog.path, f"remove {self.path} to begin anew, or choose another directory"
        if changelog is not None and query is None:
            raise LakeRefused(f"{table} was written by a query whose checkpoint {self.checkpoint} is gone: {remedy}")
        if changelog is not None and written is None:
            raise LakeRefused(f"{table} was not written by the query of {self.checkpoint}: {remedy}")
        ended, planned = _newest(self.checkpoint / "commits"), _newest(self.checkpoint / "offsets")
        batch = -1 if written is None else written
        if not ended <= batch <= planned:
            raise LakeRefused(
                f"{table} ends with batch {batch}, and {self.checkpoint} knows {ended} to have ended and {planned}"
                f" to have begun, so one of them is an old copy: {remedy}"
            )


def query_id(checkpoint: Path) -> str | None:
    """Return the id in a Spark checkpoint's metadata, or None if there is none. Raises UsageError if it is broken."""
    path = checkpoint / "metadata"
    try:
        text = path.read_text()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        return str(json.loads(text)["id"])
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} holds {text[:80]!r}; expected a Spark query's metadata with its id") from error


def _newest(log: Path) -> int:
    """Return the newest batch in one of a checkpoint's logs, or -1. Spark logs a batch before it runs, and after."""
    names = [entry.name for entry in log.iterdir()] if log.is_dir() else []
    return max((int(name) for name in names if name.isdigit()), default=-1)


def read_current(lake: Lake, limit: int | None = None) -> pa.Table:
    """Return documents, the first `limit` of them by key (those whose key is not UTF-8 last), in CURRENT_COLUMNS.

    Raises UsageError if the lake has no current table.
    """

    def read(files: list[DataFile]) -> pa.Table:
        keys = [("key", "ascending"), ("key_bytes", "ascending"), ("collection_id", "ascending")]
        names = [name for name, _ in keys]
        found = [pq.read_table(path, columns=names, partitioning=None) for path in lake.current.paths(files)]
        found = [rows.append_column("file", pa.repeat(number, rows.num_rows)) for number, rows in enumerate(found)]
        if not found:
            return CURRENT_COLUMNS.empty_table()
        everything = pa.concat_tables(found)
        order = pc.sort_indices(everything, sort_keys=keys)[:limit]
        first = everything.take(order)
        wanted = [files[number] for number in pc.unique(first["file"]).to_pylist()]
        same_key = pc.field("key").isin(pc.unique(first["key"].combine_chunks())) | pc.field("key").is_null()
        rows = _dataset(lake.current, wanted, CURRENT_COLUMNS).to_table(filter=same_key)
        return rows.take(pc.sort_indices(rows, sort_keys=keys)[:limit])

    return _read(lake.current, read)


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
        batches = [_dataset(lake.changelog, group, CHANGE_SCHEMA).to_table() for group in wanted.values()]
        parts = [batch.take(pc.sort_indices(batch, sort_keys=keys)) for batch in batches]
        return pa.concat_tables([CHANGE_SCHEMA.empty_table(), *parts]).slice(0, limit)

    return _read(lake.changelog, read)


def documents(lake: Lake) -> pa.Table:
    """Return key (binary, whether UTF-8 or not), cas and value of every document of `current`, in no order."""

    def read(files: list[DataFile]) -> pa.Table:
        rows = _dataset(lake.current, files, CURRENT_COLUMNS).to_table(columns=["key", "key_bytes", "cas", "value"])
        key = pc.coalesce(rows["key"].cast(pa.binary()), rows["key_bytes"])
        return pa.table({"key": key, "cas": rows["cas"], "value": rows["value"]})

    return _read(lake.current, read)


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
