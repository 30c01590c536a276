"""The producer of a connection with streams of single vbuckets: DCP, UPR and the UPR draft share it.

The dialects differ in the form of the changes, and in the messages around them (`dialect_messages`). The next turn is
scheduled at once if it can send something. Otherwise BUFFER_ACK, `resume` or a change schedules it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from penstock.errors import KeyExists, OutOfRange, make_status_error
from penstock.names import escape_bytes
from penstock.node.answers import CloseConnection
from penstock.node.buckets.rollback_log import DemandedRollback
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import ChangeProducer
from penstock.node.streams.dialect_messages import DIALECT_MESSAGES
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.node.streams.stream_filter import make_default_filter
from penstock.node.streams.stream_ring import FlowControl, StreamRing
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, find_range_error, find_rollback_point
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.frame_form import FORMS
from penstock.wire.columns.revalue import ValueOptions
from penstock.wire.protocol.stream_state import StreamEvent

MAX_STREAMS = 65536
"""Streams of one connection: as many as a bucket can have vbuckets. In the draft, a vbucket may have many streams."""


class StreamProducer(ChangeProducer):
    """The producer of UPR and of its draft, and the base of the DCP producer.

    Attributes:
        messages: the messages around the changes.
        options: the wire options of the connection.
        streams: the streams by key: the vbucket; in the draft, the id of the request.
        flow: the flow control of the connection.
        ring: the streams that have something to send.
    """

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        super().__init__(session, bucket, dialect, name)
        self.messages = DIALECT_MESSAGES[dialect]
        self.options = WireOptions(replace(FORMS[dialect], datatypes=session.datatypes), ValueOptions())
        self.streams: dict[int, ProducerStream] = {}
        self.flow = FlowControl()
        self.ring = StreamRing(session, bucket, self.flow, self.sent, self.remove_stream)
        self._streams_by_vbucket: defaultdict[int, dict[int, ProducerStream]] = defaultdict(dict)

    @property
    def sends_history(self) -> bool:
        """Whether snapshots have older versions: the consumer accepts them, and the bucket keeps them."""
        return self.options.history and self.bucket.store.settings.keeps_history

    # Streams

    def open_stream(
        self,
        vbucket: Vbucket,
        key: int,
        opaque: int,
        request: StreamRequest,
        *,
        last_seqno: int | None = None,
        encoder: StreamEncoder | None = None,
        group: bytes = b"",
    ) -> int | None:
        """Open a stream. The checks have kv_engine's order.

        Args:
            vbucket: the vbucket.
            key: the key of the stream among the streams of the connection.
            opaque: the opaque of the stream's messages.
            request: the position and range of the consumer.
            last_seqno: ends the stream before the requested end.
            encoder: filters and encodes the changes; None for a consumer without collections.
            group: the name that the consumer gives the stream.

        Returns:
            None, or the seqno that the consumer has to roll back to.

        Raises:
            OutOfRange: the seqnos of the request contradict each other, or lie above the vbucket's.
            KeyExists: a stream has the key already.
            UnknownCollection: the consumer has no collections, and the default collection was dropped.
            AccessDenied: the user may not stream the changes.
            StatusError: the connection has too many streams.
        """
        if error := find_range_error(request):
            raise OutOfRange(error)
        if encoder is None:
            encoder = StreamEncoder(make_default_filter(self.session, self.bucket))
        if key in self.streams:
            raise KeyExists(f"vbucket {vbucket.id} has a stream")
        high = vbucket.changes.high_seqno
        if (
            point := find_rollback_point(vbucket.history.failover_log, high, vbucket.index.purge_seqno, request)
        ) is not None:
            self.sent.rollbacks += 1
            self._record_rollback(vbucket, request, point)
            return point
        end = request.end_seqno if last_seqno is None else last_seqno
        if request.start_seqno > min(end, high):
            raise OutOfRange(f"start seqno {request.start_seqno}, high seqno {high}, end seqno {end}")
        if len(self.streams) >= MAX_STREAMS:
            raise make_status_error(
                Status.ENOMEM, f"{len(self.streams)} streams on one connection, limit {MAX_STREAMS}"
            )
        stream = ProducerStream(self, vbucket, key, opaque, request, end_seqno=end, encoder=encoder, group=group)
        self.streams[key] = self._streams_by_vbucket[vbucket.id][key] = stream
        self.sent.streams_opened += 1
        self.schedule_stream(stream)
        return None

    def _record_rollback(self, vbucket: Vbucket, request: StreamRequest, seqno: int) -> None:
        self.bucket.rollbacks.add(
            DemandedRollback(
                at=self.session.node.machine.time(),
                consumer=self.name.decode("utf-8", "backslashreplace"),
                dialect=self.dialect.value,
                user=self.user,
                vbucket=vbucket.id,
                vbuuid=request.vbuuid,
                start_seqno=request.start_seqno,
                snap_start=request.snap_start,
                snap_end=request.snap_end,
                seqno=seqno,
                high_seqno=vbucket.changes.high_seqno,
                purge_seqno=vbucket.index.purge_seqno,
                failover_log=vbucket.history.failover_log,
            )
        )

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the vbucket's streams, since their consumers have to request a new position.

        Some dialects announce a flush instead, and continue. A takeover that has made the vbucket dead ends no stream
        but another takeover.
        """
        flushed = event is VbucketEvent.FLUSHED and StreamEvent.FLUSH in self.messages.events
        for stream in tuple(self._streams_by_vbucket[vbucket.id].values()):
            if stream.reason is not None:
                continue
            if event is VbucketEvent.HANDED_OVER and (stream.takeover is None or stream.takeover.has_handed_over):
                continue
            if flushed:
                stream.flush()
                self.schedule_now(stream)
            else:
                self.end_stream(stream, StreamEndReason.STATE_CHANGED)

    def end_stream(self, stream: ProducerStream, reason: StreamEndReason) -> None:
        """End a stream with its next message, once the window has room.

        Source: kv_engine, DcpProducer::step: stream ends count for flow control too.
        """
        stream.end(reason)
        self.schedule_now(stream)

    def schedule_now(self, stream: ProducerStream) -> None:
        """Schedule a stream, even if it waits for a change."""
        self.bucket.remove_waiting_stream(stream)
        self.schedule_stream(stream)

    def remove_stream(self, stream: ProducerStream) -> None:
        """Forget a stream that has ended."""
        self.add_totals(stream)
        del self.streams[stream.key], self._streams_by_vbucket[stream.vbucket.id][stream.key]
        self.ring.ready.pop(stream, None)

    def stop(self) -> None:
        """Forget all streams, since the connection ends."""
        super().stop()
        for known in (self.streams, self._streams_by_vbucket, self.ring.ready):
            known.clear()

    # Sending

    @property
    def ready_count(self) -> int:
        """Number of streams that have something to send now."""
        return len(self.ring.ready)

    @property
    def unacked(self) -> int:
        """Bytes that the peer has not acknowledged."""
        return self.flow.unacked

    @property
    def is_blocked(self) -> bool:
        """Whether a stream is ready, and the peer's window is full."""
        return bool(self.ring.ready) and self.flow.room <= 0

    def is_ready(self, stream: ProducerStream) -> bool:
        """Return whether a stream waits for its turn."""
        return stream in self.ring.ready

    def schedule_stream(self, stream: ProducerStream) -> None:
        """Add a stream to the next turn."""
        self.ring.ready[stream] = None
        self.resume()

    def resume(self) -> None:
        """Schedule a turn, if a stream is ready and the window has room."""
        if self.ring.ready and self.flow.room > 0:
            self.turns.schedule()

    def run_turn(self) -> None:
        """Send some of each ready stream."""
        self.ring.run_turn()
        self.resume()

    def acknowledge(self, nbytes: int) -> None:
        """Free some bytes of the window."""
        self.flow.acknowledge(nbytes, escape_bytes(self.name))
        self.resume()

    def handle_response(self, frame: Frame) -> bytes:
        """Refuse the response, since no message of these dialects is answered."""
        raise CloseConnection(f"response to {name_opcode(frame.opcode)}, which answers no request")
