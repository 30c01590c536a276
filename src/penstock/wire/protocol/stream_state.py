"""The life of one stream, the same for the side that sends and the side that receives, in each dialect.

The tables are all there is: a message that the current state does not list breaks the protocol, and `advance` is the
one place that says so. EVENTS says which message is which event; replies to stream requests are events of their own,
since one opcode means three things. A TAP connection is one stream, with a state for each vbucket.
Source: docs/dcp, commands/stream-request.md and the ordering rules of docs/dcp/documentation/protocol.md; UPR transport
specification, "Stream Request" to "Snapshot End"; UPR draft, "Streams"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from enum import Enum

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Message
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import dcp, tap, upr, upr_draft


class StreamState(Enum):
    REQUESTED = "requested"
    ACCEPTED = "accepted"
    OPEN = "open"
    IN_SNAPSHOT = "in snapshot"
    IN_BACKFILL = "in backfill"
    ENDED = "ended"


class StreamEvent(Enum):
    """What can happen to a stream, whoever causes it. A checkpoint of TAP is a snapshot too."""

    ACCEPTED = "accepted"
    ROLLBACK = "rollback"
    REFUSED = "refused"
    START = "stream start"
    MARKER = "snapshot marker"
    SNAPSHOT_START = "snapshot start"
    DATA = "data"
    SNAPSHOT_END = "snapshot end"
    BACKFILL_START = "backfill start"
    BACKFILL_END = "backfill end"
    FLUSH = "flush"
    STATE = "vbucket state"
    END = "end"
    CLOSED = "closed by the consumer"


S, E = StreamState, StreamEvent

Transitions = dict[StreamState, dict[StreamEvent, StreamState]]

_DCP: Transitions = {
    S.REQUESTED: {E.ACCEPTED: S.OPEN, E.ROLLBACK: S.ENDED, E.REFUSED: S.ENDED},
    S.OPEN: {E.MARKER: S.IN_SNAPSHOT, E.STATE: S.OPEN, E.END: S.ENDED, E.CLOSED: S.ENDED},
    S.IN_SNAPSHOT: {
        **{E.DATA: S.IN_SNAPSHOT, E.MARKER: S.IN_SNAPSHOT, E.STATE: S.IN_SNAPSHOT},
        **{E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.ENDED: {},
}

_UPR: Transitions = {
    S.REQUESTED: {E.ACCEPTED: S.ACCEPTED, E.ROLLBACK: S.ENDED, E.REFUSED: S.ENDED},
    S.ACCEPTED: {E.START: S.OPEN, E.END: S.ENDED, E.CLOSED: S.ENDED},
    S.OPEN: {
        **{E.SNAPSHOT_START: S.IN_SNAPSHOT, E.FLUSH: S.OPEN, E.STATE: S.OPEN},
        **{E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.IN_SNAPSHOT: {
        **{E.DATA: S.IN_SNAPSHOT, E.SNAPSHOT_END: S.OPEN, E.FLUSH: S.OPEN, E.STATE: S.IN_SNAPSHOT},
        **{E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.ENDED: {},
}

_ANY_TIME: dict[StreamEvent, StreamState] = {
    **{E.BACKFILL_START: S.IN_BACKFILL, E.SNAPSHOT_START: S.IN_SNAPSHOT, E.END: S.ENDED, E.CLOSED: S.ENDED},
}

_TAP: Transitions = {
    S.REQUESTED: {E.ACCEPTED: S.OPEN, E.REFUSED: S.ENDED},
    S.OPEN: {**_ANY_TIME, E.DATA: S.OPEN, E.FLUSH: S.OPEN, E.STATE: S.OPEN},
    S.IN_BACKFILL: {
        **_ANY_TIME,
        **{E.DATA: S.IN_BACKFILL, E.BACKFILL_END: S.OPEN, E.FLUSH: S.IN_BACKFILL, E.STATE: S.IN_BACKFILL},
    },
    S.IN_SNAPSHOT: {
        **_ANY_TIME,
        **{E.DATA: S.IN_SNAPSHOT, E.SNAPSHOT_END: S.OPEN, E.FLUSH: S.IN_SNAPSHOT, E.STATE: S.IN_SNAPSHOT},
    },
    S.ENDED: {},
}

TRANSITIONS: dict[Dialect, Transitions] = {
    Dialect.TAP: _TAP,
    Dialect.UPR_DRAFT: _UPR,
    Dialect.UPR: _UPR,
    Dialect.DCP: _DCP,
}
"""Of each dialect the states that a stream can be in, and what may follow. TAP accepts by beginning to send."""

EVENTS: dict[Dialect, dict[type[Message], StreamEvent]] = {
    Dialect.TAP: {
        tap.TapMutation: E.DATA,
        tap.TapDelete: E.DATA,
        tap.TapFlush: E.FLUSH,
        tap.TapVbucketSet: E.STATE,
        tap.TapCheckpointStart: E.SNAPSHOT_START,
        tap.TapCheckpointEnd: E.SNAPSHOT_END,
    },
    Dialect.UPR_DRAFT: {
        upr_draft.DraftStreamStart: E.START,
        upr_draft.DraftSnapshotStart: E.SNAPSHOT_START,
        upr_draft.DraftMutation: E.DATA,
        upr_draft.DraftDeletion: E.DATA,
        upr_draft.DraftExpiration: E.DATA,
        upr_draft.DraftSnapshotEnd: E.SNAPSHOT_END,
        upr_draft.DraftFlush: E.FLUSH,
        upr_draft.DraftStreamEnd: E.END,
        upr_draft.DraftStateChanged: E.END,
    },
    Dialect.UPR: {
        upr.UprStreamStart: E.START,
        upr.UprSnapshotStart: E.SNAPSHOT_START,
        upr.UprMutation: E.DATA,
        upr.UprDeletion: E.DATA,
        upr.UprExpiration: E.DATA,
        upr.UprSnapshotEnd: E.SNAPSHOT_END,
        upr.UprFlush: E.FLUSH,
        upr.UprSetVbucketState: E.STATE,
        upr.UprStreamEnd: E.END,
    },
    Dialect.DCP: {
        dcp.SnapshotMarker: E.MARKER,
        dcp.SnapshotMarkerV2: E.MARKER,
        dcp.Mutation: E.DATA,
        dcp.PrototypeMutation: E.DATA,
        dcp.Deletion: E.DATA,
        dcp.DeletionV2: E.DATA,
        dcp.Expiration: E.DATA,
        dcp.OldExpiration: E.DATA,
        dcp.SystemEvent: E.DATA,
        dcp.Prepare: E.DATA,
        dcp.Commit: E.DATA,
        dcp.Abort: E.DATA,
        dcp.SeqnoAdvanced: E.DATA,
        dcp.SetVbucketState: E.STATE,
        dcp.StreamEnd: E.END,
    },
}
"""Of each dialect the messages of a stream. What is not here belongs to no stream, or has to be asked for first."""


def advance(state: StreamState, event: StreamEvent, vbucket: int, dialect: Dialect = Dialect.DCP) -> StreamState:
    """Return the state that follows. Raises OrderViolation where the table has none."""
    following = TRANSITIONS[dialect].get(state, {}).get(event)
    if following is None:
        raise OrderViolation(f"vbucket {vbucket}: {event.value} while the stream is {state.value}", vbucket=vbucket)
    return following


def reply_event(status: int) -> StreamEvent:
    """Return what the status of a reply to a stream request means for the stream."""
    return {int(Status.SUCCESS): E.ACCEPTED, int(Status.ROLLBACK): E.ROLLBACK}.get(status, E.REFUSED)
