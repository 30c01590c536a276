"""The translation between a UPR producer and a DCP consumer, without sockets."""

from typing import Any

import pytest

from penstock.client.relays.refused_messages import MessageRefused
from penstock.client.relays.upr_translation import Translated, UprTranslation
from penstock.errors import ConnectionClosed, OrderViolation, RemoteProtocolError
from penstock.wire.codec.constants import MAX_SEQNO, Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import (
    AddStream,
    BufferAck,
    Control,
    Deletion,
    Mutation,
    SnapshotMarker,
    StreamEnd,
    StreamReq,
    pack_rollback,
)
from penstock.wire.messages.kv import pack_failover_log, unpack_failover_log
from penstock.wire.messages.upr import (
    UprDeletion,
    UprExpiration,
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
from penstock.wire.protocol.frame_receiver import FrameReceiver, Slab

VBUCKETS = 4
LOG = [(7, 100), (5, 0)]
PLACE: dict[str, Any] = {"vbucket": 1, "opaque": 9}


def receive(data, dialect):
    """Return the events of some bytes."""
    receiver = FrameReceiver(Slab(), run_dialect=dialect)
    room = receiver.get_buffer()
    room[: len(data)] = data
    return list(receiver.receive_data(len(data)))


def decode(data, dialect=Dialect.DCP):
    """Return the messages in some bytes."""
    return [decode_frame(frame, dialect) for frame in cut(data)]


def cut(data):
    return receive(data, None)


class Conversation:
    """A translation between a scripted consumer and a scripted producer."""

    def __init__(self):
        self.translation = UprTranslation(VBUCKETS)

    def request(self, message):
        (frame,) = cut(message.encode())
        return self.translation.translate_request(frame)

    def produce(self, *messages, seqnos=None):
        events = receive(b"".join(message.encode() for message in messages), Dialect.UPR)
        assert self.translation.needs_seqnos(events) == any(isinstance(each, UprSnapshotStart) for each in messages)
        return self.translation.translate_events(events, seqnos or {})

    def request_stream(self, start=0, snap_start=None, snap_end=None, vbuuid=0, log=LOG):
        """Request a stream, answer with the failover log, and return the messages that follow."""
        snap_start, snap_end = (start if each is None else each for each in (snap_start, snap_end))
        bounds = {"snap_start": snap_start, "snap_end": snap_end}
        asked = self.request(StreamReq(**PLACE, start_seqno=start, end_seqno=MAX_SEQNO, vbuuid=vbuuid, **bounds))
        assert decode(asked.to_source, Dialect.UPR) == [UprGetFailoverLog(**PLACE)]
        return self.produce(UprFailoverLogReply(opaque=9, value=pack_failover_log(log)))

    def open_stream(self, *args, **fields):
        """Open a stream that the producer accepts."""
        self.request_stream(*args, **fields)
        accepted = self.produce(UprStreamReply(opaque=9), UprStreamStart(**PLACE))
        (reply,) = cut(accepted.to_target)
        assert (reply.opcode, reply.specific, reply.opaque) == (Opcode.DCP_STREAM_REQ, Status.SUCCESS, 9)
        assert [*map(tuple, unpack_failover_log(reply.value))] == LOG


@pytest.fixture
def conversation():
    return Conversation()


def mutate(seqno, **fields):
    return UprMutation(**PLACE, by_seqno=seqno, rev_seqno=3, cas=seqno, key=b"k%d" % seqno, value=b"v", **fields)


def read_rollback(translated):
    (reply,) = cut(translated.to_target)
    assert (reply.opcode, reply.opaque, translated.to_source) == (Opcode.DCP_STREAM_REQ, 9, b"")
    return reply.specific, reply.value


REQUESTS = [
    ("nothing yet", {}, (0, 0, 0)),
    ("at the end of a snapshot", {"start": 120, "vbuuid": 7}, (120, 7, 100)),
    ("of an older branch", {"start": 80, "vbuuid": 5}, (80, 5, 0)),
    ("inside a snapshot", {"start": 120, "snap_start": 110, "snap_end": 130, "vbuuid": 7}, (110, 7, 100)),
    ("inside the first snapshot", {"start": 8, "snap_start": 0, "snap_end": 30, "vbuuid": 5}, (0, 0, 0)),
]


@pytest.mark.parametrize(("case", "position", "expected"), REQUESTS, ids=[row[0] for row in REQUESTS])
def test_producer_gets_the_last_complete_position(conversation, case, position, expected):
    (request,) = decode(conversation.request_stream(**position).to_source, Dialect.UPR)
    assert isinstance(request, UprStreamReq)
    assert (request.start_seqno, request.vbuuid, request.high_seqno) == expected
    assert (request.vbucket, request.opaque, request.end_seqno) == (1, 9, MAX_SEQNO)


ROLLBACKS = [
    ("an unknown branch", {"start": 8, "vbuuid": 1}, 0),
    ("an older branch that is too long", {"start": 120, "vbuuid": 5}, 100),
    ("a snapshot across the end of its branch", {"start": 105, "snap_start": 90, "snap_end": 110, "vbuuid": 5}, 90),
]


@pytest.mark.parametrize(("case", "position", "point"), ROLLBACKS, ids=[row[0] for row in ROLLBACKS])
def test_failover_log_shows_rollbacks(conversation, case, position, point):
    found = conversation.request_stream(**position)
    assert read_rollback(found) == (Status.ROLLBACK, pack_rollback(point))
    conversation.open_stream()  # the consumer may request the stream again


@pytest.mark.parametrize(
    ("answer", "status", "value"),
    [
        (UprStreamReply(opaque=9, status=Status.ROLLBACK, rollback_seqno=110), Status.ROLLBACK, pack_rollback(110)),
        (UprStreamReply(opaque=9, status=Status.ROLLBACK, value=pack_rollback(3)), Status.ROLLBACK, pack_rollback(3)),
        (UprStreamReply(opaque=9, status=Status.KEY_ENOENT), Status.ROLLBACK, pack_rollback(0)),
        (UprStreamReply(opaque=9, status=Status.NOT_MY_VBUCKET), Status.NOT_MY_VBUCKET, b""),
    ],
)
def test_answers_of_the_producer_become_answers_of_dcp(conversation, answer, status, value):
    conversation.request_stream(120, vbuuid=7)
    assert read_rollback(conversation.produce(answer)) == (status, value)


def test_refused_failover_log_refuses_the_stream(conversation):
    conversation.request(StreamReq(**PLACE, start_seqno=0, end_seqno=MAX_SEQNO))
    refusal = UprFailoverLogReply(opaque=9, status=Status.NOT_MY_VBUCKET)
    assert read_rollback(conversation.produce(refusal)) == (Status.NOT_MY_VBUCKET, b"")


def test_changes_become_those_of_dcp(conversation):
    conversation.open_stream()
    deletion = UprDeletion(**PLACE, by_seqno=2, rev_seqno=4, cas=5, key=b"gone")
    expiration = UprExpiration(**PLACE, by_seqno=3, rev_seqno=4, cas=6, key=b"old")
    first = mutate(1, flags=7, expiry=8, lock_time=9)
    found = conversation.produce(
        UprSnapshotStart(**PLACE), first, deletion, expiration, UprSnapshotEnd(**PLACE), seqnos={1: 3}
    )
    place = {**PLACE, "rev_seqno": 4}
    assert decode(found.to_target) == [
        SnapshotMarker(**PLACE, start_seqno=0, end_seqno=3, flags=1),
        Mutation(**PLACE, cas=1, by_seqno=1, rev_seqno=3, key=b"k1", value=b"v", flags=7, expiry=8, lock_time=9),
        Deletion(**place, cas=5, by_seqno=2, key=b"gone"),
        Deletion(**place, cas=6, by_seqno=3, key=b"old"),
    ]


def list_changes(translated):
    return [
        (each.start_seqno, each.end_seqno) if isinstance(each, SnapshotMarker) else each.by_seqno
        for each in decode(translated.to_target)
    ]


def test_snapshots_end_at_high_seqnos(conversation):
    """A snapshot that ends below the high seqno goes on with the next one."""
    conversation.open_stream()
    begin, end = UprSnapshotStart(**PLACE), UprSnapshotEnd(**PLACE)
    assert list_changes(conversation.produce(begin, mutate(1), mutate(3), end, seqnos={1: 4})) == [(0, 4), 1, 3]
    assert list_changes(conversation.produce(begin, mutate(4), end, seqnos={1: 4})) == [4]
    assert list_changes(conversation.produce(begin, mutate(5), seqnos={1: 6})) == [(4, 6), 5]
    assert list_changes(conversation.produce(mutate(6), end, begin, mutate(8), end, seqnos={1: 8})) == [6, (6, 8), 8]


def test_consumer_inside_a_snapshot_gets_no_change_twice(conversation):
    conversation.open_stream(120, 110, 130, vbuuid=7)
    found = conversation.produce(
        UprSnapshotStart(**PLACE), *map(mutate, (111, 120, 121, 140)), UprSnapshotEnd(**PLACE), seqnos={1: 140}
    )
    assert list_changes(found) == [(110, 140), 121, 140]


def test_end_of_a_stream_is_reported(conversation):
    conversation.open_stream()
    found = conversation.produce(UprStreamEnd(**PLACE, reason=1))
    assert decode(found.to_target) == [StreamEnd(**PLACE, reason=StreamEndReason.STATE_CHANGED)]
    assert found.ended == ((1, 1),)
    conversation.open_stream()


@pytest.mark.parametrize("message", [UprFlush(**PLACE), UprSetVbucketState(**PLACE, state=1)])
def test_new_history_or_state_ends_the_relay(conversation, message):
    conversation.open_stream()
    with pytest.raises(ConnectionClosed, match="vbucket 1: UPR_"):
        conversation.produce(message)


def test_vbucket_that_the_source_lost_ends_the_relay(conversation):
    conversation.open_stream()
    with pytest.raises(ConnectionClosed, match="does not serve"):
        conversation.produce(UprSnapshotStart(**PLACE), seqnos={0: 5})


@pytest.mark.parametrize("message", [mutate(1), UprSnapshotStart(**PLACE), UprStreamReply(opaque=9)])
def test_message_without_a_stream_is_an_error(conversation, message):
    with pytest.raises(RemoteProtocolError):
        conversation.produce(message)


@pytest.mark.parametrize("message", [UprStreamReply(opaque=9), UprFailoverLogReply(opaque=9, value=bytes(16))])
def test_answer_that_is_not_due_is_an_error(conversation, message):
    conversation.open_stream()
    with pytest.raises(RemoteProtocolError, match="no request"):
        conversation.produce(message)


@pytest.mark.parametrize("messages", [[mutate(1)], [UprSnapshotEnd(**PLACE)], [UprStreamStart(**PLACE)]])
def test_message_that_is_not_due_is_an_error(conversation, messages):
    conversation.open_stream()
    with pytest.raises(OrderViolation):
        conversation.produce(*messages)


def test_settings_are_refused_and_acknowledgements_dropped(conversation):
    (refusal,) = cut(conversation.request(Control(opaque=3, key=b"enable_noop", value=b"true")).to_target)
    assert (refusal.opcode, refusal.specific, refusal.opaque) == (Opcode.DCP_CONTROL, Status.EINVAL, 3)
    assert conversation.request(BufferAck(opaque=4, nbytes=100)) == Translated()


@pytest.mark.parametrize("fields", [{"flags": 1}, {"vbucket": VBUCKETS}])
def test_stream_that_upr_cannot_have_is_refused(conversation, fields):
    request = StreamReq(**{**PLACE, **fields}, start_seqno=0, end_seqno=MAX_SEQNO)
    assert read_rollback(conversation.request(request)) == (Status.EINVAL, b"")


def test_second_stream_ends_the_relay(conversation):
    conversation.open_stream()
    with pytest.raises(ConnectionClosed, match="UPR cannot end"):
        conversation.request(StreamReq(**PLACE, start_seqno=0, end_seqno=MAX_SEQNO))


def test_refused_change_ends_the_relay(conversation):
    accepted = Frame(Magic.RESPONSE, Opcode.DCP_SNAPSHOT_MARKER, Status.SUCCESS)
    assert conversation.translation.translate_request(accepted) == Translated()
    with pytest.raises(MessageRefused, match="the target refused DCP_MUTATION with ERANGE, so its copy"):
        conversation.translation.translate_request(accepted._replace(opcode=Opcode.DCP_MUTATION, specific=34))


def test_target_that_is_no_consumer_is_an_error(conversation):
    with pytest.raises(RemoteProtocolError, match="expected a DCP consumer"):
        conversation.request(AddStream(vbucket=1))
