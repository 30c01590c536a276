"""States of one stream, the same for the sender and the receiver, in each dialect.

The tables are complete: a message that the current state does not list breaks the protocol. Only `advance_state` raises
that error. EVENTS maps messages to events. Replies to stream requests are events of their own, since one opcode has
three meanings. A TAP connection is one stream, with a state for each vbucket.

Source: docs/dcp, commands/stream-request.md and the ordering rules of docs/dcp/documentation/protocol.md; UPR transport
specification, "Stream Request" to "Snapshot End"; UPR draft, "Streams"; ep-engine 2.5 tapconnection.cc.
"""

from __future__ import annotations

from enum import Enum

from penstock.errors import OrderViolation
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import OsoFlag
from penstock.wire.codec.layout import Message
from penstock.wire.codec.statuses import Status
from penstock.wire.messages import dcp, tap, upr, upr_draft


class StreamState(Enum):
    """The states of a stream. Not every dialect has all of them."""

    __hash__ = object.__hash__  # Enum's hash is a Python function, and each message of a stream is looked up twice

    REQUESTED = "requested"
    ACCEPTED = "accepted"
    OPEN = "open"
    IN_SNAPSHOT = "in snapshot"
    IN_BACKFILL = "in backfill"
    OUT_OF_ORDER = "in snapshot out of order"
    IN_CACHE = "in cache transfer"
    ENDED = "ended"


class StreamEvent(Enum):
    """The events of a stream, from either side. A checkpoint of TAP is a snapshot too."""

    __hash__ = object.__hash__

    ACCEPTED = "accepted"
    ROLLBACK = "rollback"
    REFUSED = "refused"
    START = "stream start"
    MARKER = "snapshot marker"
    SNAPSHOT_START = "snapshot start"
    DATA = "data"
    SNAPSHOT_END = "snapshot end"
    OUT_OF_ORDER_START = "start of a snapshot out of order"
    OUT_OF_ORDER_END = "end of a snapshot out of order"
    CACHED = "cached documents"
    CACHE_END = "end of the cache transfer"
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
    S.OPEN: {
        **{E.MARKER: S.IN_SNAPSHOT, E.OUT_OF_ORDER_START: S.OUT_OF_ORDER, E.STATE: S.OPEN},
        **{E.CACHED: S.IN_CACHE, E.CACHE_END: S.OPEN, E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.IN_SNAPSHOT: {
        **{E.DATA: S.IN_SNAPSHOT, E.MARKER: S.IN_SNAPSHOT, E.STATE: S.IN_SNAPSHOT},
        **{E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.OUT_OF_ORDER: {
        **{E.DATA: S.OUT_OF_ORDER, E.OUT_OF_ORDER_END: S.OPEN},
        **{E.END: S.ENDED, E.CLOSED: S.ENDED},
    },
    S.IN_CACHE: {E.CACHED: S.IN_CACHE, E.CACHE_END: S.OPEN, E.END: S.ENDED, E.CLOSED: S.ENDED},
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
"""Dialect -> state -> event -> next state. TAP has no reply that accepts a stream: its first message does."""

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
        dcp.CacheTransfer: E.CACHED,
        dcp.CacheTransferEnd: E.CACHE_END,
        dcp.SetVbucketState: E.STATE,
        dcp.StreamEnd: E.END,
    },
}
"""Dialect -> message -> event. Other messages belong to no stream, or are sent only on request."""


OUT_OF_ORDER_EVENTS: dict[int, StreamEvent] = {
    int(OsoFlag.START): E.OUT_OF_ORDER_START,
    int(OsoFlag.END): E.OUT_OF_ORDER_END,
}
"""Flags of OSO_SNAPSHOT -> event. Only consumers that accept such snapshots get this message."""


def advance_state(state: StreamState, event: StreamEvent, vbucket: int, dialect: Dialect = Dialect.DCP) -> StreamState:
    """Return the state that follows.

    Raises:
        OrderViolation: the state does not allow the event.
    """
    following = TRANSITIONS[dialect].get(state, {}).get(event)
    if following is None:
        raise OrderViolation(f"vbucket {vbucket}: {event.value} while the stream is {state.value}", vbucket=vbucket)
    return following


def classify_reply(status: int) -> StreamEvent:
    """Return the event of a reply to a stream request, given its status."""
    return {int(Status.SUCCESS): E.ACCEPTED, int(Status.ROLLBACK): E.ROLLBACK}.get(status, E.REFUSED)
