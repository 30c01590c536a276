"""The producer of a connection that speaks in streams: its ring of them, and flow control.

Streams that have something to send stand in a ring. A *turn* takes them one after the other, some of each, until it
has sent its share, the peer's window is full, or the transport has more than it can get rid of; then the event loop
serves others. The next turn is asked for at once if it can do something, otherwise by what was in the way: BUFFER_ACK,
`resume`, a change.

DCP, UPR and the UPR draft share all of this. What they say differently is in their voice and form.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import replace

from penstock.errors import KeyExists, OutOfRange, status_error
from penstock.node.answers import Goodbye
from penstock.node.buckets.producer_reports import Load, StreamReport
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import CHUNK_BYTES, TURN_BYTES, WRITE_BYTES, ChangeProducer
from penstock.node.streams.dialect_messages import VOICES
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.stream_encoder import Look, Outlet
from penstock.node.streams.stream_filter import bare_filter
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest, range_error, rollback_point
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Buffer, Frame, opcode_name
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.columns.frame_form import FORMS
from penstock.wire.columns.revalue import Content
from penstock.wire.protocol.stream_state import StreamEvent, StreamState

__all__ = ["Producer"]

_VISIT_BYTES = 8 * 1024  # what it costs to look at a stream, in bytes sent
_SIFT_BYTES = 128 * 1024  # what it costs to look at changes of which none is sent, in bytes sent
_TURN_SECONDS = 0.005
_NO_WINDOW = 2**62

MAX_STREAMS = 65536
"""Of one connection: as many as a bucket can have vbuckets. In the draft a vbucket may have any number."""


class Producer(ChangeProducer):
    """What UPR and its draft need; DCP's has more.

    streams: by what they are known by: the vbucket, in the draft the request's id. ready: those with something to
    send. window: bytes that the peer takes before it acknowledges, 0 for any number. unacked: how many of them it has
    not acknowledged, acked: how many it has. turns: how many there were. look: what the changes look like. advances:
    it can be told of a snapshot's end without a change; tells_purge_seqno: the first marker of a stream does;
    skips_deletions: the first snapshot of a history leaves them out.
    """

    def __init__(self, session: Session, bucket: ServedBucket, dialect: Dialect, name: bytes = b"") -> None:
        super().__init__(session, bucket, dialect, name)
        self.voice = VOICES[dialect]
        self.look = Look(replace(FORMS[dialect], datatypes=session.datatypes), Content())
        self.advances = self.tells_purge_seqno = self.skips_deletions = False
        self.sent = bucket.sent[dialect]
        self.streams: dict[int, ProducerStream] = {}
        self.ready: OrderedDict[ProducerStream, None] = OrderedDict()
        self.turns = 0
        self.unacked = 0
        self.acked = 0
        self.window = 0
        self.sequential = False
        self._loop = session.node.loop
        self._turn_asked = False
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
        outlet: Outlet | None = None,
        group: bytes = b"",
    ) -> int | None:
        """Open a stream. Returns None, or the seqno that the consumer has to roll back to first.

        last: it ends there, whatever was asked for. outlet: what it sends; None: what who knows no collections sees.
        Raises OutOfRange, KeyExists, UnknownCollection, AccessDenied, and StatusError for a stream too many; the checks
        stand in kv_engine's order.
        """
        if error := range_error(asked):
            raise OutOfRange(error)
        if outlet is None:
            outlet = Outlet(bare_filter(self.session, self.bucket))
        if key in self.streams:
            raise KeyExists(f"vbucket {vbucket.id} has a stream")
        high = vbucket.high_seqno
        point = rollback_point(vbucket.failover_log, high, vbucket.purge_seqno, asked)
        if point is not None:
            return point
        end = asked.end_seqno if last is None else last
        if asked.start_seqno > min(end, high):
            raise OutOfRange(f"start seqno {asked.start_seqno}, high seqno {high}, end seqno {end}")
        if len(self.streams) >= MAX_STREAMS:
            raise status_error(Status.ENOMEM, f"{len(self.streams)} streams on one connection, limit {MAX_STREAMS}")
        stream = ProducerStream(self, vbucket, key, opaque, asked, end_seqno=end, outlet=outlet, group=group)
        self.streams[key] = self._of_vbucket[vbucket.id][key] = stream
        self.sent.streams_opened += 1
        self.add(stream)
        return None

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the vbucket's streams: the consumer has to find out how things stand now. A flush may be said in them."""
        flushed = event is VbucketEvent.FLUSHED and StreamEvent.FLUSH in self.voice.says
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
        self.keep_totals(stream.items_sent, stream.bytes_sent)
        del self.streams[stream.key], self._of_vbucket[stream.vbucket.id][stream.key]
        self.ready.pop(stream, None)

    def stop(self) -> None:
        super().stop()
        for stream in self.streams.values():
            self.bucket.forget(stream)
        for known in (self.streams, self._of_vbucket, self.ready):
            known.clear()

    # What STAT shows

    def load(self) -> Load:
        remaining = sum(stream.remaining for stream in self.streams.values())
        return Load(len(self.streams), len(self.ready), remaining, self.unacked, self.turns)

    def stream_reports(self) -> Iterator[StreamReport]:
        return (stream.report() for stream in self.streams.values())

    def take_response(self, frame: Frame) -> bytes:
        raise Goodbye(f"response to {opcode_name(frame.opcode)}, which nobody asked for")

    # Sending

    @property
    def room(self) -> int:
        """How many bytes the peer can still take. A frame may go out while this is above 0."""
        return self.window - self.unacked if self.window else _NO_WINDOW

    def add(self, stream: ProducerStream) -> None:
        """Let a stream have its turn."""
        self.ready[stream] = None
        self.resume()

    def resume(self) -> None:
        """Ask for a turn, if it could do something."""
        if self.ready and not self._turn_asked and not self.session.output.paused and self.room > 0:
            self._turn_asked = True
            self._loop.call_soon(self.session.output.guarded, self._turn)

    def acknowledge(self, nbytes: int) -> None:
        """Take nbytes as dealt with by the peer; more than there are count as all.

        `acked` is what the peer said. Source: kv_engine producer.cc, BufferLog::acknowledge.
        """
        if self.window:
            self.acked += nbytes
        self.unacked -= min(nbytes, self.unacked)
        self.resume()

    def _turn(self) -> None:
        self._turn_asked = False
        self.turns += 1
        share, deadline = TURN_BYTES, self._loop.time() + _TURN_SECONDS
        while self.ready and share > 0 and self.room > 0 and not self.session.output.paused:
            stream, _ = self.ready.popitem(last=False)
            share -= self._visit(stream) + _VISIT_BYTES
            if self._loop.time() >= deadline:  # changes that are looked at one by one take long
                break
        self.resume()

    def _visit(self, stream: ProducerStream) -> int:
        """Send some of a stream and put it where it belongs then. Returns what that cost, in bytes sent."""
        pieces: list[Buffer] = []
        nbytes = cost = 0
        while cost < WRITE_BYTES and self.room > 0:
            piece = stream.pull(CHUNK_BYTES, self.room)
            if piece is None:
                self.bucket.wait(stream)
                break
            pieces.append(piece)
            nbytes += len(piece)
            cost += len(piece) or _SIFT_BYTES
            if self.window:
                self.unacked += len(piece)
            if stream.state is StreamState.ENDED:
                self.drop(stream)
                break
        else:
            self.ready[stream] = None
            self.ready.move_to_end(stream, last=not self.sequential)
        self.sent.nbytes += nbytes
        self.session.output.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return cost
