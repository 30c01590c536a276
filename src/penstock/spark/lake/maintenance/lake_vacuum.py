"""Vacuum: removes files from the disk that no version of a table needs.

Vacuum may run beside a pipeline if it keeps files for longer than a reader, a batch or a merge takes.
"""

from __future__ import annotations

from contextlib import nullcontext

from penstock.errors import UsageError
from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport, TableReport
from penstock.spark.lake.tables.data_files import RANGE_COLUMN
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import hold_lock
from penstock.spark.lake.tables.lake_table import AnyTable

__all__ = ["KEEP_HOURS", "vacuum"]

KEEP_HOURS = 1
"""Default hours that a replaced file stays on disk for readers."""


def vacuum(lake: LakeDirectory, keep_hours: int = KEEP_HOURS) -> MaintenanceReport:
    """Remove files that the tables have not needed for `keep_hours`.

    A reader that began before its files were replaced must end within that time. A batch or a merge that is being
    written must end within that time too. Raises LakeRefused if `keep_hours` is 0 and a pipeline runs.

    Args:
        lake: the lake of the tables.
        keep_hours: 0 to remove the files at once.

    Returns:
        Files and bytes on disk, before and after.

    Raises:
        UsageError: `keep_hours` is negative.
    """
    if keep_hours < 0:
        raise UsageError(f"files are to be kept for {keep_hours} hours; expected 0 or more")
    with hold_lock(lake.path, 0) if keep_hours == 0 and lake.path.is_dir() else nullcontext():
        return MaintenanceReport(
            *(_vacuum_table(table, keep_hours) for table in (lake.changelog_table, lake.current_table))
        )


def _vacuum_table(table: AnyTable, keep_hours: int) -> TableReport:
    """Remove unused files of one table.

    Returns:
        Files and bytes on disk, before and after.
    """
    if table.open() is None:
        return TableReport()
    before = _list_file_sizes(table)
    # Also files that no commit names, which a killed task, merge or compaction leaves.
    table.remove_unused_files(keep_hours)
    after = _list_file_sizes(table)
    return TableReport(len(before), len(after), sum(before), sum(after))


def _list_file_sizes(table: AnyTable) -> list[int]:
    """Return the sizes of the data files in the table's directory."""
    return [path.stat().st_size for path in table.path.glob("*/*.parquet") if path.parent.name.startswith(RANGE_COLUMN)]
