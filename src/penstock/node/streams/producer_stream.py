"""One vbucket's stream, seen from the side that sends it: which piece comes next."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from struct import Struct
from typing import Protocol

from penstock.node.buckets.producer_reports import StreamReport
from penstock.node.buckets.served_bucket import SentCounts, ServedBucket
from penstock.node.streams.dialect_messages import Voice
from penstock.node.streams.stream_encoder import Look, Outlet
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.frame_chunks import Chunk
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.history.rollback import StreamRequest, misses_purged
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import HEADER, HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.columns.hop import hop
from penstock.wire.columns.shapes import EXTRAS_LENGTH_AT
from penstock.wire.messages.dcp import SeqnoAdvanced, SnapshotMarker, SnapshotMarkerV2
from penstock.wire.protocol.stream_state import StreamEvent, StreamState, advance
from penstock.wire.values.collection_key import DEFAULT_COLLECTION

__all__ = ["ProducerStream"]

_MARKER = Struct(HEADER.format + SnapshotMarker.layouts[3].extras.format[1:])
_MARKER_EXTRAS = _MARKER.size - HEADER_BYTES

_LOOK_BACK = 4096
"""How many seqnos are searched for the last one that a consumer sees: a few milliseconds."""


class StreamOwner(Protocol):
    """The producer of streams."""

    dialect: Dialect
    bucket: ServedBucket
    look: Look
    voice: Voice
    sent: SentCounts
    ready: OrderedDict[ProducerStream, None]
    window: int
    advances: bool
    skips_deletions: bool
    tells_purge_seqno: bool

    def add(self, stream: ProducerStream) -> None:
        """Take a stream into the next turn: it has something to send."""


class ProducerStream:
    """A stream that was accepted.

    key: its own among the producer's streams. asked: where the consumer is. end_seqno: the last change it wants; a
    snapshot that cannot end there is sent to its own end all the same. outlet: what it sends of the changes. group: the
    name that the consumer gave the stream, empty without. seqno: the last one of the newest snapshot. reason: why the
    stream is to end with the next piece, None while it goes on.

    Snapshots are opened when the stream's turn comes, so a thousand streams that wait for theirs hold nothing.
    """

    __slots__ = (
        "_backfill_sent",
        "_end_shown",
        "_flushed",
        "_held",
        "_high_at_start",
        "_is_first",
        "_is_plain",
        "_last_sent",
        "_purge_seqno",
        "_resumed",
        "_snapshot",
        "asked",
        "bytes_sent",
        "end_seqno",
        "group",
        "items_sent",
        "key",
        "opaque",
        "outlet",
        "producer",
        "reason",
        "seqno",
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
        outlet: Outlet,
        group: bytes,
    ) -> None:
        self.producer = producer
        self.vbucket = vbucket
        self.key = key
        self.opaque = opaque
        self.asked = asked
        self.seqno = asked.start_seqno
        self.end_seqno = end_seqno
        self.outlet = outlet
        self.group = group
        self.items_sent = 0
        self.bytes_sent = 0
        self.reason: StreamEndReason | None = None
        self.state = StreamState.REQUESTED
        self._advance(StreamEvent.ACCEPTED)
        self._flushed = False
        self._held: Buffer = b""  # frames for which there was no room: there are more bytes in them than in the log
        self._snapshot: Snapshot | None = None
        self._is_first = True  # so is the snapshot, or the next one
        self._is_plain = False  # it has only documents of the default collection
        self._end_shown = 0  # of the snapshot, as the consumer was told
        self._last_sent = 0
        self._high_at_start = vbucket.high_seqno
        self._backfill_sent = 0  # of the changes that were there when the stream was accepted
        self._purge_seqno = vbucket.purge_seqno  # up to here, the consumer needs no tombstone that is gone
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
        if self.producer.window and len(piece) > window:
            offsets, end = hop(piece, 0, len(piece))
            cut = next((offset for offset in offsets if offset >= window), end)
            piece, self._held = piece[:cut], piece[cut:]
        return piece

    def _next(self, max_bytes: int, window: int) -> Buffer | None:
        if self.reason is not None:
            return self._end(self.reason)
        if self._snapshot is not None:
            chunk = self._snapshot.read(self.opaque, max_bytes, window)
            if chunk.frames:
                return self._changes(chunk)
            self._snapshot = None
            if said := self._advanced() or self._say(StreamEvent.SNAPSHOT_END):
                return said
        elif self.state is StreamState.ACCEPTED:
            return self._say(StreamEvent.START)
        elif self._flushed:
            self._flushed = False
            return self._say(StreamEvent.FLUSH)
        if self.seqno < self.end_seqno and (said := self._open_snapshot()):
            return said
        return self._end(StreamEndReason.OK) if self.seqno >= self.end_seqno else None

    def end(self, reason: StreamEndReason) -> None:
        """Let the end be the next that is sent, also before frames for which there was no room."""
        self.reason = reason
        self._snapshot = None
        self._held = b""

    def close(self) -> None:
        """End without a word: the consumer asked for it."""
        self._advance(StreamEvent.CLOSED)
        self._snapshot = None

    def flush(self) -> None:
        """Go on with the vbucket's new history, from its beginning, once the flush has been said."""
        self._snapshot = self._resumed = None
        self._held = b""
        self._flushed = True
        self.seqno = 0
        self._purge_seqno = self.vbucket.purge_seqno

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
            filters=tuple(self._left_out()),
            details={
                "vb_uuid": asked.vbuuid,
                "snap_start_seqno": asked.snap_start,
                "snap_end_seqno": asked.snap_end,
                "last_sent_seqno": self._last_sent,
                "last_sent_snap_end_seqno": self.seqno,
                "last_read_seqno": self._last_sent,
                "backfill_sent": self._backfill_sent,
                "memory_phase": self.items_sent - self._backfill_sent,
                # As 3.x called them; the suites of that time wait for these.
                "backfilled": self._backfill_sent,
                "memory": self.items_sent - self._backfill_sent,
                "ready_queue_memory": len(self._held),
                "items_ready": self in self.producer.ready,
                **({"group": self.group.decode("utf-8", "backslashreplace")} if self.group else {}),
                **({"sid": self.outlet.stream_id} if self.outlet.stream_id is not None else {}),
            },
        )

    def _left_out(self) -> Iterator[str]:
        if self.producer.look.form.keys_only:
            yield "values"
        if self.outlet.chosen.is_asked_for:
            yield "collections"

    def _changes(self, chunk: Chunk) -> Buffer:
        """Return what is sent of some changes. Where nothing is left that could be, the stream is to end with them."""
        producer, outlet = self.producer, self.outlet
        skips = producer.skips_deletions and self._is_first and not self.asked.start_seqno
        sent = outlet.send(chunk, producer.look, is_plain=self._is_plain, skip_deletions=skips)
        if sent.items:
            self._advance(StreamEvent.DATA)
            self._last_sent = sent.seqno
            self.items_sent += sent.items
            if self._is_first and self.asked.start_seqno < self._high_at_start:
                self._backfill_sent += sent.items
            producer.sent.items += sent.items
        if outlet.chosen.is_empty:
            self.reason = StreamEndReason.FILTER_EMPTY if outlet.chosen.tells_events else StreamEndReason.OK
        return sent.data

    def _open_snapshot(self) -> bytes:
        """Return what begins the next snapshot, nothing if there is none, or the consumer would see nothing of it.

        Return the stream's end if the snapshot would lack tombstones that the consumer needs. Source: kv_engine
        backfill_by_seqno_disk.cc.
        """
        if self._lacks_tombstones():
            return self._end(StreamEndReason.ROLLBACK)
        self._purge_seqno = self.vbucket.purge_seqno
        start, end = self.seqno + 1, self.end_seqno
        if self._resumed is not None:
            start, end = min(start, self._resumed[0]), max(end, self._resumed[1])
        is_plain = self.vbucket.ledger is None
        snapshot = self.vbucket.snapshot(self.seqno, end)
        shown = snapshot.end_seqno
        if not is_plain and not self.producer.advances and shown > self.seqno:
            if DEFAULT_COLLECTION not in self.vbucket.collections:
                self.end_seqno = self.seqno  # what there is of it is going to be erased, and nothing can follow
                return b""
            snapshot, shown = self._shown(snapshot)
        before, self.seqno = self.seqno, snapshot.end_seqno
        if shown <= before:
            return b""
        self._is_first = self._resumed is not None
        self._resumed = None
        self._snapshot, self._is_plain, self._end_shown = snapshot, is_plain, shown
        if said := self._say(StreamEvent.SNAPSHOT_START):
            return said
        self._advance(StreamEvent.MARKER)
        return self._marker(start, shown, snapshot.flags)

    def _lacks_tombstones(self) -> bool:
        """Tell whether a compaction has dropped tombstones behind the newest snapshot, before the stream sent them."""
        if self.asked.ignore_purged:
            return False
        return misses_purged(self.vbucket.purge_seqno, self._purge_seqno, self.seqno)

    def _shown(self, snapshot: Snapshot) -> tuple[Snapshot, int]:
        """Return a snapshot like this one, and the last seqno that the consumer sees of it; its start, if it sees none.

        Who knows no collections cannot be told that something else is at its end. Where that one is hard to find, the
        snapshot goes on to one that is known.
        """
        vbucket, start, end = self.vbucket, snapshot.start_seqno, snapshot.end_seqno
        high = vbucket.collection_high_seqno(DEFAULT_COLLECTION)
        if high <= end:
            return snapshot, max(high, start)
        last = self._last_shown(max(start, end - _LOOK_BACK), end)
        if last or end - _LOOK_BACK <= start:
            return snapshot, max(last, start)
        longer = vbucket.snapshot(start, high)
        return longer, longer.end_seqno

    def _last_shown(self, start: int, end: int) -> int:
        """Return the last seqno of a range that the consumer sees, 0 if there is none."""
        index = self.vbucket.index
        for seqno in range(end, start, -1):
            found = index.find(seqno)
            if found is not None:
                (rows, row), buffer = found, found[0].buffer
                begin = rows.offsets_at[row]
                owner = buffer[begin + HEADER_BYTES + buffer[begin + EXTRAS_LENGTH_AT]]
                if owner == DEFAULT_COLLECTION and not 0 < rows.superseded_at[row] <= end:
                    return seqno
        return 0

    def _marker(self, start: int, end: int, flags: int) -> bytes:
        """Return the marker of a snapshot: version 2.2 where it was agreed on, for the first one and for backfills.

        kv_engine sends version 2.0 to replicas with synchronous replication alone, which this node does not offer.
        """
        vbucket, opaque, framing = self.vbucket.id, self.opaque, self.outlet.framing
        if self.producer.tells_purge_seqno and (self._is_first or flags & SnapshotFlag.DISK):
            return SnapshotMarkerV2(
                vbucket=vbucket,
                opaque=opaque,
                framing=framing,
                version=2,
                start_seqno=start,
                end_seqno=end,
                flags=flags,
                max_visible_seqno=end,
                purge_seqno=self.vbucket.purge_seqno,
                high_prepared_seqno=0,
            ).encode()
        if framing:
            return SnapshotMarker(
                vbucket=vbucket, opaque=opaque, framing=framing, start_seqno=start, end_seqno=end, flags=flags
            ).encode()
        return _MARKER.pack(
            *(Magic.REQUEST, Opcode.DCP_SNAPSHOT_MARKER, 0, _MARKER_EXTRAS, 0, vbucket),
            *(_MARKER_EXTRAS, opaque, 0, start, end, flags),
        )

    def _advanced(self) -> bytes:
        """Return what says that there is nothing more up to the snapshot's end, nothing where its last change was sent.

        Consumers take a snapshot as complete with the seqno at which it ends.
        """
        if not self.producer.advances or self._last_sent >= self._end_shown:
            return b""
        self._advance(StreamEvent.DATA)
        self._last_sent = self._end_shown
        return SeqnoAdvanced(
            vbucket=self.vbucket.id, opaque=self.opaque, framing=self.outlet.framing, by_seqno=self._end_shown
        ).encode()

    def _say(self, event: StreamEvent) -> bytes:
        """Return the message of an event, nothing where the dialect has none."""
        message = self.producer.voice.says.get(event)
        if message is None:
            return b""
        self._advance(event)
        return message(vbucket=self.vbucket.id, opaque=self.opaque, framing=self.outlet.framing).encode()

    def _end(self, reason: StreamEndReason) -> bytes:
        self._advance(StreamEvent.END)
        self._snapshot = None
        end = self.producer.voice.ends[reason]
        return end(vbucket=self.vbucket.id, opaque=self.opaque, framing=self.outlet.framing).encode()

    def _advance(self, event: StreamEvent) -> None:
        self.state = advance(self.state, event, self.vbucket.id, self.producer.dialect)
