"""One vbucket's stream, seen from the side that sends it: which piece comes next."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from penstock.store.rollback import StreamRequest
from penstock.store.snapshot import Snapshot
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import Magic, Opcode, StreamEndReason
from penstock.wire.dcp import SnapshotMarker, StreamEnd
from penstock.wire.frame import HEADER, HEADER_BYTES
from penstock.wire.stream import StreamEvent, StreamState, advance

if TYPE_CHECKING:
    from penstock.node.producer import Producer

__all__ = ["ProducerStream"]

_MARKER = Struct(HEADER.format + SnapshotMarker.layouts[3].extras.format[1:])
_MARKER_EXTRAS = _MARKER.size - HEADER_BYTES


class ProducerStream:
    """A stream that was accepted.

    asked: where the consumer is. end_seqno: the last change it wants; a snapshot that cannot end there is sent to its
    own end all the same. reason: why the stream is to end with the next piece, None while it goes on.

    Snapshots are opened when the stream's turn comes, so a thousand streams that wait for theirs hold nothing.
    """

    __slots__ = ("_resumed", "_snapshot", "end_seqno", "opaque", "producer", "reason", "seqno", "state", "vbucket")

    def __init__(self, producer: Producer, vbucket: Vbucket, opaque: int, asked: StreamRequest, end_seqno: int) -> None:
        self.producer = producer
        self.vbucket = vbucket
        self.opaque = opaque
        self.seqno = asked.start_seqno  # the last one of the newest snapshot, or of the request
        self.end_seqno = end_seqno
        self.reason: StreamEndReason | None = None
        self.state = advance(StreamState.REQUESTED, StreamEvent.ACCEPTED, vbucket.id)
        self._snapshot: Snapshot | None = None
        # The first snapshot completes the one that the consumer is in: it goes back to where that began, and on to
        # where that ended at least, since what the consumer has of it may lack versions that came up to there.
        self._resumed: tuple[int, int] | None = asked.snap_start, asked.snap_end

    @property
    def remaining(self) -> int:
        """How many changes are left to send, at most."""
        unseen = max(min(self.vbucket.high_seqno, self.end_seqno) - self.seqno, 0)
        return unseen + (self._snapshot.remaining if self._snapshot else 0)

    def wake(self) -> None:
        """Tell the producer that there is something to send."""
        self.producer.add(self)

    def pull(self, max_bytes: int, window: int) -> bytes | bytearray:
        """Return the next frames, about max_bytes of them; nothing when the consumer has everything.

        window: how many bytes the consumer can still take, at least 1. The last frame may exceed it.
        """
        if self.reason is None and self._snapshot is not None:
            chunk = self._snapshot.read(self.opaque, max_bytes, window)
            if chunk.frames:
                self._advance(StreamEvent.DATA)
                self.producer.counters.dcp_items_sent += chunk.frames
                return chunk.data
        self._snapshot = None
        if self.reason is None and self.seqno >= self.end_seqno:
            self.reason = StreamEndReason.OK
        return self._open_snapshot() if self.reason is None else self._end(self.reason)

    def close(self) -> None:
        """End without a word: the consumer asked for it."""
        self._advance(StreamEvent.CLOSED)
        self._snapshot = None

    def _open_snapshot(self) -> bytes:
        """Return the marker of the next snapshot, nothing if there is none."""
        start, end = self.seqno + 1, self.end_seqno
        if self._resumed is not None:
            start, end = min(start, self._resumed[0]), max(end, self._resumed[1])
        snapshot = self.vbucket.snapshot(self.seqno, end)
        end = snapshot.end_seqno
        if end <= self.seqno:
            return b""
        self._resumed = None
        self._advance(StreamEvent.MARKER)
        self._snapshot, self.seqno = snapshot, end
        return _MARKER.pack(
            *(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, _MARKER_EXTRAS, 0, self.vbucket.id),
            *(_MARKER_EXTRAS, self.opaque, 0, start, end, snapshot.flags),
        )

    def _end(self, reason: StreamEndReason) -> bytes:
        self._advance(StreamEvent.END)
        return StreamEnd(vbucket=self.vbucket.id, opaque=self.opaque, reason=reason).encode()

    def _advance(self, event: StreamEvent) -> None:
        self.state = advance(self.state, event, self.vbucket.id)
