"""UPR and its draft as a script: the messages of a producer, in whichever of the two a test speaks."""

from itertools import count

from penstock.client.feeds.feed import Feed, StreamTarget
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


class Upr:
    """What a producer of UPR says."""

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


class Draft(Upr):
    """What a producer of the draft says."""

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


SPEAKERS = (Upr(), Draft())


class Consumer(Receiver):
    """A feed of one of the two, whose one stream is that of vbucket 3."""

    def __init__(self, speaker: Upr, feed: Feed) -> None:
        super().__init__(feed)
        self.speaker = speaker
        self.opaques = count(100)

    def ask(self) -> list[Message]:
        """Return the requests that are due, as a producer reads them."""
        requests = self.feed.take_requests(lambda: next(self.opaques))
        return messages_in(b"".join(request.encode() for request in requests), self.feed.dialect)

    def ask_log(self):
        (request,) = self.ask()
        assert isinstance(request, self.speaker.make_log_request)
        return request

    def ask_stream(self):
        """Return the stream request and the log request that follows it."""
        request, log = self.ask()
        assert isinstance(request, self.speaker.stream_request)
        assert isinstance(log, self.speaker.make_log_request)
        return request, log

    def decide(self, log=LOG):
        """Answer the log request in front of the one stream, and return what the stream's request is."""
        self.give(self.speaker.log(self.ask_log(), log))
        return self.ask_stream()

    def take(self, data):
        assert not data, "neither of the two knows acknowledgements"

    @property
    def position(self):
        return self.feed._streams.by_vbucket[3].position


def consumer_of(speaker, wanted=None, vbuckets=8, **options):
    wanted = {3: StreamTarget()} if wanted is None else wanted
    return Consumer(speaker, Feed(vbuckets, wanted, window=1 << 16, dialect=speaker.dialect, **options))


def opened(speaker, wanted=None, log=LOG, **options):
    """Return a consumer and its one stream, accepted and confirmed."""
    consumer = consumer_of(speaker, wanted, **options)
    request, again = consumer.decide(log)
    consumer.give(speaker.accept(request), speaker.log(again, log))
    return consumer, request


def answer_of(log, high_seqno, purge_seqno, request):
    """Return what a producer of UPR decides: it knows of no snapshot. Source: semantics, emulation notes."""
    asked = StreamRequest(
        start_seqno=request.start_seqno,
        vbuuid=request.vbuuid,
        snap_start=request.start_seqno,
        snap_end=request.start_seqno,
    )
    return find_rollback_point(log, high_seqno, purge_seqno, asked)
