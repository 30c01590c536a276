"""The consumer of a DCP connection: its settings, its streams and its flow control.

It reads and writes no socket: each method returns the bytes to send.
"""

from __future__ import annotations

import logging
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any, Final

from penstock.errors import KeyExists, KeyNotFound, NotMyVbucket, RemoteProtocolError, StatusError
from penstock.names import escape_bytes
from penstock.node.answers import CloseConnection
from penstock.node.buckets.endpoint_reports import EndpointLoad, StreamReport, StreamRole
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.replication.control_negotiation import BUFFER_BYTES, ControlNegotiation
from penstock.node.replication.passive_stream import PassiveStream
from penstock.node.replication.received_run import store_run
from penstock.node.session.session import Session
from penstock.node.streams.stream_endpoint import StreamEndpoint
from penstock.node.transport.deadline_timer import DeadlineTimer
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.vbucket_history import CopyFeed
from penstock.wire.codec.constants import Dialect, VbucketState
from penstock.wire.codec.frame import Frame, name_opcode
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.heads import Run
from penstock.wire.messages.dcp import AddStream, AddStreamReply, BufferAck, CloseStream, Control, unpack_rollback
from penstock.wire.messages.kv import unpack_failover_log
from penstock.wire.protocol.stream_state import StreamState

logger = logging.getLogger("penstock.node")

_ACK_BYTES: Final = BUFFER_BYTES // 5
"""The consumer acknowledges a fifth of the buffer at once. Source: kv_engine, dcp/flow-control.cc."""


_SEQNO_PLACES: Final[Mapping[int, slice]] = {
    **dict.fromkeys((Opcode.DCP_MUTATION, Opcode.DCP_DELETION, Opcode.DCP_EXPIRATION), slice(8)),
    **dict.fromkeys((Opcode.DCP_PREPARE, Opcode.DCP_SYSTEM_EVENT), slice(8)),
    **dict.fromkeys((Opcode.DCP_COMMIT, Opcode.DCP_ABORT), slice(8, 16)),
}
"""The messages of changes, and the place of their seqnos in the extras."""


