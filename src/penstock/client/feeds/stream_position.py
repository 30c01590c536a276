"""Where a consumer stands in a vbucket's history, and what it does when the producer's history is another one.

Pure functions over plain values. Source: kv_engine docs/dcp, rollback.md and failure-scenarios.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from penstock.client.topology.vbucket_info import VbucketInfo
from penstock.store.history.failover_log import FailoverLog, find_branch
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.messages.dcp import StreamReq

_KEPT_ENDS = 16
"""Snapshot ends that a position remembers. A rollback below the oldest starts over."""

UNKNOWN_END = MAX_SEQNO
"""As snap_end: of a snapshot whose producer announces its end only when it is complete (UPR and its draft)."""


class SnapshotEnd(NamedTuple):
    """The end of a completely received snapshot, and the branch in which it was received."""

    seqno: int
    vbuuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """What a consumer must keep of a vbucket to go on: a seqno alone cannot resume inside a snapshot.

    seqno: the last change received. snap_start, snap_end: the snapshot it lies in, from the newest seqno below that is
    a consistent state; both are seqno where the snapshot is complete; snap_end is UNKNOWN_END where it is not known.
    vbuuid: the branch that snap_end lies in, 0 if nothing was received. history: rollbacks that this position has
    passed. ends: the newest ends of complete snapshots up to seqno, oldest first; a rollback goes to one of these,
    since deduplication hides versions inside a snapshot.
    """

    seqno: int = 0
    vbuuid: int = 0
    snap_start: int = 0
    snap_end: int = 0
    history: int = 0
    ends: tuple[SnapshotEnd, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Is everything of the snapshot here, so that what was received is a consistent state?"""
        return self.seqno == self.snap_end


BEGINNING = Position()


def adopt_log(position: Position, log: FailoverLog) -> Position:
    """Return the position after the producer of this failover log has agreed to go on from it."""
    ends = tuple(SnapshotEnd(end.seqno, find_branch(log, end.seqno).vbuuid) for end in position.ends)
    return replace(position, vbuuid=find_branch(log, position.snap_end).vbuuid, ends=ends)


def advance_position(position: Position, seqno: int, snap_end: int, log: FailoverLog) -> Position:
    """Return the position behind a change of the snapshot that ends at `snap_end`; a complete one is remembered.

    snap_end: of the newest marker, or that of the position where it is higher. A snapshot that was left in the middle
    is complete only there, however many markers that takes: what hides versions below may come anywhere up to it.
    """
    if seqno < snap_end:
        start = position.seqno if position.is_complete else position.snap_start
        return replace(
            position, seqno=seqno, snap_start=start, snap_end=snap_end, vbuuid=find_branch(log, snap_end).vbuuid
        )
    end = SnapshotEnd(seqno, find_branch(log, seqno).vbuuid)
    ends = (*position.ends, end)[-_KEPT_ENDS:]
    return replace(position, seqno=seqno, snap_start=seqno, snap_end=seqno, vbuuid=end.vbuuid, ends=ends)


def roll_back_position(position: Position, requested_seqno: int) -> Position:
    """Return where to go on after the producer answered ROLLBACK: the newest complete snapshot not above its seqno.

    The request that was refused is never repeated: a position at or below `requested_seqno` goes below its own seqno.
    `history` stays: it counts once for a stream that is accepted again, however many answers that takes.
    """
    return _go_back_to(position, [end for end in position.ends if end.seqno <= requested_seqno])


def leave_branch(position: Position) -> Position:
    """Return where to go on with a producer that does not know the position's branch: as roll_back, in another one."""
    return _go_back_to(position, [end for end in position.ends if end.vbuuid != position.vbuuid])


def _go_back_to(position: Position, ends: Sequence[SnapshotEnd]) -> Position:
    """Return the position at the newest of these ends below its seqno; without one, at the beginning."""
    kept = tuple(end for end in ends if end.seqno < position.seqno)
    if not kept:
        return Position(history=position.history)
    seqno, vbuuid = kept[-1]
    return replace(position, seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno, ends=kept)


class ReconciledPosition(NamedTuple):
    """Where to go on, and the point up to which the histories agree if that is a rollback; None if it is not."""

    position: Position
    requested_seqno: int | None


def reconcile_position(position: Position, log: FailoverLog) -> ReconciledPosition:
    """Return where to go on with the producer of this failover log.

    A consumer decides so by itself, with the rule of a DCP producer, where a stream request cannot say in which
    snapshot it begins: a snapshot that was cut off goes on in the branch it was begun in, or it comes again, since
    it may hide versions that a newer branch brings back. A branch that the log does not have is dropped for the newest
    one before it that both know. log: newest entry first, not empty.
    """
    requested_seqno: int | None = None
    while position.seqno:
        if any(entry.vbuuid == position.vbuuid for entry in log):
            # What the newest branch has is not known here, and a consumer that is in it needs no rollback.
            requested = find_rollback_point(log, MAX_SEQNO, 0, _make_rollback_request(position))
            if requested is None:
                break
            position, requested_seqno = roll_back_position(position, requested), requested
        else:
            position = leave_branch(position)
            requested_seqno = position.seqno
    return ReconciledPosition(position, requested_seqno)


def _make_rollback_request(position: Position) -> StreamRequest:
    return StreamRequest(
        start_seqno=position.seqno,
        vbuuid=position.vbuuid,
        snap_start=position.snap_start,
        snap_end=position.snap_end,
    )


def make_stream_request(vbucket: int, position: Position, end_seqno: int = MAX_SEQNO, opaque: int = 0) -> StreamReq:
    """Return the request that goes on behind `position`."""
    return StreamReq(
        vbucket=vbucket,
        opaque=opaque,
        start_seqno=position.seqno,
        end_seqno=max(end_seqno, position.seqno),
        vbuuid=position.vbuuid if position.seqno else 0,
        snap_start=position.snap_start,
        snap_end=position.snap_end,
    )


def make_end_position(info: VbucketInfo) -> Position:
    """Return the position of a consumer that wants nothing of what exists, only what comes."""
    seqno = info.high_seqno
    if not seqno:
        return BEGINNING
    end = SnapshotEnd(seqno, find_branch(info.failover_log, seqno).vbuuid)
    return Position(seqno=seqno, vbuuid=end.vbuuid, snap_start=seqno, snap_end=seqno, ends=(end,))
