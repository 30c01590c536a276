"""The rollback decision: may a consumer resume where it is, and if not, from which seqno?

Two histories that share a branch agree up to the seqno at which one of them left that branch: the *upper* bound. A
consumer in the middle of a snapshot is harder. Deduplication may have hidden versions that only a later change of the
same snapshot replaces. So its changes are on the shared history only if the snapshot's end is.

The steps are those of kv_engine's FailoverTable::needsRollback, since 6.0: the purge check compares the start seqno,
not that of the snapshot.
"""

from dataclasses import dataclass

from penstock.store.history.failover_log import FailoverLog

MAX_SEQNO = 2**64 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamRequest:
    """The position that a consumer sends when it requests a vbucket's changes.

    Attributes:
        start_seqno: the last seqno that it has.
        end_seqno: the last seqno that it requests.
        vbuuid: the branch it was on, 0 if it has no history.
        snap_start: the start of the snapshot that start_seqno is in.
        snap_end: the end of that snapshot.
        strict_vbuuid: check the vbuuid even when the stream starts at 0.
        ignore_purged: the consumer accepts missing deletions.
        purge_seqno: the newest purge seqno that it received, 0 if unknown.
        collections_high_seqno: the highest seqno of the requested collections, None for all collections.
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


def find_range_error(request: StreamRequest) -> str | None:
    """Return how the request contradicts itself, or None. The answer to such a request is ERANGE, not a rollback."""
    start, end, low, high = request.start_seqno, request.end_seqno, request.snap_start, request.snap_end
    if start > end:
        return f"start seqno {start} after end seqno {end}"
    if not low <= start <= high:
        return f"start seqno {start} outside its snapshot {low}..{high}"
    return None


def find_rollback_point(log: FailoverLog, high_seqno: int, purge_seqno: int, request: StreamRequest) -> int | None:
    """Return the seqno to which the consumer must roll back, or None if it may resume.

    A consumer may resume in the middle of a snapshot (snap_start < start_seqno < snap_end). It must then receive the
    rest before a snapshot ends: the next snapshot must end at snap_end or above.

    Args:
        log: newest entry first.
        high_seqno: the vbucket's.
        purge_seqno: the vbucket's.
        request: a request that has passed find_range_error.

    Returns:
        The seqno. 0 if the two share no history: the consumer restarts from zero.

    Raises:
        ValueError: the log is empty.
    """
    if not log:
        raise ValueError("empty failover log: every vbucket has at least the branch it began with")
    start = request.start_seqno
    if start == 0 and (request.vbuuid == 0 or not request.strict_vbuuid):
        return None
    if _has_missed_tombstones(purge_seqno, request):
        return 0
    upper = _find_branch_end(log, high_seqno, request.vbuuid)
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


def find_common_seqno(own: FailoverLog, high_seqno: int, theirs: FailoverLog) -> int:
    """Return the highest seqno up to which two histories are equal, according to their failover logs; 0 for none.

    Args:
        own: the own log, newest entry first.
        high_seqno: the own high seqno.
        theirs: the other log, newest entry first.
    """
    ends = [MAX_SEQNO, *(entry.seqno for entry in theirs)]
    end_of = {entry.vbuuid: end for entry, end in zip(theirs, ends, strict=False)}
    upper = high_seqno
    for vbuuid, begin in own:
        if vbuuid in end_of:
            return min(upper, end_of[vbuuid])
        upper = min(upper, begin)  # a copy has the log of its upstream before it has all changes
    return 0


def has_unsent_tombstones(purge_seqno: int, seen: int, seqno: int) -> bool:
    """Return whether tombstones were purged before a stream sent them: its consumer would keep deleted documents.

    Args:
        purge_seqno: the vbucket's.
        seen: the vbucket's purge seqno when the stream began, or chose its newest snapshot.
        seqno: the end of that snapshot; 0: the consumer has no documents yet.
    """
    return purge_seqno > seen and 0 < seqno < purge_seqno


def _has_missed_tombstones(purge_seqno: int, request: StreamRequest) -> bool:
    """Return whether tombstones were purged that the consumer has not received: it would keep deleted documents."""
    start, high = request.start_seqno, request.collections_high_seqno
    if request.ignore_purged or start == 0 or start >= purge_seqno or request.purge_seqno == purge_seqno:
        return False
    # If no change of its collections lies above its start, nothing that was purged there concerns it.
    return high is None or start < high


def _find_branch_end(log: FailoverLog, high_seqno: int, vbuuid: int) -> int | None:
    """Return the last seqno of the branch on this history, or None if it is not in the log. The oldest match wins."""
    end = None
    newer = high_seqno
    for entry in log:
        if entry.vbuuid == vbuuid:
            end = newer
        newer = min(newer, entry.seqno)  # a copy has the log of its upstream before it has all changes
    return end
