"""A change-stream connection, from the side that sends: its streams, flow control, and whether the peer still lives.

Streams that have something to send stand in a ring. A *turn* takes them one after the other, some of each, until it
has sent its share, the peer's window is full, or the transport has more than it can get rid of; then the event loop
serves others. The next turn is asked for at once if it can do something, otherwise by what was in the way: BUFFER_ACK,
`resume`, a change.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

from penstock.errors import KeyExists, KeyNotFound, NotSupported, OutOfRange
from penstock.node.replies import Goodbye
from penstock.node.served import Counters, ServedBucket, VbucketEvent
from penstock.node.stream import ProducerStream
from penstock.store.rollback import StreamRequest, range_error, rollback_point
from penstock.store.vbucket import Vbucket
from penstock.wire.constants import OpenFlag, StreamEndReason, StreamFlag
from penstock.wire.dcp import DcpNoop, StreamReq
from penstock.wire.stream import StreamState

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["Producer"]

CHUNK_BYTES = 1024 * 1024
"""What a stream sends before the next one's turn. Against 256 KiB a quarter more at 1 KB values, the same at 100 B."""

TURN_BYTES = 1024 * 1024
"""What one turn sends before the event loop serves others: below a millisecond."""

_VISIT_BYTES = 8 * 1024  # what it costs to look at a stream, in bytes sent
_WRITE_BYTES = CHUNK_BYTES // 2  # pieces are put together up to here
_NO_WINDOW = 2**62
_NOOP_OPAQUES = 10_000_000  # the first one is the next


