"""Boundaries: the seqnos at which a changelog holds a consistent state of a vbucket. Pure functions over its rows.

A snapshot leaves out versions that later versions in the snapshot replace. So the rows up to a seqno may lack a
version that was left out for a version above that seqno. A boundary is a seqno where no such version is missing:

- The end of a snapshot whose last change is here. Every read below it must be known, by rows without a gap. None of
  the snapshots below it may end above it. A read that stopped inside a snapshot is completed by the first complete
  snapshot that reaches the end of the interrupted snapshot. A snapshot may also lack rows because the lake holds
  a part of the bucket; then only the proven ends of an offset help.
- The proven ends of an offset. Any version that hides a version below such an end lies at or below its `high`. If
  `high` is the end itself, the end is a boundary. Otherwise the first complete snapshot from the end that reaches
  `high` ends at a boundary.

A row `retained` stands for all rows up to its seqno, of which retention has dropped versions that no later state needs.
It counts as one complete snapshot from the start of the vbucket, and the rows below it are no evidence any more.

A rollback removes the rows of older histories above its seqno. Rollbacks of histories above the requested history are
not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import ROLLBACK_EVENTS, merge_changes
from penstock.spark.source.offsets import Offset, ProvenEnd, VbucketOffset
from penstock.wire.columns.schema import unsigned64

EVIDENCE = ("vbucket", "history", "seqno", "event", "snapshot_start", "snapshot_end")
"""The columns of a change that show where boundaries are."""

RETAINED_EVENT = "retained"
"""The event of a row below which retention has dropped versions; its seqno is a boundary."""

_NO_END = 1 << 64
"""Stands for an unknown end of a snapshot: above every seqno, which has 64 bits."""

Bools: TypeAlias = npt.NDArray[np.bool_]


class SnapshotRows(NamedTuple):
    """The rows of one snapshot that the changelog holds.

    Attributes:
        history: the history that the rows belong to.
        first, last: the lowest and the highest seqno among the rows.
        start, end: the seqnos of the snapshot itself, which may lie outside of the rows.
    """

    history: int
    first: int
    last: int
    start: int
    end: int


class RollbackPoint(NamedTuple):
    """A rollback: rows of a lower history above `seqno` no longer count."""

    history: int
    seqno: int


class Boundary(NamedTuple):
    """A consistent state: the surviving rows up to `seqno`, after the rollbacks of histories up to `history`."""

    history: int
    seqno: int


def find_newest_boundary(
    snapshots: Iterable[SnapshotRows], rollbacks: Iterable[RollbackPoint], position: VbucketOffset | None = None
) -> int | None:
    """Return the newest boundary of one vbucket, None if there is none.

    Args:
        snapshots: the snapshots up to the history of `position`, in any order.
        rollbacks: the rollbacks up to that history, in any order.
        position: the boundary must not lie above this position; None for no limit.

    Returns:
        The seqno of the boundary.
    """
    proven: Sequence[ProvenEnd] = position.proven if position is not None else ()
    limit = position.seqno if position is not None else _NO_END
    newest = max((pair.end for pair in proven if pair.end == pair.high), default=None)
    # Reads are known up to `reach`. A version up to `hidden` may be the reason why an older version was left out.
    reach = hidden = 0
    for _, first, last, start, end in _apply_rollbacks(snapshots, rollbacks):
        # A stream's first snapshot starts at the end of the previous read, later snapshots at their own first change.
        if start > (reach + 1 if first == start else reach):
            hidden = _NO_END
        reach, hidden = max(reach, last), max(hidden, end)
        if last != end or end > limit:
            continue
        if end >= hidden or any(start <= pair.end and end >= pair.high for pair in proven):
            newest, hidden = max(newest or 0, end), end
    return newest


def _apply_rollbacks(snapshots: Iterable[SnapshotRows], rollbacks: Iterable[RollbackPoint]) -> list[SnapshotRows]:
    """Return the rows of snapshots that survive all rollbacks, in the order of their seqnos."""
    remaining = sorted(rollbacks)
    surviving: list[SnapshotRows] = []
    for snapshot in [*sorted(snapshots), SnapshotRows(_NO_END, 0, 0, 0, 0)]:
        while remaining and remaining[0].history <= snapshot.history:
            _, seqno = remaining.pop(0)
            surviving = [each._replace(last=min(each.last, seqno)) for each in surviving if each.first <= seqno]
        surviving.append(snapshot)
    return surviving[:-1]


def collect_evidence(rows: pa.Table) -> tuple[dict[int, list[SnapshotRows]], dict[int, list[RollbackPoint]]]:
    """Return the snapshots and the rollbacks of each vbucket, from rows with the columns EVIDENCE."""
    cutting = pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS)
    floors = find_floors(rows)
    groups = ["vbucket", "history", "snapshot_start", "snapshot_end"]
    changes = rows.filter(pc.invert(cutting)).group_by(groups).aggregate([("seqno", "min"), ("seqno", "max")])
    snapshots: dict[int, list[SnapshotRows]] = {}
    columns = (changes[name].to_pylist() for name in (*groups, "seqno_min", "seqno_max"))
    for vbucket, history, start, end, first, last in zip(*columns, strict=True):
        bounds = (_NO_END, _NO_END) if start is None or end is None else (unsigned64(start), unsigned64(end))
        found = SnapshotRows(history, unsigned64(first), unsigned64(last), *bounds)
        floor = floors.get(vbucket)
        if floor is None or history > floor.history or found.first > floor.seqno:
            snapshots.setdefault(vbucket, []).append(found)
    for vbucket, (history, seqno) in floors.items():
        snapshots.setdefault(vbucket, []).append(SnapshotRows(history, 1, seqno, 0, seqno))
    rollbacks: dict[int, list[RollbackPoint]] = {}
    rollback_rows = rows.filter(cutting)
    for vbucket, history, seqno in zip(*(rollback_rows[name].to_pylist() for name in EVIDENCE[:3]), strict=True):
        rollbacks.setdefault(vbucket, []).append(RollbackPoint(history, unsigned64(seqno or 0)))
    return snapshots, rollbacks


def find_floors(rows: pa.Table) -> dict[int, Boundary]:
    """Return the oldest state of each vbucket of which retention has dropped versions, from rows with EVIDENCE."""
    kept = rows.filter(pc.equal(rows["event"], RETAINED_EVENT))
    columns = (kept[name].to_pylist() for name in ("vbucket", "history", "seqno"))
    floors: dict[int, Boundary] = {}
    for vbucket, history, seqno in zip(*columns, strict=True):
        found = Boundary(history, unsigned64(seqno))
        floors[vbucket] = max(found, floors.get(vbucket, found))
    return floors


def find_boundaries(rows: pa.Table, offset: Offset | None = None) -> dict[int, Boundary]:
    """Return the newest boundary of each vbucket that has rows and a boundary.

    Args:
        rows: all rows up to `offset`, with the columns EVIDENCE. Rows above the offset are ignored.
        offset: the position to look at; None for the end of the rows.

    Returns:
        The boundaries by vbucket.
    """
    snapshots, rollbacks = collect_evidence(rows)
    found: dict[int, Boundary] = {}
    for vbucket in sorted({*snapshots, *rollbacks}):
        position = None if offset is None else offset.vbuckets[vbucket]
        seen, rolled = snapshots.get(vbucket, []), rollbacks.get(vbucket, [])
        if position is not None:
            seen = [each for each in seen if each.history <= position.history]
            rolled = [each for each in rolled if each.history <= position.history]
        passed = [snapshot.history for snapshot in seen] + [cut.history for cut in rolled]
        history = max(passed, default=0) if position is None else position.history
        seqno = find_newest_boundary(seen, rolled, position)
        if seqno is not None:
            found[vbucket] = Boundary(history, seqno)
    return found


def select_rows_below(rows: pa.Table, bounds: dict[int, Boundary]) -> pa.Table:
    """Return the rows that make up the states at `bounds`, rollbacks included."""
    count = 1 + max((*bounds, *(rows["vbucket"].unique().to_pylist())), default=0)
    histories = np.full(count, -1, np.int64)
    seqnos = np.zeros(count, np.uint64)
    for vbucket, (history, seqno) in bounds.items():
        histories[vbucket], seqnos[vbucket] = history, seqno
    vbuckets = rows["vbucket"].to_numpy()
    is_rollback = np.asarray(pc.is_in(rows["event"], value_set=ROLLBACK_EVENTS))
    is_below = pc.fill_null(rows["seqno"], 0).to_numpy().view(np.uint64) <= seqnos[vbuckets]
    kept: Bools = (rows["history"].to_numpy() <= histories[vbuckets]) & (is_rollback | is_below)
    return rows if kept.all() else rows.filter(pa.array(kept))


def merge_at_boundaries(rows: pa.Table, offset: Offset | None = None) -> pa.Table:
    """Return the documents at the newest boundaries of a changelog's rows, in CURRENT_COLUMNS."""
    return merge_changes(select_rows_below(rows, find_boundaries(rows, offset)))
