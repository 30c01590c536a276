"""The current table: the newest change of each document on the surviving history.

`merge_current` merges the changelog versions since the table's last commit. One commit makes the result visible and
records the version that it reaches. So a crash between the commits of the two tables leaves only versions to merge.
A merge rewrites the files that hold a changed document. It also rewrites small files, so that their number stays low.
"""

from __future__ import annotations

import os
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.argument_types import check_arguments
from penstock.errors import Error
from penstock.spark.lake.changelog.changelog_delta import BATCH_ROWS, LOOKUP_COLUMNS, ChangelogDelta, find_delta
from penstock.spark.lake.changelog.merge_rules import to_documents
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.data_files import DataFile, match_types, remove_files
from penstock.spark.lake.tables.delta_table import RangeWriter
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, CommitFailed, TableVersion
from penstock.spark.lake.tables.schemas import CURRENT_COLUMNS
from penstock.spark.storage.object_files import open_parquet

SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both limits is rewritten whenever its range changes."""
PARALLEL_ROWS = 16 << 20
"""Changelog rows that are merged at once, in several ranges."""
TRIES = 5
"""Number of times that a merge is prepared if compactions of its table come first."""
IDLE_VERSIONS = 64
"""Changelog versions without rows after which the position is committed nevertheless."""
VACUUM_EVERY = 50
"""Commits of `current` after which unused files are removed from the disk."""


@dataclass(frozen=True, slots=True)
class MergeProgress:
    """The result of a call of `merge_current`.

    Attributes:
        version: the changelog version that `current` has reached, -1 without a changelog.
        changes: changelog rows that this call merged.
        rewritten: True if the whole table was computed again.
        rolled_back: vbuckets that were computed again because of a rollback.
        pending: changelog rows that wait for the policy; they begin after `version`.
    """

    version: int
    changes: int = 0
    rewritten: bool = False
    rolled_back: int = 0
    pending: int = 0


@dataclass(frozen=True, slots=True)
class PreparedMerge:
    """A merge whose files are written; `commit` adds them to the table."""

    lake: LakeDirectory
    table: TableVersion | None
    changelog_id: str
    added: list[DataFile]
    removed: list[DataFile]
    progress: MergeProgress

    def commit(self) -> None:
        """Commit the merge. Raises CommitFailed if another process committed a merge since this merge began."""
        table = self.lake.current_table
        transaction = (self.changelog_id, self.progress.version)
        table.commit(self.table, transaction, self.added, self.removed)

    def was_overtaken(self) -> bool:
        """Return whether another process committed a merge since this merge began."""
        newest = self.lake.current_table.open()
        before, now = (
            None if table is None else table.transaction_version(self.changelog_id) for table in (self.table, newest)
        )
        return before != now

    def vacuum(self) -> None:
        """Remove unused files at every VACUUM_EVERYth commit. The next call retries a failed removal."""
        opened = self.lake.current_table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            with suppress(CommitFailed):
                self.lake.current_table.remove_unused_files()


@check_arguments
def merge_current(lake: LakeDirectory, policy: MergePolicy | None = None) -> MergeProgress:
    """Merge the changes that the changelog has gained into `current`.

    Args:
        lake: the lake of the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The progress, also if no merge was due.

    Raises:
        CommitFailed: another process merges at the same time.
        Error: other processes changed the table at each attempt.
    """
    for _ in range(TRIES):
        step = prepare_merge(lake, policy)
        if not isinstance(step, PreparedMerge):
            return step
        try:
            step.commit()
        except CommitFailed:
            lake.current_table.discard_uncommitted(step.added)
            # A compaction, and a commit of another program, keeps the merged version; another merge changes it.
            if step.was_overtaken():
                raise
            continue
        step.vacuum()
        return step.progress
    raise Error(f"{lake.current_table.path} was changed by others {TRIES} times while changes were merged into it")


def prepare_merge(lake: LakeDirectory, policy: MergePolicy | None = None) -> PreparedMerge | MergeProgress:
    """Write the files of the next merge, if one is due.

    Args:
        lake: the lake of the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The merge to commit, or the progress of `current` if no merge is due.
    """
    table = lake.current_table.open()
    known = read_merged_version(lake, lake.current_table, table)
    delta = find_delta(lake, known)
    if delta is None:
        return MergeProgress(-1)
    before = lake.current_table.list_files(table) if table is not None else []
    # Without a valid table the policy is ignored: readers would have to merge the whole changelog.
    if known is not None and not delta.is_full:
        if not delta.files and delta.version - known[1] < IDLE_VERSIONS:
            return MergeProgress(delta.version)
        rows = sum(file.rows for file in before)
        if delta.files and policy is not None and not policy.is_due(delta.rows, rows, delta.age(), len(delta.files)):
            return MergeProgress(known[1], pending=delta.rows)
    parts = _MergeRewrite(lake, delta, before).run()
    progress = MergeProgress(
        delta.version, delta.rows, delta.is_full and bool(before), sum(part.rolled_back for part in parts)
    )
    added = [file for part in parts for file in part.added]
    removed = before if delta.is_full else [file for part in parts for file in part.removed]
    return PreparedMerge(lake, table, delta.changelog_id, added, removed, progress)


def read_merged_version(lake: LakeDirectory, table: AnyTable, opened: TableVersion | None) -> tuple[str, int] | None:
    """Return id and version of the changelog that `current` or an index has merged.

    None if the table must be computed again: there is none, it was merged from another changelog, or another program
    changed its rows.

    Args:
        lake: the lake of the changelog.
        table: the current table, or the table of an index.
        opened: the version of the table, None before its first commit.

    Returns:
        The changelog's id, and its version.
    """
    changelog = lake.changelog_table.open()
    if opened is None or changelog is None or not table.is_intact(opened):
        return None
    changelog_id = lake.changelog_table.read_id(changelog)
    version = opened.transaction_version(changelog_id)
    return None if version is None else (changelog_id, version)


@dataclass(frozen=True, slots=True)
class _RewrittenRange:
    """The files of one vbucket range after a merge."""

    added: list[DataFile]
    removed: list[DataFile]
    rolled_back: int


@dataclass(frozen=True, slots=True)
class _MergeRewrite:
    """Rewrites the files of `current` with a delta, ranges in parallel.

    Attributes:
        old_files: the files of `current`; a full delta replaces all of them.
    """

    lake: LakeDirectory
    delta: ChangelogDelta
    old_files: list[DataFile]

    def run(self) -> list[_RewrittenRange]:
        """Write the new files of all ranges. If a range fails, the files of all other ranges are removed.

        Returns:
            Added and removed files of each range.
        """
        with ThreadPoolExecutor(self._count_threads()) as pool:
            tasks = [pool.submit(self.merge_range, part) for part in self.delta.ranges]
        failed = [task for task in tasks if task.exception()]
        if failed:
            for task in tasks:
                if task not in failed:
                    remove_files(self.lake.current_table.write_root, task.result().added)
        return [task.result() for task in tasks]

    def _count_threads(self) -> int:
        """Return how many ranges are merged at once: fewer if they are large, because each is held in memory."""
        rows = Counter[int]()
        for file in self.delta.files:
            rows[file.vbucket_range] += file.rows
        largest = max(rows.values(), default=0)
        return max(1, min(4, os.cpu_count() or 1, PARALLEL_ROWS // max(1, largest)))

    def merge_range(self, vbucket_range: int) -> _RewrittenRange:
        """Replace the documents of a range that the delta changes.

        Returns:
            Added and removed files of the range.
        """
        delta = self.delta.read_range(vbucket_range)
        root = self.lake.current_table.path
        removed: list[DataFile] = []
        with RangeWriter(self.lake.current_table.write_root, vbucket_range, CURRENT_COLUMNS) as writer:
            if delta.changes.num_rows or delta.rolled_back or len(delta.collection_ends.collections):
                for file in self.old_files if not self.delta.is_full else ():
                    if file.vbucket_range != vbucket_range:
                        continue
                    with open_parquet(root / file.path, is_sequential=True) as old:
                        documents = match_types(old.read(columns=LOOKUP_COLUMNS), CURRENT_COLUMNS)
                        kept = pc.invert(delta.mark_outdated(documents))
                        # A small file is rewritten even without outdated documents, so that few files remain.
                        if pc.all(kept).as_py() and (file.size > SMALL_BYTES or file.rows > SMALL_ROWS):
                            continue
                        _copy_rows(old, kept, writer)
                    removed.append(file)
                for start in range(0, delta.changes.num_rows, BATCH_ROWS):
                    writer.write(to_documents(delta.changes.slice(start, BATCH_ROWS)))
            return _RewrittenRange(writer.close(), removed, len(delta.rolled_back))


def _copy_rows(file: pq.ParquetFile, kept: pa.Array, writer: RangeWriter) -> None:
    """Write the rows of a file that `kept` selects, one row group at a time."""
    start = 0
    for group in range(file.num_row_groups):
        rows = match_types(file.read_row_group(group, columns=CURRENT_COLUMNS.names), CURRENT_COLUMNS)
        writer.write(rows.filter(kept.slice(start, rows.num_rows)))
        start += rows.num_rows
