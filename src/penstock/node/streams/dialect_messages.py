"""The messages that a producer sends around the changes of a stream, in each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import HEADER, HEADER_BYTES
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import StreamEndReason, UprEndReason
from penstock.wire.messages.dcp import SeqnoAdvanced, SnapshotMarker, SnapshotMarkerV2, StreamEnd
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

__all__ = ["DIALECT_MESSAGES", "DialectMessages", "StreamNotices"]

_MARKER = Struct(HEADER.format + SnapshotMarker.layouts[3].extras.format[1:])
_MARKER_EXTRAS = _MARKER.size - HEADER_BYTES


@dataclass(frozen=True)
class DialectMessages:
    """The messages of one dialect.

    Attributes:
        events: messages that only name an event of the stream. Where SNAPSHOT_START is missing, snapshots begin with a
            marker. Where FLUSH is missing, a flush ends the stream.
        ends: by reason, the last message. A dialect without a reason for a rollback reports that the state has changed:
            the consumer asks again, and the reply is a rollback then.
    """

    dialect: Dialect
    events: Mapping[StreamEvent, Callable[..., Message]]
    ends: Mapping[StreamEndReason, Callable[..., Message]]


DIALECT_MESSAGES = {
    messages.dialect: messages
    for messages in (
        DialectMessages(Dialect.DCP, {}, {reason: partial(StreamEnd, reason=reason) for reason in StreamEndReason}),
        DialectMessages(
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
        DialectMessages(
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


class StreamNotices:
    """Encodes the messages of one stream around its changes. All have its vbucket, opaque and stream id."""

    __slots__ = ("_framing", "_opaque", "_vbucket")

    def __init__(self, vbucket: int, opaque: int, framing: bytes) -> None:
        """framing: the stream id as framing extras, empty without."""
        self._vbucket = vbucket
        self._opaque = opaque
        self._framing = framing

    def encode(self, message: Callable[..., Message]) -> bytes:
        return message(vbucket=self._vbucket, opaque=self._opaque, framing=self._framing).encode()

    def seqno_advanced(self, seqno: int) -> bytes:
        return self.encode(partial(SeqnoAdvanced, by_seqno=seqno))

    def marker(self, start: int, end: int, flags: int) -> bytes:
        if self._framing:
            return self.encode(partial(SnapshotMarker, start_seqno=start, end_seqno=end, flags=flags))
        return _MARKER.pack(
            *(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, _MARKER_EXTRAS, 0, self._vbucket),
            *(_MARKER_EXTRAS, self._opaque, 0, start, end, flags),
        )

    def marker_with_purge_seqno(self, start: int, end: int, flags: int, purge_seqno: int) -> bytes:
        """Return a marker of version 2.2.

        kv_engine sends version 2.0 to replicas with synchronous replication alone, which this node does not offer.
        """
        return self.encode(
            partial(
                SnapshotMarkerV2,
                version=2,
                start_seqno=start,
                end_seqno=end,
                flags=flags,
                max_visible_seqno=end,
                purge_seqno=purge_seqno,
                high_prepared_seqno=0,
            )
        )
