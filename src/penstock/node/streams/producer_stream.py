"""One vbucket's stream, seen from the side that sends it: which piece comes next."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from penstock.node.buckets.producer_reports import StreamReport
from penstock.node.buckets.served_bucket import SentCounts
from penstock.node.streams.dialect_messages import DialectMessages, StreamNotices
from penstock.node.streams.snapshot_cursor import SnapshotCursor
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.store.history.rollback import StreamRequest
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import Buffer
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.hop import hop
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance

__all__ = ["ProducerStream"]


class StreamOwner(Protocol):
    """The producer of streams."""

    dialect: Dialect
    messages: DialectMessages
    options: WireOptions
    sent: SentCounts

    def add(self, stream: ProducerStream) -> None:
        """Take a stream into the next turn: it has something to send."""

    def is_ready(self, stream: ProducerStream) -> bool:
        """Tell whether a stream waits for its turn."""


class ProducerStream:
    """A stream that was accepted.

    Attributes:
        key: its own among the producer's streams.
        asked: where the consumer is.
        encoder: what it sends of the changes.
        group: the name that the consumer gave the stream, empty without.
        cursor: how far it is.
        reason: why the stream is to end with the next piece, None while it goes on.
    """

    __slots__ = (
        "_backfill_sent",
        "_flushed",
        "_held",
        "_high_at_start",
        "_last_sent",
        "_notices",
        "asked",
        "bytes_sent",
        "cursor",
        "encoder",
        "group",
        "items_sent",
        "key",
        "opaque",
        "producer",
        "reason",
        "state",
        "vbucket",
    )

    def __init__(
        self,
        producer: StreamOwner,
        vbucket: Vbucket,
        key: int,
        opaque: int,
        asked: StreamRequest,
        *,
        end_seqno: int,
        encoder: StreamEncoder,
        group: bytes,
    ) -> None:
        self.producer = producer
        self.vbucket = vbucket
        self.key = key
        self.opaque = opaque
        self.asked = asked
        self.encoder = encoder
        self.group = group
        self.cursor = SnapshotCursor(vbucket, asked, end_seqno)
        self.items_sent = 0
        self.bytes_sent = 0
        self.reason: StreamEndReason | None = None
        self.state = StreamState.REQUESTED
        self._advance(StreamEvent.ACCEPTED)
        self._notices = StreamNotices(vbucket.id, opaque, encoder.framing)
        self._flushed = False
        self._held: Buffer = b""  # frames for which there was no room: there are more bytes in them than in the log
        self._last_sent = 0
        self._high_at_start = vbucket.changes.high_seqno
        self._backfill_sent = 0  # of the changes that were there when the stream was accepted

    @property
    def remaining(self) -> int:
        """How many changes are left to send, at most."""
        return self.cursor.remaining

    def wake(self) -> None:
        """Tell the producer that there is something to send."""
        self.producer.add(self)

    def pull(self, max_bytes: int, window: int) -> Buffer | None:
        """Return the next frames, about max_bytes of them; None when the consumer has everything.

        There may be none in what was looked at: then the stream is to be asked again. window: how many bytes the
        consumer can still take, at least 1. The last frame may exceed it.
        """
        piece = self._held if self._held else self._next(max_bytes, window)
        if piece:
            piece = self._within(piece, window)
            self.bytes_sent += len(piece)
        return piece

    def _within(self, piece: Buffer, window: int) -> Buffer:
        """Return as many frames as there is room for, and hold the others back."""
        self._held = b""
        if len(piece) > window:
            offsets, end = hop(piece, 0, len(piece))
            cut = next((offset for offset in offsets if offset >= window), end)
            piece, self._held = piece[:cut], piece[cut:]
        return piece

    def _next(self, max_bytes: int, window: int) -> Buffer | None:
        if self.reason is not None:
            return self._end(self.reason)
        cursor = self.cursor
        if cursor.snapshot is not None:
            chunk = cursor.snapshot.read(self.opaque, max_bytes, window)
            if chunk.frames:
                return self._changes(chunk)
            cursor.snapshot = None
            if notice := self._seqno_advanced() or self._notice(StreamEvent.SNAPSHOT_END):
                return notice
        elif self.state is StreamState.ACCEPTED:
            return self._notice(StreamEvent.START)
        elif self._flushed:
            self._flushed = False
            return self._notice(StreamEvent.FLUSH)
        if cursor.seqno < cursor.end_seqno and (notice := self._open_snapshot()):
            return notice
        return self._end(StreamEndReason.OK) if cursor.seqno >= cursor.end_seqno else None

    def end(self, reason: StreamEndReason) -> None:
        """Let the end be the next that is sent, also before frames for which there was no room."""
        self.reason = reason
        self.cursor.snapshot = None
        self._held = b""

    def close(self) -> None:
        """End without a message: the consumer asked for it."""
        self._advance(StreamEvent.CLOSED)
        self.cursor.snapshot = None

    def flush(self) -> None:
        """Go on with the vbucket's new history, from its beginning, once the flush was announced."""
        self.cursor.restart()
        self._held = b""
        self._flushed = True

    def report(self) -> StreamReport:
        asked = self.asked
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=self.opaque,
            state=self.state.value,
            start_seqno=asked.start_seqno,
            end_seqno=self.cursor.end_seqno,
            items_sent=self.items_sent,
            bytes_sent=self.bytes_sent,
            items_remaining=self.remaining,
            filters=tuple(self._left_out()),
            details={
                "vb_uuid": asked.vbuuid,
                "snap_start_seqno": asked.snap_start,
                "snap_end_seqno": asked.snap_end,
                "last_sent_seqno": self._last_sent,
                "last_sent_snap_end_seqno": self.cursor.seqno,
                "last_read_seqno": self._last_sent,
                "backfill_sent": self._backfill_sent,
                "memory_phase": self.items_sent - self._backfill_sent,
                # As 3.x called them; the suites of that time wait for these.
                "backfilled": self._backfill_sent,
                "memory": self.items_sent - self._backfill_sent,
                "ready_queue_memory": len(self._held),
                "items_ready": self.producer.is_ready(self),
                **({"group": self.group.decode("utf-8", "backslashreplace")} if self.group else {}),
                **({"sid": self.encoder.stream_id} if self.encoder.stream_id is not None else {}),
            },
        )

    def _left_out(self) -> Iterator[str]:
        if self.producer.options.form.keys_only:
            yield "values"
        if self.encoder.filter.is_asked_for:
            yield "collections"

    def _changes(self, chunk: Chunk) -> Buffer:
        """Return what is sent of some changes. Where nothing is left that could be, the stream is to end with them."""
        producer, encoder, cursor = self.producer, self.encoder, self.cursor
        skips = producer.options.skip_first_deletions and cursor.is_first and not self.asked.start_seqno
        sent = encoder.encode(chunk, producer.options, is_plain=cursor.is_plain, skip_deletions=skips)
        if sent.items:
            self._advance(StreamEvent.DATA)
            self._last_sent = sent.seqno
            self.items_sent += sent.items
            if cursor.is_first and self.asked.start_seqno < self._high_at_start:
                self._backfill_sent += sent.items
            producer.sent.items += sent.items
        if encoder.filter.is_empty:
            self.reason = StreamEndReason.FILTER_EMPTY if encoder.filter.sends_events else StreamEndReason.OK
        return sent.data

    def _open_snapshot(self) -> bytes:
        """Return what begins the next snapshot, nothing if there is none, or the consumer would see nothing of it.

        Return the stream's end if the snapshot would lack tombstones that the consumer needs. Source: kv_engine
        backfill_by_seqno_disk.cc.
        """
        cursor, options = self.cursor, self.producer.options
        if cursor.lacks_tombstones():
            return self._end(StreamEndReason.ROLLBACK)
        snapshot = cursor.open_next(sees_all=options.seqno_advanced)
        if snapshot is None:
            return b""
        if notice := self._notice(StreamEvent.SNAPSHOT_START):
            return notice
        self._advance(StreamEvent.MARKER)
        start, end, flags = cursor.announced_start, cursor.announced_end, snapshot.flags
        if options.purge_seqno and (cursor.is_first or flags & SnapshotFlag.DISK):
            return self._notices.marker_with_purge_seqno(start, end, flags, self.vbucket.index.purge_seqno)
        return self._notices.marker(start, end, flags)

    def _seqno_advanced(self) -> bytes:
        """Return the message that nothing more comes up to the snapshot's end, nothing where its last change was sent.

        Consumers take a snapshot as complete with the seqno at which it ends.
        """
        end = self.cursor.announced_end
        if not self.producer.options.seqno_advanced or self._last_sent >= end:
            return b""
        self._advance(StreamEvent.DATA)
        self._last_sent = end
        return self._notices.seqno_advanced(end)

    def _notice(self, event: StreamEvent) -> bytes:
        """Return the message of an event, nothing where the dialect has none."""
        message = self.producer.messages.events.get(event)
        if message is None:
            return b""
        self._advance(event)
        return self._notices.encode(message)

    def _end(self, reason: StreamEndReason) -> bytes:
        self._advance(StreamEvent.END)
        self.cursor.snapshot = None
        return self._notices.encode(self.producer.messages.ends[reason])

    def _advance(self, event: StreamEvent) -> None:
        self.state = advance(self.state, event, self.vbucket.id, self.producer.dialect)
