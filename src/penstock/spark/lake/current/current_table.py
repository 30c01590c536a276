"""The current table: the newest change of each document on the surviving history.

`merge_current` merges the changelog versions since the table's last commit. One commit makes the result visible and
records the version that it reaches. So a crash between the commits of the two tables leaves only versions to merge.
A merge rewrites the files that hold a changed document. It also rewrites small files, so that their number stays low.

`merge_table` does the same for any document table. In a table with a change feed, rows stay if their change is still
the newest one. After a rollback these are most rows of the vbucket.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.argument_types import check_arguments
from penstock.errors import Error
from penstock.spark.lake.changelog.changelog_delta import BATCH_ROWS, ChangelogDelta, RangeDelta, find_delta
from penstock.spark.lake.changelog.merge_rules import mark_common_identities, read_keys
from penstock.spark.lake.current.document_table import (
    DocumentTable,
    LoadStamp,
    describe_current,
    encode_positions,
)
from penstock.spark.lake.current.merge_policy import MergePolicy
from penstock.spark.lake.tables.data_files import DataFile, RangeWriter, match_types, remove_files
from penstock.spark.lake.tables.delta_log import CHANGE_DIRECTORY
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, CommitFailed, TableVersion
from penstock.spark.storage.object_files import open_parquet

SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both limits is rewritten whenever its range changes."""
PARALLEL_ROWS = 16 << 20
"""Changelog rows that are merged at once, in several ranges."""
FEED = pa.schema([("_change_type", pa.string())])
"""The column that a change feed has beside those of its table."""
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
    """A merge whose files are written; `commit` adds them to the table.

    Attributes:
        target: the table.
        opened: the version that the merge began with, None before the first commit.
        changelog_id: the changelog, which is the application id of the commit.
        added, removed: data files.
        changed: files of the change feed.
        progress: the result.
    """

    target: DocumentTable
    opened: TableVersion | None
    changelog_id: str
    added: list[DataFile]
    removed: list[DataFile]
    changed: list[DataFile]
    progress: MergeProgress

    def commit(self) -> None:
        """Commit the merge. Raises CommitFailed if another process committed a merge since this merge began."""
        transaction = (self.changelog_id, self.progress.version)
        notes = self.target.notes if self.opened is None else None
        self.target.table.commit(self.opened, transaction, self.added, self.removed, notes, changed=self.changed)

    def discard(self) -> None:
        """Remove the files of a merge that was not committed."""
        table = self.target.table
        table.discard_uncommitted(self.added)
        remove_files(table.write_root / CHANGE_DIRECTORY, self.changed)

    def was_overtaken(self) -> bool:
        """Return whether another process committed a merge since this merge began."""
        newest = self.target.table.open()
        before, now = (
            None if table is None else table.transaction_version(self.changelog_id) for table in (self.opened, newest)
        )
        return before != now

    def vacuum(self) -> None:
        """Remove unused files at every VACUUM_EVERYth commit. The next call retries a failed removal."""
        opened = self.target.table.open()
        if opened is not None and opened.version() % VACUUM_EVERY == VACUUM_EVERY - 1:
            with suppress(CommitFailed):
                self.target.table.remove_unused_files()


@check_arguments
def merge_current(lake: LakeDirectory, policy: MergePolicy | None = None) -> MergeProgress:
    """Merge the changes that the changelog has gained into `current`.

    Args:
        lake: the lake of the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The progress, also if no merge was due. Raises the errors of `merge_table`.
    """
    return merge_table(describe_current(lake), policy)


def merge_table(target: DocumentTable, policy: MergePolicy | None = None) -> MergeProgress:
    """Merge the changes that the changelog has gained into a document table.

    Args:
        target: the table.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The progress, also if no merge was due.

    Raises:
        CommitFailed: another process merges at the same time.
        Error: other processes changed the table at each attempt.
    """
    for _ in range(TRIES):
        step = prepare_table_merge(target, policy)
        if not isinstance(step, PreparedMerge):
            return step
        try:
            step.commit()
        except CommitFailed:
            step.discard()
            # A compaction, and a commit of another program, keeps the merged version; another merge changes it.
            if step.was_overtaken():
                raise
            continue
        step.vacuum()
        return step.progress
    raise Error(f"{target.table.path} was changed by others {TRIES} times while changes were merged into it")


def prepare_merge(lake: LakeDirectory, policy: MergePolicy | None = None) -> PreparedMerge | MergeProgress:
    """Write the files of the next merge of `current`, as `prepare_table_merge` does.

    Args:
        lake: the lake of the tables.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The merge to commit, or the progress of `current` if no merge is due.
    """
    return prepare_table_merge(describe_current(lake), policy)


