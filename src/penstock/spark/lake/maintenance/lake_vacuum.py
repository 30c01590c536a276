"""Vacuum: remove files from the disk that no version of a table needs.

May run beside a pipeline, as long as files are kept for longer than a reader, batch or merge takes.
"""

from __future__ import annotations

from contextlib import nullcontext

from penstock.errors import UsageError
from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport, TableReport
from penstock.spark.lake.tables.delta_table import RANGE, LakeTable
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_lock import locked

__all__ = ["KEEP_HOURS", "vacuum"]

KEEP_HOURS = 1
"""Hours that a replaced file stays on the disk for readers, unless a caller says otherwise."""


def vacuum(lake: LakeDirectory, keep_hours: int = KEEP_HOURS) -> MaintenanceReport:
    """Remove files from the disk that the tables have not needed for `keep_hours`.

    A reader that began before its files were replaced, and a batch or merge that is being written, must end within that
    time. 0: at once; then no pipeline may run. Raises LakeRefused if one does, UsageError for a negative number.
    """
    if keep_hours < 0:
        raise UsageError(f"files are to be kept for {keep_hours} hours; expected 0 or more")
    with locked(lake.path, 0) if keep_hours == 0 and lake.path.is_dir() else nullcontext():
        return MaintenanceReport(*(_vacuum(table, keep_hours) for table in (lake.changelog_table, lake.current_table)))


def _vacuum(table: LakeTable, keep_hours: int) -> TableReport:
    opened = table.open()
    if opened is None:
        return TableReport()
    before = _on_disk(table)
    opened.vacuum(retention_hours=keep_hours, enforce_retention_duration=False, dry_run=False, full=True)
    after = _on_disk(table)
    return TableReport(len(before), len(after), sum(before), sum(after))


def _on_disk(table: LakeTable) -> list[int]:
    """Return the sizes of the data files in the table's directory."""
    return [path.stat().st_size for path in table.path.glob("*/*.parquet") if path.parent.name.startswith(RANGE)]