class Producer:
    """The producer of one connection.

    streams: by vbucket. ready: those with something to send. window: bytes that the peer takes before it acknowledges,
    0 for any number. unacked: how many of them it has not acknowledged. turns: how many there were.
    A NOOP goes out `noop_interval` seconds after the last one, from the first stream on; a peer that leaves one
    unanswered for the node's idle timeout (360 s, as kv_engine's dcp_idle_timeout) is gone.
    """

    def __init__(self, connection: NodeConnection, bucket: ServedBucket, name: bytes, flags: OpenFlag) -> None:
        self.connection = connection
        self.bucket = bucket
        self.name = name
        self.flags = flags
        self.streams: dict[int, ProducerStream] = {}
        self.ready: deque[ProducerStream] = deque()
        self.turns = 0
        self.unacked = 0
        self.window = 0
        self.sequential = False
        self.end_on_close = False
        self.noop = False
        self.noop_interval = 20.0
        self._loop = connection.node.loop
        self._turn_asked = False
        self._streamed = False
        self._noop_opaque = _NOOP_OPAQUES
        self._timer: asyncio.TimerHandle | None = None  # the next NOOP
        self._deadline: asyncio.TimerHandle | None = None  # the end, while a NOOP is unanswered
        bucket.listeners.add(self)

    @property
    def counters(self) -> Counters:
        return self.bucket.counters

    # Streams

    def open_stream(self, request: StreamReq) -> int | None:
        """Open a stream. Returns None, or the seqno that the consumer has to roll back to first.

        Raises NotMyVbucket, NotSupported, OutOfRange, KeyExists; the checks stand in kv_engine's order.
        """
        flags = StreamFlag(request.flags)
        store = self.bucket.store
        find = store.find if flags & StreamFlag.ACTIVE_VB_ONLY else store.existing
        vbucket = find(request.vbucket)
        asked = _asked(vbucket, request, flags)
        if self.flags & OpenFlag.INCLUDE_XATTRS and not self.noop:
            raise NotSupported("xattrs are streamed only with noop enabled")
        if error := range_error(asked):
            raise OutOfRange(error)
        if vbucket.id in self.streams:
            raise KeyExists(f"vbucket {vbucket.id} has a stream")
        high = vbucket.high_seqno
        point = rollback_point(vbucket.failover_log, high, vbucket.purge_seqno, asked)
        if point is not None:
            return point
        # All there is counts as on disk: a bucket in memory has nothing else to serve such a stream from.
        end = high if flags & (StreamFlag.TO_LATEST | StreamFlag.DISK_ONLY) else asked.end_seqno
        if asked.start_seqno > min(end, high):
            raise OutOfRange(f"start seqno {asked.start_seqno}, high seqno {high}, end seqno {end}")
        stream = self.streams[vbucket.id] = ProducerStream(self, vbucket, request.opaque, asked, end)
        self.counters.dcp_streams_opened += 1
        self.add(stream)
        if not self._streamed:
            self._streamed = True
            self.set_noop()
        return None

    def close_stream(self, vbucket: int) -> None:
        """Close a stream at the consumer's wish. Raises KeyNotFound if it has none, or none that goes on."""
        stream = self.streams.get(vbucket)
        if stream is None or stream.reason is not None:
            raise KeyNotFound(f"vbucket {vbucket} has no stream")
        if self.end_on_close:
            self._end(stream, StreamEndReason.CLOSED)
            return
        self.bucket.forget(stream)
        stream.close()
        del self.streams[vbucket]
        if stream in self.ready:
            self.ready.remove(stream)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the vbucket's stream: the consumer has to find out how things stand now."""
        stream = self.streams.get(vbucket.id)
        if stream is not None and stream.reason is None:
            self._end(stream, StreamEndReason.STATE_CHANGED)

    def _end(self, stream: ProducerStream, reason: StreamEndReason) -> None:
        """Let STREAM_END be the next that is sent of a stream."""
        self.bucket.forget(stream)
        stream.reason = reason
        if stream not in self.ready:
            self.add(stream)

    def stop(self) -> None:
        """Give everything up: the connection is at its end."""
        self.bucket.listeners.discard(self)
        if self.bucket.producers.get(self.name) is self:
            del self.bucket.producers[self.name]
        for stream in self.streams.values():
            self.bucket.forget(stream)
        self.streams.clear()
        self.ready.clear()
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()

    # Sending

    @property
    def room(self) -> int:
        """How many bytes the peer can still take. A frame may go out while this is above 0."""
        return self.window - self.unacked if self.window else _NO_WINDOW

    def add(self, stream: ProducerStream) -> None:
        """Let a stream that is not in the ring have its turn."""
        self.ready.append(stream)
        self.resume()

    def resume(self) -> None:
        """Ask for a turn, if it could do something."""
        if self.ready and not self._turn_asked and not self.connection.paused and self.room > 0:
            self._turn_asked = True
            self._loop.call_soon(self.connection.guarded, self._turn)

    def acknowledge(self, nbytes: int) -> None:
        """Take nbytes as dealt with by the peer; more than there are count as all."""
        self.unacked = max(0, self.unacked - nbytes)
        self.resume()

    def _turn(self) -> None:
        self._turn_asked = False
        self.turns += 1
        share = TURN_BYTES
        while self.ready and share > 0 and self.room > 0 and not self.connection.paused:
            share -= self._visit(self.ready.popleft()) + _VISIT_BYTES
        self.resume()

    def _visit(self, stream: ProducerStream) -> int:
        """Send some of a stream and put it where it belongs then. Returns how many bytes were sent."""
        pieces: list[bytes | bytearray] = []
        nbytes = 0
        while nbytes < _WRITE_BYTES and self.room > 0:
            piece = stream.pull(CHUNK_BYTES, self.room)
            pieces.append(piece)
            nbytes += len(piece)
            if self.window:
                self.unacked += len(piece)
            if not piece:
                self.bucket.wait(stream)
                break
            if stream.state is StreamState.ENDED:
                del self.streams[stream.vbucket.id]
                break
        else:
            self.ready.appendleft(stream) if self.sequential else self.ready.append(stream)
        self.counters.dcp_bytes_sent += nbytes
        self.connection.write(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return nbytes

    # Is the peer alive?

    def set_noop(self) -> None:
        """Begin a new interval, if NOOPs are wanted and there has been a stream."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self.noop and self._streamed:
            self._timer = self._loop.call_later(self.noop_interval, self.connection.guarded, self._send_noop)

    def answered_noop(self, opaque: int) -> None:
        """Take a NOOP as answered. Raises Goodbye if it is not the one that was sent."""
        if self._deadline is None or opaque != self._noop_opaque:
            raise Goodbye(f"answer to a NOOP {opaque} that is not open")
        self._deadline.cancel()
        self._deadline = None

    def _send_noop(self) -> None:
        if self._deadline is None:
            self._noop_opaque += 1
            self.connection.write(DcpNoop(opaque=self._noop_opaque).encode())
            seconds = self.connection.node.idle_timeout
            self._deadline = self._loop.call_later(seconds, self.connection.abort, f"NOOP unanswered for {seconds:g} s")
        self.set_noop()


def _asked(vbucket: Vbucket, request: StreamReq, flags: StreamFlag) -> StreamRequest:
    """Return what the consumer says of itself, or with FROM_LATEST: that it has all there is."""
    start, low, high, vbuuid = request.start_seqno, request.snap_start, request.snap_end, request.vbuuid
    if flags & StreamFlag.FROM_LATEST:
        start = low = high = vbucket.high_seqno
        vbuuid = vbuuid or vbucket.vbuuid
    return StreamRequest(
        start_seqno=start,
        end_seqno=request.end_seqno,
        vbuuid=vbuuid,
        snap_start=low,
        snap_end=high,
        strict_vbuuid=bool(flags & StreamFlag.STRICT_VBUUID),
        ignore_purged=bool(flags & StreamFlag.IGNORE_PURGED_TOMBSTONES),
    )
