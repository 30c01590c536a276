"""The current table: for each document the newest change that is still on the surviving history.

`merge_current` merges the changelog versions since the table's last commit, and makes one commit of them, together with
the version that it reaches. A crash between the two tables' commits leaves a version to merge, nothing else. Of a
range's files only those are rewritten that hold a changed document, and small ones, so that files do not pile up.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from penstock.errors import Error
from penstock.spark.lake.changelog.changelog_delta import LOOKED_UP, ChangelogDelta, delta_since
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.delta_table import DataFile, RangeWriter, discard
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS

SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both is rewritten whenever its range changes."""
TRIES = 5
"""How often a merge is prepared again because its table's files were joined meanwhile."""
IDLE_VERSIONS = 64
"""Changelog versions without rows after which the position is committed all the same."""
VACUUM_EVERY = 50
"""Commits of `current` after which files that no longer belong to it are removed from the disk."""


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """version: of the changelog that `current` has reached, -1 without a changelog. changes: changelog rows taken in by
    this call. rewritten: whether everything was computed anew. rolled_back: vbuckets computed anew for a rollback.
    pending: changelog rows that wait for the policy; then `version` is where they begin."""

    version: int
    changes: int = 0
    rewritten: bool = False
    rolled_back: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge whose files are written; `commit` makes them the table."""

    lake: LakeDirectory
    table: DeltaTable | None
    changelog_id: str
    added: list[DataFile]
    removed: list[DataFile]
    progress: MergeProgress

    def commit(self) -> None:
        """Raises DeltaError if another process committed a merge since this one began."""
        table = self.lake.current_table
        transaction = (self.changelog_id, self.progress.version)
        table.commit(self.table, transaction, self.added, self.removed)

    def clean_up(self) -> None:
        """Remove, now and then, files that no longer belong to the table; what cannot be removed now, is next time."""
        opened = self.lake.current_table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            with suppress(DeltaError):
                opened.vacuum(dry_run=False, full=True)


def merge_current(lake: LakeDirectory, policy: MergePolicy | None = None) -> MergeProgress:
    """Merge what the changelog has gained into `current`, if the policy finds that due; None: merge in any case.

    Raises DeltaError if another process does the same at the same time.
    """
    for _ in range(TRIES):
        step = prepare(lake, policy)
        if not isinstance(step, PreparedMerge):
            return step
        try:
            step.commit()
        except DeltaError:
            lake.current_table.abandon(step.added)
            # A compaction leaves the merged version as it is; another merge moves it.
            if merged_version(lake, lake.current_table.open()) != merged_version(lake, step.table):
                raise
            continue
        step.clean_up()
        return step.progress
    raise Error(f"{lake.current_table.path} was changed by others {TRIES} times while changes were merged into it")


def prepare(lake: LakeDirectory, policy: MergePolicy | None = None) -> PreparedMerge | MergeProgress:
    """Write the files of the next merge, or return where `current` stands if none is due."""
    table = lake.current_table.open()
    known = merged_version(lake, table)
    delta = delta_since(lake, known)
    if delta is None:
        return MergeProgress(-1)
    before = lake.current_table.files(table) if table is not None else []
    if known is not None and not delta.everything:
        if not delta.files and delta.version - known[1] < IDLE_VERSIONS:
            return MergeProgress(delta.version)
        rows = sum(file.rows for file in before)
        if delta.files and policy is not None and not policy.due(delta.rows, rows, delta.age(), len(delta.files)):
            return MergeProgress(known[1], pending=delta.rows)
    parts = _Rewrite(lake, delta, before).run()
    progress = MergeProgress(
        delta.version, delta.rows, delta.everything and bool(before), sum(part.rolled_back for part in parts)
    )
    added = [file for part in parts for file in part.added]
    removed = before if delta.everything else [file for part in parts for file in part.removed]
    return PreparedMerge(lake, table, delta.changelog_id, added, removed, progress)


def merged_version(lake: LakeDirectory, table: DeltaTable | None) -> tuple[str, int] | None:
    """Return the id and version of the changelog that `current` has merged, None if that is no version of it."""
    changelog = lake.changelog_table.open()
    if table is None or changelog is None:
        return None
    changelog_id = str(changelog.metadata().id)
    version = table.transaction_version(changelog_id)
    return None if version is None else (changelog_id, version)


@dataclass(frozen=True, slots=True)
class _Part:
    added: list[DataFile]
    removed: list[DataFile]
    rolled_back: int


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """before: the files of `current`; nothing of them stays where everything is delta."""

    lake: LakeDirectory
    delta: ChangelogDelta
    before: list[DataFile]

    def run(self) -> list[_Part]:
        with ThreadPoolExecutor(min(4, os.cpu_count() or 1)) as pool:
            tasks = [pool.submit(self.merge_range, part) for part in self.delta.ranges]
        failed = [task for task in tasks if task.exception()]
        if failed:
            for task in tasks:
                if task not in failed:
                    discard(self.lake.current_table.path, task.result().added)
        return [task.result() for task in tasks]

    def merge_range(self, vbucket_range: int) -> _Part:
        """Put a range's changes in place of what its files say of the same documents."""
        delta = self.delta.read(vbucket_range)
        root = self.lake.current_table.path
        removed: list[DataFile] = []
        with RangeWriter(root, vbucket_range, CURRENT_COLUMNS) as writer:
            if delta.changes.num_rows or delta.rolled_back or len(delta.ended.collections):
                for file in self.before if not self.delta.everything else ():
                    if file.vbucket_range != vbucket_range:
                        continue
                    with pq.ParquetFile(root / file.path) as old:
                        kept = pc.invert(delta.outdates(old.read(columns=LOOKED_UP)))
                        if pc.all(kept).as_py() and (file.size > SMALL_BYTES or file.rows > SMALL_ROWS):
                            continue
                        _copy(old, kept, writer)
                    removed.append(file)
                writer.write(to_documents(delta.changes))
            return _Part(writer.close(), removed, len(delta.rolled_back))


def _copy(file: pq.ParquetFile, kept: pa.Array, writer: RangeWriter) -> None:
    start = 0
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group, columns=CURRENT_COLUMNS.names)
        writer.write(rows.filter(kept.slice(start, rows.num_rows)))
        start += rows.num_rows
