"""Which streams of a connection send next, and how much the peer takes.

Streams that have something to send stand in a ring. A *turn* takes them one after the other, some of each, until it
has sent its share, the peer's window is full, or the transport has more than it can get rid of; then the event loop
serves others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from penstock.node.buckets.served_bucket import SentCounts, ServedBucket
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import CHUNK_BYTES, TURN_BYTES, WRITE_BYTES
from penstock.node.streams.producer_stream import ProducerStream
from penstock.node.streams.stream_encoder import joined
from penstock.wire.codec.frame import Buffer
from penstock.wire.protocol.stream_state import StreamState

__all__ = ["FlowControl", "StreamRing"]

_VISIT_BYTES = 8 * 1024  # what it costs to look at a stream, in bytes sent
_SIFT_BYTES = 128 * 1024  # what it costs to look at changes of which none is sent, in bytes sent
_TURN_SECONDS = 0.005
_NO_WINDOW = 2**62


class FlowControl:
    """How many bytes the peer takes before it acknowledges some.

    Attributes:
        window: the limit, 0 for none.
        unacked: bytes that the peer has not acknowledged.
        acked: bytes that the peer has acknowledged, as it counts them.
    """

    __slots__ = ("acked", "unacked", "window")

    def __init__(self) -> None:
        self.window = 0
        self.unacked = 0
        self.acked = 0

    @property
    def room(self) -> int:
        """How many bytes the peer can still take. A frame may go out while this is above 0."""
        return self.window - self.unacked if self.window else _NO_WINDOW

    def set_window(self, nbytes: int) -> None:
        self.window = nbytes
        if not nbytes:
            self.unacked = 0

    def acknowledge(self, nbytes: int) -> None:
        """Take nbytes as dealt with by the peer; more than there are count as all.

        `acked` is what the peer said. Source: kv_engine producer.cc, BufferLog::acknowledge.
        """
        if self.window:
            self.acked += nbytes
        self.unacked -= min(nbytes, self.unacked)


class StreamRing:
    """The streams of a connection that have something to send, in the order in which they do.

    Attributes:
        ready: the streams, the next one first.
        is_sequential: a stream that has sent some stays the next one.
    """

    def __init__(
        self,
        session: Session,
        bucket: ServedBucket,
        flow: FlowControl,
        sent: SentCounts,
        drop: Callable[[ProducerStream], None],
    ) -> None:
        """drop: takes note that a stream has ended."""
        self.ready: OrderedDict[ProducerStream, None] = OrderedDict()
        self.is_sequential = False
        self._output = session.output
        self._time = session.node.loop.time
        self._bucket = bucket
        self._flow = flow
        self._sent = sent
        self._drop = drop

    def turn(self) -> None:
        """Send some of each stream, up to the share of one turn."""
        share, deadline = TURN_BYTES, self._time() + _TURN_SECONDS
        while self.ready and share > 0 and self._flow.room > 0 and not self._output.paused:
            stream, _ = self.ready.popitem(last=False)
            share -= self._visit(stream) + _VISIT_BYTES
            if self._time() >= deadline:  # changes that are looked at one by one take long
                break

    def _visit(self, stream: ProducerStream) -> int:
        """Send some of a stream and put it where it belongs then. Returns what that cost, in bytes sent."""
        flow = self._flow
        pieces: list[Buffer] = []
        nbytes = cost = 0
        while cost < WRITE_BYTES and (room := flow.room) > 0:
            piece = stream.pull(CHUNK_BYTES, room)
            if piece is None:
                self._bucket.wait(stream)
                break
            pieces.append(piece)
            nbytes += len(piece)
            cost += len(piece) or _SIFT_BYTES
            if flow.window:
                flow.unacked += len(piece)
            if stream.state is StreamState.ENDED:
                self._drop(stream)
                break
        else:
            self.ready[stream] = None
            self.ready.move_to_end(stream, last=not self.is_sequential)
        self._sent.nbytes += nbytes
        self._output.write(joined(pieces))
        return cost
