"""The position of a consumer in a vbucket's history, and the way back if the producer has another history.

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
"""Snapshot ends that a position keeps. A rollback below the oldest of them restarts from zero."""

UNKNOWN_END = MAX_SEQNO
"""The snap_end of a snapshot whose producer reports the end only at the end (UPR and the UPR draft)."""


class SnapshotEnd(NamedTuple):
    """The end of a completely received snapshot.

    Attributes:
        seqno: its last seqno.
        vbuuid: the branch in which it was received.
    """

    seqno: int
    vbuuid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The point at which a consumer continues a vbucket: a seqno alone cannot resume inside a snapshot.

    Attributes:
        seqno: the seqno of the last received change.
        vbuuid: the branch that contains snap_end; 0 if nothing was received.
        snap_start: start of the snapshot of `seqno`: the newest seqno below with a consistent state. Equal to `seqno`
            if the snapshot is complete.
        snap_end: end of the snapshot of `seqno`. Equal to `seqno` if the snapshot is complete; UNKNOWN_END if the
            producer has not reported it.
        history: the number of rollbacks that this position has passed.
        ends: the newest ends of complete snapshots up to `seqno`, oldest first. A rollback goes to one of them, because
            deduplication hides versions inside a snapshot.
        manifest_uid: uid of the newest collections manifest in the received system events; 0: not known.
    """

    seqno: int = 0
    vbuuid: int = 0
    snap_start: int = 0
    snap_end: int = 0
    history: int = 0
    ends: tuple[SnapshotEnd, ...] = ()
    manifest_uid: int = 0

    @property
    def is_complete(self) -> bool:
        """Whether the snapshot has arrived completely, so that the received changes are a consistent state."""
        return self.seqno == self.snap_end


BEGINNING = Position()


def adopt_log(position: Position, log: FailoverLog) -> Position:
    """Return the position after a producer accepted a stream from it.

    Args:
        position: the position of the request.
        log: the producer's failover log, newest entry first.
    """
    ends = tuple(SnapshotEnd(end.seqno, find_branch(log, end.seqno).vbuuid) for end in position.ends)
    return replace(position, vbuuid=find_branch(log, position.snap_end).vbuuid, ends=ends)


def advance_position(position: Position, seqno: int, snap_end: int, log: FailoverLog) -> Position:
    """Return the position after a change. If the change completes its snapshot, the snapshot's end is kept.

    A snapshot that was interrupted is complete only at its own end, even if several markers follow. The change that
    replaces a hidden version may be anywhere up to that end.

    Args:
        position: the position before the change.
        seqno: the seqno of the change.
        snap_end: the end in the newest marker, or that of the position if it is higher.
        log: the producer's failover log, newest entry first.
    """
    start, ends = seqno, position.ends
    vbuuid = find_branch(log, max(seqno, snap_end)).vbuuid
    if seqno < snap_end:
        start = position.seqno if position.is_complete else position.snap_start
    else:
        snap_end, ends = seqno, (*ends, SnapshotEnd(seqno, vbuuid))[-_KEPT_ENDS:]
    return Position(  # `replace` takes twice as long, and a consumer may get as many snapshots as changes
        seqno=seqno,
        vbuuid=vbuuid,
        snap_start=start,
        snap_end=snap_end,
        history=position.history,
        ends=ends,
        manifest_uid=position.manifest_uid,
    )


def roll_back_position(position: Position, requested_seqno: int) -> Position:
    """Return the position after a ROLLBACK answer: the newest complete snapshot that is not above its seqno.

    The refused request is never repeated: a position at or below `requested_seqno` goes below its own seqno. `history`
    does not change. It is increased once when the stream is accepted again, even after several ROLLBACK answers.

    Args:
        position: the position of the refused request.
        requested_seqno: the seqno in the answer.
    """
    return _go_back_to(position, [end for end in position.ends if end.seqno <= requested_seqno])


def leave_branch(position: Position) -> Position:
    """Return the newest complete snapshot of another branch, for a producer without the position's branch.

    The result is below the position's seqno, as in `roll_back_position`.
    """
    return _go_back_to(position, [end for end in position.ends if end.vbuuid != position.vbuuid])


def _go_back_to(position: Position, ends: Sequence[SnapshotEnd]) -> Position:
    """Return the position at the newest of these ends below its seqno; seqno 0 if there is none."""
    kept = tuple(end for end in ends if end.seqno < position.seqno)
    if not kept:
        return Position(history=position.history)
    seqno, vbuuid = kept[-1]
    return replace(position, seqno=seqno, vbuuid=vbuuid, snap_start=seqno, snap_end=seqno, ends=kept, manifest_uid=0)


class ReconciledPosition(NamedTuple):
    """The point from which to continue with a producer.

    Attributes:
        position: the stream continues after it.
        requested_seqno: the seqno up to which the histories agree; None if no rollback is needed.
    """

    position: Position
    requested_seqno: int | None


def reconcile_position(position: Position, log: FailoverLog) -> ReconciledPosition:
    """Return the point from which to continue with the producer of this failover log.

    If a stream request cannot name the snapshot in which it begins, the consumer itself applies the rule of a DCP
    producer. An interrupted snapshot continues in the branch in which it began. Otherwise it is sent again, because it
    may hide versions that a newer branch restores. A branch that the log does not have is replaced by the newest
    earlier branch that both sides know.

    Args:
        position: the consumer's position.
        log: the producer's failover log, newest entry first, not empty.
    """
    requested_seqno: int | None = None
    while position.seqno:
        if any(entry.vbuuid == position.vbuuid for entry in log):
            # MAX_SEQNO: the high seqno is unknown here, and a consumer in the newest branch needs no rollback.
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
    """Return the DCP request for the changes after `position`.

    Args:
        vbucket: the vbucket.
        position: the position to continue from.
        end_seqno: the last seqno to read.
        opaque: the opaque of the request and of the stream's messages.
    """
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
    """Return the position of a consumer that skips all existing changes, and receives only new ones.

    Args:
        info: the failover log and the seqnos of the vbucket now.
    """
    seqno = info.high_seqno
    if not seqno:
        return BEGINNING
    end = SnapshotEnd(seqno, find_branch(info.failover_log, seqno).vbuuid)
    return Position(seqno=seqno, vbuuid=end.vbuuid, snap_start=seqno, snap_end=seqno, ends=(end,))
