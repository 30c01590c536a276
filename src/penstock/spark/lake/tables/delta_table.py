"""A Delta table in a directory of this machine, written by whole files and partitioned by `vbucket_range`.

A commit names the files that it adds and removes and the transaction (application id, version) it stands for, all or
nothing; a file that no commit names is not in the table. Creating the table is the first commit's business, so that no
table is ever without a transaction. Between two writers that saw the same version, one commit fails.

`vbucket_range` is a partition column that the files hold physically too: whoever is given only a list of files sees it.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from penstock.errors import UsageError

if TYPE_CHECKING:
    import pyarrow.dataset as ds

RANGE = "vbucket_range"
RANGES = 16
UNPARTITIONED = "part-"
"""How the files of a table without partitions are called."""

ROW_GROUP_ROWS = 131_072
ROW_GROUP_BYTES = 16 << 20
FILE_BYTES = 128 << 20
"""Arrow bytes after which a new file begins: whoever rewrites a file holds that much of it in memory."""

MOST_LOGS = 4096
"""Commits of which a table remembers what they added."""

STATISTICS = ("vbucket", "seqno", "history")
"""Columns of which each file's entry in the log gives the least and greatest value."""
COUNTED = (*STATISTICS, "key")
"""Columns of which it gives the number of nulls."""

REPEATING = (
    "vbucket", "vbuuid", "event", "collection_id", "scope", "collection", "datatype", "flags", "expiry", "lock_time",
    "delete_time", "snapshot_start", "snapshot_end", "snapshot_flags", "history", "requested_seqno", RANGE,
)  # fmt: skip
"""Columns with few distinct values: dictionary encoding pays there, and is lost work on keys and values."""

ENCODINGS = {
    **dict.fromkeys(("seqno", "rev_seqno", "cas"), "DELTA_BINARY_PACKED"),
    **dict.fromkeys(("key", "key_bytes", "value"), "DELTA_LENGTH_BYTE_ARRAY"),
}
"""Of rising numbers the differences, and of bytes the lengths apart: faster to write than plain, and smaller."""


@dataclass(frozen=True, slots=True)
class DataFile:
    """One parquet file. path: relative to the table. stats: Delta's JSON. modified: ms since the epoch, when its newest
    row was committed; 0: not yet.

    vbucket_range: -1 in a table without partitions. keyless: rows without a key (rollbacks, flushes), -1 where that is
    not known.
    """

    path: str
    size: int
    rows: int
    vbucket_range: int
    stats: str = ""
    modified: int = 0
    keyless: int = -1


