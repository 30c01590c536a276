"""A lake: the directory that holds a pipeline's tables, `changelog` and `current`, and its query's checkpoint.

Spark names a query by the id in its checkpoint's metadata. The changelog's commits carry that id, so a lake is known to
belong to a query whatever the two directories are called and wherever they are moved.
"""

from __future__ import annotations

import json
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
        """Raise LakeRefused unless the checkpoint's query wrote the changelog, UsageError if something else is there.

        A checkpoint that knows fewer batches than the changelog is refused too: the batches that it would plan anew
        count as written, and what they hold beyond the old ones would be lost.
        """
        if self.path.exists() and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file; expected the directory of a lake, or nothing")
        changelog = self.changelog.open()
        self.current.open()
        if changelog is None:
            return
        remedy = f"bring back the checkpoint, remove {self.changelog.path} to begin anew, or choose another directory"
        query = self.query_id()
        if query is None:
            raise LakeRefused(f"{self.changelog.path} was written by a query, but {self.checkpoint} is gone: {remedy}")
        batch = changelog.transaction_version(query)
        if batch is None:
            raise LakeRefused(f"{self.changelog.path} was not written by the query of {self.checkpoint}: {remedy}")
        if _newest_batch(self.checkpoint) < batch:
            raise LakeRefused(f"{self.checkpoint} is older than {self.changelog.path} (batch {batch}): {remedy}")


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


def _newest_batch(checkpoint: Path) -> int:
    """Return the newest batch in the checkpoint's offset log (Spark logs a batch before it runs it), or -1."""
    offsets = checkpoint / "offsets"
    names = [entry.name for entry in offsets.iterdir()] if offsets.is_dir() else []
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
