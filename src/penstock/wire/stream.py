"""The life of one stream, the same for the side that sends and the side that receives.

The table is all there is: a message that the current state does not list breaks the protocol, and `advance` is the one
place that says so. Replies to STREAM_REQ are events of their own, since one opcode means three things.
Source: docs/dcp, commands/stream-request.md and the ordering rules of docs/dcp/documentation/protocol.md.
"""

from __future__ import annotations

from enum import Enum

from penstock.errors import RemoteProtocolError
from penstock.wire.constants import Status


class StreamState(Enum):
    REQUESTED = "requested"
    OPEN = "open"
    IN_SNAPSHOT = "in snapshot"
    ENDED = "ended"


class StreamEvent(Enum):
    """What can happen to a stream, whoever causes it."""

    ACCEPTED = "accepted"
    ROLLBACK = "rollback"
    REFUSED = "refused"
    MARKER = "snapshot marker"
    DATA = "data"
    END = "end"
    CLOSED = "closed by the consumer"


S, E = StreamState, StreamEvent

TRANSITIONS: dict[StreamState, dict[StreamEvent, StreamState]] = {
    S.REQUESTED: {E.ACCEPTED: S.OPEN, E.ROLLBACK: S.ENDED, E.REFUSED: S.ENDED},
    S.OPEN: {E.MARKER: S.IN_SNAPSHOT, E.END: S.ENDED, E.CLOSED: S.ENDED},
    S.IN_SNAPSHOT: {E.DATA: S.IN_SNAPSHOT, E.MARKER: S.IN_SNAPSHOT, E.END: S.ENDED, E.CLOSED: S.ENDED},
    S.ENDED: {},
}


def advance(state: StreamState, event: StreamEvent, vbucket: int) -> StreamState:
    """Return the state that follows. Raises RemoteProtocolError where the table has none."""
    following = TRANSITIONS[state].get(event)
    if following is None:
        raise RemoteProtocolError(f"vbucket {vbucket}: {event.value} while the stream is {state.value}")
    return following


def reply_event(status: int) -> StreamEvent:
    """Return what a reply to STREAM_REQ means for the stream."""
    return {int(Status.SUCCESS): E.ACCEPTED, int(Status.ROLLBACK): E.ROLLBACK}.get(status, E.REFUSED)
