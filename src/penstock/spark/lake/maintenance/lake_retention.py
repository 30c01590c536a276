"""Retention: drops versions of the changelog that are older than a limit, and that no later state needs.

The newest version of each document stays, however old it is. So current, indexes and copies can still be computed from
the changelog alone. For each vbucket, two seqnos decide:

- The floor is the newest boundary among the old files. A row `retained` stores it. Past states below it are refused.
- Versions are dropped only up to the lowest seqno that a rollback may go back to. It is the oldest proven end of the
  newest offset, or that of a later rollback in the changelog.

Only files that current and all dependents have applied are rewritten, so a deletion is dropped only after all have it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import UsageError
from penstock.spark.lake.changelog.boundaries import (
    EVIDENCE,
    RETAINED_EVENT,
    Boundary,
    collect_evidence,
    find_newest_boundary,
)
from penstock.spark.lake.changelog.merge_rules import (
    DOCUMENT_EVENTS,
    Bools,
    RowMarkers,
    fill_collection_ids,
    select_newest,
)
from penstock.spark.lake.maintenance.erased_documents import ERASED_EVENT
from penstock.spark.lake.maintenance.lake_compaction import (
    list_applied_files,
    make_maintenance_transaction,
    rewrite_ranges,
)
from penstock.spark.lake.reading.lake_positions import read_position
from penstock.spark.lake.tables.data_files import DataFile, RangeWriter, match_types, open_dataset
from penstock.spark.lake.tables.directory import LakeDirectory
from penstock.spark.lake.tables.lake_table import AnyTable, TableVersion
from penstock.spark.source.offsets import VbucketOffset
from penstock.spark.storage.object_files import open_parquet, read_parquet
from penstock.wire.columns.schema import CHANGE_SCHEMA, Event

_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400}
_BYTES = {"B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_LIMIT = re.compile(r"([0-9]{1,15})\s*([A-Za-z]+)")


@dataclass(frozen=True, slots=True)
class Retention:
    """The limit of a changelog; one of the two is set.

    Attributes:
        seconds: age after which a version may be dropped.
        bytes: size that the changelog may have.
    """

    seconds: int | None = None
    bytes: int | None = None


def parse_retention(text: str) -> Retention:
    """Return the limit of a text such as "30 days" or "100 GB".

    Args:
        text: a whole number and a unit.

    Raises:
        UsageError: it is neither an age nor a size.
    """
    if match := _LIMIT.fullmatch(text.strip()):
        number, unit = int(match[1]), match[2]
        if unit.removesuffix("s").lower() in _SECONDS:
            return Retention(seconds=number * _SECONDS[unit.removesuffix("s").lower()])
        if unit in _BYTES:
            return Retention(bytes=number * _BYTES[unit])
    raise UsageError(f"retention is {text!r}, expected an age such as 30 days or 12 hours, or a size such as 100 GB")


@dataclass(frozen=True, slots=True)
class RetentionReport:
    """The effect of a retention on the changelog.

    Attributes:
        rows_before, rows_after: rows of the table.
        bytes_before, bytes_after: bytes of its files; equal if nothing was written.
        oldest: the oldest time whose state can still be read, None if all can.
        is_done: False if nothing was written.
    """

    rows_before: int
    rows_after: int
    bytes_before: int
    bytes_after: int
    oldest: datetime | None
    is_done: bool


def retain_changelog(
    lake: LakeDirectory,
    retention: Retention,
    applied: Iterable[tuple[str, int] | None] = (),
    *,
    dry_run: bool = False,
) -> RetentionReport:
    """Drop old versions of the changelog. A run may continue meanwhile.

    Raises CompactionConflict if other processes keep changing the changelog, and LakeRefused if another program changed
    its rows.

    Args:
        lake: the lake of the changelog.
        retention: the limit.
        applied: for each dependent the changelog id and version that it has applied. Newer files stay.
        dry_run: only count the rows.

    Returns:
        Rows and bytes, before and after.

    Raises:
        UsageError: the lake has no changelog, or no checkpoint.
    """
    table = lake.changelog_table
    table.check_versions()
    opened, position = table.open(), read_position(lake)
    if opened is None or position is None:
        missing = table.path if opened is None else lake.checkpoint
        raise UsageError(f"there is no {missing}; expected the lake of a pipeline that has run")
    known = tuple(applied)
    before = table.list_files(opened)
    limit = _find_time_limit(lake, before, retention)
    dropped, oldest = 0, None
    for part in sorted({file.vbucket_range for file in before}):
        retained = _RetainedRange.find(lake, opened, part, limit=limit, applied=known, ends=position.offset.vbuckets)
        if retained is None or not retained.count_dropped():
            continue
        dropped += retained.count_dropped()
        oldest = max(oldest or 0, retained.files[-1].modified)
        if not dry_run:
            rewrite_ranges(table, {part}, retained.choose_groups, retained.rewrite, make_maintenance_transaction)
    newest = table.open() or opened
    after = table.list_files(newest)
    return RetentionReport(
        sum(file.rows for file in before),
        sum(file.rows for file in before) - dropped if dry_run else sum(file.rows for file in after),
        sum(file.size for file in before),
        sum(file.size for file in after),
        None if oldest is None else datetime.fromtimestamp(oldest / 1000, UTC),
        is_done=not dry_run,
    )


def _find_time_limit(lake: LakeDirectory, files: Sequence[DataFile], retention: Retention) -> int:
    """Return the commit time in milliseconds up to which files may lose versions; -1 for no files."""
    if retention.seconds is not None:
        return round((time.time() - retention.seconds) * 1000)
    assert retention.bytes is not None
    if sum(file.size for file in files) <= retention.bytes:
        return -1
    # The newest version of each document stays, and all of them together are about as large as current.
    current = lake.current_table.open()
    left = retention.bytes - (sum(f.size for f in lake.current_table.list_files(current)) if current else 0)
    for file in reversed(files):
        left -= file.size
        if left < 0:
            return file.modified
    return -1


@dataclass(frozen=True, slots=True)
class _RetainedRange:
    """The old files of one vbucket range, and the rows of them that stay.

    Attributes:
        files: the old files, oldest first.
        floors: the oldest state of each vbucket that can still be read.
        kept: a mask of the rows of all old files, in their order.
    """

    files: tuple[DataFile, ...]
    floors: Mapping[int, Boundary]
    kept: Bools

    @classmethod
    def find(
        cls,
        lake: LakeDirectory,
        opened: TableVersion,
        vbucket_range: int,
        *,
        limit: int,
        applied: Iterable[tuple[str, int] | None],
        ends: Sequence[VbucketOffset],
    ) -> _RetainedRange | None:
        """Return the old files of a range, None if there are none.

        Args:
            lake: the lake of the changelog.
            opened: the version of the changelog.
            vbucket_range: the range.
            limit: the newest commit time of an old file, in milliseconds.
            applied: for each dependent the changelog id and version that it has applied.
            ends: the position of the newest batch in each vbucket.
        """
        table = lake.changelog_table
        everything = [file for file in table.list_files(opened) if file.vbucket_range == vbucket_range]
        usable = {file.path for file in list_applied_files(lake, opened, applied)}
        old = [file for file in everything if file.path in usable and file.modified <= limit]
        if not old:
            return None
        columns = ["collection_id", "key", *EVIDENCE]
        parts = [read_parquet(path, columns) for path in table.list_paths(old)]
        rows = fill_collection_ids(pa.concat_tables(match_types(part, CHANGE_SCHEMA) for part in parts))
        chosen = {file.path for file in old}
        paths = table.list_paths(file for file in everything if file.path not in chosen)
        newer = open_dataset(paths, CHANGE_SCHEMA).to_table(columns=list(EVIDENCE))
        floors, limits = _find_limits(rows, newer, ends)
        return cls(tuple(old), floors, _mark_kept(rows, newer, floors, limits))

    def count_dropped(self) -> int:
        """Return the number of rows that are dropped, less the rows that store the floors."""
        return max(0, int((~self.kept).sum()) - len(self.floors))

    def choose_groups(self, opened: TableVersion) -> list[list[DataFile]]:
        """Return the old files as one group."""
        return [[*self.files]]

    def rewrite(self, table: AnyTable, group: Sequence[DataFile]) -> list[DataFile]:
        """Write the kept rows and the floors into new files.

        Returns:
            The files, with the time of the newest old file.
        """
        newest = group[-1].modified
        with RangeWriter(table.path, group[0].vbucket_range, CHANGE_SCHEMA) as writer:
            start = 0
            for path in table.list_paths(group):
                with open_parquet(path, is_sequential=True) as file:
                    for number in range(file.num_row_groups):
                        rows = match_types(file.read_row_group(number, columns=CHANGE_SCHEMA.names), CHANGE_SCHEMA)
                        writer.write(rows.filter(pa.array(self.kept[start : start + rows.num_rows])))
                        start += rows.num_rows
            writer.write(_make_floor_rows(self.floors, newest))
            return [replace(file, modified=newest) for file in writer.close()]


def _find_limits(
    rows: pa.Table, newer: pa.Table, ends: Sequence[VbucketOffset]
) -> tuple[dict[int, Boundary], dict[int, int]]:
    """Return the floor of each vbucket, and the seqno up to which superseded versions are dropped.

    Args:
        rows: the rows of the old files, with EVIDENCE.
        newer: the rows of all other files of the range.
        ends: the position of the newest batch in each vbucket.

    Returns:
        Floors and limits of the vbuckets that have a boundary among the old files.
    """
    snapshots, rollbacks = collect_evidence(rows)
    _, later = collect_evidence(newer)
    floors, limits = {}, {}
    for vbucket, seen in snapshots.items():
        end = ends[vbucket]
        history = max(each.history for each in [*seen, *rollbacks.get(vbucket, ())])
        last = max((each.last for each in seen if each.history == history), default=0)
        # Proofs of the newest branch also hold for the old files, as far as these reach.
        proven = tuple(pair for pair in end.proven if pair.end <= last) if history == end.history else ()
        at = VbucketOffset(history, end.vbuuid, last, proven) if proven else None
        seqno = find_newest_boundary(seen, rollbacks.get(vbucket, ()), at)
        if not seqno:
            continue
        cuts = [each.seqno for each in later.get(vbucket, ()) if each.history > history]
        # A rollback goes back to a proven end of the newest offset, or to 0, which voids all rows.
        targets = [pair.end for pair in end.proven]
        floors[vbucket], limits[vbucket] = Boundary(history, seqno), min([seqno, *targets, *cuts])
    return floors, limits


def _mark_kept(rows: pa.Table, newer: pa.Table, floors: Mapping[int, Boundary], limits: Mapping[int, int]) -> Bools:
    """Return a mask of the rows of the old files that stay."""
    is_below = _mark_below(rows, floors, limits)
    # A file that compaction has joined with later files may hold older rows too: their deletions must stay.
    mixed = np.unique(newer["vbucket"].to_numpy()[_mark_below(newer, floors, limits)])
    below = rows.append_column("row", pa.array(np.arange(rows.num_rows))).filter(pa.array(is_below))
    newest = select_newest(RowMarkers.collect(below).select_survivors(below))
    needed = np.asarray(pc.equal(newest["event"], Event.MUTATION)) | np.isin(newest["vbucket"].to_numpy(), mixed)
    droppable = pa.concat_arrays([DOCUMENT_EVENTS, pa.array([ERASED_EVENT, RETAINED_EVENT])])
    kept: Bools = ~(is_below & np.asarray(pc.is_in(rows["event"], value_set=droppable)))
    # Every floor is written again, also one that is above the limit.
    is_floor = np.asarray(pc.equal(rows["event"], RETAINED_EVENT))
    kept &= ~(is_floor & np.isin(rows["vbucket"].to_numpy(), list(floors)))
    kept[newest["row"].to_numpy()[needed]] = True
    return kept


def _mark_below(rows: pa.Table, floors: Mapping[int, Boundary], limits: Mapping[int, int]) -> Bools:
    """Return a mask of the rows that are at or below the limit of their vbucket, in no later history than its floor."""
    count = 1 + max((*floors, *rows["vbucket"].unique().to_pylist()), default=0)
    histories, seqnos = np.full(count, -1, np.int64), np.zeros(count, np.uint64)
    for vbucket, floor in floors.items():
        histories[vbucket], seqnos[vbucket] = floor.history, limits[vbucket]
    vbuckets = rows["vbucket"].to_numpy()
    found: Bools = (rows["history"].to_numpy() <= histories[vbuckets]) & (
        pc.fill_null(rows["seqno"], 0).to_numpy().view(np.uint64) <= seqnos[vbuckets]
    )
    return found


def _make_floor_rows(floors: Mapping[int, Boundary], newest: int) -> pa.Table:
    """Return a row for each floor; its cas is the time of the state, in nanoseconds as in each cas."""
    rows = [
        {
            "vbucket": vbucket,
            "history": floor.history,
            "seqno": floor.seqno,
            "event": RETAINED_EVENT,
            "cas": newest * 1_000_000,
            "snapshot_start": 0,
            "snapshot_end": floor.seqno,
        }
        for vbucket, floor in sorted(floors.items())
    ]
    return pa.Table.from_pylist(rows, schema=CHANGE_SCHEMA)
