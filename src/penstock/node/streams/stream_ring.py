"""The ring of streams: chooses the streams that send next, within the peer's flow-control window.

Streams with something to send stand in a ring. A *turn* sends some of each, one after the other. The turn ends when it
has sent its share, or when the peer's window or the transport's buffer is full. Then the event loop serves other
connections.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable

from penstock.node.buckets.served_bucket import SentCounts, ServedBucket
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import CHUNK_BYTES, TURN_BYTES, WRITE_BYTES
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.stream_encoder import join_pieces
from penstock.wire.codec.frame import Buffer
from penstock.wire.protocol.stream_state import StreamState

logger = logging.getLogger("penstock.node")

# Costs in bytes sent: of visiting a stream, and of reading changes of which none is sent.
_STREAM_COST_BYTES = 8 * 1024
_EMPTY_PIECE_COST_BYTES = 128 * 1024
_TURN_SECONDS = 0.005  # a connection may have a turn for its requests in the same round of the event loop
_NO_WINDOW = 2**62  # more than any connection sends


class FlowControl:
    """The flow control of a connection: the bytes that may be unacknowledged.

    Attributes:
        window: the limit in bytes, 0 for none.
        unacked: bytes that the peer has not acknowledged.
        acked: bytes that the peer has acknowledged, by its own count.
    """

    __slots__ = ("_has_logged", "acked", "unacked", "window")

    def __init__(self) -> None:
        self.window = 0
        self.unacked = 0
        self.acked = 0
        self._has_logged = False

    @property
    def room(self) -> int:
        """Bytes that the peer can still take. A frame may be sent while this is above 0."""
        return self.window - self.unacked if self.window else _NO_WINDOW

    def set_window(self, nbytes: int) -> None:
        """Set the window, 0 for none."""
        self.window = nbytes
        if not nbytes:
            self.unacked = 0

    def acknowledge(self, nbytes: int, name: str) -> None:
        """Free some bytes of the window. More bytes than are unacknowledged free all of them.

        `acked` counts all bytes of the message. Source: kv_engine producer.cc, BufferLog::acknowledge.

        Args:
            nbytes: the bytes that the peer acknowledges.
            name: the name of the connection, for the log.
        """
        if self.window and nbytes > self.unacked and not self._has_logged:
            self._has_logged = True  # a faulty client does it with each message
            logger.info("%s acknowledges %d bytes, while %d are unacknowledged", name, nbytes, self.unacked)
        if self.window:
            self.acked += nbytes
        self.unacked -= min(nbytes, self.unacked)


class StreamRing:
    """The streams of a connection that have something to send, in their order.

    Attributes:
        ready: the streams, the next one first.
        is_sequential: whether a stream stays the next one until it has sent everything.
    """

    def __init__(
        self,
        session: Session,
        bucket: ServedBucket,
        flow: FlowControl,
        sent: SentCounts,
        remove_stream: Callable[[ProducerStream], None],
    ) -> None:
        """Create an empty ring.

        Args:
            session: the session of the connection.
            bucket: the streamed bucket.
            flow: the flow control of the connection.
            sent: totals of all producers of the dialect.
            remove_stream: called with each stream that has ended.
        """
        self.ready: OrderedDict[ProducerStream, None] = OrderedDict()
        self.is_sequential = False
        self._output = session.output
        self._time = session.node.loop.time
        self._bucket = bucket
        self._flow = flow
        self._sent = sent
        self._remove_stream = remove_stream
        self._unwritten: list[Buffer] = []
        self._unwritten_bytes = 0

    def run_turn(self) -> None:
        """Send some of each stream, up to the share of one turn.

        Frames of several streams are written together. Otherwise each change would cost the node a system call, and
        would wake the consumer.
        """
        share, deadline = TURN_BYTES, self._time() + _TURN_SECONDS
        while self.ready and share > 0 and self._flow.room > 0 and not self._output.paused:
            stream, _ = self.ready.popitem(last=False)
            share -= self._read_stream(stream) + _STREAM_COST_BYTES
            if self._unwritten_bytes >= WRITE_BYTES:
                self._write_pieces()
            if self._time() >= deadline:  # changes that are filtered one by one are slow
                break
        self._write_pieces()

    def _read_stream(self, stream: ProducerStream) -> int:
        """Read some of a stream for the next write, and put it back into the ring if it has more.

        Returns:
            The cost, in bytes sent.
        """
        flow = self._flow
        cost = 0
        # A piece that a filter has reduced costs more than its bytes: other connections have their turn after it.
        least_cost = 0 if stream.encoder.pushed_filter is None else WRITE_BYTES
        while cost < WRITE_BYTES and (room := flow.room) > 0:
            piece = stream.read_frames(CHUNK_BYTES, room)
            if piece is None:
                self._bucket.add_waiting_stream(stream)
                break
            self._unwritten.append(piece)
            self._unwritten_bytes += len(piece)
            cost += max(len(piece) or _EMPTY_PIECE_COST_BYTES, least_cost)
            if flow.window:
                flow.unacked += len(piece)
            if stream.state is StreamState.ENDED:
                self._remove_stream(stream)
                break
        else:
            self.ready[stream] = None
            self.ready.move_to_end(stream, last=not self.is_sequential)
        return cost

    def _write_pieces(self) -> None:
        """Write the pieces that were read."""
        pieces, self._unwritten = self._unwritten, []
        self._sent.nbytes += self._unwritten_bytes
        self._unwritten_bytes = 0
        self._output.write(join_pieces(pieces))
