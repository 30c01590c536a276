"""One vbucket's stream as a consumer sees it: what is to be read of it, and where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from penstock.client.feeds.resume_policy import FOLLOW, ResumePolicy
from penstock.client.feeds.stream_position import BEGINNING, Position
from penstock.store.history.failover_log import FailoverEntry, FailoverLog
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import Change, Event
from penstock.wire.protocol.stream_state import StreamState

UNKNOWN_LOG: FailoverLog = (FailoverEntry(0, 0),)
"""The log of a vbucket whose branches are not known: no producer has one of this name, so nothing goes on in it."""


class EndRule(Enum):
    """Where a stream ends that has an end."""

    SNAPSHOT = "with the snapshot that holds end_seqno, which a producer may complete"
    EXACT = "at end_seqno; changes behind it are left out"
    NOW = "where the producer is when a connection begins; it is asked, and end_seqno is not used"


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTarget:
    """What is to be read of one vbucket.

    Attributes:
        position: the stream goes on behind it.
        end_seqno: the last seqno to read.
        policy: decides where the stream goes on when the producer's history is another one.
    """

    position: Position = BEGINNING
    end_seqno: int = MAX_SEQNO
    policy: ResumePolicy = FOLLOW


@dataclass(slots=True)
class VbucketStream:
    """Where a vbucket's stream stands, over one connection after another."""

    vbucket: int
    policy: ResumePolicy
    position: Position
    end_seqno: int
    state: StreamState = StreamState.ENDED
    opaque: int = 0
    connection_id: int = 0
    """The number of the connection that it was asked for on."""
    log_opaque: int = 0
    """That of the failover log that was asked for last."""
    log: FailoverLog = ()
    """The producer's, newest entry first, from when it was asked last or accepted the stream last."""
    is_confirmed: bool = True
    """Did the stream begin in the history of `log`?"""
    is_whole: bool = False
    """Was the end of a snapshot received, and nothing of another one?"""
    has_ended: bool = False
    """Everything has arrived, but is not confirmed yet."""
    snap_end: int = 0
    """Where the snapshot of the last marker is complete."""
    least_end: int = 0
    """The end of the snapshot in which the stream went on, as another dialect announced it."""
    requested_seqno: int | None = None
    """The seqno of the producer's last ROLLBACK, until the stream is accepted again."""
    received: int = 0
    """Changes up to here were handed out before the stream began again at 0."""
    least_start: int = 0
    """Where the next snapshot begins, or above; the first one at the start of the snapshot that was asked for."""
    recovering_until: int = 0
    """A change up to here is no progress: the producer went back below it and sends the same seqnos again."""


def make_rollback_row(vbucket: int, vbuuid: int | None, position: Position, requested_seqno: int) -> Change:
    """Return the row that cuts off what lies above `position`; requested_seqno: the common point of the histories."""
    return Change(
        vbucket=vbucket,
        vbuuid=vbuuid,
        seqno=position.seqno,
        event=Event.ROLLBACK,
        history=position.history,
        requested_seqno=requested_seqno,
    )


def is_empty_target(position: Position, end_seqno: int) -> bool:
    """Is there nothing to stream? Behind seqno 0 a producer is asked in any case: its history may be another one."""
    return position.seqno == end_seqno == 0
