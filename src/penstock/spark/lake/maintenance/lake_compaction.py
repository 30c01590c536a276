"""Compaction: joins small files of a lake's tables.

Compaction may run beside a pipeline. The rows move into other files, and the commits declare that no row changed, so
dependents of the changelog skip them. Only changelog files that all tables and dependents have applied are joined; a
dependent may be about to read the others. A commit joins about COMPACTED_BYTES, of one vbucket range or of several. A
killed process loses the work on one commit, and leaves files that `vacuum` removes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import groupby

from penstock.argument_types import check_arguments
from penstock.errors import Error, UsageError
from penstock.spark.lake.current.current_table import read_merged_version
from penstock.spark.lake.current.document_table import CURRENT, DocumentTable
from penstock.spark.lake.current.history_table import split_versions
from penstock.spark.lake.current.table_shape import CHANGES, HISTORY
from penstock.spark.lake.current.typed_table import list_document_tables
from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport, TableReport
from penstock.spark.lake.tables.data_files import (
    CHANGE_LAYOUT,
    RANGE_COLUMN,
    DataFile,
    ParquetLayout,
    RangeWriter,
    match_types,
)
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, CommitFailed, TableVersion
from penstock.spark.storage.object_files import open_parquet

COMPACTED_BYTES = 64 << 20
"""Least size of a joined file on disk, if there are enough rows."""
SMALL_BYTES = COMPACTED_BYTES // 2
"""Files below this size are joined."""
TRIES = 5
"""Number of times that a range is joined if other commits come first."""
MAINTENANCE = "penstock.maintenance"
"""The application id of commits that remove files of the changelog: if two run at the same time, one fails."""
MAX_ADDED_FILES = 16
"""Small files of a vbucket range that a table of changes may have, of which each merge adds one."""
MAX_SMALL_FILES = 1024
"""Small changelog files that a run tolerates. Opening a table reads the names of all files, 4 us each."""


class CompactionConflict(Error):
    """Other processes kept changing a table while its files were rewritten."""


@check_arguments
def compact(lake: LakeDirectory, applied: Iterable[tuple[str, int] | None] = ()) -> MaintenanceReport:
    """Join small files of all tables. Raises CompactionConflict if other processes keep changing a table.

    Args:
        lake: the lake of the tables.
        applied: for each dependent the changelog id and version that it has applied. Newer changelog files stay.

    Returns:
        Files and bytes of the tables, before and after.

    Raises:
        UsageError: the lake has no changelog.
    """
    opened = lake.changelog_table.open()
    if opened is None:
        raise UsageError(f"there is no table at {lake.changelog_table.path}; expected the lake of a pipeline that ran")
    lake.changelog_table.check_versions()
    lake.changelog_table.refuse_foreign_changes(opened)
    changelog = _compact_table(
        lake.changelog_table,
        lambda table: group_small_files(list_applied_files(lake, table, applied)),
        make_maintenance_transaction,
        _rewrite_files,
    )
    tables = {target.name: _compact_documents(target) for target in list_document_tables(lake)}
    return MaintenanceReport(changelog, tables.pop(CURRENT, TableReport()), tables)


def _compact_documents(target: DocumentTable, *, is_tiered: bool = False) -> TableReport:
    """Join small files of a table of documents.

    Args:
        target: the table.
        is_tiered: join only files of similar size.

    Returns:
        Files and bytes of the table, before and after.
    """

    def choose_groups(opened: TableVersion) -> list[list[DataFile]]:
        if read_merged_version(target.lake, target.table, opened) is None:
            return []
        files = target.table.list_files(opened)
        parts = split_versions(target, files) if target.mode == HISTORY else [files]
        return [group for part in parts for group in group_small_files(part, is_tiered=is_tiered)]

    transaction, rewrite = partial(make_merge_transaction, target), partial(_rewrite_files, layout=target.layout)
    return _compact_table(target.table, choose_groups, transaction, rewrite)


def make_merge_transaction(target: DocumentTable, opened: TableVersion) -> tuple[str, int]:
    """Return the transaction of a commit that replaces files of a table of documents.

    A merge commits with the same transaction. So if both run at once, one fails.
    """
    return read_merged_version(target.lake, target.table, opened) or make_maintenance_transaction(opened)


def maintain_changelog(lake: LakeDirectory, applied: Iterable[tuple[str, int] | None] = ()) -> bool:
    """Join the changelog's small files once there are many of them. A run calls this often.

    Only files of similar size are joined, so that a row is copied few times. Replaced files are removed
    after the table's own time, as long as the table remembers them. Files that no commit names stay: they may belong to
    a batch that is being written.

    Args:
        lake: the lake of the changelog.
        applied: for each dependent the changelog id and version that it has applied. Newer files stay.

    Returns:
        True if there were enough small files.
    """
    table = lake.changelog_table
    opened = table.open()
    if opened is None:
        return False
    are_many = sum(file.size < SMALL_BYTES for file in table.list_files(opened)) >= MAX_SMALL_FILES
    if are_many:
        known = tuple(applied)
        with suppress(CompactionConflict):  # another process joins these files
            _compact_table(
                table,
                lambda opened: group_small_files(list_applied_files(lake, opened, known), is_tiered=True),
                make_maintenance_transaction,
                _rewrite_files,
            )
    table.remove_unused_files(only_replaced=True)
    return are_many


def join_added_files(targets: Iterable[DocumentTable]) -> None:
    """Join small files of tables to which merges only add files, once a vbucket range has many. A run calls this often.

    The commits declare that no row changed, so readers of new rows skip them.

    Args:
        targets: tables of documents. Merges rewrite the small files of all tables but those of changes.
    """
    for target in targets:
        opened = target.table.open() if target.mode == CHANGES else None
        small = (file for file in target.table.list_files(opened) if file.size < SMALL_BYTES) if opened else ()
        if max(Counter(file.vbucket_range for file in small).values(), default=0) > MAX_ADDED_FILES:
            with suppress(CompactionConflict):  # another process joins these files
                _compact_documents(target, is_tiered=True)


def group_small_files(files: Iterable[DataFile], *, is_tiered: bool = False) -> list[list[DataFile]]:
    """Return groups of files to join: small neighbours of one vbucket range, in their order.

    Args:
        files: the files of a table, oldest first.
        is_tiered: leave out a range's oldest files as long as each is larger than all later files together.

    Returns:
        Groups of at least two files.
    """
    groups: list[list[DataFile]] = []
    small = sorted((file for file in files if file.size < SMALL_BYTES), key=lambda file: file.vbucket_range)
    for _, members in groupby(small, key=lambda file: file.vbucket_range):
        group = list(members)
        later = sum(file.size for file in group)
        groups.append([])
        size = 0
        for file in group:
            later -= file.size
            if is_tiered and not groups[-1] and file.size > later:
                continue
            if size >= COMPACTED_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size
    return [group for group in groups if len(group) > 1]


def list_applied_files(
    lake: LakeDirectory, table: TableVersion, applied: Iterable[tuple[str, int] | None]
) -> list[DataFile]:
    """Return the changelog's files that the tables of documents and all dependents have applied.

    A dependent may have applied nothing, or a version that is too old to continue. Such a dependent reads all files, so
    it excludes none.
    """
    lake.changelog_table.refuse_foreign_changes(table)
    changelog_id = lake.changelog_table.read_id(table)
    merged = (read_merged_version(lake, each.table, each.table.open()) for each in list_document_tables(lake))
    known = [*merged, *applied]
    versions = sorted(one[1] for one in known if one is not None and one[0] == changelog_id)
    deltas = (lake.changelog_table.list_added_since(table, version) for version in versions)
    # The oldest version with a complete log decides: it lacks every file that a newer version lacks.
    new = {file.path for file in next((files for files in deltas if files is not None), ())}
    return [file for file in lake.changelog_table.list_files(table) if file.path not in new]


def make_maintenance_transaction(table: TableVersion) -> tuple[str, int]:
    """Return the transaction of a maintenance commit on this version of the table."""
    return MAINTENANCE, table.version()


def _compact_table(
    table: AnyTable,
    choose_groups: Callable[[TableVersion], list[list[DataFile]]],
    transaction: Callable[[TableVersion], tuple[str, int]],
    rewrite: Callable[[AnyTable, Sequence[DataFile]], list[DataFile]],
) -> TableReport:
    """Join files of all ranges.

    Args:
        table: the table.
        choose_groups: returns the groups of files to join in a version of the table.
        transaction: returns application id and version for a commit on a version of the table.
        rewrite: writes and returns the new files of one group.

    Returns:
        Files and bytes of the table, before and after.
    """
    opened = table.open()
    if opened is None:
        return TableReport()
    before = table.list_files(opened)
    for ranges in _split_ranges(choose_groups(opened)):
        rewrite_ranges(table, ranges, choose_groups, rewrite, transaction)
    opened = table.open() or opened
    after = table.list_files(opened)
    return TableReport(len(before), len(after), sum(f.size for f in before), sum(f.size for f in after))


def _split_ranges(groups: Iterable[Sequence[DataFile]]) -> list[set[int]]:
    """Return the vbucket ranges whose groups are joined by the same commit: ranges with less than COMPACTED_BYTES."""
    found: list[set[int]] = []
    size = COMPACTED_BYTES
    ordered = sorted(groups, key=lambda group: group[0].vbucket_range)
    for part, members in groupby(ordered, key=lambda group: group[0].vbucket_range):
        own = sum(file.size for group in members for file in group)
        if size + own > COMPACTED_BYTES:
            found.append(set())
            size = 0
        found[-1].add(part)
        size += own
    return found


def rewrite_ranges(
    table: AnyTable,
    ranges: Collection[int],
    choose_groups: Callable[[TableVersion], list[list[DataFile]]],
    rewrite: Callable[[AnyTable, Sequence[DataFile]], list[DataFile]],
    transaction: Callable[[TableVersion], tuple[str, int]],
    *,
    rows_change: bool = False,
) -> None:
    """Replace files of some vbucket ranges by new files, in one commit.

    Args:
        table: the table.
        ranges: the ranges.
        choose_groups: returns the groups of files to replace in a version of the table.
        rewrite: writes and returns the new files of one group.
        transaction: returns application id and version for a commit on a version of the table.
        rows_change: whether readers of the table's changes must see the commit.

    Raises:
        CompactionConflict: other commits came first at each attempt.
    """
    for _ in range(TRIES):
        opened = table.open()
        groups = (
            [group for group in choose_groups(opened) if group[0].vbucket_range in ranges] if opened is not None else []
        )
        if opened is None or not groups:
            return
        added: list[DataFile] = []
        try:
            for group in groups:
                added += rewrite(table, group)
            removed = [file for group in groups for file in group]
            table.commit(opened, transaction(opened), added, removed, rows_change=rows_change)
            return
        except CommitFailed:
            table.discard_uncommitted(added)  # a merge or another compaction committed first
        except Exception:
            table.discard_uncommitted(added)
            raise
    raise CompactionConflict(
        f"{table.path} was changed by others {TRIES} times while its files were rewritten; try again later"
    )


def _rewrite_files(table: AnyTable, group: Sequence[DataFile], layout: ParquetLayout = CHANGE_LAYOUT) -> list[DataFile]:
    """Return new files with the rows of the given files, in their order."""
    schema = table.schema.remove(table.schema.get_field_index(RANGE_COLUMN))
    root, joined = table.write_root, table.name_joined(group)
    columns = table.number_columns(schema)
    with RangeWriter(root, group[0].vbucket_range, columns, joined, layout=layout) as writer:
        for path in table.list_paths(group):
            with open_parquet(path, is_sequential=True) as file:
                for number in range(file.num_row_groups):
                    writer.write(match_types(file.read_row_group(number, columns=schema.names), schema))
        # The time of the rows' commit, which readers sort by and past states depend on, not the time of this copy.
        newest = max(file.modified for file in group)
        return [replace(file, modified=newest) for file in writer.close()]
