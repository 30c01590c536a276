"""The producer of a connection that speaks in streams. DCP, UPR and the UPR draft share it.

The dialects differ in the messages around the changes (`dialect_messages`) and in the form of the changes. The next
turn is asked for at once if it can do something, otherwise by what was in the way: BUFFER_ACK, `resume`, a change.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from penstock.errors import KeyExists, OutOfRange, status_error
from penstock.node.answers import Goodbye
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import ChangeProducer
from penstock.node.streams.dialect_messages import DIALECT_MESSAGES
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.stream_encoder import StreamEncoder, WireOptions
from penstock.node.streams.stream_filter import bare_filter
from penstock.node.streams.stream_ring import FlowControl, StreamRing
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, range_error, rollback_point
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.frame_form import FORMS
from penstock.wire.columns.revalue import Content
from penstock.wire.protocol.stream_state import StreamEvent

__all__ = ["StreamProducer"]

MAX_STREAMS = 65536
"""Of one connection: as many as a bucket can have vbuckets. In the draft a vbucket may have any number."""


class StreamProducer(ChangeProducer):
    """What UPR and its draft need; DCP's has more.

    Attributes:
        messages: those around the changes.
        options: what the connection has agreed on.
        streams: by what they are known by: the vbucket, in the draft the request's id.
        flow: how much the peer takes.
        ring: the streams with something to send.
    """

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        super().__init__(session, bucket, dialect, name)
        self.messages = DIALECT_MESSAGES[dialect]
        self.options = WireOptions(replace(FORMS[dialect], datatypes=session.datatypes), Content())
        self.streams: dict[int, ProducerStream] = {}
        self.flow = FlowControl()
        self.ring = StreamRing(session, bucket, self.flow, self.sent, self.drop)
        self._of_vbucket: defaultdict[int, dict[int, ProducerStream]] = defaultdict(dict)

    # Streams

    def open_stream(
        self,
        vbucket: Vbucket,
        key: int,
        opaque: int,
        asked: StreamRequest,
        *,
        last: int | None = None,
        encoder: StreamEncoder | None = None,
        group: bytes = b"",
    ) -> int | None:
        """Open a stream. Returns None, or the seqno that the consumer has to roll back to first.

        Raises OutOfRange, KeyExists, UnknownCollection, AccessDenied, and StatusError for a stream too many; the checks
        stand in kv_engine's order.

        Args:
            key: the stream's own among those of the connection.
            last: the stream ends there, whatever was asked for.
            encoder: what it sends; None for a consumer without collections.
        """
        if error := range_error(asked):
            raise OutOfRange(error)
        if encoder is None:
            encoder = StreamEncoder(bare_filter(self.session, self.bucket))
        if key in self.streams:
            raise KeyExists(f"vbucket {vbucket.id} has a stream")
        high = vbucket.changes.high_seqno
        if (point := rollback_point(vbucket.history.failover_log, high, vbucket.index.purge_seqno, asked)) is not None:
            return point
        end = asked.end_seqno if last is None else last
        if asked.start_seqno > min(end, high):
            raise OutOfRange(f"start seqno {asked.start_seqno}, high seqno {high}, end seqno {end}")
        if len(self.streams) >= MAX_STREAMS:
            raise status_error(Status.ENOMEM, f"{len(self.streams)} streams on one connection, limit {MAX_STREAMS}")
        stream = ProducerStream(self, vbucket, key, opaque, asked, end_seqno=end, encoder=encoder, group=group)
        self.streams[key] = self._of_vbucket[vbucket.id][key] = stream
        self.sent.streams_opened += 1
        self.add(stream)
        return None

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the vbucket's streams: the consumer has to ask where it can go on. Some dialects announce a flush."""
        flushed = event is VbucketEvent.FLUSHED and StreamEvent.FLUSH in self.messages.events
        for stream in tuple(self._of_vbucket[vbucket.id].values()):
            if stream.reason is not None:
                continue
            if flushed:
                stream.flush()
                self._hurry(stream)
            else:
                self.end_stream(stream, StreamEndReason.STATE_CHANGED)

    def end_stream(self, stream: ProducerStream, reason: StreamEndReason) -> None:
        """Let the end be the next that is sent of a stream, once the peer has room for it.

        Source: kv_engine, DcpProducer::step: ends count for flow control too.
        """
        stream.end(reason)
        self._hurry(stream)

    def _hurry(self, stream: ProducerStream) -> None:
        """Let a stream have its turn, whether or not it waits for a change."""
        self.bucket.forget(stream)
        self.add(stream)

    def drop(self, stream: ProducerStream) -> None:
        """Know a stream no more that has ended."""
        self.keep_totals(stream)
        del self.streams[stream.key], self._of_vbucket[stream.vbucket.id][stream.key]
        self.ring.ready.pop(stream, None)

    def stop(self) -> None:
        super().stop()
        for known in (self.streams, self._of_vbucket, self.ring.ready):
            known.clear()

    # Sending

    @property
    def ready(self) -> int:
        return len(self.ring.ready)

    @property
    def unacked(self) -> int:
        return self.flow.unacked

    def is_ready(self, stream: ProducerStream) -> bool:
        return stream in self.ring.ready

    def add(self, stream: ProducerStream) -> None:
        """Let a stream have its turn."""
        self.ring.ready[stream] = None
        self.resume()

    def resume(self) -> None:
        if self.ring.ready and self.flow.room > 0:
            self.turns.ask()

    def take_turn(self) -> None:
        self.ring.turn()
        self.resume()

    def acknowledge(self, nbytes: int) -> None:
        """Take nbytes as dealt with by the peer."""
        self.flow.acknowledge(nbytes)
        self.resume()

    def take_response(self, frame: Frame) -> bytes:
        raise Goodbye(f"response to {opcode_name(frame.opcode)}, which nobody asked for")
