"""Compaction: small files of a lake's tables are joined.

May run beside a pipeline. The same rows move into other files, and the commits declare that no row changed: dependents
of the changelog skip them. Only those changelog files are joined that current and all dependents have applied; the
others may be about to be read. Each vbucket range is a commit of its own. A killed process loses at most one range,
and leaves files that `vacuum` removes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import groupby

import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.errors import Error, UsageError
from penstock.spark.lake.current.current_table import merged_version
from penstock.spark.lake.maintenance.lake_vacuum import KEEP_HOURS
from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport, TableReport
from penstock.spark.lake.tables.delta_table import RANGE, DataFile, LakeTable, RangeWriter
from penstock.spark.lake.tables.directory import LakeDirectory

__all__ = ["Conflict", "compact", "joins", "maintain_changelog"]

JOINED_BYTES = 64 << 20
"""What a joined file has on disk at least, where there is that much."""
SMALL_BYTES = JOINED_BYTES // 2
"""Files below this are joined."""
TRIES = 5
"""How often a range is joined again because another commit came first."""
MAINTENANCE = "penstock.upkeep"
"""The application id of commits to the changelog that remove files: of two at once, one fails."""
MOST_SMALL = 4096
"""Small files of a changelog that a run tolerates: every commit reads the list of all files now and then."""


class Conflict(Error):
    """Other processes kept changing a table while its files were joined."""


def compact(lake: LakeDirectory, applied: Iterable[tuple[str, int] | None] = ()) -> MaintenanceReport:
    """Join small files of both tables.

    applied: what each dependent has applied, as changelog id and version; newer changelog files are left alone.
    Raises UsageError without a changelog, Conflict if others keep changing a table.
    """
    if lake.changelog_table.open() is None:
        raise UsageError(f"there is no table at {lake.changelog_table.path}; expected the lake of a pipeline that ran")

    def of_current(table: DeltaTable) -> list[list[DataFile]]:
        return joins(lake.current_table.files(table)) if merged_version(lake, table) is not None else []

    return MaintenanceReport(
        _join(lake.changelog_table, lambda table: joins(_applied_files(lake, table, applied)), _maintenance),
        # A merge marks its commit so, too: of a merge and a compaction at once, one fails.
        _join(lake.current_table, of_current, lambda table: merged_version(lake, table) or _maintenance(table)),
    )


def maintain_changelog(lake: LakeDirectory) -> bool:
    """Join the changelog's small files once they are very many, and return whether they were; for a run to call often.

    Files are joined with their likes, so that a row is copied few times only. What was replaced an hour ago is removed,
    as long as the table remembers it; what is in no commit stays: it may be a batch that takes long.
    """
    table = lake.changelog_table
    opened = table.open()
    if opened is None:
        return False
    are_many = sum(file.size < SMALL_BYTES for file in table.files(opened)) >= MOST_SMALL
    if are_many:
        with suppress(Conflict):  # somebody else is about it
            _join(table, lambda opened: joins(_applied_files(lake, opened, ()), alike=True), _maintenance)
        opened.update_incremental()
    # By hand: the table remembers for a while what is gone already, and would note each time that it is.
    for path in opened.vacuum(retention_hours=KEEP_HOURS, enforce_retention_duration=False, dry_run=True, full=False):
        with suppress(FileNotFoundError):
            os.unlink(f"{table.path}/{path}")
    return are_many


def joins(files: Iterable[DataFile], *, alike: bool = False) -> list[list[DataFile]]:
    """Return which files are to become one: neighbours, small, of one vbucket range, in their order.

    alike: leave out a range's oldest files as long as each is larger than all that came later.
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
            if alike and not groups[-1] and file.size > later:
                continue
            if size >= JOINED_BYTES:
                groups.append([])
                size = 0
            groups[-1].append(file)
            size += file.size
    return [group for group in groups if len(group) > 1]


def _applied_files(lake: LakeDirectory, table: DeltaTable, applied: Iterable[tuple[str, int] | None]) -> list[DataFile]:
    """Return the changelog's files that current and all dependents have applied.

    A dependent that has applied nothing, or whose version is too old to be continued, reads all files there are.
    """
    changelog_id = str(table.metadata().id)
    known = [merged_version(lake, lake.current_table.open()), *applied]
    versions = sorted(one[1] for one in known if one is not None and one[0] == changelog_id)
    deltas = (lake.changelog_table.added_since(table, version) for version in versions)
    new = {file.path for file in next((files for files in deltas if files is not None), ())}
    return [file for file in lake.changelog_table.files(table) if file.path not in new]


def _maintenance(table: DeltaTable) -> tuple[str, int]:
    return MAINTENANCE, table.version()


def _join(
    table: LakeTable,
    chosen: Callable[[DeltaTable], list[list[DataFile]]],
    transaction: Callable[[DeltaTable], tuple[str, int]],
) -> TableReport:
    opened = table.open()
    if opened is None:
        return TableReport()
    before = table.files(opened)
    for part in sorted({file.vbucket_range for file in before}):
        _join_range(table, part, chosen, transaction)
    opened = table.open() or opened
    after = table.files(opened)
    return TableReport(len(before), len(after), sum(f.size for f in before), sum(f.size for f in after))


def _join_range(
    table: LakeTable,
    part: int,
    chosen: Callable[[DeltaTable], list[list[DataFile]]],
    transaction: Callable[[DeltaTable], tuple[str, int]],
) -> None:
    for _ in range(TRIES):
        opened = table.open()
        groups = [group for group in chosen(opened) if group[0].vbucket_range == part] if opened is not None else []
        if opened is None or not groups:
            return
        added: list[DataFile] = []
        try:
            for group in groups:
                added += _rewritten(table, group)
            table.commit(opened, transaction(opened), added, [f for group in groups for f in group], rows_change=False)
            return
        except DeltaError:
            table.abandon(added)  # a merge or another compaction came first
        except Exception:
            table.abandon(added)
            raise
    raise Conflict(f"{table.path} was changed by others {TRIES} times while its files were joined; try again later")


def _rewritten(table: LakeTable, group: Sequence[DataFile]) -> list[DataFile]:
    """Return new files with the rows of others, in their order."""
    schema = table.schema.remove(table.schema.get_field_index(RANGE))
    with RangeWriter(table.path, group[0].vbucket_range, schema) as writer:
        for path in table.paths(group):
            with pq.ParquetFile(path) as file:
                for number in range(file.num_row_groups):
                    writer.write(file.read_row_group(number, columns=schema.names))
        newest = max(file.modified for file in group)
        return [replace(file, modified=newest) for file in writer.close()]
