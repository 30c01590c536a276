"""The files of a merge: those that document tables get from a changelog delta, one vbucket range at a time.

A range of the delta is read once for all tables. In a table whose rows name their change, rows stay if their change is
still the newest one. After a rollback these are most rows of the vbucket.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.changelog_delta import BATCH_ROWS, ChangelogDelta, RangeDelta, read_rows
from penstock.spark.lake.changelog.merge_rules import mark_common_identities, read_keys
from penstock.spark.lake.current.document_table import DocumentTable, LoadStamp, encode_positions
from penstock.spark.lake.tables.data_files import DataFile, RangeWriter, match_types, remove_files
from penstock.spark.lake.tables.delta_log import CHANGE_DIRECTORY
from penstock.spark.lake.tables.schemas import MERGE_SCHEMA
from penstock.spark.storage.object_files import open_parquet

SMALL_BYTES, SMALL_ROWS = 8 << 20, 32_768
"""A file below both limits is rewritten whenever its range changes."""
PARALLEL_ROWS = 16 << 20
"""Changelog rows that are merged at once, in several ranges."""
FEED = pa.schema([("_change_type", pa.string())])
"""The column that a change feed has beside those of its table."""
EVENT_SCHEMA = pa.schema([field for field in MERGE_SCHEMA if field.name not in ("value", "xattrs")])
"""The columns that decide which rows of a changelog a table needs."""


@dataclass(frozen=True, slots=True)
class RewrittenFiles:
    """The files of a table after a merge of some ranges.

    Attributes:
        added, removed: data files.
        changed: files of the change feed.
        rolled_back: vbuckets that were computed again because of a rollback.
    """

    added: list[DataFile]
    removed: list[DataFile]
    changed: list[DataFile]
    rolled_back: int

    @property
    def is_empty(self) -> bool:
        """Whether no row changes."""
        return not (self.added or self.removed or self.changed)

    @classmethod
    def join(cls, parts: Sequence[RewrittenFiles]) -> RewrittenFiles:
        """Return the files of several ranges as one."""
        return cls(
            [file for part in parts for file in part.added],
            [file for part in parts for file in part.removed],
            [file for part in parts for file in part.changed],
            sum(part.rolled_back for part in parts),
        )

    def discard(self, target: DocumentTable) -> None:
        """Remove the new files from the disk; no commit names them."""
        root = target.table.write_root
        remove_files(root, self.added)
        remove_files(root / CHANGE_DIRECTORY, self.changed)


def rewrite_tables(delta: ChangelogDelta, tables: Sequence[TableRewrite]) -> list[RewrittenFiles]:
    """Write the new files of tables, ranges in parallel. If a range fails, the files of all other ranges are removed.

    Args:
        delta: the changes that all tables lack.
        tables: the tables.

    Returns:
        The files of each table.
    """
    old = {file.vbucket_range for each in tables for file in each.old_files} if delta.is_full else set()
    with ThreadPoolExecutor(_count_threads(delta)) as pool:
        parts = sorted(old.union(delta.ranges))
        tasks = [pool.submit(_rewrite_range, delta, tables, part) for part in parts]
    failed = [task for task in tasks if task.exception()]
    if failed:
        for task in tasks:
            if task not in failed:
                _discard_files(tables, task.result())
    results = [task.result() for task in tasks]
    return [RewrittenFiles.join([each[at] for each in results]) for at in range(len(tables))]


def _count_threads(delta: ChangelogDelta) -> int:
    """Return how many ranges are merged at once: fewer if they are large, because each is held in memory."""
    rows = Counter[int]()
    for file in delta.files:
        rows[file.vbucket_range] += file.rows
    largest = max(rows.values(), default=0)
    return max(1, min(4, os.cpu_count() or 1, PARALLEL_ROWS // max(1, largest)))


class RangeChanges:
    """The part of a changelog delta that belongs to one vbucket range, read as often as the tables need it.

    Args:
        delta: the delta.
        vbucket_range: the range.
    """

    def __init__(self, delta: ChangelogDelta, vbucket_range: int) -> None:
        self.delta = delta
        self.vbucket_range = vbucket_range

    @cached_property
    def newest(self) -> RangeDelta:
        """The newest change of each touched document, and the documents that no longer count."""
        return self.delta.read_range(self.vbucket_range)

    @cached_property
    def events(self) -> pa.Table:
        """All rows of the delta in EVENT_SCHEMA, in the order of `read_values`."""
        return pa.concat_tables([EVENT_SCHEMA.empty_table(), *self._read(EVENT_SCHEMA)])

    def read_values(self) -> Iterator[pa.Table]:
        """Yield all rows of the delta in MERGE_SCHEMA."""
        yield from self._read(MERGE_SCHEMA)

    def _read(self, schema: pa.Schema) -> Iterator[pa.Table]:
        return read_rows(self.delta.list_range_paths(self.delta.files, self.vbucket_range), None, schema)


def _rewrite_range(delta: ChangelogDelta, tables: Sequence[TableRewrite], vbucket_range: int) -> list[RewrittenFiles]:
    """Read a range of the delta, and change the rows of each table.

    Returns:
        The files of each table.
    """
    changes = RangeChanges(delta, vbucket_range)
    found: list[RewrittenFiles] = []
    try:
        for each in tables:
            found.append(each.rewrite_range(changes))
    except BaseException:
        _discard_files(tables, found)
        raise
    return found


def _discard_files(tables: Sequence[TableRewrite], found: Sequence[RewrittenFiles]) -> None:
    for each, files in zip(tables, found, strict=False):
        files.discard(each.target)


@dataclass(frozen=True, slots=True)
class TableRewrite(ABC):
    """A table during a merge.

    Attributes:
        target: the table.
        old_files: its files.
        stamp: the merge.
        columns: its columns as its new files have them.
        is_rebuild: whether the table has merged nothing of this changelog, so that none of its rows counts.
    """

    target: DocumentTable
    old_files: list[DataFile]
    stamp: LoadStamp
    columns: pa.Schema
    is_rebuild: bool

    @abstractmethod
    def rewrite_range(self, changes: RangeChanges) -> RewrittenFiles:
        """Write the files that a range of the table gets.

        Args:
            changes: the changes of the range.

        Returns:
            The files of the range.
        """

    def list_old(self, vbucket_range: int) -> list[DataFile]:
        """Return the table's files of a range."""
        return [file for file in self.old_files if file.vbucket_range == vbucket_range]

    def open_writer(self, vbucket_range: int) -> RangeWriter:
        """Return a writer of new files of the table, a context manager."""
        return RangeWriter(self.target.table.write_root, vbucket_range, self.columns, layout=self.target.layout)

    def open_feed(self, vbucket_range: int) -> RangeWriter:
        """Return a writer of the change feed, a context manager.

        Readers of the feed compare nothing: a commit with one of these files has all of its changes in them.
        """
        root, columns = self.target.table.write_root / CHANGE_DIRECTORY, pa.schema([*FEED, *self.target.columns])
        return RangeWriter(
            root, vbucket_range, columns, layout=replace(self.target.layout, create_counter=None, sorted_by=())
        )


