"""Scripted producers of UPR and of the UPR draft, without a socket."""

from itertools import count

from penstock.client.feeds.feed import Feed
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.store.history.rollback import StreamRequest, find_rollback_point
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Message
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import FailoverEntry, pack_failover_log
from penstock.wire.messages.upr import (
    UprDeletion,
    UprFailoverLogReply,
    UprFlush,
    UprGetFailoverLog,
    UprMutation,
    UprSetVbucketState,
    UprSnapshotEnd,
    UprSnapshotStart,
    UprStreamEnd,
    UprStreamReply,
    UprStreamReq,
    UprStreamStart,
)
from penstock.wire.messages.upr_draft import (
    DraftDeletion,
    DraftFailoverLog,
    DraftFlush,
    DraftGetFailoverLog,
    DraftMutation,
    DraftOk,
    DraftRollback,
    DraftSnapshotEnd,
    DraftSnapshotStart,
    DraftStateChanged,
    DraftStreamEnd,
    DraftStreamReq,
    DraftStreamStart,
)
from tests.client.receiver import Receiver, messages_in

LOG = (FailoverEntry(11, 0),)


class UprMessageBuilder:
    """Builds the messages of a UPR producer."""

    dialect = Dialect.UPR
    make_log_request: type[Message] = UprGetFailoverLog
    stream_request: type[Message] = UprStreamReq
    start_message: type[Message] = UprStreamStart
    snapshot_start_message: type[Message] = UprSnapshotStart
    snapshot_end_message: type[Message] = UprSnapshotEnd
    mutation_message: type[Message] = UprMutation
    deletion_message: type[Message] = UprDeletion
    flush_message: type[Message] = UprFlush

    def log(self, request, log=LOG):
        return UprFailoverLogReply(opaque=request.opaque, value=pack_failover_log(log)).encode()

    def accept(self, request):
        return UprStreamReply(opaque=request.opaque).encode() + self._of(self.start_message, request)

    def rollback(self, request, seqno):
        return UprStreamReply(opaque=request.opaque, status=Status.ROLLBACK, rollback_seqno=seqno).encode()

    def refuse(self, request):
        return UprStreamReply(opaque=request.opaque, status=Status.NOT_MY_VBUCKET).encode()

    def refuse_log(self, request):
        reply = UprFailoverLogReply(opaque=request.opaque, status=Status.NOT_MY_VBUCKET)
        return reply.encode()

    def snapshot_start(self, request):
        return self._of(self.snapshot_start_message, request)

    def snapshot_end(self, request):
        return self._of(self.snapshot_end_message, request)

    def mutations(self, request, *seqnos):
        return b"".join(
            self._of(
                self.mutation_message, request, key=b"k%d" % seqno, value=b"value", cas=1000 + seqno, by_seqno=seqno
            )
            for seqno in seqnos
        )

    def deletion(self, request, seqno):
        return self._of(self.deletion_message, request, key=b"k%d" % seqno, cas=1000 + seqno, by_seqno=seqno)

    def snapshot(self, request, *seqnos):
        return self.snapshot_start(request) + self.mutations(request, *seqnos) + self.snapshot_end(request)

    def flush(self, request):
        return self._of(self.flush_message, request)

    def state(self, request):
        return self._of(UprSetVbucketState, request, state=1)

    def end(self, request):
        return self._of(UprStreamEnd, request, reason=0)

    def end_changed(self, request):
        return self._of(UprStreamEnd, request, reason=1)

    def _of(self, message, request, **fields):
        return message(vbucket=request.vbucket, opaque=request.opaque, **fields).encode()


class DraftMessageBuilder(UprMessageBuilder):
    """Builds the messages of a producer of the UPR draft."""

    dialect = Dialect.UPR_DRAFT
    make_log_request = DraftGetFailoverLog
    stream_request = DraftStreamReq
    start_message = DraftStreamStart
    snapshot_start_message = DraftSnapshotStart
    snapshot_end_message = DraftSnapshotEnd
    mutation_message = DraftMutation
    deletion_message = DraftDeletion
    flush_message = DraftFlush

    def log(self, request, log=LOG):
        return self._of(DraftFailoverLog, request, value=pack_failover_log(log))

    def accept(self, request):
        return self._of(DraftOk, request) + self._of(self.start_message, request)

    def rollback(self, request, seqno):
        return self._of(DraftRollback, request, rollback_seqno=seqno)

    def refuse(self, request):
        return self._of(DraftFailoverLog, request)

    def refuse_log(self, request):
        return self._of(DraftFailoverLog, request)

    def end(self, request):
        return self._of(DraftStreamEnd, request)

    def end_changed(self, request):
        return self._of(DraftStateChanged, request)


MESSAGE_BUILDERS = (UprMessageBuilder(), DraftMessageBuilder())


class UprConsumer(Receiver):
    """A feed of UPR or of the draft, with one stream: that of vbucket 3.

    Args:
        builder: builds the producer's messages.
        feed: of the same dialect.
    """

    def __init__(self, builder: UprMessageBuilder, feed: Feed) -> None:
        super().__init__(feed)
        self.builder = builder
        self.opaques = count(100)

    def ask(self) -> list[Message]:
        """Return the requests that are due, decoded as the producer decodes them."""
        requests = self.feed.take_requests(lambda: next(self.opaques))
        return messages_in(b"".join(request.encode() for request in requests), self.feed.dialect)

    def ask_log(self):
        (request,) = self.ask()
        assert isinstance(request, self.builder.make_log_request)
        return request

    def ask_stream(self):
        """Return the stream request and the log request that follows it."""
        request, log = self.ask()
        assert isinstance(request, self.builder.stream_request)
        assert isinstance(log, self.builder.make_log_request)
        return request, log

    def decide(self, log=LOG):
        """Answer the log request before the stream; return the stream request and the log request that follows it."""
        self.give(self.builder.log(self.ask_log(), log))
        return self.ask_stream()

    def take(self, data):
        assert not data, "UPR and the draft have no acknowledgements"

    @property
    def position(self):
        return self.feed._streams.by_vbucket[3].position


def make_consumer(builder, targets=None, vbuckets=8, **options):
    targets = {3: StreamTarget()} if targets is None else targets
    return UprConsumer(builder, Feed(vbuckets, targets, window=1 << 16, dialect=builder.dialect, **options))


def open_stream(builder, targets=None, log=LOG, **options):
    """Return a consumer and its stream request; the stream is accepted and the second log answered."""
    consumer = make_consumer(builder, targets, **options)
    request, again = consumer.decide(log)
    consumer.give(builder.accept(request), builder.log(again, log))
    return consumer, request


def find_upr_rollback(log, high_seqno, purge_seqno, request):
    """Return the seqno that a UPR producer rolls the consumer back to, or None if the stream may start.

    A UPR request has no snapshot. Source: semantics, emulation notes.
    """
    without_snapshot = StreamRequest(
        start_seqno=request.start_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.start_seqno,
        snap_end=request.start_seqno,
    )
    return find_rollback_point(log, high_seqno, purge_seqno, without_snapshot)
