"""A scripted DCP producer without a socket: the messages of its streams, over one connection after another."""

from dataclasses import dataclass
from itertools import count

from penstock.client.feeds.feed import Feed
from penstock.client.feeds.stream_position import Position, SnapshotEnd
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    BufferAck,
    DcpNoop,
    DcpReply,
    Deletion,
    Mutation,
    SnapshotMarker,
    StreamEnd,
    pack_rollback,
)
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab
from tests.client.receiver import Receiver, messages_in

LOG = (FailoverEntry(11, 0),)


def accept(request, log=LOG):
    return DcpReply(opaque=request.opaque, value=pack_failover_log(log)).encode(Opcode.DCP_STREAM_REQ)


def rollback(request, seqno):
    return refuse(request, Status.ROLLBACK, pack_rollback(seqno))


def refuse(request, status, value=b""):
    return DcpReply(opaque=request.opaque, status=status, value=value).encode(Opcode.DCP_STREAM_REQ)


def marker(request, start, end, flags=1):
    return SnapshotMarker(
        vbucket=request.vbucket, opaque=request.opaque, start_seqno=start, end_seqno=end, flags=flags
    ).encode()


def mutation(request, seqno, value=b"value"):
    return Mutation(
        vbucket=request.vbucket,
        opaque=request.opaque,
        cas=1000 + seqno,
        key=b"k%d" % seqno,
        value=value,
        by_seqno=seqno,
    ).encode()


def deletion(request, seqno):
    return Deletion(
        vbucket=request.vbucket, opaque=request.opaque, cas=1000 + seqno, key=b"k%d" % seqno, by_seqno=seqno
    ).encode()


def mutations(request, *seqnos):
    return b"".join(mutation(request, seqno) for seqno in seqnos)


def end(request, reason=0):
    return StreamEnd(vbucket=request.vbucket, opaque=request.opaque, reason=reason).encode()


def noop(opaque):
    return DcpNoop(opaque=opaque).encode()


class Asking(Receiver):
    """A DCP feed that sends stream requests."""

    def connect(self):
        super().connect()
        self.opaques = count(101)

    def ask(self):
        """Return the stream requests that are due, in the order of their vbuckets."""
        return self.feed.take_requests(lambda: next(self.opaques))

    def ask_one(self):
        (request,) = self.ask()
        return request


class DcpConsumer(Asking):
    """A DCP feed whose bytes are counted for flow control.

    Attributes:
        charged: bytes that the producer counts against the window of this connection.
        acknowledged: bytes that the feed reported to the producer as consumed.
    """

    def connect(self):
        super().connect()
        self.charged = self.acknowledged = 0

    def give(self, *messages):
        for frame in FrameReceiver(Slab(1 << 16), run_dialect=None).feed(b"".join(messages)):
            assert isinstance(frame, Frame)
            if frame.magic == Magic.REQUEST and frame.opcode != Opcode.DCP_NOOP:
                self.charged += frame.size
        super().give(*messages)

    def take(self, data):
        for message in messages_in(data, self.feed.dialect):
            if isinstance(message, BufferAck):
                self.acknowledged += message.nbytes
            else:
                self.sent.append(message)


@dataclass(frozen=True)
class History:
    """The changes of one vbucket.

    Attributes:
        snapshots: (start, end, seqnos) of each snapshot; seqnos are ascending and deduplicated, the last one is `end`.
    """

    snapshots: tuple[tuple[int, int, tuple[int, ...]], ...]

    @property
    def high_seqno(self):
        return self.snapshots[-1][1] if self.snapshots else 0

    def serve(self, request) -> list[bytes]:
        """Return the messages that answer a stream request, each as the bytes of a whole message."""
        messages = [accept(request)]
        for low, high, seqnos in self.snapshots:
            left = [seqno for seqno in seqnos if seqno > request.start_seqno]
            if not left:
                continue
            inside = low <= request.start_seqno
            messages.append(marker(request, request.snap_start if inside else low, high))
            messages += [deletion(request, seqno) if seqno % 7 == 0 else mutation(request, seqno) for seqno in left]
        return [*messages, end(request)]


WINDOW = 1 << 16
AT_20 = Position(seqno=20, vbuuid=11, snap_start=20, snap_end=20, ends=(SnapshotEnd(5, 11), SnapshotEnd(20, 11)))
INSIDE = Position(seqno=20, vbuuid=11, snap_start=5, snap_end=30, ends=(SnapshotEnd(5, 11),))


def make_consumer(targets=None, *, window=WINDOW, **options):
    return DcpConsumer(Feed(8, {3: StreamTarget()} if targets is None else targets, window=window, **options))


def open_stream(targets=None, log=LOG, **options):
    """Return a consumer and its stream request, which the producer has accepted."""
    consumer = make_consumer(targets, **options)
    request = consumer.ask_one()
    consumer.give(accept(request, log))
    return consumer, request


def seqnos(changes):
    return [change.seqno for change in changes]
