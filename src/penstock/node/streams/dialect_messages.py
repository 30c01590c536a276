"""What a producer says of a stream, in each dialect: the messages around the changes, and what becomes of a flush."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Message
from penstock.wire.codec.statuses import StreamEndReason, UprEndReason
from penstock.wire.messages.dcp import StreamEnd
from penstock.wire.messages.upr import UprFlush, UprSnapshotEnd, UprSnapshotStart, UprStreamEnd, UprStreamStart
from penstock.wire.messages.upr_draft import (
    DraftFlush,
    DraftSnapshotEnd,
    DraftSnapshotStart,
    DraftStateChanged,
    DraftStreamEnd,
    DraftStreamStart,
)
from penstock.wire.protocol.stream_state import StreamEvent

__all__ = ["VOICES", "Voice"]


@dataclass(frozen=True)
class Voice:
    """says: messages that only name an event of the stream. Where SNAPSHOT_START is not among them, snapshots begin
    with a marker; where FLUSH is not, a flush ends the stream. ends: by reason, the last message. A dialect that has no
    word for a rollback says that the state has changed: the consumer asks anew, and is told to roll back then.
    """

    dialect: Dialect
    says: Mapping[StreamEvent, Callable[..., Message]]
    ends: Mapping[StreamEndReason, Callable[..., Message]]


VOICES = {
    voice.dialect: voice
    for voice in (
        Voice(Dialect.DCP, {}, {reason: partial(StreamEnd, reason=reason) for reason in StreamEndReason}),
        Voice(
            Dialect.UPR,
            {
                StreamEvent.START: UprStreamStart,
                StreamEvent.SNAPSHOT_START: UprSnapshotStart,
                StreamEvent.SNAPSHOT_END: UprSnapshotEnd,
                StreamEvent.FLUSH: UprFlush,
            },
            {
                StreamEndReason.OK: partial(UprStreamEnd, reason=UprEndReason.OK),
                StreamEndReason.STATE_CHANGED: partial(UprStreamEnd, reason=UprEndReason.STATE_CHANGED),
                StreamEndReason.ROLLBACK: partial(UprStreamEnd, reason=UprEndReason.STATE_CHANGED),
            },
        ),
        Voice(
            Dialect.UPR_DRAFT,
            {
                StreamEvent.START: DraftStreamStart,
                StreamEvent.SNAPSHOT_START: DraftSnapshotStart,
                StreamEvent.SNAPSHOT_END: DraftSnapshotEnd,
                StreamEvent.FLUSH: DraftFlush,
            },
            {
                StreamEndReason.OK: DraftStreamEnd,
                StreamEndReason.STATE_CHANGED: DraftStateChanged,
                StreamEndReason.ROLLBACK: DraftStateChanged,
            },
        ),
    )
}
"""Of the dialects whose streams this node's engine sends. TAP has streams of its own kind."""
