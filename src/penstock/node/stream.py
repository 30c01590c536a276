"""One vbucket's stream, seen from the side that sends it: which piece comes next."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from penstock.node.ext_metadata import with_ext_metadata
from penstock.node.producers import StreamReport
from penstock.store.frames import Chunk
from penstock.store.rollback import StreamRequest
from penstock.store.snapshot import Snapshot
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import Magic, Opcode, StreamEndReason
from penstock.wire.dcp import SnapshotMarker
from penstock.wire.frame import HEADER, HEADER_BYTES
from penstock.wire.reframe import reframe
from penstock.wire.stream import StreamEvent, StreamState, advance

if TYPE_CHECKING:
    from penstock.node.producer import Producer

__all__ = ["ProducerStream"]

_MARKER = Struct(HEADER.format + SnapshotMarker.layouts[3].extras.format[1:])
_MARKER_EXTRAS = _MARKER.size - HEADER_BYTES

Piece = bytes | bytearray | memoryview
"""Whole frames."""


class ProducerStream:
    """A stream that was accepted.

    key: its own among the producer's streams. asked: where the consumer is. end_seqno: the last change it wants; a
    snapshot that cannot end there is sent to its own end all the same. group: the name that the consumer gave the
    stream, empty without. seqno: the last one of the newest snapshot. reason: why the stream is to end with the next
    piece, None while it goes on.

    Snapshots are opened when the stream's turn comes, so a thousand streams that wait for theirs hold nothing.
    """

    __slots__ = (
        "_flushed",
        "_resumed",
        "_snapshot",
        "asked",
        "bytes_sent",
        "end_seqno",
        "group",
        "items_sent",
        "key",
        "opaque",
        "producer",
        "reason",
        "seqno",
        "state",
        "vbucket",
    )

    def __init__(
        self,
        producer: Producer,
        vbucket: Vbucket,
        key: int,
        opaque: int,
        asked: StreamRequest,
        *,
        end_seqno: int,
        group: bytes,
    ) -> None:
        self.producer = producer
        self.vbucket = vbucket
        self.key = key
        self.opaque = opaque
        self.asked = asked
        self.seqno = asked.start_seqno
        self.end_seqno = end_seqno
        self.group = group
        self.items_sent = 0
        self.bytes_sent = 0
        self.reason: StreamEndReason | None = None
        self.state = StreamState.REQUESTED
        self._advance(StreamEvent.ACCEPTED)
        self._flushed = False
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

    def pull(self, max_bytes: int, window: int) -> Piece:
        """Return the next frames, about max_bytes of them; nothing when the consumer has everything.

        window: how many bytes the consumer can still take, at least 1. The last frame may exceed it.
        """
        piece = self._next(max_bytes, window)
        self.bytes_sent += len(piece)
        return piece

    def _next(self, max_bytes: int, window: int) -> Piece:
        if self.reason is not None:
            return self._end(self.reason)
        if self._snapshot is not None:
            if self.producer.window and self.producer.grows:
                window = 1  # one frame at a time: the next may go out only if there is room behind this one
            chunk = self._snapshot.read(self.opaque, max_bytes, window)
            if chunk.frames:
                return self._changes(chunk)
            self._snapshot = None
            if said := self._say(StreamEvent.SNAPSHOT_END):
                return said
        elif self.state is StreamState.ACCEPTED:
            return self._say(StreamEvent.START)
        elif self._flushed:
            self._flushed = False
            return self._say(StreamEvent.FLUSH)
        if self.seqno >= self.end_seqno:
            return self._end(StreamEndReason.OK)
        return self._open_snapshot()

    def close(self) -> None:
        """End without a word: the consumer asked for it."""
        self._advance(StreamEvent.CLOSED)
        self._snapshot = None

    def flush(self) -> None:
        """Go on with the vbucket's new history, from its beginning, once the flush has been said."""
        self._snapshot = self._resumed = None
        self._flushed = True
        self.seqno = 0

    def report(self) -> StreamReport:
        asked = self.asked
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=self.opaque,
            state=self.state.value,
            start_seqno=asked.start_seqno,
            end_seqno=self.end_seqno,
            items_sent=self.items_sent,
            bytes_sent=self.bytes_sent,
            items_remaining=self.remaining,
            filters=("values",) if self.producer.form.keys_only else (),
            details={
                "vb_uuid": asked.vbuuid,
                "snap_start_seqno": asked.snap_start,
                "snap_end_seqno": asked.snap_end,
                "last_sent_snap_end_seqno": self.seqno,
                **({"group": self.group.decode("utf-8", "backslashreplace")} if self.group else {}),
            },
        )

    def _changes(self, chunk: Chunk) -> Piece:
        self._advance(StreamEvent.DATA)
        self.items_sent += chunk.frames
        self.producer.sent.items += chunk.frames
        data = reframe(chunk.data, chunk.begins, self.producer.form)
        return with_ext_metadata(data) if self.producer.ext_metadata else data

    def _open_snapshot(self) -> bytes:
        """Return what begins the next snapshot, nothing if there is none."""
        start, end = self.seqno + 1, self.end_seqno
        if self._resumed is not None:
            start, end = min(start, self._resumed[0]), max(end, self._resumed[1])
        snapshot = self.vbucket.snapshot(self.seqno, end)
        end = snapshot.end_seqno
        if end <= self.seqno:
            return b""
        self._resumed = None
        self._snapshot, self.seqno = snapshot, end
        if said := self._say(StreamEvent.SNAPSHOT_START):
            return said
        self._advance(StreamEvent.MARKER)
        return _MARKER.pack(
            *(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, _MARKER_EXTRAS, 0, self.vbucket.id),
            *(_MARKER_EXTRAS, self.opaque, 0, start, end, snapshot.flags),
        )

    def _say(self, event: StreamEvent) -> bytes:
        """Return the message of an event, nothing where the dialect has none."""
        message = self.producer.voice.says.get(event)
        if message is None:
            return b""
        self._advance(event)
        return message(vbucket=self.vbucket.id, opaque=self.opaque).encode()

    def _end(self, reason: StreamEndReason) -> bytes:
        self._advance(StreamEvent.END)
        self._snapshot = None
        return self.producer.voice.ends[reason](vbucket=self.vbucket.id, opaque=self.opaque).encode()

    def _advance(self, event: StreamEvent) -> None:
        self.state = advance(self.state, event, self.vbucket.id, self.producer.dialect)