class RangeWriter:
    """Writes rows of one vbucket range into new files of a table; `close` finishes and returns them.

    A context manager: if its block raises, every file that it began is removed. schema: of the rows, without
    `vbucket_range`.
    """

    def __init__(self, root: Path, vbucket_range: int, schema: pa.Schema) -> None:
        self.pending_bytes = 0
        self._root = root
        self._range = vbucket_range
        self._schema = schema.append(pa.field(RANGE, pa.int32()))
        self._pending: list[pa.Table] = []
        self._pending_rows = 0
        self._files: list[DataFile] = []
        self._path = ""
        self._writer: pq.ParquetWriter | None = None
        self._written = 0
        self._footers: list[pq.FileMetaData] = []

    def write(self, rows: pa.Table) -> None:
        """Take rows in; they are written once they fill a row group."""
        if not rows.num_rows:
            return
        nbytes = rows.nbytes  # asked for once: it takes longer than most of what is done here
        step = max(1, min(ROW_GROUP_ROWS, rows.num_rows * ROW_GROUP_BYTES // max(1, nbytes)))
        for start in range(0, rows.num_rows, step):
            piece = rows.slice(start, step)
            self._pending.append(piece)
            self._pending_rows += piece.num_rows
            self.pending_bytes += nbytes * piece.num_rows // rows.num_rows
            if self.pending_bytes >= ROW_GROUP_BYTES or self._pending_rows >= ROW_GROUP_ROWS:
                self.flush()

    def flush(self) -> None:
        """Write the rows taken in so far as a row group."""
        if not self._pending:
            return
        rows = pa.concat_tables(self._pending)
        writer = self._writer or self._open()
        column = pa.repeat(pa.scalar(self._range, pa.int32()), rows.num_rows)
        writer.write_table(rows.append_column(self._schema.field(RANGE), column))
        self._written += self.pending_bytes
        self._pending, self._pending_rows, self.pending_bytes = [], 0, 0
        if self._written >= FILE_BYTES:
            self._finish()

    def close(self) -> list[DataFile]:
        """Write what is left and return the finished files."""
        self.flush()
        self._finish()
        return self._files

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            return
        if self._writer is not None:
            with suppress(Exception):  # as of a full disk: why the block raised is what is to be told
                self._writer.close()
            self._writer = None
            (self._root / self._path).unlink(missing_ok=True)
        discard(self._root, self._files)

    def _open(self) -> pq.ParquetWriter:
        directory = f"{RANGE}={self._range}"
        (self._root / directory).mkdir(parents=True, exist_ok=True)
        self._path, self._written, self._footers = f"{directory}/{uuid.uuid4().hex}.parquet", 0, []
        self._writer = pq.ParquetWriter(
            self._root / self._path,
            self._schema,
            compression="zstd",
            compression_level=1,
            use_dictionary=[name for name in REPEATING if name in self._schema.names],
            column_encoding={name: how for name, how in ENCODINGS.items() if name in self._schema.names},
            write_statistics=[name for name in self._schema.names if name not in ("value", "xattrs")],
            metadata_collector=self._footers,
        )
        return self._writer

    def _finish(self) -> None:
        if self._writer is None:
            return
        self._writer.close()
        self._writer = None
        size, footer = (self._root / self._path).stat().st_size, self._footers[0]
        self._files.append(DataFile(self._path, size, footer.num_rows, self._range, _delta_stats(footer)))


def _delta_stats(footer: pq.FileMetaData) -> str:
    """Return the statistics of a file as Delta writes them, from the parquet footer's."""
    groups = range(footer.num_row_groups)
    least: dict[str, int] = {}
    greatest: dict[str, int] = {}
    nulls: dict[str, int] = {}
    for column in range(footer.num_columns):
        name = footer.schema.column(column).path
        if name not in COUNTED:
            continue
        parts = [footer.row_group(group).column(column).statistics for group in groups]
        nulls[name] = sum(part.null_count for part in parts)
        if name in STATISTICS and all(part.has_min_max for part in parts):
            least[name] = min(part.min for part in parts)
            greatest[name] = max(part.max for part in parts)
    return json.dumps({"numRecords": footer.num_rows, "minValues": least, "maxValues": greatest, "nullCount": nulls})


def discard(root: Path, files: Iterable[DataFile]) -> None:
    """Remove files of the table at `root` that are in no commit."""
    for file in files:
        (root / file.path).unlink(missing_ok=True)


def open_dataset(paths: list[str], schema: pa.Schema) -> ds.Dataset:
    """Return the rows of parquet files, in their order, as one dataset; of no file if `paths` is empty."""
    import pyarrow.dataset as ds  # it brings pandas, and each commit has a process of its own to start

    return ds.dataset(paths, schema=schema, format="parquet") if paths else ds.dataset(schema.empty_table())


class LakeTable:
    """One table. schema: with `vbucket_range` last. configuration: Delta's table properties, given at its creation.

    A schema without `vbucket_range` is that of a table without partitions, whose files lie in its directory.
    """

    def __init__(self, path: Path, schema: pa.Schema, configuration: Mapping[str, str]) -> None:
        self.path = path
        self.schema = schema
        self.configuration = configuration
        self._logs: dict[int, tuple[tuple[int, int], list[DataFile] | None]] = {}
        self.partition_by = [RANGE] if RANGE in schema.names else []

    def open(self) -> DeltaTable | None:
        """Return the table as it is now, or None if it has no commit yet. Raises UsageError if it is something else."""
        if not self.path.exists():
            return None
        if not self.path.is_dir():
            raise UsageError(f"{self.path} is a file; expected a directory with the {self.path.name} table, or nothing")
        if not DeltaTable.is_deltatable(self.path.as_uri()):
            # A process that died before the first commit leaves data files, and perhaps an empty log.
            own = ("_delta_log", f"{RANGE}=" if self.partition_by else UNPARTITIONED)
            foreign = [e.name for e in self.path.iterdir() if not e.name.startswith(own)]
            if foreign:
                raise UsageError(
                    f"{self.path} holds {min(foreign)!r}, which is not a Penstock table's; expected a Delta table"
                    " or an empty directory"
                )
            return None
        try:
            table = DeltaTable(self.path.as_uri())
        except DeltaError as error:
            reason = str(error).partition("\n")[0]  # a backtrace follows
            raise UsageError(f"{self.path} has a Delta log that cannot be read: {reason}") from error
        found = [field.name for field in table.schema().fields]
        if found != self.schema.names:
            raise UsageError(
                f"{self.path} is a Delta table with columns {', '.join(found)}; expected Penstock's {self.path.name}"
            )
        return table

    def commit(
        self,
        table: DeltaTable | None,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        note: Mapping[str, str] | None = None,
        *,
        rows_change: bool = True,
    ) -> None:
        """Make one commit on top of `table`, or the table's first one if that is None.

        transaction: application id and version. note: what a new table says about its last column. rows_change:
        False if the same rows only lie in other files. Raises DeltaError if another commit with that id came first;
        nothing else keeps two commits from removing the same file.
        """
        now = time.time_ns() // 1_000_000
        actions: list[Any] = [
            AddAction(file.path, file.size, self._partition(file), file.modified or now, rows_change, file.stats)
            for file in added
        ]
        # A creation that lost a race would be tried again as the table's second commit: no retries then.
        retries = 0 if table is None else None
        mark = Transaction(*transaction, last_updated=now)
        properties = CommitProperties(app_transactions=[mark], max_commit_retries=retries)
        if table is None:
            self._create(actions, properties, note)
            return
        actions += [RemoveAction(file.path, rows_change, now, file.size, self._partition(file)) for file in removed]
        table.create_write_transaction(
            actions, "append", table.schema(), self.partition_by, commit_properties=properties
        )

    def _create(self, actions: list[Any], properties: CommitProperties, note: Mapping[str, str] | None) -> None:
        schema = self.schema.set(len(self.schema) - 1, self.schema.field(-1).with_metadata(note))
        self.path.mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            self.path.as_uri(),
            Schema.from_arrow(schema),
            actions,
            mode="error",
            partition_by=self.partition_by,
            configuration=self.configuration,
            commit_properties=properties,
        )

    def abandon(self, files: Iterable[DataFile]) -> None:
        """Remove those of `files` that are not in the table.

        A commit may raise after it has landed: the table decides what it holds, never who wrote the files.
        """
        opened = self.open()
        live = {file.path for file in self.files(opened)} if opened is not None else set()
        discard(self.path, (file for file in files if file.path not in live))

    def files(self, table: DeltaTable) -> list[DataFile]:
        """Return every file of the table, oldest commit first."""
        actions = pa.table(table.get_add_actions(flatten=True))
        columns = [
            actions["path"],
            actions["size_bytes"],
            actions["num_records"],
            actions[f"partition.{RANGE}"] if self.partition_by else pa.repeat(-1, actions.num_rows),
            pc.cast(actions["modification_time"], pa.int64()),
        ]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        files = [DataFile(path, size, count, part, modified=when) for path, size, count, part, when in rows]
        return sorted(files, key=lambda file: (file.modified, file.path))

    def added_since(self, table: DeltaTable, version: int) -> list[DataFile] | None:
        """Return the files added by the commits after `version`, in their order.

        None if that cannot be said: the log of one of them is gone, or rows or files were taken away since.
        """
        files: list[DataFile] = []
        for number in range(version + 1, table.version() + 1):
            added = self._added_by(number)
            if added is None:
                return None
            files += added
        return files if all((self.path / file.path).exists() for file in files) else None

    def _added_by(self, version: int) -> list[DataFile] | None:
        """Return the files that a commit added; None if its log is gone, or it took rows or files away.

        What was read of a log is remembered: who waits for enough to merge asks for the same again and again.
        """
        log = self.path / "_delta_log" / f"{version:020d}.json"
        try:
            found = log.stat()
            known = self._logs.get(version)
            if known is None or known[0] != (found.st_ino, found.st_mtime_ns):
                if len(self._logs) >= MOST_LOGS:
                    self._logs.clear()
                known = self._logs[version] = (found.st_ino, found.st_mtime_ns), _added(log.read_text())
        except FileNotFoundError:
            return None
        return known[1]

    def _partition(self, file: DataFile) -> dict[str, str | None]:
        return {RANGE: str(file.vbucket_range)} if self.partition_by else {}

    def paths(self, files: Iterable[DataFile]) -> list[str]:
        """Return the files' places on disk."""
        return [str(self.path / file.path) for file in files]


def _added(log: str) -> list[DataFile] | None:
    files: list[DataFile] = []
    for line in log.splitlines():
        action = json.loads(line)
        if "remove" in action and action["remove"].get("dataChange", True):
            return None
        if "add" in action and action["add"]["dataChange"]:
            files.append(_from_log(action["add"]))
    return files


def _from_log(add: dict[str, Any]) -> DataFile:
    stats = json.loads(add["stats"])
    return DataFile(
        unquote(add["path"]),
        add["size"],
        stats["numRecords"],
        int(add["partitionValues"][RANGE]),
        modified=add["modificationTime"],
        keyless=stats["nullCount"].get("key", -1),
    )