class DcpConsumer(StreamEndpoint):
    """The consumer of a connection after OPEN without PRODUCER.

    Attributes:
        flags: the flags of OPEN.
        streams: the streams by vbucket.
        negotiation: the settings of the connection.
        feed: the connection with the time of its newest message, which shows that the peer is alive.
        received_bytes: bytes of all stream messages.
        acked_bytes: bytes that were acknowledged.
    """

    role = StreamRole.CONSUMER

    def __init__(
        self, session: Session, bucket: ServedBucket, name: bytes, flags: int, consumer_name: str = ""
    ) -> None:
        self.flags = flags
        self.streams: dict[int, PassiveStream] = {}
        self._closed: dict[int, int] = {}  # by vbucket: the opaque of a stream that the producer has not ended yet
        self.negotiation = ControlNegotiation(has_collections=session.collections, consumer_name=consumer_name)
        self.received_bytes = self.acked_bytes = 0
        self._opaques = count(1)
        self.feed = CopyFeed(session.node.machine.monotonic_ns)
        self._watched_ns = 0
        self._is_refused = False
        self._silence = DeadlineTimer(session.node.loop, partial(session.output.run_guarded, self._check_peer))
        super().__init__(session, bucket, Dialect.DCP, name)
        self._on_persisted = partial(_acknowledge_persisted, self)
        bucket.sync_writes.on_persisted[self._on_persisted] = None

    # Streams

    def add_stream(self, request: AddStream) -> bytes:
        """Request a stream from the peer. The reply follows when the peer has answered.

        Returns:
            The bytes to send: the first setting, the stream request, or nothing while settings are negotiated.

        Raises:
            NotMyVbucket: the vbucket does not exist, or is active.
            KeyExists: the vbucket has a stream, on any connection. Two would store each change
                twice. Source: kv_engine, DcpConnMap::addPassiveStream.
        """
        vbucket = self.bucket.store.find_existing(request.vbucket)
        if vbucket.history.state is VbucketState.ACTIVE:
            raise NotMyVbucket(f"vbucket {vbucket.id} is active, expected a replica", vbucket=vbucket.id)
        for other in self.bucket.listeners:
            if isinstance(other, DcpConsumer) and vbucket.id in other.streams:
                raise KeyExists(f"vbucket {vbucket.id} has a stream of {escape_bytes(other.name)}")
        stream = PassiveStream(
            self.bucket,
            self,
            vbucket,
            opaque=next(self._opaques),
            flags=request.flags,
            request_opaque=request.opaque,
        )
        self.streams[vbucket.id] = stream
        self._closed.pop(vbucket.id, None)
        if not self.negotiation.has_started:
            return self._request_setting()
        return _encode_request(self, stream) if self.negotiation.is_complete else b""

    def close_stream(self, number: int) -> None:
        """Close the stream of a vbucket, once or several times. Raises StatusError if there is none.

        The producer may have messages under way, up to the end of the stream. They have no effect.
        """
        stream = self.streams.pop(number, None)
        if stream is not None:
            self._closed[number] = stream.opaque
            _end_feed(self, stream)
        elif number not in self._closed:
            raise self._make_missing_error(f"vbucket {number} has no stream")

    def is_under_way(self, frame: Frame) -> bool:
        """Return whether a message belongs to a stream that was closed here. Source: kv_engine, MB-34951."""
        if self._closed.get(frame.specific) != frame.opaque:
            return False
        if frame.opcode == Opcode.DCP_STREAM_END:
            del self._closed[frame.specific]
        return True

    def find_stream(self, number: int, opaque: int) -> PassiveStream:
        """Return the stream of a message. Raises StatusError if there is none, or if it has another opaque."""
        stream = self.streams.get(number)
        if stream is None or stream.state is None:
            raise self._make_missing_error(f"vbucket {number} has no stream")
        if stream.opaque != opaque:
            text = f"vbucket {number}: opaque {opaque}, the stream has {stream.opaque}"
            raise (
                StatusError(text, status=Status.OPAQUE_NO_MATCH)
                if self.negotiation.has_v7_statuses
                else KeyExists(text)
            )
        return stream

    def has_newer_stream(self, number: int, opaque: int) -> bool:
        """Return whether a vbucket has a stream with another opaque. Source: kv_engine, DcpConsumer::streamEnd."""
        stream = self.streams.get(number)
        return stream is not None and stream.state is not None and stream.opaque != opaque

    def end_stream(self, stream: PassiveStream, reason: int) -> None:
        """Forget a stream that the producer has ended."""
        del self.streams[stream.vbucket.id]
        _end_feed(self, stream)
        logger.info("vbucket %d: the producer has ended the stream, reason %d", stream.vbucket.id, reason)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """Close the stream of a vbucket that another client has promoted, emptied or deleted.

        The producer learns it too. It would otherwise wait for the end of a stream that no client reads, also after
        the vbucket has become a replica again.
        """
        is_kept = event is VbucketEvent.STATE_CHANGED and vbucket.history.state is not VbucketState.ACTIVE
        if is_kept or (stream := self.streams.pop(vbucket.id, None)) is None:
            return
        _end_feed(self, stream)
        logger.info("vbucket %d: its stream ends, since another client has changed the vbucket", vbucket.id)
        if stream.state is not None:
            self.session.output.write(CloseStream(vbucket=vbucket.id, opaque=next(self._opaques)).encode())

    def _make_missing_error(self, text: str) -> StatusError:
        return (
            StatusError(text, status=Status.DCP_STREAM_NOT_FOUND)
            if self.negotiation.has_v7_statuses
            else KeyNotFound(text)
        )

    def record_refusal(self, frame: Frame) -> bool:
        """End the stream of a refused change. A later change would hide that it is missing.

        The vbucket stays at the seqno before, so another stream begins with the same change.

        Returns:
            Whether a stream has ended.
        """
        place, stream = _SEQNO_PLACES.get(frame.opcode), self.streams.get(frame.specific)
        if place is None or stream is None or stream.opaque != frame.opaque:
            return False
        seqno = int.from_bytes(frame.extras[place], "big")
        if seqno <= stream.vbucket.changes.high_seqno:  # it has the change, or a newer one of the document
            return False
        del self.streams[frame.specific]
        _end_feed(self, stream)
        name = name_opcode(frame.opcode)
        logger.warning("vbucket %d: its stream ends, since %s of seqno %d is refused", frame.specific, name, seqno)
        return True

    # Responses of the peer

    def handle_response(self, frame: Frame) -> bytes:
        """Handle the peer's response to a request of the consumer.

        Returns:
            The bytes to send.

        Raises:
            CloseConnection: the consumer has sent no such request, or the response is malformed.
        """
        self.feed.record_message()
        if frame.opcode == Opcode.DCP_CONTROL and self.negotiation.is_requested(frame.opaque):
            self.negotiation.handle_answer(frame.specific)
            return self._request_setting()
        if frame.opcode == Opcode.DCP_STREAM_REQ:
            for stream in self.streams.values():
                if stream.opaque == frame.opaque and stream.state is StreamState.REQUESTED:
                    return self._handle_stream_answer(stream, frame)
        # kv_engine answers no BUFFER_ACK, but some proxies do. A stream that was closed here may have ended there.
        if frame.opcode in (Opcode.DCP_BUFFER_ACK, Opcode.DCP_CLOSE_STREAM):
            return b""
        raise CloseConnection(f"response to {name_opcode(frame.opcode)}, which this consumer has not requested")

    def _request_setting(self) -> bytes:
        """Return the request of the next setting. After the last one, return the requests of all waiting streams."""
        opaque = next(self._opaques)
        setting = self.negotiation.take_next(opaque)
        if setting is not None:
            return Control(opaque=opaque, key=setting[0], value=setting[1]).encode()
        if self.negotiation.has_noops:
            self._watch_peer()
        waiting = [stream for stream in self.streams.values() if stream.state is None]
        return b"".join(_encode_request(self, stream) for stream in waiting)

    def _handle_stream_answer(self, stream: PassiveStream, frame: Frame) -> bytes:
        try:
            if frame.specific == Status.SUCCESS:
                log = unpack_failover_log(frame.value)
                if not log:
                    raise CloseConnection(f"vbucket {stream.vbucket.id}: accepted with an empty failover log")
                stream.accept(log, acknowledges=self.negotiation.has_sync_writes)
                stream.vbucket.history.feed = self.feed
            elif frame.specific == Status.ROLLBACK and stream.roll_back(unpack_rollback(frame.value)):
                return _encode_request(self, stream)
            else:
                del self.streams[stream.vbucket.id]
        except RemoteProtocolError as error:
            raise CloseConnection(str(error)) from None
        reply = AddStreamReply(opaque=stream.request_opaque, status=frame.specific, stream_opaque=stream.opaque)
        return reply.encode() + stream.acknowledge()

    # Changes, flow control, and the end

    def store_run(self, run: Run) -> tuple[int, bytes]:
        """Store the changes of a run, as far as they need no answer.

        Args:
            run: consecutive data messages.

        Returns:
            The number of stored changes, and the bytes to send: acknowledgements of snapshots and of bytes.
        """
        first = int(run.offsets[0])
        due_at = first + _ACK_BYTES - (self.received_bytes - self.acked_bytes)
        # The message with which an acknowledgement is due is the last one.
        count = bisect_left(run.offsets, due_at, 1)
        counted = run._replace(offsets=run.offsets[:count], end=_find_end(run, count))
        stored, replies = store_run(self.session, self.streams, counted)
        return stored, replies + (self.count_bytes(_find_end(run, stored) - first) if stored else b"")

    def count_bytes(self, nbytes: int) -> bytes:
        """Count the bytes of a stream message: those on the wire.

        Returns:
            The acknowledgement that is due, or nothing.
        """
        self.feed.record_message()
        self._is_refused = False
        self.received_bytes += nbytes
        unacked = self.received_bytes - self.acked_bytes
        if unacked < _ACK_BYTES:
            return b""
        self.acked_bytes = self.received_bytes
        return BufferAck(opaque=next(self._opaques), nbytes=unacked).encode()

    def log_refusal(self, error: Exception) -> None:
        """Log that the bucket refuses a change: once, until it accepts one."""
        if not self._is_refused:
            name = self.bucket.store.name
            logger.warning("bucket %s refuses changes of %s: %s", name, self.session.peer, error)
        self._is_refused = True

    def _watch_peer(self) -> None:
        self._watched_ns = self.feed.last_ns
        self._silence.set(self.session.node.idle_timeout)

    def _check_peer(self) -> None:
        """Abort the connection if the peer has been silent for the node's idle timeout: its NOOPs are missing."""
        if self.feed.last_ns == self._watched_ns:
            self.abort(f"no message of the producer for {self.session.node.idle_timeout:g} s")
        else:
            self._watch_peer()

    def resume(self) -> None:
        """Do nothing: a consumer sends only answers and acknowledgements."""

    def stop(self) -> None:
        """Forget the streams, since the connection ends. The vbuckets keep their changes."""
        self._silence.cancel()
        self.bucket.sync_writes.on_persisted.pop(self._on_persisted, None)
        super().stop()
        self.streams.clear()

    def load(self) -> EndpointLoad:
        """Return no work: a consumer has nothing to send."""
        return EndpointLoad()

    def list_streams(self) -> tuple[StreamReport, ...]:
        """Return the reports of the streams."""
        return tuple(stream.report() for stream in self.streams.values())

    def details(self) -> dict[str, Any]:
        """Return the settings and the flow control, for STAT."""
        return {
            "flags": self.flags,
            "noop_enabled": self.negotiation.has_noops,
            "max_buffer_bytes": BUFFER_BYTES,
            "total_received_bytes": self.received_bytes,
            "total_acked_bytes": self.acked_bytes,
            "unacked_bytes": self.received_bytes - self.acked_bytes,
        }


def _encode_request(consumer: DcpConsumer, stream: PassiveStream) -> bytes:
    return stream.make_request(has_cache_transfer=consumer.negotiation.has_cache_transfer).encode()


def _end_feed(consumer: DcpConsumer, stream: PassiveStream) -> None:
    """Record that a stream has ended. Later messages of its connection are about other vbuckets."""
    history = stream.vbucket.history
    if history.feed is consumer.feed:
        history.feed = replace(consumer.feed)


def _find_end(run: Run, count: int) -> int:
    """Return where the first `count` messages of a run end."""
    return int(run.offsets[count]) if count < len(run.offsets) else run.end


def _acknowledge_persisted(consumer: DcpConsumer) -> None:
    """Acknowledge the prepares that a commit to disk has made safe."""
    for stream in consumer.streams.values():
        if acknowledgement := stream.acknowledge():
            consumer.session.output.write(acknowledgement)
