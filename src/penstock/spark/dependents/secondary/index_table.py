"""The Delta table of a secondary index: its definition, and merging a changelog delta into it."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace

from deltalake import DeltaTable

from penstock.errors import UsageError
from penstock.spark.dependents.checks import refuse_missing_index, validate_name
from penstock.spark.dependents.json_paths import parse_path
from penstock.spark.dependents.secondary.entries import PendingEntries, make_entry_schema
from penstock.spark.dependents.secondary.entry_files import EntryWriter, select_parts
from penstock.spark.dependents.secondary.entry_merge import OutdatedEntries, merge_entries
from penstock.spark.dependents.secondary.sorted_entries import EntrySorter
from penstock.spark.dependents.value_types import find_value_type
from penstock.spark.lake.changelog.changelog_delta import LOOKUP_COLUMNS, ChangelogDelta, RangeDelta
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.maintenance.lake_erasure import remove_old_logs
from penstock.spark.lake.maintenance.lake_vacuum import vacuum_table
from penstock.spark.lake.maintenance.maintenance_report import TableReport
from penstock.spark.lake.tables.delta_store import open_delta_log
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.storage.full_disk import translate_full_disk
from penstock.spark.storage.object_files import read_parquet

DIRECTORY = "indexes"
"""The directory of a lake that holds its indexes."""
DEFINITION = "penstock.index"
"""The metadata key of the last column for the index's path and type."""
# Every merge rewrites files, as in the current table: a short time keeps the log's list of removed files small.
PROPERTIES = {
    "delta.checkpointInterval": "50",
    # For deltalake's datasets a column without statistics beside one with them has no values.
    "delta.dataSkippingStatsColumns": "value",
    "delta.logRetentionDuration": "interval 1 hours",
    "delta.deletedFileRetentionDuration": "interval 5 minutes",
}
VACUUM_EVERY = 50
"""Commits after which unused files are removed from the disk."""


class IndexTable:
    """The table of an index, sorted by value. Raises UsageError for an invalid name, path or type.

    Args:
        lake: the lake of the index.
        name: the index's name.
        path: the JSON path of the indexed values.
        type: the type of the indexed values.

    Attributes:
        names: the path as names of fields.
        kind: the type of the indexed values.
        table: the Delta table.
    """

    def __init__(self, lake: LakeDirectory, name: str, path: str, type: str) -> None:  # noqa: A002
        self.lake = lake
        self.name = validate_name(name)
        self.path = path
        self.kind = find_value_type(type)
        self.names = parse_path(path)
        self.table = DeltaLakeTable(lake.path / DIRECTORY / name, make_entry_schema(self.kind), PROPERTIES)

    @property
    def definition(self) -> str:
        """Path and type as JSON, as the table's metadata holds them."""
        return json.dumps({"path": self.path, "type": self.kind.name})

    def open(self) -> DeltaTable | None:
        """Return the newest version of the table, None before its first commit.

        Returns:
            The table as deltalake opens it.

        Raises:
            UsageError: the table is an index with another path or type.
        """
        table = self.table.open()
        if table is not None:
            found = table.schema().fields[-1].metadata.get(DEFINITION)
            if found != self.definition:
                raise UsageError(
                    f"{self.table.path} is an index of {found}, expected {self.definition};"
                    " choose another name, or remove the directory to build the index again"
                )
        return table

    def position(self) -> tuple[str, int] | None:
        """Return id and version of the changelog that the table has applied, None if nothing was applied."""
        return read_merged_version(self.lake, self.table, self.open())

    def count_rows(self) -> int:
        """Return the number of entries in the table's files."""
        table = self.open()
        return sum(file.rows for file in self.table.list_files(table)) if table is not None else 0

    def apply_delta(self, delta: ChangelogDelta) -> None:
        """Merge a delta into the table, in one commit with the version that it reaches."""
        table = self.open()
        parts = PendingEntries.collect_parts(delta, self.names, self.kind)
        with translate_full_disk(str(self.table.path)):
            self._merge(table, parts, (delta.changelog_id, delta.version), is_full=delta.is_full)
        opened = self.table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            self.table.remove_unused_files()

    def erase_documents(self, erased: RangeDelta) -> tuple[int, int]:
        """Remove the entries of documents, and the log of older versions, whose statistics hold values.

        The table must have applied the changelog.

        Args:
            erased: a delta that voids the documents and adds nothing.

        Returns:
            The number of removed entries, and of rewritten files.
        """
        table, position = self.open(), self.position()
        if table is None or position is None:
            return 0, 0
        rows, files = self.count_rows(), 0
        if self._holds_documents(table, erased):
            pending = replace(PendingEntries.empty(self.kind), outdated=erased)
            files = self._merge(table, [pending], position, is_full=False)
        remove_old_logs(self.table)
        return rows - self.count_rows(), files

    def vacuum(self, keep_hours: int, *, dry_run: bool = False) -> TableReport:
        """Return files and bytes on disk before and after removing files that the table no longer needs."""
        return vacuum_table(self.table, keep_hours, dry_run=dry_run)

    def _holds_documents(self, table: DeltaTable, erased: RangeDelta) -> bool:
        paths = self.table.list_paths(self.table.list_files(table))
        return any(erased.mark_outdated(read_parquet(path, list(LOOKUP_COLUMNS))).true_count for path in paths)

    def _merge(
        self,
        table: DeltaTable | None,
        pending: Iterable[PendingEntries],
        transaction: tuple[str, int],
        *,
        is_full: bool,
    ) -> int:
        """Merge pending entries into the table, in one commit.

        Returns:
            The number of files that were replaced.
        """
        before = self.table.list_files(table) if table is not None else []
        replaced = [file.path for file in before]
        files = select_parts(self.table.path, replaced, None, None) if not is_full else []
        with EntrySorter(self.table.path.parent, self.table.schema) as sorter, EntryWriter(self.table.path) as writer:
            outdated = OutdatedEntries(files)
            for part in pending:
                outdated.add(part.outdated)
                sorter.add(part.entries)
            rewritten = merge_entries(files, outdated, sorter.read(), writer)
            added = writer.close()
        replaced = replaced if is_full else rewritten
        removed = [file for file in before if file.path in set(replaced)]
        try:
            self.table.commit(table, transaction, added, removed, {DEFINITION: self.definition})
        except BaseException:
            self.table.discard_uncommitted(added)
            raise
        return len(removed)


def read_stored_definition(lake: LakeDirectory, name: str) -> dict[str, str]:
    """Return path and type of the index that a lake has under a name.

    Args:
        lake: the lake.
        name: the index's name.

    Returns:
        The keys path and type.

    Raises:
        UsageError: the lake has no such index.
    """
    known = sorted(log.parent.name for log in (lake.path / DIRECTORY).glob("*/_delta_log"))
    if name not in known:
        refuse_missing_index("index", name, lake, known)
    path = lake.path / DIRECTORY / name
    opened = open_delta_log(path)
    text = None if opened is None else opened.schema().fields[-1].metadata.get(DEFINITION)
    if text is None:
        raise UsageError(f"{path} is a table but not an index")
    definition: dict[str, str] = json.loads(str(text))
    return definition
