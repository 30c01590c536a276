"""An Iceberg table in a directory or an object store, partitioned by `vbucket_range`, committed through a catalog.

The files are the same as those of a Delta table. A commit adds and removes them in one snapshot, whose properties hold
the transactions. The catalog takes a commit only on the snapshot that it was made on: each try is checked before.

The version of a snapshot is its sequence number from 0. Snapshots expire while a pipeline runs. So everything that
readers need is in the files' entries: their sequence number, and for joined files the version and time in their name.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from penstock.errors import LakeRefused, UsageError
from penstock.spark.lake.tables.data_files import (
    RANGE_COLUMN,
    DataFile,
    add_range_column,
    parse_joined_name,
    remove_files,
)
from penstock.spark.lake.tables.iceberg.iceberg_catalog import IcebergCatalog, is_catalog_failure, locate
from penstock.spark.lake.tables.iceberg.iceberg_files import (
    describe_file,
    describe_snapshot_age,
    describe_table,
    expire_snapshots,
    list_used_files,
    parse_entry,
    read_snapshot_age,
)
from penstock.spark.lake.tables.iceberg.iceberg_schema import change_columns, number_columns, number_paths
from penstock.spark.lake.tables.iceberg.iceberg_snapshots import (
    TRANSACTIONS,
    find_foreign_change,
    find_undone,
    is_past_known,
    list_ancestors,
    name_operation,
    read_transactions,
)
from penstock.spark.lake.tables.lake_table import CommitFailed, LakeTable
from penstock.spark.storage.object_path import LakePath

if TYPE_CHECKING:
    from pyiceberg import manifest
    from pyiceberg.table import Table
    from pyiceberg.table.metadata import TableMetadata
    from pyiceberg.table.snapshots import Snapshot

TRIES = 20
"""Number of times that a commit is repeated on newer versions of the table."""
MAX_EXPIRED = 100
"""Older snapshots that may remain: each commit writes the list of all snapshots."""


@dataclass(frozen=True, slots=True)
class IcebergVersion:
    """A snapshot of a table, with the metadata in which it was the newest."""

    table: Table
    metadata: TableMetadata
    snapshot: Snapshot

    def version(self) -> int:
        """Return the sequence number, counted from 0."""
        return (self.snapshot.sequence_number or 0) - 1

    def transaction_version(self, app_id: str, /) -> int | None:
        """Return the newest version that an application has committed, None if it has not committed."""
        return read_transactions(self.metadata, self.snapshot).get(app_id)


class IcebergTable(LakeTable[IcebergVersion]):
    """One Iceberg table of a lake.

    Args:
        path: the directory of the table.
        schema: the columns, `vbucket_range` last.
        catalog: the catalog of the lake.
        keep_hours: hours for which past versions of a new table can be read; None for KEEP_MINUTES.
        checks_columns: whether a table with other columns is refused.
    """

    format = "iceberg"

    def __init__(
        self,
        path: LakePath,
        schema: pa.Schema,
        catalog: IcebergCatalog,
        *,
        keep_hours: int | None = None,
        checks_columns: bool = True,
    ) -> None:
        super().__init__(path, schema)
        self._keep_hours = keep_hours
        self._catalog = catalog
        self._checks_columns = checks_columns
        self._seen: tuple[bytes | None, int] | None = None
        self._manifests: dict[str, list[tuple[DataFile, manifest.DataFile, int]]] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_manifests": {}}

    def open(self) -> IcebergVersion | None:
        """Return the newest snapshot, None before the first commit.

        Returns:
            The snapshot.

        Raises:
            UsageError: the path holds something else.
        """
        from pyiceberg.table import Table  # noqa: F401 (a missing PyIceberg shows at once)

        is_local = isinstance(self.path, Path)
        if is_local and not self.path.exists():
            return None
        if is_local and not self.path.is_dir():
            raise UsageError(f"{self.path} is a file; expected a directory with the {self.path.name} table, or nothing")
        if is_local:
            _refuse_foreign_files(self.path)
        counter = self._catalog.read_change_counter()
        table = self._catalog.load_table(self.path)
        snapshot = table.current_snapshot() if table is not None else None
        if table is None or snapshot is None:
            if not is_local:
                _refuse_foreign_files(self.path)
            return None
        found = [each.name for each in table.schema().fields]
        if self._checks_columns and found != self.schema.names:
            raise UsageError(
                f"{self.path} is an Iceberg table with columns {', '.join(found)}; expected Penstock's {self.path.name}"
            )
        opened = IcebergVersion(table, table.metadata, snapshot)
        self._seen = counter, opened.version()
        return opened

    def read_id(self, opened: IcebergVersion) -> str:
        """Return the table's UUID."""
        return str(opened.metadata.table_uuid)

    def read_note(self, opened: IcebergVersion, name: str) -> str | None:
        """Return a note from the table's properties."""
        return opened.metadata.properties.get(name)

    def number_columns(self, columns: pa.Schema, *, is_replacement: bool = False) -> pa.Schema:
        """Return columns with the ids that a commit of their files gives them.

        Args:
            columns: the columns, `vbucket_range` or not.
            is_replacement: whether the commit gives the table these columns.
        """
        opened = self.open()
        if opened is None:
            return columns
        change = opened.table.transaction()
        if is_replacement:
            change_columns(change, add_range_column(columns))
        return number_columns(change.table_metadata.schema(), add_range_column(columns))

    def commit(
        self,
        opened: IcebergVersion | None,
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

        Notes become properties of the table.

        Args:
            opened: the version to commit on; None to create the table.
            transaction: application id and version.
            added: files to add.
            removed: files to remove.
            notes: notes for a new table.
            rows_change: False if the same rows only move to other files, which have the names of joined files.
            changed: not used; only Delta has files of changes.
            is_replacement: whether the added files replace all others, and `schema` the columns.

        Raises:
            CommitFailed: another commit with the same application id came first, removed the same files, or changed
                rows.
        """
        from pyiceberg.exceptions import CommitFailedException, TableAlreadyExistsError, ValidationException

        problem: Exception | None = None
        for _ in range(TRIES if opened is not None else 1):
            newest = self.open()
            if opened is None:
                start = None if newest is None else "it exists already"
            else:
                start = self._find_conflict(opened, newest, transaction[0], removed)
            if start is not None:
                raise CommitFailed(f"{self.path} did not take a commit: {start}")
            try:
                gone = self.list_files(newest) if is_replacement and newest is not None else removed
                self._commit_once(newest, transaction, added, gone, notes or {}, is_replacement=is_replacement)
            except (CommitFailedException, TableAlreadyExistsError, ValidationException) as error:
                problem = error
                continue
            except Exception as error:
                if not is_catalog_failure(error):
                    raise
                landed = self.open()
                if landed is not None and self.has_effect(landed, transaction, added, removed):
                    return
                problem = error
                continue
            if (landed := self.open()) is not None:
                expire_snapshots(landed.table, read_snapshot_age(landed.metadata), MAX_EXPIRED)
            return
        raise CommitFailed(f"{self.path} did not take a commit: {problem}") from problem

    def _find_conflict(
        self, opened: IcebergVersion, newest: IcebergVersion | None, app_id: str, removed: Iterable[DataFile]
    ) -> str | None:
        """Return why a commit that was prepared on one version cannot be made on the newest one, None if it can."""
        if newest is None:
            return "the table was removed"
        if newest.snapshot.snapshot_id == opened.snapshot.snapshot_id:
            return None
        if newest.transaction_version(app_id) != opened.transaction_version(app_id):
            return f"{app_id} has committed meanwhile"
        ids = {each.snapshot_id for each in list_ancestors(newest.metadata, newest.snapshot)}
        if opened.snapshot.snapshot_id not in ids:
            return "the version that it was made on was undone"
        if find_foreign_change(newest.metadata, newest.snapshot, opened.snapshot) is not None:
            return "another program changed rows meanwhile"
        if not {file.path for file in removed} <= {file.path for file in self.list_files(newest)}:
            return "another commit removed the same files"
        return None

    def _commit_once(
        self,
        newest: IcebergVersion | None,
        transaction: tuple[str, int],
        added: Iterable[DataFile],
        removed: Iterable[DataFile],
        notes: Mapping[str, str],
        *,
        is_replacement: bool,
    ) -> None:
        known = {} if newest is None else read_transactions(newest.metadata, newest.snapshot)
        properties = {TRANSACTIONS: json.dumps(known | {transaction[0]: transaction[1]})}
        change = (
            self._catalog.begin_table(
                self.path, **describe_table(self.schema, {**_describe_past(self._keep_hours), **notes})
            )
            if newest is None
            else newest.table.transaction()
        )
        if newest is not None and is_replacement:
            change_columns(change, self.schema)
            change.set_properties(dict(notes))
        update = change.update_snapshot(snapshot_properties=properties)
        replaced = {file.path for file in removed}
        # Appending joins manifests once there are many of them.
        producer = update.overwrite() if replaced else update.merge_append()
        numbers = number_paths(change.table_metadata.schema())
        for file in added:
            producer.append_data_file(describe_file(self.path, numbers, self.schema, file))
        if newest is not None and replaced:
            for file, entry, _ in self._read_entries(newest.table, newest.snapshot):
                if file.path in replaced:
                    producer.delete_data_file(entry)
        producer.commit()
        change.commit_transaction()

    def _read_entries(self, table: Table, snapshot: Snapshot) -> Iterator[tuple[DataFile, manifest.DataFile, int]]:
        """Yield the files of a snapshot, each with its entry and the id of the snapshot that added it."""
        from pyiceberg.manifest import ManifestContent

        found = [each for each in snapshot.manifests(table.io) if each.content == ManifestContent.DATA]
        # A manifest never changes, so each is read once.
        known, self._manifests = self._manifests, {}
        for each in found:
            path = each.manifest_path
            if path not in known:
                entries = each.fetch_manifest_entry(table.io, discard_deleted=True)
                known[path] = [
                    (parse_entry(self.path, self.schema, one), one.data_file, one.snapshot_id or 0) for one in entries
                ]
            self._manifests[path] = known[path]
            yield from known[path]

    def list_files(self, opened: IcebergVersion) -> list[DataFile]:
        """Return every file of the table, oldest commit first.

        The time of a file is that of its snapshot. If the snapshot has expired, it is the time when the file was begun.
        """
        return self._list_snapshot(opened, opened.snapshot)

    def _list_snapshot(self, opened: IcebergVersion, snapshot: Snapshot) -> list[DataFile]:
        times = {each.snapshot_id: each.timestamp_ms for each in opened.metadata.snapshots}
        files = [
            file
            if parse_joined_name(file.path) is not None
            else replace(file, modified=times.get(added_by, file.modified))
            for file, _, added_by in self._read_entries(opened.table, snapshot)
        ]
        return sorted(files, key=lambda file: (file.version, file.modified, file.path))

    def list_added_since(self, opened: IcebergVersion, version: int) -> list[DataFile] | None:
        """Return the files that the commits after `version` added, in the order of the commits.

        None if such rows were joined with other rows, or if another program joined files or changed rows since.
        """
        if not self.is_intact(opened):
            return None
        files = [file for file in self.list_files(opened) if file.version > version]
        return None if any(file.is_foreign or parse_joined_name(file.path) is not None for file in files) else files

    def list_files_at(self, opened: IcebergVersion, when: datetime) -> list[DataFile]:
        """Return the files that the table had at a time: those of the newest snapshot before.

        Raises:
            UsageError: the snapshot has expired.
        """
        oldest = opened.snapshot
        for each in list_ancestors(opened.metadata, opened.snapshot):
            if each.timestamp_ms <= when.timestamp() * 1000:
                return self._list_snapshot(opened, each)
            oldest = each
        if oldest.sequence_number == 1:
            return []
        known = datetime.fromtimestamp(oldest.timestamp_ms / 1000, UTC)
        raise UsageError(
            f"the state of {self.path.parent} at {when.isoformat()} is unknown: its snapshot has expired; expected a"
            f" time from {known.isoformat()} on, or a position"
        )

    def has_grown(self, version: int) -> bool:
        """Return whether the catalog has changed since this version was opened; True for a REST catalog."""
        counter = self._catalog.read_change_counter()
        return counter is None or self._seen != (counter, version)

    def name_joined(self, files: Sequence[DataFile]) -> str:
        """Return the end of the name of a file with the rows of some files: version and time of their newest row."""
        return f"-{max(file.version for file in files)}-{max(file.modified for file in files)}"

    def is_intact(self, opened: IcebergVersion) -> bool:
        """Return whether only Penstock changed the rows; False if expired snapshots leave that unknown."""
        return (
            is_past_known(opened.metadata, opened.snapshot)
            and find_foreign_change(opened.metadata, opened.snapshot) is None
            and find_undone(opened.metadata, opened.snapshot) is None
        )

    def refuse_foreign_changes(self, opened: IcebergVersion) -> None:
        """Check that only Penstock changed the rows, as far as the snapshots are known.

        Raises:
            LakeRefused: another program added or removed rows, or undid a commit.
        """
        remedy = f"remove {self.path.parent} to start again, or choose another directory"
        if (undone := find_undone(opened.metadata, opened.snapshot)) is not None:
            raise LakeRefused(
                f"another program set {self.path} back to version {opened.version()}, before version"
                f" {(undone.sequence_number or 0) - 1} of Penstock: {remedy}"
            )
        foreign = find_foreign_change(opened.metadata, opened.snapshot)
        if foreign is None:
            return
        if foreign.parent_snapshot_id is not None:
            remedy = (
                "undo it with manage_snapshots().rollback_to_snapshot("
                f"{foreign.parent_snapshot_id}).commit() of PyIceberg's table, or {remedy}"
            )
        raise LakeRefused(
            f"another program changed rows of {self.path} in version {(foreign.sequence_number or 0) - 1}"
            f" ({name_operation(foreign)}), but only Penstock may change them: {remedy}"
        )

    def set_time_travel(self) -> None:
        """Set how long past versions can be read. A table that keeps none of them stays as it is.

        If another commit comes first, the next call tries again.
        """
        from pyiceberg.exceptions import CommitFailedException

        if self._keep_hours is None:
            return
        opened, wanted = self.open(), _describe_past(self._keep_hours)
        if opened is None or wanted.items() <= opened.metadata.properties.items():
            return
        with suppress(CommitFailedException), opened.table.transaction() as change:
            change.set_properties(wanted)

    def forget(self) -> None:
        """Remove the table from the catalog."""
        self._catalog.drop_table(self.path)

    def discard_uncommitted(self, files: Iterable[DataFile]) -> None:
        """Remove the given files unless the table has them."""
        opened = self.open()
        live = {file.path for file in self.list_files(opened)} if opened is not None else set()
        remove_files(self.path, (file for file in files if file.path not in live))

    def remove_unused_files(self, keep_hours: float | None = None, *, only_replaced: bool = False) -> None:
        """Expire older snapshots, and remove the files that no remaining snapshot names.

        Args:
            keep_hours: hours that snapshots, and files that were never committed, stay; None for the table's own time.
            only_replaced: True to do nothing: PyIceberg does not know which files were replaced and when.
        """
        if only_replaced:
            return
        if (opened := self.open()) is None:
            return
        # A batch that is being written may have files that no snapshot names yet.
        least = max(read_snapshot_age(opened.metadata), timedelta(hours=1))
        keep = least if keep_hours is None else timedelta(hours=keep_hours)
        expire_snapshots(opened.table, keep, 1)
        used = set(list_used_files(opened.table.refresh()))
        limit = time.time() - keep.total_seconds()
        for path in self.path.rglob("*"):
            if locate(path) in used or (isinstance(path, Path) and not path.is_file()):
                continue
            with suppress(FileNotFoundError):
                if path.stat().st_mtime <= limit:
                    path.unlink()


def _refuse_foreign_files(place: LakePath) -> None:
    """Check that the place of the table has no files of other programs. It costs an object store a request.

    Raises:
        UsageError: it has one.
    """
    own = ("metadata", "data", f"{RANGE_COLUMN}=")
    if foreign := [each.name for each in place.iterdir() if not each.name.startswith(own)]:
        raise UsageError(
            f"{place} holds {min(foreign)!r}, which is not a Penstock table's; expected an Iceberg table"
            " or an empty directory"
        )


def _describe_past(keep_hours: int | None) -> dict[str, str]:
    """Return the property of a table for the age of its snapshots."""
    return {} if keep_hours is None else describe_snapshot_age(timedelta(hours=keep_hours))
