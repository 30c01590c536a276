"""One vbucket's stream on the side of the producer: chooses and encodes the next frames."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Protocol

from penstock.node.buckets.endpoint_reports import StreamReport
from penstock.node.buckets.served_bucket import SentCounts
from penstock.node.streams.cached_documents import CachedDocumentReader
from penstock.node.streams.dialect_messages import DialectMessages, StreamNotices
from penstock.node.streams.snapshot_cursor import SnapshotCursor
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions, join_pieces, read_last_seqno
from penstock.node.streams.stream_takeover import StreamTakeover
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import StreamRequest
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import OsoFlag, SnapshotFlag
from penstock.wire.codec.frame import Buffer
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.frame_offsets import find_offsets
from penstock.wire.messages.dcp import CacheTransfer, CacheTransferEnd, OsoSnapshot, SetVbucketState
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance_state
from penstock.wire.protocol.takeover_state import TakeoverEvent


class StreamOwner(Protocol):
    """The producer of streams.

    Attributes:
        dialect: the dialect.
        messages: the messages around the changes.
        options: the wire options of the connection.
        sent: totals of all producers of the dialect.
    """

    dialect: Dialect
    messages: DialectMessages
    options: WireOptions
    sent: SentCounts

    @property
    def sends_history(self) -> bool:
        """Whether snapshots have older versions: the consumer accepts them, and the bucket keeps them."""

    def schedule_stream(self, stream: ProducerStream) -> None:
        """Add a stream to the next turn, since it has something to send."""

    def is_ready(self, stream: ProducerStream) -> bool:
        """Return whether a stream waits for its turn."""


class ProducerStream:
    """An accepted stream.

    Attributes:
        producer: the producer of the stream.
        vbucket: the vbucket.
        key: the key of the stream among the producer's streams.
        opaque: the opaque of all messages.
        request: the position and range of the consumer.
        encoder: filters and encodes the changes.
        group: the name that the consumer has given the stream, or empty.
        cursor: the position in the vbucket's history.
        items_sent: number of changes that were sent.
        bytes_sent: bytes that were sent.
        reason: the reason with which the stream ends next; None while it continues.
        state: the state of the stream.
        takeover: the takeover of the vbucket by the consumer, None for a stream that only copies.
        cache: the documents in memory that are sent before the changes; None without them, or after the last one.
    """

    __slots__ = (
        "_backfill_sent",
        "_flushed",
        "_held_frames",
        "_high_at_start",
        "_last_sent",
        "_manifest_uid",
        "_notices",
        "bytes_sent",
        "cache",
        "cursor",
        "encoder",
        "group",
        "items_sent",
        "key",
        "opaque",
        "producer",
        "reason",
        "request",
        "state",
        "takeover",
        "vbucket",
    )

    def __init__(
        self,
        producer: StreamOwner,
        vbucket: Vbucket,
        key: int,
        opaque: int,
        request: StreamRequest,
        *,
        end_seqno: int,
        encoder: StreamEncoder,
        group: bytes,
    ) -> None:
        self.producer = producer
        self.vbucket = vbucket
        self.key = key
        self.opaque = opaque
        self.request = request
        self.encoder = encoder
        self.group = group
        self.cursor = SnapshotCursor(vbucket, request, end_seqno)
        self.items_sent = 0
        self.bytes_sent = 0
        self.reason: StreamEndReason | None = None
        self.state = StreamState.REQUESTED
        self.takeover: StreamTakeover | None = None
        self.cache: CachedDocumentReader | None = None
        self._advance_state(StreamEvent.ACCEPTED)
        self._notices = StreamNotices(vbucket.id, opaque, encoder.framing)
        self._flushed = False
        self._held_frames: Buffer = b""  # frames that did not fit: they may have more bytes than in the log
        self._last_sent = 0
        self._manifest_uid: int | None = None  # of the vbucket when the newest snapshot was opened
        self._high_at_start = vbucket.changes.high_seqno
        self._backfill_sent = 0  # changes that existed when the stream was accepted

    @property
    def remaining(self) -> int:
        """Number of changes that are left to send, at most."""
        return self.cursor.remaining

    def wake(self) -> None:
        """Add the stream to the producer's next turn."""
        self.producer.schedule_stream(self)

    def read_frames(self, max_bytes: int, window: int) -> Buffer | None:
        """Return the next frames; None if the consumer has everything.

        Args:
            max_bytes: about the bytes to return.
            window: bytes that the consumer can still take, at least 1. The last frame may exceed it.

        Returns:
            Whole frames. They are empty if the consumer gets none of the changes that were read; then call again.
        """
        piece = self._held_frames if self._held_frames else self._read_next(max_bytes, window)
        if piece:
            piece = self._fit_window(piece, window)
            self.bytes_sent += len(piece)
        return piece

    def _fit_window(self, piece: Buffer, window: int) -> Buffer:
        """Return the frames that fit into the window, and hold the others back."""
        self._held_frames = b""
        if len(piece) > window:
            offsets, end = find_offsets(piece, 0, len(piece))
            cut = next((offset for offset in offsets if offset >= window), end)
            piece, self._held_frames = piece[:cut], piece[cut:]
        return piece

    def _read_next(self, max_bytes: int, window: int) -> Buffer | None:
        if self.reason is not None:
            return self._encode_end(self.reason)
        if self.cache is not None:
            return self._read_cache(self.cache, max_bytes)
        cursor = self.cursor
        if cursor.snapshot is not None:
            if self.encoder.pushed_filter is not None:
                max_bytes = min(max_bytes, self.encoder.pushed_filter.piece_bytes)
            chunk = cursor.snapshot.read(self.opaque, max_bytes, window)
            if chunk.frame_count:
                return self._encode_changes(chunk)
            if (part := cursor.open_history_part()) is not None:
                self._advance_state(StreamEvent.MARKER)
                return self._encode_marker(part)
            if notice := self._encode_snapshot_end():
                return notice
        elif self.state is StreamState.ACCEPTED:
            return self._encode_notice(StreamEvent.START)  # UPR has this message, DCP does not
        elif self._flushed:
            self._flushed = False
            return self._encode_notice(StreamEvent.FLUSH)
        if self.takeover is not None:
            return self._read_takeover(self.takeover)
        if cursor.seqno < cursor.end_seqno and (notice := self._open_snapshot()):
            return notice
        return self._encode_end(StreamEndReason.OK) if cursor.seqno >= cursor.end_seqno else None

    def _read_cache(self, cache: CachedDocumentReader, max_bytes: int) -> bytes:
        """Return the next documents in memory, or their end: that of a stream without changes is its own."""
        values = cache.read(max_bytes)
        if values:
            self._advance_state(StreamEvent.CACHED)
            return b"".join(self._notices.encode(partial(CacheTransfer, value=value)) for value in values)
        if not cache.is_complete:
            return b""
        self.cache = None
        if self.cursor.seqno >= self.cursor.end_seqno:
            return b""
        self._advance_state(StreamEvent.CACHE_END)
        return self._notices.encode(CacheTransferEnd)

    def _read_takeover(self, takeover: StreamTakeover) -> bytes | None:
        """Return the next message of a takeover between two snapshots; None while it waits."""
        steps = takeover.steps
        if steps.wants_changes(self.remaining) and (marker := self._open_snapshot()):
            return marker
        if (state := steps.choose_announcement(self.remaining)) is not None:
            steps.record(TakeoverEvent.STATE)
            self._advance_state(StreamEvent.STATE)
            return self._notices.encode(partial(SetVbucketState, state=state))
        if steps.is_complete:
            return self._encode_end(StreamEndReason.OK)
        takeover.wait()
        return None

    def end(self, reason: StreamEndReason) -> None:
        """End the stream with the next message, even before frames that were held back."""
        # Held frames are dropped: no change may follow a lost privilege or a changed state.
        self.reason = reason
        self.cursor.drop_snapshot()
        self._held_frames = b""

    def close(self) -> None:
        """End the stream without a message, since the consumer has closed it."""
        self._advance_state(StreamEvent.CLOSED)
        self.cursor.drop_snapshot()

    def flush(self) -> None:
        """Continue with the vbucket's new history from its start, after a message about the flush."""
        self.cursor.restart()
        self._held_frames = b""
        self._flushed = True

    def report(self) -> StreamReport:
        """Return the report of the stream."""
        request = self.request
        return StreamReport(
            vbucket=self.vbucket.id,
            opaque=self.opaque,
            state=self.state.value,
            start_seqno=request.start_seqno,
            end_seqno=self.cursor.end_seqno,
            items_sent=self.items_sent,
            bytes_sent=self.bytes_sent,
            items_remaining=self.remaining,
            backfill_remaining=self.cursor.first_remaining if request.start_seqno < self._high_at_start else 0,
            filters=tuple(_list_filters(self)),
            details={
                "vb_uuid": request.vbuuid,
                "snap_start_seqno": request.snap_start,
                "snap_end_seqno": request.snap_end,
                "last_sent_seqno": self._last_sent,
                "last_sent_snap_end_seqno": self.cursor.seqno,
                "last_read_seqno": self._last_sent,
                "backfill_sent": self._backfill_sent,
                "memory_phase": self.items_sent - self._backfill_sent,
                # Names of release 3, which test suites of that time wait for.
                "backfilled": self._backfill_sent,
                "memory": self.items_sent - self._backfill_sent,
                "ready_queue_memory": len(self._held_frames),
                "items_ready": self.producer.is_ready(self),
                **({"takeover_state": self.takeover.steps.state.value} if self.takeover is not None else {}),
                **({"group": self.group.decode("utf-8", "backslashreplace")} if self.group else {}),
                **({"sid": self.encoder.stream_id} if self.encoder.stream_id is not None else {}),
            },
        )

    def _encode_changes(self, chunk: Chunk) -> Buffer:
        """Return the frames of some changes. If the filter is then empty, the stream ends next."""
        producer, encoder, cursor = self.producer, self.encoder, self.cursor
        skips = producer.options.skip_first_deletions and cursor.is_first and not self.request.start_seqno
        # After a resumption it is unknown whether the consumer has the prepare of a commit: it gets a mutation.
        find_prepare = None
        if producer.options.sync_writes and not (cursor.is_plain or cursor.is_first or cursor.snapshot is None):
            prepares, start = self.vbucket.history.prepares, cursor.snapshot.start_seqno
            find_prepare = partial(prepares.find_prepare_of, last_seqno=start)
        sent = encoder.encode(
            chunk,
            producer.options,
            is_plain=cursor.is_plain,
            skip_deletions=skips,
            find_prepare=find_prepare,
        )
        if sent.items:
            self._advance_state(StreamEvent.DATA)
            self._last_sent = sent.seqno
            self.items_sent += sent.items
            if cursor.is_first and self.request.start_seqno < self._high_at_start:
                self._backfill_sent += sent.items
            producer.sent.items += sent.items
        if encoder.filter.is_empty:
            self.reason = StreamEndReason.FILTER_EMPTY if encoder.filter.sends_events else StreamEndReason.OK
        elif encoder.pushed_filter is not None and self.state is not StreamState.OUT_OF_ORDER:
            # The consumer's position moves over changes that are left out. Else it would read them again after a cut.
            advanced = self._encode_seqno_advanced(read_last_seqno(chunk))
            return join_pieces((sent.data, advanced)) if advanced else sent.data
        return sent.data

    def _open_snapshot(self) -> bytes:
        """Return the first message of the next snapshot; empty if the consumer would see none of it.

        If the snapshot would lack tombstones that the consumer needs, return the end of the stream. Source: kv_engine
        backfill_by_seqno_disk.cc.
        """
        cursor, options = self.cursor, self.producer.options
        if cursor.lacks_tombstones():
            return self._encode_end(StreamEndReason.ROLLBACK)
        history = self.producer.sends_history
        if options.out_of_order and not history and cursor.open_key_order(self.encoder.filter.only_collection):
            self._advance_state(StreamEvent.OUT_OF_ORDER_START)
            return self._notices.encode(partial(OsoSnapshot, flags=OsoFlag.START))
        last_selected = self._find_last_selected()
        snapshot = cursor.open_snapshot(sees_all=options.seqno_advanced, history=history, last_selected=last_selected)
        if snapshot is None:
            return b""
        if notice := self._encode_notice(StreamEvent.SNAPSHOT_START):
            return notice
        self._advance_state(StreamEvent.MARKER)
        return self._encode_marker(snapshot)

    def _find_last_selected(self) -> int | None:
        """Return the newest seqno that a stream of collections sees; None if any seqno may concern it.

        A snapshot ends there, and SEQNO_ADVANCED ends only the first one: kv_engine sends nothing for later changes of
        other collections. Source: kv_engine active_stream.cc, processItems.
        """
        collections, encoder = self.vbucket.collections, self.encoder
        before, self._manifest_uid = self._manifest_uid, collections.manifest_uid
        if encoder.filter.ids is None or not encoder.filter.is_limited or encoder.pushed_filter is not None:
            return None
        if before is None or before != self._manifest_uid:  # an event may end or begin a collection of the stream
            return None
        return max(map(collections.high_seqno, encoder.filter.ids), default=0)

    def _encode_marker(self, snapshot: Snapshot) -> bytes:
        cursor, options, prepares = self.cursor, self.producer.options, self.vbucket.history.prepares
        start, end, flags = cursor.announced_start, cursor.announced_end, snapshot.flags
        if options.sync_writes and prepares.is_used and cursor.is_first:  # it may have commits without their prepares
            flags = flags & ~SnapshotFlag.MEMORY | SnapshotFlag.DISK
        if self.takeover is not None and flags & SnapshotFlag.MEMORY:  # kv_engine wants no answers in a backfill
            flags |= SnapshotFlag.ACK
            self.takeover.steps.record(TakeoverEvent.MARKER)
        purge_seqno = None
        if options.purge_seqno and (cursor.is_first or flags & SnapshotFlag.DISK):
            purge_seqno = self.vbucket.index.purge_seqno
        if options.visible_seqnos or purge_seqno is not None:
            return self._notices.encode_long_marker(start, end, flags, prepares, purge_seqno)
        return self._notices.encode_marker(start, end, flags)

    def _encode_snapshot_end(self) -> bytes:
        """Return the last messages of a snapshot, empty if it needs none."""
        if self.state is not StreamState.OUT_OF_ORDER:
            advanced = self._encode_seqno_advanced(self.cursor.announced_end)
            return advanced or self._encode_notice(StreamEvent.SNAPSHOT_END)
        self._last_sent = 0 if self.producer.options.out_of_order_seqno else self.cursor.announced_end
        advanced = self._encode_seqno_advanced(self.cursor.announced_end)
        self._advance_state(StreamEvent.OUT_OF_ORDER_END)
        return advanced + self._notices.encode(partial(OsoSnapshot, flags=OsoFlag.END))

    def _encode_seqno_advanced(self, seqno: int) -> bytes:
        """Return SEQNO_ADVANCED, empty if a change with this seqno was sent.

        Consumers regard a snapshot as complete at the seqno of its end.
        """
        if not self.producer.options.seqno_advanced or self._last_sent >= seqno:
            return b""
        self._advance_state(StreamEvent.DATA)
        self._last_sent = seqno
        return self._notices.encode_seqno_advanced(seqno)

    def _encode_notice(self, event: StreamEvent) -> bytes:
        """Return the message of an event, empty if the dialect has none."""
        message = self.producer.messages.events.get(event)
        if message is None:
            return b""
        self._advance_state(event)
        return self._notices.encode(message)

    def _encode_end(self, reason: StreamEndReason) -> bytes:
        self._advance_state(StreamEvent.END)
        self.cursor.drop_snapshot()
        return self._notices.encode(self.producer.messages.ends[reason])

    def _advance_state(self, event: StreamEvent) -> None:
        self.state = advance_state(self.state, event, self.vbucket.id, self.producer.dialect)


def _list_filters(stream: ProducerStream) -> Iterator[str]:
    if stream.producer.options.form.keys_only:
        yield "values"
    if stream.encoder.filter.is_limited:
        yield "collections"
    if stream.encoder.pushed_filter is not None:
        yield "changes"
