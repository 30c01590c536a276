"""History tables: tables with a row for each version of a document, and the files of their merges.

Versions that are closed have files of their own. A merge adds to them, and rewrites them only after a rollback or to
keep small files few. So a merge costs as much as that of a table with the newest versions alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from penstock.spark.lake.changelog.changelog_delta import read_marker_rows
from penstock.spark.lake.changelog.merge_rules import (
    DOCUMENT_EVENTS,
    MARKER_EVENTS,
    Bools,
    fill_collection_ids,
    read_keys,
)
from penstock.spark.lake.current.document_table import DocumentTable, LoadStamp
from penstock.spark.lake.current.table_rewrite import (
    SMALL_BYTES,
    SMALL_ROWS,
    RangeChanges,
    RewrittenFiles,
    TableRewrite,
)
from penstock.spark.lake.current.table_shape import read_times
from penstock.spark.lake.current.version_rules import (
    CHANGE_COLUMNS,
    KNOWN_COLUMNS,
    TIME,
    VERSION_COLUMNS,
    MergedVersions,
    merge_versions,
)
from penstock.spark.lake.tables.data_files import DataFile, RangeWriter, match_types
from penstock.spark.storage.object_files import open_parquet
from penstock.wire.columns.schema import Event

_NEVER = np.iinfo(np.int64).min


class HistoryRewrite(TableRewrite):
    """A table with a row for each version of a document during a merge."""

    __slots__ = ()

    def rewrite_range(self, changes: RangeChanges) -> RewrittenFiles:
        """Add the new versions of a range, close and open known ones, and remove those that a rollback voids.

        Args:
            changes: the changes of the range.

        Returns:
            The files of the range.
        """
        at, rows = self._select_changes(changes)
        rolled_back = len(rows.filter(pc.equal(rows["event"], Event.ROLLBACK))["vbucket"].unique())
        with ExitStack() as stack:
            old = [VersionFile.open(stack, self.target, file) for file in self.list_old(changes.vbucket_range)]
            merged, states = self._merge(old, rows, reads_all=changes.delta.is_full or rolled_back > 0)
            if not merged.fresh.any() and not any(state.is_touched for state in states):
                return RewrittenFiles([], [], [], rolled_back)
            closed_rows = merged.added.num_rows - int(pc.sum(merged.added["_is_current"]).as_py() or 0)
            files = _Writers.open(stack, self, changes.vbucket_range)
            chosen = _choose_states(states, closed_rows + sum(int(state.changed.sum()) for state in states))
            for state in chosen:
                self._copy(state, files)
            fresh = np.zeros(changes.events.num_rows, bool)
            fresh[at[merged.fresh[: len(at)]]] = True
            self._write_fresh(changes, fresh, merged.added, files)
            return RewrittenFiles(
                [*files.current.close(), *files.closed.close()],
                [state.opened.file for state in chosen],
                files.feed.close(),
                rolled_back,
            )

    def _select_changes(self, changes: RangeChanges) -> tuple[np.ndarray, pa.Table]:
        """Return the changes that concern the table, behind them older flushes, and the row numbers of the changes.

        Collection events come by their ids alone: events of other collections concern no version.
        """
        events = changes.events
        is_document = pc.and_(self.target.mark_members(events), pc.is_in(events["event"], value_set=DOCUMENT_EVENTS))
        chosen = np.flatnonzero(pc.or_(is_document, pc.is_in(events["event"], value_set=MARKER_EVENTS)).to_numpy())
        rows = events.take(pa.array(chosen))
        rows = rows.append_column("_changed_at", read_times(rows["cas"])).select(CHANGE_COLUMNS.names)
        if changes.delta.is_full or not pc.any(pc.equal(rows["event"], Event.ROLLBACK)).as_py():
            return chosen, rows
        paths = changes.delta.list_range_paths(changes.delta.all_files, changes.vbucket_range)
        flushes = fill_collection_ids(read_marker_rows(paths, pc.field("event") == Event.FLUSH))
        flushes = flushes.append_column("_changed_at", pa.nulls(flushes.num_rows, TIME))
        return chosen, pa.concat_tables([rows, flushes.select(CHANGE_COLUMNS.names).cast(rows.schema)])

    def _merge(
        self, old: Sequence[VersionFile], rows: pa.Table, *, reads_all: bool
    ) -> tuple[MergedVersions, list[_FileState]]:
        """Return the effect of changes, and on the rows of each file."""
        times = rows["_changed_at"].filter(pc.is_in(rows["event"], value_set=DOCUMENT_EVENTS))
        oldest = pc.min(times.cast(pa.int64())).as_py()
        known, counts = [KNOWN_COLUMNS.empty_table()], []
        for each in old:
            is_needed = reads_all or not each.is_closed or (oldest is not None and each.newest > oldest)
            known.append(each.read_known(self.target) if is_needed and not self.is_rebuild else known[0])
            counts.append(known[-1].num_rows)
        merged = merge_versions(pa.concat_tables(known), rows)
        states, start, updated = [], 0, 0
        for each, count in zip(old, counts, strict=True):
            nothing = np.full(each.file.rows, self.is_rebuild)
            lost = merged.lost[start : start + count] if count else nothing
            changed = merged.changed[start : start + count] if count else np.zeros_like(nothing)
            updates = merged.updates.slice(updated, int(changed.sum()))
            states.append(_FileState(each, lost, changed, updates))
            start, updated = start + count, updated + updates.num_rows
        return merged, states

    def _copy(self, state: _FileState, files: _Writers) -> None:
        """Write the rows of a file that stay, and those that change."""
        start = updated = 0
        for rows in state.opened.read_groups(self.target):
            lost, changed = (mask[start : start + rows.num_rows] for mask in (state.lost, state.changed))
            files.write(rows.filter(pa.array(~lost & ~changed)))
            files.report(rows.filter(pa.array(lost)), "delete")
            if changed.any():
                before = rows.filter(pa.array(changed))
                after = _set_versions(before, state.updates.slice(updated, before.num_rows), self.stamp)
                files.report(before, "update_preimage")
                files.report(after, "update_postimage")
                files.write(after)
                updated += before.num_rows
            start += rows.num_rows

    def _write_fresh(self, changes: RangeChanges, fresh: Bools, versions: pa.Table, files: _Writers) -> None:
        """Write the changes that are new versions."""
        if not fresh.any():
            return
        start = written = 0
        for rows in changes.read_values():
            chosen = rows.filter(pa.array(fresh[start : start + rows.num_rows]))
            start += rows.num_rows
            if not chosen.num_rows:
                continue
            made = _set_versions(
                self.target.to_rows(chosen, self.stamp), versions.slice(written, chosen.num_rows), self.stamp
            )
            written += chosen.num_rows
            files.report(made, "insert")
            files.write(made)


def _set_versions(rows: pa.Table, versions: pa.Table, stamp: LoadStamp) -> pa.Table:
    """Return rows with other VERSION_COLUMNS, written by a merge."""
    stamps = {"_loaded_at": pa.scalar(stamp.at, TIME), "_batch": pa.scalar(stamp.batch, pa.int64())}
    columns = {name: pa.repeat(value, rows.num_rows) for name, value in stamps.items() if name in rows.column_names}
    for name, values in ({column: versions[column] for column in versions.column_names} | columns).items():
        at = rows.schema.get_field_index(name)
        rows = rows.set_column(at, rows.schema.field(at), values)
    return rows


@dataclass(frozen=True, slots=True)
class VersionFile:
    """A file of a history table.

    Attributes:
        file: the file.
        rows: its rows.
        is_closed: whether all of its versions are closed.
        newest: the newest time of its versions in microseconds, by its statistics.
    """

    file: DataFile
    rows: pq.ParquetFile
    is_closed: bool
    newest: int

    @classmethod
    def open(cls, stack: ExitStack, target: DocumentTable, file: DataFile) -> VersionFile:
        """Open a file of a table.

        Args:
            stack: closes the file.
            target: the table.
            file: the file.

        Returns:
            The file, with facts from its footer.
        """
        rows = stack.enter_context(open_parquet(target.table.path / file.path, is_sequential=True))
        is_current = _find_greatest(rows.metadata, "_is_current")
        times = [_find_greatest(rows.metadata, name) for name in ("_valid_from", "_valid_to")]
        newest = max((pa.scalar(time, TIME).value for time in times if time is not None), default=_NEVER)
        return cls(file, rows, is_current is False, newest)

    def read_known(self, target: DocumentTable) -> pa.Table:
        """Return the versions in the file, with KNOWN_COLUMNS."""
        names = list(dict.fromkeys((*target.lookup, *target.position, *VERSION_COLUMNS.names)))
        rows = match_types(self.rows.read(columns=names), target.columns)
        documents = target.rename_lookup(rows)
        columns = {name: documents[name] for name in documents.column_names} | {"key": read_keys(documents)}
        columns |= {name: rows[name] for name in VERSION_COLUMNS.names}
        return pa.table([columns[name] for name in KNOWN_COLUMNS.names], schema=KNOWN_COLUMNS)

    def read_groups(self, target: DocumentTable) -> Iterator[pa.Table]:
        """Yield the rows of the file, a row group at a time."""
        for group in range(self.rows.num_row_groups):
            yield match_types(self.rows.read_row_group(group, columns=target.columns.names), target.columns)


def _find_greatest(footer: pq.FileMetaData, name: str) -> object:
    """Return the greatest value of a column by the statistics of a file, None without a value."""
    groups = (footer.row_group(number) for number in range(footer.num_row_groups))
    parts = [group.column(at) for group in groups for at in range(group.num_columns)]
    known = [part.statistics for part in parts if part.path_in_schema == name and part.is_stats_set]
    found = [each.max for each in known if each.has_min_max]
    return max(found, default=None)


@dataclass(frozen=True, slots=True, eq=False)
class _FileState:
    """A file during a merge.

    Attributes:
        opened: the file.
        lost: a mask of the rows that leave the table.
        changed: a mask of the rows that get other VERSION_COLUMNS.
        updates: the VERSION_COLUMNS of the changed rows.
    """

    opened: VersionFile
    lost: Bools
    changed: Bools
    updates: pa.Table

    @property
    def is_touched(self) -> bool:
        """Whether a row of the file differs after the merge."""
        return bool(self.lost.any() or self.changed.any())

    @property
    def is_small(self) -> bool:
        """Whether the file is so small that many of them would cost readers time."""
        return self.opened.file.size <= SMALL_BYTES and self.opened.file.rows <= SMALL_ROWS


def _choose_states(states: Sequence[_FileState], closed_rows: int) -> list[_FileState]:
    """Return the files that a merge rewrites.

    A small file with closed versions joins the newly closed ones once these are as many. So a version is copied few
    times, and the number of small files grows with the logarithm of their rows.

    Args:
        states: the files of a range, oldest first.
        closed_rows: newly closed versions.
    """
    chosen = [state for state in states if state.is_touched or (state.is_small and not state.opened.is_closed)]
    for state in reversed([each for each in states if each.opened.is_closed and each not in chosen]):
        if not state.is_small or state.opened.file.rows > closed_rows:
            break
        closed_rows += state.opened.file.rows
        chosen.append(state)
    return chosen


@dataclass(frozen=True, slots=True)
class _Writers:
    """The new files of a range.

    Attributes:
        current, closed: files for open and for closed versions.
        feed: files of the change feed.
        has_feed: whether the commit needs one; the first commit of a table has none, and the format may have none.
    """

    current: RangeWriter
    closed: RangeWriter
    feed: RangeWriter
    has_feed: bool

    @classmethod
    def open(cls, stack: ExitStack, rewrite: HistoryRewrite, vbucket_range: int) -> _Writers:
        """Open the writers of a range.

        Args:
            stack: closes the writers, and removes their files after an error.
            rewrite: the merge.
            vbucket_range: the range.

        Returns:
            The writers.
        """
        current, closed = (stack.enter_context(rewrite.open_writer(vbucket_range)) for _ in range(2))
        feed = stack.enter_context(rewrite.open_feed(vbucket_range))
        return cls(current, closed, feed, bool(rewrite.old_files) and rewrite.target.table.has_change_files)

    def write(self, rows: pa.Table) -> None:
        """Write rows to the files of their kind."""
        self.current.write(rows.filter(rows["_is_current"]))
        self.closed.write(rows.filter(pc.invert(rows["_is_current"])))

    def report(self, rows: pa.Table, kind: str) -> None:
        """Write rows to the change feed."""
        if self.has_feed:
            self.feed.write(rows.add_column(0, "_change_type", pa.repeat(pa.scalar(kind), rows.num_rows)))


def split_versions(target: DocumentTable, files: Sequence[DataFile]) -> list[list[DataFile]]:
    """Return the files of a history table in two lists, those with closed versions alone last."""
    found: list[list[DataFile]] = [[], []]
    for file in files:
        with ExitStack() as stack:
            found[VersionFile.open(stack, target, file).is_closed].append(file)
    return found
