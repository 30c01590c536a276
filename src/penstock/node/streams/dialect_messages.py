"""The messages around the changes of a stream, in each dialect."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from struct import Struct

from penstock.store.history.vbucket_prepares import VbucketPrepares
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import SnapshotFlag
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

_MARKER = Struct(HEADER.format + SnapshotMarker.layouts[3].extras.format[1:])
_MARKER_EXTRAS = _MARKER.size - HEADER_BYTES


@dataclass(frozen=True)
class DialectMessages:
    """The messages of one dialect.

    Attributes:
        dialect: the dialect.
        events: messages of events of the stream. Without SNAPSHOT_START, a marker starts each snapshot. Without FLUSH,
            a flush ends the stream.
        ends: the last message, by reason. A dialect without a reason for a rollback reports a changed state. Then the
            consumer sends a new stream request, and the reply to that is a rollback.
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
"""The dialects with streams of single vbuckets. TAP has streams of another kind."""


class StreamNotices:
    """Encodes the messages of one stream around its changes: all have its vbucket, opaque and stream id."""

    __slots__ = ("_framing", "_opaque", "_vbucket")

    def __init__(self, vbucket: int, opaque: int, framing: bytes) -> None:
        """Create the encoder of a stream.

        Args:
            vbucket: the vbucket.
            opaque: the opaque of the stream.
            framing: the stream id as framing extras, empty without a stream id.
        """
        self._vbucket = vbucket
        self._opaque = opaque
        self._framing = framing

    def encode(self, message: Callable[..., Message]) -> bytes:
        """Return a message without fields of its own."""
        return message(vbucket=self._vbucket, opaque=self._opaque, framing=self._framing).encode()

    def encode_seqno_advanced(self, seqno: int) -> bytes:
        """Return SEQNO_ADVANCED: no further change comes up to a seqno."""
        return self.encode(partial(SeqnoAdvanced, by_seqno=seqno))

    def encode_marker(self, start: int, end: int, flags: int) -> bytes:
        """Return a snapshot marker of version 1."""
        if self._framing:  # the packed form below has no framing extras
            return self.encode(partial(SnapshotMarker, start_seqno=start, end_seqno=end, flags=flags))
        return _MARKER.pack(
            *(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, _MARKER_EXTRAS, 0, self._vbucket),
            *(_MARKER_EXTRAS, self._opaque, 0, start, end, flags),
        )

    def encode_long_marker(
        self, start: int, end: int, flags: int, prepares: VbucketPrepares, purge_seqno: int | None = None
    ) -> bytes:
        """Return a snapshot marker of version 2.2, or without a purge seqno of version 2.0.

        kv_engine sends version 2.0 only to replicas with synchronous writes.
        """
        return self.encode(
            partial(
                SnapshotMarkerV2,
                version=0 if purge_seqno is None else 2,
                start_seqno=start,
                end_seqno=end,
                flags=flags,
                max_visible_seqno=prepares.find_visible(end),
                high_completed_seqno=min(prepares.high_completed_seqno, end) if flags & SnapshotFlag.DISK else 0,
                purge_seqno=purge_seqno,
                high_prepared_seqno=None if purge_seqno is None else min(prepares.high_prepare_seqno, end),
            )
        )
