"""What a changelog's commits say: rows, bytes and rollbacks, without a look at the rows but where one is a rollback."""

from __future__ import annotations

import time
from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.merge_rules import CUTTING_EVENTS
from penstock.spark.lake.tables import plain_manifests
from penstock.spark.lake.tables.delta_table import DataFile
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.pipeline.state.run_progress import RollbackEvent

__all__ = ["METERS", "Meter", "PlainMeter", "last_rollback"]


class Meter:
    """Counts what is committed to a changelog from now on. total_rows: of the whole changelog."""

    def __init__(self, lake: LakeDirectory) -> None:
        self.rows = self.bytes = self.rollbacks = 0
        self.last_rollback: RollbackEvent | None = None
        self._lake = lake
        self._table = lake.changelog_table
        self.version, self.total_rows = self._newest()

    def look(self) -> list[DataFile]:
        """Count the commits since the last look and return their files. Without any it costs next to nothing."""
        files = self._gained()
        gained = sum(file.rows for file in files)
        self.rows += gained
        self.total_rows += gained
        self.bytes += sum(file.size for file in files)
        if keyless := [file for file in files if file.keyless]:
            self._count_rollbacks(keyless)
        return files

    def _newest(self) -> tuple[int, int]:
        """Return the changelog's version, -1 if there is none, and its rows."""
        opened = self._table.open()
        return (-1, 0) if opened is None else (opened.version(), sum(file.rows for file in self._table.files(opened)))

    def _gained(self) -> list[DataFile]:
        """Return the files that came since `version`, and set that."""
        if not (self._table.path / "_delta_log" / f"{self.version + 1:020d}.json").exists():
            return []
        opened = self._table.open()
        if opened is None or opened.version() <= self.version:
            return []
        files = self._table.added_since(opened, self.version)
        if files is None:  # somebody else took files away: what came besides cannot be told apart
            found = sum(file.rows for file in self._table.files(opened))
            self.rows, self.total_rows, files = self.rows + found - self.total_rows, found, []
        self.version = opened.version()
        return files

    def _count_rollbacks(self, files: Iterable[DataFile]) -> None:
        for when, vbuckets in sorted(_rolled_back(self._lake, files).items()):
            self.rollbacks += len(vbuckets)
            self.last_rollback = RollbackEvent(when / 1000, tuple(vbuckets))


class PlainMeter(Meter):
    """The same of a changelog of plain Parquet files, whose batches are its versions."""

    def _newest(self) -> tuple[int, int]:
        newest = plain_manifests.newest_batch(self._table.path)
        paths = self._table.path.glob("vbucket_range=*/*.parquet")
        return -1 if newest is None else newest, sum(pq.read_metadata(path).num_rows for path in paths)

    def _gained(self) -> list[DataFile]:
        root, newest = self._table.path, plain_manifests.newest_batch(self._table.path)
        batches = range(self.version + 1, -1 if newest is None else newest + 1)
        now = time.time_ns() // 1_000_000
        files = [
            DataFile(path, (root / path).stat().st_size, rows, -1, modified=now)
            for batch in batches
            for path, rows in plain_manifests.files_of(root, batch)
        ]
        self.version = max(self.version, -1 if newest is None else newest)
        return files


METERS = {"delta": Meter, "parquet": PlainMeter}


def last_rollback(lake: LakeDirectory) -> RollbackEvent | None:
    """Return the newest rollback in a changelog, from those of its files that may hold one, newest first.

    Plain Parquet files do not say when they came: None of those.
    """
    opened = (
        None if plain_manifests.newest_batch(lake.changelog_table.path) is not None else lake.changelog_table.open()
    )
    if opened is None:
        return None
    actions = pa.table(opened.get_add_actions(flatten=True))
    counts = zip(actions["path"].to_pylist(), actions["null_count.key"].to_pylist(), strict=True)
    keyless = {path for path, count in counts if count != 0}
    files = [file for file in lake.changelog_table.files(opened) if file.path in keyless]
    for file in reversed(files):
        if found := _rolled_back(lake, (other for other in files if other.modified == file.modified)):
            return RollbackEvent(file.modified / 1000, tuple(found[file.modified]))
    return None


def _rolled_back(lake: LakeDirectory, files: Iterable[DataFile]) -> dict[int, list[int]]:
    """Return the vbuckets of the rollbacks in some files, by the time (ms) of the commits that brought them."""
    found: dict[int, set[int]] = {}
    for file in files:
        path = str(lake.changelog_table.path / file.path)
        which = pc.field("event").isin(CUTTING_EVENTS)
        rows = pq.read_table(path, columns=["vbucket"], filters=which, partitioning=None)
        if rows.num_rows:
            found.setdefault(file.modified, set()).update(rows["vbucket"].to_pylist())
    return {when: sorted(vbuckets) for when, vbuckets in found.items()}
