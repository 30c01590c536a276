"""Vacuum: removes files from the disk that no version of a table needs.

Vacuum may run beside a pipeline if it keeps files for longer than a reader, a batch or a merge takes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from urllib.parse import unquote

from penstock.errors import UsageError
from penstock.spark.lake.maintenance.maintenance_report import TableReport
from penstock.spark.lake.tables.data_files import RANGE_COLUMN
from penstock.spark.lake.tables.delta_table import DeltaLakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.lake.tables.lake_table import AnyTable
from penstock.spark.storage.object_client import repeat_cut_request

KEEP_HOURS = 1
"""Hours that a replaced file of an index stays on disk, unless a vacuum names others."""


@contextmanager
def hold_vacuum_lock(lake: LakeDirectory, keep_hours: int | None, *, dry_run: bool = False) -> Iterator[None]:
    """Hold the lake's lock during the block if files of a running pipeline could be removed.

    Args:
        lake: the lake.
        keep_hours: hours that files are kept; None for each table's own time.
        dry_run: whether no file is removed.

    Yields:
        Once, for the block.

    Raises:
        UsageError: `keep_hours` is negative.
    """
    if keep_hours is not None and keep_hours < 0:
        raise UsageError(f"files are to be kept for {keep_hours} hours; expected 0 or more")
    with hold_lock(lake.path, 0) if keep_hours == 0 and not dry_run and lake.path.is_dir() else nullcontext():
        yield


def vacuum_table(table: AnyTable, keep_hours: int | None, *, dry_run: bool = False) -> TableReport:
    """Remove unused files of one table.

    Args:
        table: the table.
        keep_hours: hours that a file stays after the table's last use of it; None for the table's own time.
        dry_run: only report, and remove no file.

    Returns:
        Files and bytes on disk, before and after.
    """
    if table.open() is None:
        return TableReport()
    before = _list_file_sizes(table)
    if dry_run:
        gone = _list_unused_files(table, keep_hours)
        after = {path: size for path, size in before.items() if path not in gone}
    else:
        # Also files that no commit names, which a killed task, merge or compaction leaves.
        table.remove_unused_files(keep_hours)
        after = _list_file_sizes(table)
    return TableReport(len(before), len(after), sum(before.values()), sum(after.values()))


def _list_unused_files(table: AnyTable, keep_hours: int | None) -> set[str]:
    """Return the paths of the files that vacuum would remove.

    Raises:
        UsageError: the table is no Delta table.
    """
    if not isinstance(table, DeltaLakeTable):
        raise UsageError(f"{table.path} is no Delta table, so its unused files are unknown without removing them")
    opened = table.open()
    if opened is None:
        return set()
    hours = table.find_keep_hours(opened) if keep_hours is None else keep_hours
    found = repeat_cut_request(
        lambda: opened.vacuum(retention_hours=hours, enforce_retention_duration=False, dry_run=True, full=True)
    )
    return {unquote(path) for path in found}


def _list_file_sizes(table: AnyTable) -> dict[str, int]:
    """Return the sizes of the data files in the table's directory, by path in it."""
    files = (path for part in ("", f"{RANGE_COLUMN}=*/") for path in table.path.glob(f"{part}*.parquet"))
    return {str(path).removeprefix(f"{table.path}/"): path.stat().st_size for path in files}
