"""A peer of a consumer: the producer and the orchestrator, on one connection."""

from contextlib import contextmanager

from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import AddStream, AddStreamReply, DcpReply, Mutation, SnapshotMarker, StreamReq
from penstock.wire.messages.kv import FailoverEntry, Noop, SetVbucket, pack_failover_log
from tests.node.wire_client import WireClient

LOG = (FailoverEntry(0xABC, 0),)


class ProducingPeer(WireClient):
    """A producer and the orchestrator of a consumer, on one connection."""

    opaque = 0

    def open_consumer(self, name="copy", flags=0):
        return self.open(name, flags)

    def negotiate(self, status=S.SUCCESS):
        """Answer the settings of the consumer, and return them with the frame behind them."""
        settings = []
        while (frame := self.receive()).opcode == Opcode.DCP_CONTROL:
            assert frame.magic == Magic.REQUEST
            settings.append(decode_frame(frame))
            self.send(Frame(Magic.RESPONSE, Opcode.DCP_CONTROL, status, opaque=frame.opaque))
        return settings, frame

    def add_stream(self, vbucket=0, flags=0) -> StreamReq:
        """Request a stream, and return the consumer's stream request."""
        self.send(AddStream(vbucket=vbucket, flags=flags, opaque=0x900))
        return self.read_request()

    def read_request(self) -> StreamReq:
        _, frame = self.negotiate()
        request = decode_frame(frame)
        assert isinstance(request, StreamReq), request
        self.opaque = request.opaque
        return request

    def accept(self, log=LOG):
        self.answer(S.SUCCESS, pack_failover_log(log))
        reply = self.message()
        assert reply == AddStreamReply(opaque=0x900, status=S.SUCCESS, stream_opaque=self.opaque)

    def answer(self, status, value=b""):
        self.send(DcpReply(opaque=self.opaque, status=status, value=value).encode(Opcode.DCP_STREAM_REQ))

    def marker(self, start, end, flags=SnapshotFlag.MEMORY):
        self.send(SnapshotMarker(opaque=self.opaque, start_seqno=start, end_seqno=end, flags=flags))

    def mutate(self, *seqnos, **fields):
        for seqno in seqnos:
            self.send(mutation(self.opaque, seqno, **fields))

    def settle(self):
        """Wait until the node has served all that was sent, without any other answer."""
        assert self.status(Noop()) == S.SUCCESS
        assert self.frames == []


def mutation(opaque, seqno, **fields) -> Mutation:
    values = {"key": b"k%d" % seqno, "value": b"v", "cas": 100 + seqno, "rev_seqno": 1, **fields}
    return Mutation(opaque=opaque, by_seqno=seqno, **values)


@contextmanager
def producing(node, **options):
    peer = ProducingPeer(node, **options)
    try:
        yield peer
    finally:
        peer.close()


def make_replica(client, vbucket=0):
    assert client.status(SetVbucket(vbucket=vbucket, state=VbucketState.REPLICA)) == S.SUCCESS


def read_history(node, number=0):
    history = node.buckets["default"].store.vbuckets[number].history
    return history.changes.high_seqno, history.whole_seqno
