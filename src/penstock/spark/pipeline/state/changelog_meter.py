"""Changelog meters: rows, bytes and rollbacks that a changelog gains, read from its commits.

Data files are opened only if their statistics show that they may hold a rollback.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import ROLLBACK_EVENTS
from penstock.spark.lake.tables.data_files import DataFile, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.state.run_progress import RollbackEvent
from penstock.wire.columns.schema import CHANGE_SCHEMA


class ChangelogMeter:
    """Counts the rows, bytes and rollbacks that are committed to a changelog from now on.

    Attributes:
        rows, bytes, rollbacks: counted since this object was created.
        newest_rows: rows of the newest commit.
        last_rollback: the newest rollback.
        version: the newest changelog version that was counted.
        total_rows: rows of the whole changelog.
    """

    def __init__(self, lake: LakeDirectory) -> None:
        self.rows = self.bytes = self.rollbacks = 0
        self.newest_rows = 0
        self.last_rollback: RollbackEvent | None = None
        self._lake = lake
        self._table = lake.changelog_table
        self.version, self.total_rows = self._read_totals()

    def update(self) -> list[DataFile]:
        """Count the commits since the last call. Without any it costs one file lookup.

        Returns:
            The added files.
        """
        files = self._list_new_files()
        gained = sum(file.rows for file in files)
        self.rows += gained
        self.total_rows += gained
        self.bytes += sum(file.size for file in files)
        if files:
            newest = max(file.modified for file in files)
            self.newest_rows = sum(file.rows for file in files if file.modified == newest)
        if keyless := [file for file in files if file.keyless_rows]:
            self._count_rollbacks(keyless)
        return files

    def _read_totals(self) -> tuple[int, int]:
        """Return the changelog's version, -1 if there is none, and its rows."""
        opened = self._table.open()
        return (
            (-1, 0) if opened is None else (opened.version(), sum(file.rows for file in self._table.list_files(opened)))
        )

    def _list_new_files(self) -> list[DataFile]:
        """Return the files that were added since `version`, and set `version`."""
        if not self._table.has_grown(self.version):
            return []
        opened = self._table.open()
        if opened is None or opened.version() <= self.version:
            return []
        files = self._table.list_added_since(opened, self.version)
        if files is None:  # another process removed rows or files, so the added files are unknown
            found = sum(file.rows for file in self._table.list_files(opened))
            self.rows, self.total_rows, files = self.rows + found - self.total_rows, found, []
        self.version = opened.version()
        return files

    def _count_rollbacks(self, files: Iterable[DataFile]) -> None:
        for when, vbuckets in sorted(_read_rollbacks(self._lake, files).items()):
            self.rollbacks += len(vbuckets)
            self.last_rollback = RollbackEvent(when / 1000, tuple(vbuckets))


def find_last_rollback(lake: LakeDirectory) -> RollbackEvent | None:
    """Return the newest rollback in a changelog, None if there is none.

    Reads only files whose statistics allow a rollback, newest first. Also None for a table without versions: its files
    do not have the time of their commit.
    """
    opened = lake.changelog_table.open() if lake.changelog_table.has_versions else None
    if opened is None:
        return None
    files = [file for file in lake.changelog_table.list_files(opened) if file.keyless_rows]
    for file in reversed(files):
        if found := _read_rollbacks(lake, (other for other in files if other.modified == file.modified)):
            return RollbackEvent(file.modified / 1000, tuple(found[file.modified]))
    return None


def _read_rollbacks(lake: LakeDirectory, files: Iterable[DataFile]) -> dict[int, list[int]]:
    """Return the rolled back vbuckets in some files, by the time of the commit in milliseconds since the epoch."""
    found: dict[int, set[int]] = {}
    for file in files:
        path = str(lake.changelog_table.path / file.path)
        which = pc.field("event").isin(ROLLBACK_EVENTS)
        rows = open_dataset([path], CHANGE_SCHEMA).to_table(columns=["vbucket"], filter=which)
        if rows.num_rows:
            found.setdefault(file.modified, set()).update(rows["vbucket"].to_pylist())
    return {when: sorted(vbuckets) for when, vbuckets in found.items()}
