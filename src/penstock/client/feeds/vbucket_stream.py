"""The stream of one vbucket in a consumer: the changes to read, and the state of the stream."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.client.feeds.collection_selection import EVERYTHING, RequestedCollections
from penstock.client.feeds.resume_policy import FOLLOW, ResumePolicy
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.kv import FailoverEntry
from penstock.wire.protocol.stream_state import StreamState

UNKNOWN_LOG: FailoverLog = (FailoverEntry(0, 0),)
"""The failover log of a vbucket with unknown branches. No producer has vbuuid 0, so no stream continues in it."""


class EndRule(Enum):
    """The place where a stream with an end stops."""

    SNAPSHOT = "with the snapshot that holds end_seqno, which a producer may complete"
    EXACT = "at end_seqno; later changes are dropped"
    NOW = "at the producer's seqno when a connection begins; the seqno is requested, and end_seqno is not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget:
    """The changes to read of one vbucket.

    Attributes:
        position: the stream continues after it.
        end_seqno: the last seqno to read.
        policy: decides where the stream continues if the producer has another history.
    """

    position: Position = BEGINNING
    end_seqno: int = MAX_SEQNO
    policy: ResumePolicy = FOLLOW


@dataclass(slots=True)
class VbucketStream:
    """The state of a vbucket's stream, over one connection after another.

    Attributes:
        vbucket: the vbucket.
        policy: decides where the stream continues if the producer has another history.
        position: the position after the last change.
        end_seqno: the last seqno to read.
        state: the state in the dialect's table of states.
        opaque: the opaque of the last stream request.
        connection_id: the number of the connection of the last request.
        log_opaque: the opaque of the last request of the failover log.
        log: the producer's failover log, newest entry first, from the last log request or accepted stream request.
        is_confirmed: whether the stream is known to have begun in the history of `log`.
        is_whole: whether the end of a snapshot has arrived, and no message of a later snapshot.
        has_ended: whether all changes have arrived, but are not confirmed yet.
        snap_end: the seqno at which the snapshot of the last marker is complete.
        least_end: the end of the snapshot in which the stream continued, as another dialect announced it.
        requested_seqno: the seqno of the producer's last ROLLBACK, until the stream is accepted again.
        received: changes up to this seqno were delivered before the stream restarted from 0.
        least_start: the lowest valid start of the next snapshot. For the first snapshot: the start of the requested
            snapshot.
        purge_seqno: the purge seqno in the markers of the stream; 0 if none had it.
        unordered_seqno: the highest seqno in an incomplete snapshot out of order; None outside such a snapshot.
        recovering_until: changes up to this seqno are no progress: the producer went back below it, and sends the same
            seqnos again.
        requested: the collections of the last request.
    """

    vbucket: int
    policy: ResumePolicy
    position: Position
    end_seqno: int
    state: StreamState = StreamState.ENDED
    opaque: int = 0
    connection_id: int = 0
    log_opaque: int = 0
    log: FailoverLog = ()
    is_confirmed: bool = True
    is_whole: bool = False
    has_ended: bool = False
    snap_end: int = 0
    least_end: int = 0
    requested_seqno: int | None = None
    received: int = 0
    least_start: int = 0
    purge_seqno: int = 0
    unordered_seqno: int | None = None
    recovering_until: int = 0
    requested: RequestedCollections = EVERYTHING


def make_rollback_row(vbucket: int, vbuuid: int | None, position: Position, requested_seqno: int) -> Change:
    """Return the row that makes the changes above `position` void.

    Args:
        vbucket: the vbucket.
        vbuuid: the producer's newest branch; None if it is not known.
        position: the position after the rollback.
        requested_seqno: the seqno up to which the histories agree.
    """
    return Change(
        vbucket=vbucket,
        vbuuid=vbuuid,
        seqno=position.seqno,
        event=Event.ROLLBACK,
        history=position.history,
        requested_seqno=requested_seqno,
    )


def is_empty_target(position: Position, end_seqno: int) -> bool:
    """Return whether there is nothing to stream.

    A stream from a seqno above 0 is always requested, because the producer may have another history.
    """
    return position.seqno == end_seqno == 0
