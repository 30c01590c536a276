"""Vacuum of all tables of a lake: changelog, tables of documents, and indexes."""

from __future__ import annotations

from penstock.argument_types import check_arguments
from penstock.spark.lake.current.document_table import CURRENT
from penstock.spark.lake.current.typed_table import list_document_tables
from penstock.spark.lake.maintenance.lake_vacuum import KEEP_HOURS, hold_vacuum_lock, vacuum_table
from penstock.spark.lake.maintenance.maintenance_report import MaintenanceReport, TableReport
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.maintenance.erasure import find_index_parts
from penstock.spark.pipeline.state.lake_files import remove_drafts


@check_arguments
def vacuum(lake: LakeDirectory, keep_hours: int | None = None, *, dry_run: bool = False) -> MaintenanceReport:
    """Remove files that the tables and indexes of a lake have not needed for `keep_hours`.

    A reader that began before its files were replaced must end within that time. A batch or a merge that is being
    written must end within that time too. Raises LakeRefused if `keep_hours` is 0 and a pipeline runs, and UsageError
    if it is negative.

    Args:
        lake: the lake of the tables.
        keep_hours: 0 to remove the files at once; None for the time of each table (`time_travel` of typed ones).
        dry_run: only report, and remove no file.

    Returns:
        Files and bytes on disk, before and after.
    """
    with hold_vacuum_lock(lake, keep_hours, dry_run=dry_run):
        changelog = vacuum_table(lake.changelog_table, keep_hours, dry_run=dry_run)
        tables = {
            target.name: vacuum_table(target.table, keep_hours, dry_run=dry_run)
            for target in list_document_tables(lake)
        }
        hours = KEEP_HOURS if keep_hours is None else keep_hours
        indexes = {name: index.vacuum(hours, dry_run=dry_run) for _, name, index in find_index_parts(lake)}
        if not dry_run:
            remove_drafts(lake, hours)
        return MaintenanceReport(changelog, tables.pop(CURRENT, TableReport()), tables, indexes)
