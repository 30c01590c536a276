"""A Delta table of a lake, written as whole files and partitioned by `vbucket_range`.

A commit names the files that it adds and removes, and a transaction (application id, version). A file that no commit
names is not in the table. The first commit creates the table, so every table has a transaction. If two writers start
from the same version, one of their commits fails.

The files also hold the partition column `vbucket_range` physically, so that readers of a list of files have it.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, PostCommitHookProperties, Schema, Transaction
from deltalake.exceptions import DeltaError
from deltalake.transaction import AddAction, RemoveAction, create_table_with_add_actions

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.tables.data_files import (
    RANGE_COLUMN,
    DataFile,
    parse_write_time,
    remove_files,
)
from penstock.spark.lake.tables.delta_log import (
    BASE_VERSION,
    CHANGE_DIRECTORY,
    LogCommit,
    format_feed_commit,
    list_unchecked_commits,
    parse_commit,
)
from penstock.spark.lake.tables.delta_store import (
    RETENTION,
    find_delta_options,
    have_all_files,
    list_commit_errors,
    open_delta_log,
    read_delta_log,
    read_keep_hours,
)
from penstock.spark.lake.tables.lake_table import CommitFailed, LakeTable
from penstock.spark.storage.object_client import describe_store_error, repeat_cut_request
from penstock.spark.storage.object_path import LakePath, ObjectPath, identify_content
from penstock.spark.storage.stored_documents import create_document

RANGE_COUNT = 16
"""Vbucket ranges of a bucket."""
UNPARTITIONED = "part-"
"""The prefix of file names in a table without partitions."""

TRIES = 20
"""Number of times that a commit is repeated on newer versions that have the files which it removes."""
MAX_LOGS = 512
"""Commits that a table object remembers."""


class DeltaLakeTable(LakeTable[DeltaTable]):
    """One Delta table of a lake. The directory need not exist before the first commit.

    A schema without `vbucket_range` means a table without partitions, whose files lie in the table's directory.

    Args:
        path: the directory of the table.
        schema: the columns, `vbucket_range` last.
        configuration: Delta's table properties for a new table.
        checks_columns: whether a table with other columns is refused.
    """

    format = "delta"
    has_change_files = True

    def __init__(
        self, path: LakePath, schema: pa.Schema, configuration: Mapping[str, str], *, checks_columns: bool = True
    ) -> None:
        super().__init__(path, schema)
        self._checks_columns = checks_columns
        self.configuration = configuration
        self._logs: dict[int, tuple[tuple[int | str, int], LogCommit]] = {}
        self.partition_by = [RANGE_COLUMN] if RANGE_COLUMN in schema.names else []

    def open(self) -> DeltaTable | None:
        """Return the newest version of the table, None before its first commit.

        Returns:
            The table as deltalake opens it.

        Raises:
            UsageError: the path holds something else.
        """
        if isinstance(self.path, Path) and not self.path.exists():
            return None
        if isinstance(self.path, Path) and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file; expected a directory with the {self.path.name} table, or nothing")
        table = open_delta_log(self.path)
        if table is None:
            # A process that was killed before the first commit leaves data files, and perhaps an empty log.
            own = ("_delta_log", CHANGE_DIRECTORY, f"{RANGE_COLUMN}=" if self.partition_by else UNPARTITIONED)
            foreign = [e.name for e in self.path.iterdir() if not e.name.startswith(own)]
            if foreign:
                raise UsageError(
                    f"{self.path} holds {min(foreign)!r}, which is not a Penstock table's; expected a Delta table"
                    " or an empty directory"
                )
            return None
        found = [field.name for field in table.schema().fields]
        if self._checks_columns and found != self.schema.names:
            raise UsageError(
                f"{self.path} is a Delta table with columns {', '.join(found)}; expected Penstock's {self.path.name}"
            )
        return table

    def read_id(self, opened: DeltaTable) -> str:
        """Return the id that the table got when it was created."""
        return str(opened.metadata().id)

    def read_note(self, opened: DeltaTable, name: str) -> str | None:
        """Return a note from the metadata of the last column."""
        found = opened.schema().fields[-1].metadata.get(name)
        return None if found is None else str(found)

    def commit(
        self,
        opened: DeltaTable | None,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile] = (),
        notes: Mapping[str, str] | None = None,
        *,
        rows_change: bool = True,
        changed: Sequence[DataFile] = (),
        is_replacement: bool = False,
    ) -> None:
        """Commit added and removed files on top of a version of the table.

        Notes become metadata of the last column.

        Args:
            opened: the version to commit on; None to create the table.
            transaction: application id and version.
            added: files to add.
            removed: files to remove.
            notes: notes for a new table.
            rows_change: False if the same rows only move to other files.
            changed: files of the change feed in CHANGE_DIRECTORY, with the rows that differ.
            is_replacement: whether the added files replace all others, and `schema` the columns.

        Raises:
            CommitFailed: another commit with the same application id came first, or removed the same files. Or an
                object store does not answer.
        """

        def attempt() -> None:
            try:
                if changed and opened is not None:
                    self._commit_changes(opened, transaction, added, removed, changed)
                    return
                self._commit(
                    opened, transaction, added, removed, notes, rows_change=rows_change, is_replacement=is_replacement
                )
            except list_commit_errors(self.path):
                if not self._has_landed(transaction, added, removed):
                    raise

        try:
            repeat_cut_request(attempt)
        except list_commit_errors(self.path) as error:
            raise CommitFailed(f"{self.path} did not take a commit: {describe_store_error(error)}") from error

    def _has_landed(self, transaction: tuple[str, int], added: Sequence[DataFile], removed: Sequence[DataFile]) -> bool:
        """Return whether a commit that raised an error has landed: the answer of an object store may be lost."""
        opened = self.open() if isinstance(self.path, ObjectPath) else None
        return opened is not None and self.has_effect(opened, transaction, added, removed)

    def _commit(
        self,
        table: DeltaTable | None,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        notes: Mapping[str, str] | None,
        *,
        rows_change: bool,
        is_replacement: bool,
    ) -> None:
        now = time.time_ns() // 1_000_000
        actions: list[Any] = [_make_add_action(self, file, now, rows_change=rows_change) for file in added]
        actions += [
            RemoveAction(file.path, rows_change, now, file.size, _make_partition_values(self, file)) for file in removed
        ]
        properties = CommitProperties(
            custom_metadata={BASE_VERSION: str(-1 if table is None else table.version())},
            app_transactions=[Transaction(*transaction, last_updated=now)],
            # deltalake retries a creation that lost a race as the table's second commit. It also retries a commit whose
            # files another program has joined: rows would then be in two files. And it fails for good if a compaction
            # with the same transaction came first.
            max_commit_retries=0,
        )
        if table is None:
            self._create_table(actions, properties, notes)
            return
        if is_replacement:
            schema = Schema.from_arrow(_add_notes(self.schema, notes))
            _write_commit(self, table, actions, mode="overwrite", schema=schema, properties=properties)
            return
        replaced = {file.path for file in removed}
        for _ in range(TRIES):
            try:
                _write_commit(self, table, actions, mode="append", schema=table.schema(), properties=properties)
                return
            except DeltaError as error:
                failure = error
            newer = self.open()
            if newer is None or newer.transaction_version(transaction[0]) != table.transaction_version(transaction[0]):
                break
            if newer.version() == table.version() or not replaced <= {file.path for file in self.list_files(newer)}:
                break
            table = newer
        raise failure

    def _commit_changes(
        self,
        table: DeltaTable,
        transaction: tuple[str, int],
        added: Sequence[DataFile],
        removed: Sequence[DataFile],
        changed: Sequence[DataFile],
    ) -> None:
        """Commit with files of the change feed. deltalake has no action for them, so the commit is written here.

        Raises:
            CommitFailed: another commit came first.
        """
        now = time.time_ns() // 1_000_000
        replaced = {file.path for file in removed}
        base = table
        for _ in range(TRIES):
            text = format_feed_commit(
                base.version(), transaction, {"add": added, "remove": removed, "cdc": changed}, now
            )
            if create_document(self.path / "_delta_log" / f"{base.version() + 1:020d}.json", text):
                _create_checkpoint(self, base.version() + 1)
                return
            newer = self.open()
            if newer is None or newer.transaction_version(transaction[0]) != table.transaction_version(transaction[0]):
                break
            if newer.version() == base.version() or not replaced <= {file.path for file in self.list_files(newer)}:
                break
            base = newer
        raise CommitFailed(f"{self.path} did not take a commit: another commit came first")

    def _create_table(self, actions: list[Any], properties: CommitProperties, notes: Mapping[str, str] | None) -> None:
        """Create the table with its first commit."""
        schema = _add_notes(self.schema, notes)
        self.path.mkdir(parents=True, exist_ok=True)
        create_table_with_add_actions(
            self.path.as_uri(),
            Schema.from_arrow(schema),
            actions,
            mode="error",
            partition_by=self.partition_by,
            configuration=self.configuration,
            storage_options=find_delta_options(self.path),
            commit_properties=properties,
        )

    def discard_uncommitted(self, files: Iterable[DataFile]) -> None:
        """Remove the given files unless the table has them.

        A commit may raise an error after it has landed. So the table decides which files are removed, not the caller.
        """
        opened = self.open()
        live = {file.path for file in self.list_files(opened)} if opened is not None else set()
        remove_files(self.path, (file for file in files if file.path not in live))

    def list_files(self, opened: DeltaTable) -> list[DataFile]:
        """Return every file of the table, oldest commit first."""
        actions = pa.table(opened.get_add_actions(flatten=True))
        columns = [
            actions["path"],
            actions["size_bytes"],
            actions["num_records"],
            actions[f"partition.{RANGE_COLUMN}"] if self.partition_by else pa.repeat(-1, actions.num_rows),
            pc.cast(actions["modification_time"], pa.int64()),
            # Other programs, and an index, have no count for a key.
            actions["null_count.key"] if "null_count.key" in actions.column_names else pa.nulls(actions.num_rows),
        ]
        rows = zip(*(column.to_pylist() for column in columns), strict=True)
        files = [
            DataFile(path, size, count, part, modified=when, keyless_rows=-1 if keyless is None else keyless)
            for path, size, count, part, when, keyless in rows
        ]
        return sorted(files, key=lambda file: (file.modified, file.path))

    def list_added_since(self, opened: DeltaTable, version: int) -> list[DataFile] | None:
        """Return the files that the commits after `version` added, in the order of the commits.

        None if the log of a commit was removed, if a commit or vacuum removed rows or files since, or if another
        program added rows.
        """
        files: list[DataFile] = []
        for number in range(version + 1, opened.version() + 1):
            commit = self._read_commit(number)
            if commit is None or commit.removes_rows or commit.is_foreign_change:
                return None
            files += commit.added
        return files if have_all_files(self.path, [file.path for file in files]) else None

    def list_files_at(self, opened: DeltaTable, when: datetime) -> list[DataFile]:
        """Return the files that the table had at a time.

        Raises:
            UsageError: compaction has joined files of that time with later files.
        """
        files, moment = self.list_files(opened), when.timestamp() * 1000
        later = [file for file in files if file.modified > moment]
        for file in later:
            # A file is written before its rows are committed. Only a joined file is newer than the time of its rows.
            # Other programs that join files give them the time of this commit.
            if file.is_foreign or self._find_write_time(file) > file.modified:
                known = datetime.fromtimestamp(file.modified / 1000, UTC)
                raise UsageError(
                    f"the state of {self.path.parent} at {when.isoformat()} is unknown: its files were joined with"
                    f" later files; expected a time from {known.isoformat()} on, or a position"
                )
        return [file for file in files if file.modified <= moment]

    def _find_write_time(self, file: DataFile) -> int:
        """Return when an own file was written, in milliseconds since the epoch.

        The name of an object has it: the clock of the store may differ, and an object's time cannot be set.
        """
        if isinstance(self.path, ObjectPath):
            return parse_write_time(file.path)
        return (self.path / file.path).stat().st_mtime_ns // 1_000_000

    def has_grown(self, version: int) -> bool:
        """Return whether a version after `version` exists, by looking up one file."""
        return (self.path / "_delta_log" / f"{version + 1:020d}.json").exists()

    def remove_unused_files(self, keep_hours: float | None = None, *, only_replaced: bool = False) -> None:
        """Remove files from the disk that the table has not needed for some time.

        Args:
            keep_hours: hours that files stay; None for the table's own time.
            only_replaced: True to keep files that no commit names: a batch may be about to commit them.

        Raises:
            CommitFailed: another commit came first.
        """
        opened = None if self.open() is None else read_delta_log(self.path)  # deltalake advances it
        if opened is None:
            return
        hours, is_full = self.find_keep_hours(opened) if keep_hours is None else int(keep_hours), not only_replaced
        try:
            # If enforced, deltalake refuses a time below the table's `deletedFileRetentionDuration`.
            unused = repeat_cut_request(lambda: opened.vacuum(hours, only_replaced, hours is None, full=is_full))
        except (DeltaError, OSError) as error:
            raise CommitFailed(f"{self.path} was not vacuumed: {' '.join(str(error).split())}") from error
        # Not by Delta's vacuum: it would commit a note at each call about removed files that the table still remembers.
        for path in unused if only_replaced else ():
            (self.path / path).unlink(missing_ok=True)

    def find_keep_hours(self, opened: DeltaTable) -> int | None:
        """Return the hours that replaced files stay, None for the `deletedFileRetentionDuration` of the table."""
        return read_keep_hours(opened.metadata().configuration)

    def set_time_travel(self) -> None:
        """Set how long past versions can be read. If another commit comes first, the next call tries again."""
        opened = None if self.open() is None else read_delta_log(self.path)  # deltalake advances it
        wanted = {name: self.configuration[name] for name in RETENTION}
        if opened is None or wanted.items() <= opened.metadata().configuration.items():
            return
        with suppress(*list_commit_errors(self.path)):
            opened.alter.set_table_properties(wanted)

    def is_intact(self, opened: DeltaTable) -> bool:
        """Return whether only Penstock changed the rows of a table; False if removed logs leave that unknown."""
        commits = list_unchecked_commits(opened.version(), self._read_commit)
        return not any(commit is None or commit.is_foreign_change for commit in commits)

    def refuse_foreign_changes(self, opened: DeltaTable) -> None:
        """Check that only Penstock changed the rows of a table, as far as the log reaches.

        Raises:
            LakeRefused: another program added or removed rows.
        """
        commits = list_unchecked_commits(opened.version(), self._read_commit)
        foreign = [commit for commit in commits if commit is not None and commit.is_foreign_change]
        if not foreign:
            return
        oldest = foreign[-1].version
        remedy = f"remove {self.path.parent} to start again, or choose another directory"
        if not any(commit is not None and commit.is_own and commit.version > oldest for commit in commits):
            remedy = f"undo it with deltalake.DeltaTable({str(self.path)!r}).restore({oldest - 1}), or {remedy}"
        raise LakeRefused(
            f"another program changed rows of {self.path} in version {oldest} ({foreign[-1].operation}), but only"
            f" Penstock may change them: {remedy}"
        )

    def _read_commit(self, version: int) -> LogCommit | None:
        """Return the commit of a version, None if its log does not exist.

        The result is remembered, because a reader that waits for enough pending rows reads the same logs repeatedly.
        """
        log = self.path / "_delta_log" / f"{version:020d}.json"
        try:
            identity = identify_content(log.stat())
            known = self._logs.get(version)
            if known is None or known[0] != identity:
                if len(self._logs) >= MAX_LOGS:
                    self._logs.clear()
                known = identity, parse_commit(version, log.read_text())
                self._logs[version] = known
        except FileNotFoundError:
            return None
        return known[1]


def _make_add_action(table: DeltaLakeTable, file: DataFile, now: int, *, rows_change: bool) -> AddAction:
    values, modified = _make_partition_values(table, file), file.modified or now
    return AddAction(file.path, file.size, values, modified, rows_change, file.stats)


def _make_partition_values(table: DeltaLakeTable, file: DataFile) -> dict[str, str | None]:
    return {RANGE_COLUMN: str(file.vbucket_range)} if table.partition_by else {}


def _add_notes(schema: pa.Schema, notes: Mapping[str, str] | None) -> pa.Schema:
    """Return a schema with notes as metadata of its last column."""
    return schema.set(len(schema) - 1, schema.field(-1).with_metadata(notes))


def _write_commit(
    table: DeltaLakeTable,
    opened: DeltaTable,
    actions: list[Any],
    *,
    mode: str,
    schema: Schema,
    properties: CommitProperties,
) -> None:
    """Write a commit on top of a version, with the actions of the mode."""
    # To find old logs, deltalake lists the whole log, which takes 0.1 s with 10,000 commits.
    removes_logs = None if _is_checkpoint(table, opened.version() + 1) else False
    opened.create_write_transaction(
        actions,
        mode,
        schema,
        table.partition_by,
        commit_properties=properties,
        post_commithook_properties=PostCommitHookProperties(cleanup_expired_logs=removes_logs),
    )


def _is_checkpoint(table: DeltaLakeTable, version: int) -> bool:
    return version % int(table.configuration.get("delta.checkpointInterval", "100")) == 0


def _create_checkpoint(table: DeltaLakeTable, version: int) -> None:
    """Write a checkpoint and remove old logs after a commit, as deltalake does after its own commits."""
    if not _is_checkpoint(table, version):
        return
    opened = table.open()
    if opened is not None:
        with suppress(DeltaError, OSError):  # the commit has landed; the next interval tries again
            opened.create_checkpoint()
            opened.cleanup_metadata()