def prepare_table_merge(target: DocumentTable, policy: MergePolicy | None = None) -> PreparedMerge | MergeProgress:
    """Write the files of the next merge, if one is due.

    Args:
        target: the table.
        policy: decides whether a merge is due; None to merge in any case.

    Returns:
        The merge to commit, or the progress of the table if no merge is due.
    """
    table = target.table.open()
    known = read_merged_version(target.lake, target.table, table)
    delta = find_delta(target.lake, known)
    if delta is None:
        return MergeProgress(-1)
    before = target.table.list_files(table) if table is not None else []
    # Without a valid table the policy is ignored: readers would have to merge the whole changelog.
    if known is not None and not delta.is_full:
        if not delta.files and delta.version - known[1] < IDLE_VERSIONS:
            return MergeProgress(delta.version)
        rows = sum(file.rows for file in before)
        if delta.files and policy is not None and not policy.is_due(delta.rows, rows, delta.age(), len(delta.files)):
            return MergeProgress(known[1], pending=delta.rows)
    stamp = LoadStamp(delta.version, time.time_ns() // 1000)
    parts = _MergeRewrite(target, delta, before, stamp).run()
    progress = MergeProgress(
        delta.version, delta.rows, delta.is_full and bool(before), sum(part.rolled_back for part in parts)
    )
    added = [file for part in parts for file in part.added]
    removed = [file for part in parts for file in part.removed]
    changed = [file for part in parts for file in part.changed]
    return PreparedMerge(target, table, delta.changelog_id, added, removed, changed, progress)


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
    changed: list[DataFile]
    rolled_back: int


@dataclass(frozen=True, slots=True)
class _MergeRewrite:
    """Rewrites the files of a table with a delta, ranges in parallel.

    Attributes:
        old_files: the files of the table; a full delta replaces all of them.
        stamp: the merge.
    """

    target: DocumentTable
    delta: ChangelogDelta
    old_files: list[DataFile]
    stamp: LoadStamp

    def run(self) -> list[_RewrittenRange]:
        """Write the new files of all ranges. If a range fails, the files of all other ranges are removed.

        Returns:
            The files of each range.
        """
        old = {file.vbucket_range for file in self.old_files} if self.delta.is_full else set()
        with ThreadPoolExecutor(self._count_threads()) as pool:
            tasks = [pool.submit(self.merge_range, part) for part in sorted(old.union(self.delta.ranges))]
        failed = [task for task in tasks if task.exception()]
        if failed:
            root = self.target.table.write_root
            for task in tasks:
                if task not in failed:
                    remove_files(root, task.result().added)
                    remove_files(root / CHANGE_DIRECTORY, task.result().changed)
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
            The files of the range.
        """
        delta = self.delta.read_range(vbucket_range)
        target, old = self.target, [file for file in self.old_files if file.vbucket_range == vbucket_range]
        if not target.position:
            with self._open_writer(target.columns, vbucket_range) as writer, ExitStack() as stack:
                is_touched = delta.changes.num_rows or delta.rolled_back or len(delta.collection_ends.collections)
                if self.delta.is_full:
                    removed = old
                elif is_touched:
                    found = [_OpenFile.open(stack, target, file, delta) for file in old]
                    removed = [each.file for each in found if each.copy_kept(target, writer)]
                else:
                    removed = []
                for start in range(0, delta.changes.num_rows, BATCH_ROWS):
                    writer.write(target.to_rows(delta.changes.slice(start, BATCH_ROWS), self.stamp))
                return _RewrittenRange(writer.close(), removed, [], len(delta.rolled_back))
        return self._merge_with_feed(vbucket_range, delta, old)

    def _merge_with_feed(self, vbucket_range: int, delta: RangeDelta, old: Sequence[DataFile]) -> _RewrittenRange:
        """Replace the rows that differ, and write them to the change feed. Rows of the same change stay.

        Returns:
            The files of the range.
        """
        target = self.target
        slices = range(0, max(1, delta.changes.num_rows), BATCH_ROWS)
        fresh = pa.concat_tables(target.to_rows(delta.changes.slice(start, BATCH_ROWS), self.stamp) for start in slices)
        with ExitStack() as stack:
            positions = encode_positions(target.rename_lookup(fresh))
            found = [_OpenFile.open(stack, target, f, None if self.delta.is_full else delta, positions) for f in old]
            settled = [each.settled for each in found]
            if settled:
                fresh = fresh.filter(pa.array(~np.isin(positions, np.concatenate(settled))))
            if not fresh.num_rows and all(each.kept.all() for each in found):
                return _RewrittenRange([], [], [], len(delta.rolled_back))
            writer = stack.enter_context(self._open_writer(target.columns, vbucket_range))
            # Readers of the feed compare nothing: a commit with one of these files has all of its changes in them.
            feed = stack.enter_context(
                self._open_writer(pa.schema([*FEED, *target.columns]), vbucket_range, CHANGE_DIRECTORY)
            )
            outdated = pa.concat_tables([target.columns.empty_table(), *(each.read_outdated(target) for each in found)])
            removed = [each.file for each in found if each.copy_kept(target, writer)]
            writer.write(fresh)
            if self.old_files:
                _write_feed(feed, target, outdated, fresh)
            return _RewrittenRange(writer.close(), removed, feed.close(), len(delta.rolled_back))

    def _open_writer(self, columns: pa.Schema, vbucket_range: int, directory: str = "") -> RangeWriter:
        root = self.target.table.write_root
        place = root / directory if directory else root
        return RangeWriter(place, vbucket_range, columns, layout=self.target.layout)


@dataclass(frozen=True, slots=True)
class _OpenFile:
    """A file of a table during a merge.

    Attributes:
        kept: a mask of the rows that stay.
        settled: the positions of rows whose change is the newest one again.
    """

    file: DataFile
    rows: pq.ParquetFile
    kept: npt.NDArray[np.bool_]
    settled: npt.NDArray[np.void]

    @classmethod
    def open(
        cls,
        stack: ExitStack,
        target: DocumentTable,
        file: DataFile,
        delta: RangeDelta | None,
        positions: npt.NDArray[np.void] | None = None,
    ) -> _OpenFile:
        """Open a file and mark its rows.

        Args:
            stack: closes the file.
            target: the table.
            file: the file.
            delta: the delta; None if it is full.
            positions: the changes of the rows that the delta brings; None in a table without a change feed.

        Returns:
            The file, which the stack closes.
        """
        rows = stack.enter_context(open_parquet(target.table.path / file.path, is_sequential=True))
        documents = target.read_lookup(rows)
        kept = np.zeros(documents.num_rows, bool) if delta is None else ~np.asarray(delta.mark_outdated(documents))
        if positions is None:
            return cls(file, rows, kept, np.empty(0, np.void))
        own = encode_positions(documents)
        is_settled = np.isin(own, positions)
        return cls(file, rows, kept | is_settled, own[is_settled])

    def copy_kept(self, target: DocumentTable, writer: RangeWriter) -> bool:
        """Write the rows that stay, one row group at a time.

        Returns:
            False if the file itself stays. A small file is rewritten even without outdated rows, to keep files few.
        """
        if self.kept.all() and (self.file.size > SMALL_BYTES or self.file.rows > SMALL_ROWS):
            return False
        for rows, kept in self._read_groups(target):
            writer.write(rows.filter(pa.array(kept)))
        return True

    def read_outdated(self, target: DocumentTable) -> pa.Table:
        """Return the rows that do not stay."""
        if self.kept.all():
            return target.columns.empty_table()
        return pa.concat_tables(rows.filter(pa.array(~kept)) for rows, kept in self._read_groups(target))

    def _read_groups(self, target: DocumentTable) -> Iterator[tuple[pa.Table, npt.NDArray[np.bool_]]]:
        start = 0
        for group in range(self.rows.num_row_groups):
            rows = match_types(self.rows.read_row_group(group, columns=target.columns.names), target.columns)
            yield rows, self.kept[start : start + rows.num_rows]
            start += rows.num_rows


def _write_feed(feed: RangeWriter, target: DocumentTable, outdated: pa.Table, fresh: pa.Table) -> None:
    """Write the rows that left the table and the rows that came, each with the kind of its change."""

    def write(rows: pa.Table, others: pa.Table, kind: str, kind_alone: str) -> None:
        is_update = pa.array(mark_common_identities(*(_identify(target, each) for each in (rows, others))))
        kinds = pc.if_else(is_update, kind, kind_alone)
        feed.write(rows.append_column("_change_type", kinds).select([*FEED.names, *target.columns.names]))

    write(outdated, fresh, "update_preimage", "delete")
    write(fresh, outdated, "update_postimage", "insert")


def _identify(target: DocumentTable, rows: pa.Table) -> pa.Table:
    """Return vbucket, collection id and key of rows."""
    documents = target.rename_lookup(rows)
    return documents.select(["vbucket", "collection_id"]).append_column("key", read_keys(documents))