class DocumentRewrite(TableRewrite):
    """A table with a row for each document during a merge."""

    __slots__ = ()

    def rewrite_range(self, changes: RangeChanges) -> RewrittenFiles:
        """Replace the documents of a range that the delta changes; a full delta replaces all documents.

        Args:
            changes: the changes of the range.

        Returns:
            The files of the range.
        """
        delta, vbucket_range, is_full = changes.newest, changes.vbucket_range, changes.delta.is_full
        old = self.list_old(vbucket_range)
        # Without files all rows are new, so no feed is needed, and no more than BATCH_ROWS documents are held as rows.
        if self.target.position and self.old_files:
            return self._rewrite_differing(delta, vbucket_range, old, is_full=is_full)
        target = self.target
        with self.open_writer(vbucket_range) as writer, ExitStack() as stack:
            is_touched = delta.changes.num_rows or delta.rolled_back or len(delta.collection_ends.collections)
            if is_full:
                removed = old
            elif is_touched:
                found = [_OpenFile.open(stack, target, file, delta) for file in old]
                removed = [each.file for each in found if each.copy_kept(target, writer) is not None]
            else:
                removed = []
            for start in range(0, delta.changes.num_rows, BATCH_ROWS):
                writer.write(target.to_rows(delta.changes.slice(start, BATCH_ROWS), self.stamp))
            return RewrittenFiles(writer.close(), removed, [], len(delta.rolled_back))

    def _rewrite_differing(
        self, delta: RangeDelta, vbucket_range: int, old: Sequence[DataFile], *, is_full: bool
    ) -> RewrittenFiles:
        """Replace the rows that differ, and write them to the change feed if there is one. Others stay as they are.

        Returns:
            The files of the range.
        """
        target = self.target
        slices = range(0, max(1, delta.changes.num_rows), BATCH_ROWS)
        fresh = pa.concat_tables(target.to_rows(delta.changes.slice(start, BATCH_ROWS), self.stamp) for start in slices)
        with ExitStack() as stack:
            positions = encode_positions(target.rename_lookup(fresh))
            found = [_OpenFile.open(stack, target, f, None if is_full else delta, positions) for f in old]
            settled = [each.settled for each in found]
            if settled:
                fresh = fresh.filter(pa.array(~np.isin(positions, np.concatenate(settled))))
            if not fresh.num_rows and all(each.kept.all() for each in found):
                return RewrittenFiles([], [], [], len(delta.rolled_back))
            writer = stack.enter_context(self.open_writer(vbucket_range))
            outdated = [each.copy_kept(target, writer) for each in found]
            removed = [each.file for each, rows in zip(found, outdated, strict=True) if rows is not None]
            writer.write(fresh)
            if not target.table.has_change_files:  # readers compare the rows of replaced and new files
                return RewrittenFiles(writer.close(), removed, [], len(delta.rolled_back))
            feed = stack.enter_context(self.open_feed(vbucket_range))
            gone = [rows for rows in outdated if rows is not None]
            _write_feed(feed, target, pa.concat_tables([target.columns.empty_table(), *gone]), fresh)
            return RewrittenFiles(writer.close(), removed, feed.close(), len(delta.rolled_back))


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
        # The delta brings no change of the other documents, and comparisons cost more than the marks.
        outdated = np.flatnonzero(~kept)
        own = encode_positions(documents.take(outdated))
        is_settled = np.isin(own, positions)
        kept[outdated[is_settled]] = True
        return cls(file, rows, kept, own[is_settled])

    def copy_kept(self, target: DocumentTable, writer: RangeWriter) -> pa.Table | None:
        """Write the rows that stay, one row group at a time.

        Returns:
            The rows that do not stay. None if the file itself stays. A small file is rewritten even without outdated
            rows, to keep files few.
        """
        if self.kept.all() and (self.file.size > SMALL_BYTES or self.file.rows > SMALL_ROWS):
            return None
        outdated, start = [target.columns.empty_table()], 0
        for group in range(self.rows.num_row_groups):
            rows = match_types(self.rows.read_row_group(group, columns=target.columns.names), target.columns)
            kept = self.kept[start : start + rows.num_rows]
            start += rows.num_rows
            writer.write(rows.filter(pa.array(kept)))
            outdated.append(rows.filter(pa.array(~kept)))
        return pa.concat_tables(outdated)


def _write_feed(feed: RangeWriter, target: DocumentTable, outdated: pa.Table, fresh: pa.Table) -> None:
    """Write the rows that left the table and the rows that came, each with the kind of its change."""

    def write(rows: pa.Table, others: pa.Table, kind: str, kind_alone: str) -> None:
        is_update = pa.array(mark_common_identities(*(_identify(target, each) for each in (rows, others))))
        kinds = pc.if_else(is_update, kind, kind_alone)
        feed.write(rows.append_column("_change_type", kinds).select([*FEED.names, *target.columns.names]))

    write(outdated, fresh, "update_preimage", "delete")
    write(fresh, outdated, "update_postimage", "insert")


def _identify(target: DocumentTable, rows: pa.Table) -> pa.Table:
    """Return vbucket, collection id and key of rows. The number of a row within its document stands behind the key."""
    documents = target.rename_lookup(rows)
    keys = read_keys(documents)
    if target.row_number:
        numbers = rows[target.row_number].cast(pa.string()).cast(pa.binary())
        keys = pc.binary_join_element_wise(keys, numbers, b"\0")
    return documents.select(["vbucket", "collection_id"]).append_column("key", keys)
