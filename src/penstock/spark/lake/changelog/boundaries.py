"""At which seqnos a changelog holds a consistent state of a vbucket: pure functions over its rows.

A snapshot leaves out versions that later ones in it replace. So the rows up to a seqno are the vbucket's state there
only if no read that brought them left out a version for one *behind* that seqno. A boundary is where that is certain:

    the end of a snapshot whose last change is here, if every read below it is known, by rows of its snapshots without
    a gap, and none of their snapshots went on behind this end. A read that stopped inside a snapshot is made good by
    the first complete snapshot that reaches as far as that one did; one of which not all rows came, as in a part of
    the bucket, by nothing but an offset;
    the proven ends of an offset: whatever hid a version below such an end lies at or below its `high`. Where that is
    the end itself, it is a boundary; else the first complete snapshot from there that reaches `high` ends at one.

Rollbacks cut the rows of older histories, up to the history that is asked for; later ones are not applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.spark.lake.changelog.merge_rules import CUTTING_EVENTS, merge_changes
from penstock.spark.source.offsets import Offset, Proven, VbucketOffset
from penstock.wire.columns.schema import unsigned64

__all__ = [
    "EVIDENCE",
    "Boundary",
    "RollbackPoint",
    "SnapshotRows",
    "boundaries",
    "evidence",
    "newest_boundary",
    "rows_below",
    "state",
]

EVIDENCE = ("vbucket", "history", "seqno", "event", "snapshot_start", "snapshot_end")
"""The columns of a change that tell boundaries."""

_NOWHERE = 1 << 64
"""As the end of a snapshot: behind every seqno."""

Bools: TypeAlias = npt.NDArray[np.bool_]


class SnapshotRows(NamedTuple):
    """What came of a snapshot: its changes from `first` to `last`, of those between `start` and `end`."""

    history: int
    first: int
    last: int
    start: int
    end: int


class RollbackPoint(NamedTuple):
    """A rollback: rows of a lower history behind `seqno` no longer count."""

    history: int
    seqno: int


class Boundary(NamedTuple):
    """A consistent state: the surviving rows up to `seqno`, after the rollbacks of histories up to `history`."""

    history: int
    seqno: int


def newest_boundary(
    snapshots: Iterable[SnapshotRows], cuts: Iterable[RollbackPoint], at: VbucketOffset | None = None
) -> int | None:
    """Return the newest boundary of one vbucket, None if there is none. at: the position that it must not be behind.

    snapshots, cuts: up to the history of `at`, in any order.
    """
    proven: Sequence[Proven] = at.proven if at is not None else ()
    limit = at.seqno if at is not None else _NOWHERE
    best = max((pair.end for pair in proven if pair.end == pair.high), default=None)
    reach = hidden = 0  # up to where reads are known; how far they may have left something out for
    for _, first, last, start, end in _surviving(snapshots, cuts):
        # A stream's first snapshot starts where the read before ended, the others with a change of their own.
        if start > (reach + 1 if first == start else reach):
            hidden = _NOWHERE
        reach, hidden = max(reach, last), max(hidden, end)
        if last != end or end > limit:
            continue
        if end >= hidden or any(start <= pair.end and end >= pair.high for pair in proven):
            best, hidden = max(best or 0, end), end
    return best


def _surviving(snapshots: Iterable[SnapshotRows], cuts: Iterable[RollbackPoint]) -> list[SnapshotRows]:
    """Return what rollbacks leave of the snapshots, in the order of their seqnos."""
    left = sorted(cuts)
    path: list[SnapshotRows] = []
    for snapshot in [*sorted(snapshots), SnapshotRows(_NOWHERE, 0, 0, 0, 0)]:
        while left and left[0].history <= snapshot.history:
            _, seqno = left.pop(0)
            path = [each._replace(last=min(each.last, seqno)) for each in path if each.first <= seqno]
        path.append(snapshot)
    return path[:-1]


def evidence(rows: pa.Table) -> tuple[dict[int, list[SnapshotRows]], dict[int, list[RollbackPoint]]]:
    """Return what snapshots and rollbacks of each vbucket are among rows with the columns EVIDENCE."""
    cutting = pc.is_in(rows["event"], value_set=CUTTING_EVENTS)
    groups = ["vbucket", "history", "snapshot_start", "snapshot_end"]
    changes = rows.filter(pc.invert(cutting)).group_by(groups).aggregate([("seqno", "min"), ("seqno", "max")])
    snapshots: dict[int, list[SnapshotRows]] = {}
    columns = (changes[name].to_pylist() for name in (*groups, "seqno_min", "seqno_max"))
    for vbucket, history, start, end, first, last in zip(*columns, strict=True):
        told = (_NOWHERE, _NOWHERE) if start is None or end is None else (unsigned64(start), unsigned64(end))
        found = SnapshotRows(history, unsigned64(first), unsigned64(last), *told)
        snapshots.setdefault(vbucket, []).append(found)
    cuts: dict[int, list[RollbackPoint]] = {}
    rollbacks = rows.filter(cutting)
    for vbucket, history, seqno in zip(*(rollbacks[name].to_pylist() for name in EVIDENCE[:3]), strict=True):
        cuts.setdefault(vbucket, []).append(RollbackPoint(history, unsigned64(seqno or 0)))
    return snapshots, cuts


def boundaries(rows: pa.Table, offset: Offset | None = None) -> dict[int, Boundary]:
    """Return the newest boundary of each vbucket that has one, and rows.

    rows: with the columns EVIDENCE, all that there are up to `offset`, or up to the moment that is asked for if there
    is none; rows behind the offset do no harm.
    """
    snapshots, cuts = evidence(rows)
    found: dict[int, Boundary] = {}
    for vbucket in sorted({*snapshots, *cuts}):
        at = None if offset is None else offset.vbuckets[vbucket]
        seen, rolled = snapshots.get(vbucket, []), cuts.get(vbucket, [])
        if at is not None:
            seen = [each for each in seen if each.history <= at.history]
            rolled = [each for each in rolled if each.history <= at.history]
        passed = [snapshot.history for snapshot in seen] + [cut.history for cut in rolled]
        history = max(passed, default=0) if at is None else at.history
        seqno = newest_boundary(seen, rolled, at)
        if seqno is not None:
            found[vbucket] = Boundary(history, seqno)
    return found


def rows_below(rows: pa.Table, bounds: dict[int, Boundary]) -> pa.Table:
    """Return those of `rows` that make up the states at `bounds`, rollbacks included."""
    count = 1 + max((*bounds, *(rows["vbucket"].unique().to_pylist())), default=0)
    histories = np.full(count, -1, np.int64)
    seqnos = np.zeros(count, np.uint64)
    for vbucket, (history, seqno) in bounds.items():
        histories[vbucket], seqnos[vbucket] = history, seqno
    vbuckets = rows["vbucket"].to_numpy()
    cutting = np.asarray(pc.is_in(rows["event"], value_set=CUTTING_EVENTS))
    below = pc.fill_null(rows["seqno"], 0).to_numpy().view(np.uint64) <= seqnos[vbuckets]
    kept: Bools = (rows["history"].to_numpy() <= histories[vbuckets]) & (cutting | below)
    return rows if kept.all() else rows.filter(pa.array(kept))


def state(rows: pa.Table, offset: Offset | None = None) -> pa.Table:
    """Return the documents, in CURRENT_COLUMNS, at the newest boundaries of a changelog's rows, as of `boundaries`."""
    return merge_changes(rows_below(rows, boundaries(rows, offset)))
