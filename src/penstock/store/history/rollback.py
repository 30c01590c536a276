"""The rollback decision: may a consumer go on from where it is, and if not, from where?

Two histories that share a branch agree up to the seqno at which one of them left that branch, the *upper* bound. A
consumer in the middle of a snapshot is harder: deduplication may have hidden versions from it that only a change
further on in the same snapshot replaces, so what it has counts as on the shared history only if the snapshot's end
does. The steps are those of kv_engine's FailoverTable::needsRollback (since 6.0: the purge check looks at the start
seqno, not at the snapshot's).
"""

from dataclasses import dataclass

from penstock.store.history.failover_log import FailoverLog

__all__ = ["MAX_SEQNO", "StreamRequest", "common_seqno", "misses_purged", "range_error", "rollback_point"]

MAX_SEQNO = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """What a consumer says about itself when it asks for a vbucket's changes.

    start_seqno: the last seqno it has; end_seqno: the last it wants. vbuuid: the branch it was on, 0 if it has no
    history. snap_start, snap_end: the snapshot that start_seqno lies in.
    strict_vbuuid: check the vbuuid even when it starts at 0. ignore_purged: it does not mind missing deletions.
    purge_seqno: the purge seqno it saw last, 0 if unknown. collections_high_seqno: the highest seqno of the
    collections it asks for, None if it asks for all.
    """

    start_seqno: int
    end_seqno: int = MAX_SEQNO
    vbuuid: int
    snap_start: int
    snap_end: int
    strict_vbuuid: bool = False
    ignore_purged: bool = False
    purge_seqno: int = 0
    collections_high_seqno: int | None = None


def range_error(request: StreamRequest) -> str | None:
    """Return why the request contradicts itself, or None. Such a request is answered with ERANGE, not a rollback."""
    start, end, low, high = request.start_seqno, request.end_seqno, request.snap_start, request.snap_end
    if start > end:
        return f"start seqno {start} after end seqno {end}"
    if not low <= start <= high:
        return f"start seqno {start} outside its snapshot {low}..{high}"
    return None


def rollback_point(log: FailoverLog, high_seqno: int, purge_seqno: int, request: StreamRequest) -> int | None:
    """Return the seqno to which the consumer must roll back, or None if it may go on.

    A consumer that goes on in the middle of a snapshot (snap_start < start_seqno < snap_end) must be sent its rest
    before a snapshot ends: the next one may end at snap_end, not below.

    log: newest entry first. high_seqno, purge_seqno: the vbucket's. Returns 0 when the two share nothing: the
    consumer starts over. The request must have passed range_error. Raises ValueError if the log is empty.
    """
    if not log:
        raise ValueError("empty failover log: every vbucket has at least the branch it began with")
    start = request.start_seqno
    if start == 0 and (request.vbuuid == 0 or not request.strict_vbuuid):
        return None
    if _missed_purged(purge_seqno, request):
        return 0
    upper = _branch_end(log, high_seqno, request.vbuuid)
    if upper is None:
        return 0
    snap_start, snap_end = request.snap_start, request.snap_end
    if start == snap_start:  # nothing of the snapshot has arrived
        snap_end = start
    if snap_end <= upper:
        return None
    if start == snap_end:  # all of the snapshot has arrived: it hides nothing any more
        snap_start = start
    return min(upper, snap_start)


def common_seqno(own: FailoverLog, high_seqno: int, theirs: FailoverLog) -> int:
    """Return the highest seqno up to which two histories are the same, as far as their failover logs tell.

    own, theirs: newest entry first. high_seqno: the own one. 0 if they share no branch.
    """
    ends = [MAX_SEQNO, *(entry.seqno for entry in theirs)]
    end_of = {entry.vbuuid: end for entry, end in zip(theirs, ends, strict=False)}
    upper = high_seqno
    for vbuuid, begin in own:
        if vbuuid in end_of:
            return min(upper, end_of[vbuuid])
        upper = min(upper, begin)  # a copy has the log of its upstream before it has all changes
    return 0


def misses_purged(purge_seqno: int, seen: int, seqno: int) -> bool:
    """Tell whether tombstones were purged that a stream has yet to send: its consumer would keep deleted documents.

    Args:
        purge_seqno: the vbucket's.
        seen: the vbucket's purge seqno when the stream began, or chose its newest snapshot.
        seqno: the end of that snapshot; 0: the consumer has nothing that could be deleted.
    """
    return purge_seqno > seen and 0 < seqno < purge_seqno


def _missed_purged(purge_seqno: int, request: StreamRequest) -> bool:
    """Tell whether tombstones the consumer has not seen were purged, so that it would keep deleted documents."""
    start, high = request.start_seqno, request.collections_high_seqno
    if request.ignore_purged or start == 0 or start >= purge_seqno or request.purge_seqno == purge_seqno:
        return False
    # If no change of its collections lies above its start, nothing that was purged there concerns it.
    return high is None or start < high


def _branch_end(log: FailoverLog, high_seqno: int, vbuuid: int) -> int | None:
    """Return the last seqno of the branch on this history, or None if it is not in the log. Oldest match wins."""
    end = None
    newer = high_seqno
    for entry in log:
        if entry.vbuuid == vbuuid:
            end = newer
        newer = min(newer, entry.seqno)  # a copy has the log of its upstream before it has all changes
    return end
