"""Options of a DCP consumer, and the messages that they change."""

from collections.abc import Iterator

import pytest

from penstock.names import escape_text
from penstock.node.streams.ext_metadata import SECTION
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import OpenFlag, StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import DcpReply, Deletion, DeletionV2, Expiration, Mutation
from penstock.wire.messages.kv import Flush, Noop, SetVbucket
from tests.naughty_names import TEXTS
from tests.node.wire_client import connected

S, F = Status, OpenFlag
PAST = 1_000_000_000  # epoch seconds


@pytest.fixture
def consumer(node):
    with connected(node) as client:
        yield client


def store_documents(client, count=0):
    """Delete a document at seqno 2, let another expire at seqno 4, and store `count` more documents."""
    client.set(b"deleted")
    client.delete(b"deleted")
    client.set(b"expired", expiry=PAST)
    client.get(b"expired")
    for number in range(count):
        client.set(b"key %d" % number, b"value")


TOMBSTONES = [
    (0, False, Deletion, Deletion),
    (0, True, Deletion, Deletion),
    (F.INCLUDE_DELETE_TIMES, False, DeletionV2, DeletionV2),
    (F.INCLUDE_DELETE_TIMES, True, DeletionV2, Expiration),
]


@pytest.mark.parametrize("count", [0, 100])
@pytest.mark.parametrize(("flags", "expiries", "deletion", "expiration"), TOMBSTONES)
def test_tombstones_have_the_agreed_form(node, client, consumer, flags, expiries, deletion, expiration, count):
    store_documents(client, count)
    consumer.open(flags=F.PRODUCER | flags)
    if expiries:
        assert consumer.control("enable_expiry_opcode", "true") == S.SUCCESS
    consumer.stream(end=4 + count)
    _, deleted, expired, *stored = consumer.changes()
    assert (type(deleted), type(expired)) == (deletion, expiration)
    assert [(change.key, change.by_seqno, change.rev_seqno) for change in (deleted, expired)] == [
        (b"deleted", 2, 2),
        (b"expired", 4, 2),
    ]
    assert [change.key for change in stored] == [b"key %d" % number for number in range(count)]
    for change in (deleted, expired):
        assert change.opaque == expired.opaque
        if isinstance(change, DeletionV2 | Expiration):
            assert abs(change.delete_time - read_node_time(client)) < 60


def read_node_time(client) -> int:
    return int(client.stats()["time"])


def test_expiry_opcode_can_be_disabled(client, consumer):
    consumer.open(flags=F.PRODUCER | F.INCLUDE_DELETE_TIMES)
    for value, expected in (("true", Expiration), ("false", DeletionV2)):
        consumer.control("enable_expiry_opcode", value)
        store_documents(client)
        consumer.stream()
        assert isinstance(consumer.message().end_seqno, int)
        assert [type(consumer.message()) for _ in range(2)] == [DeletionV2, expected]
        consumer.close_stream()


VALUES = [
    (0, b"{}", 1),
    (F.NO_VALUE, b"", 0),
    (F.NO_VALUE_WITH_UNDERLYING_DATATYPE, b"", 1),
]


@pytest.mark.parametrize("count", [1, 100])
@pytest.mark.parametrize(("flags", "value", "datatype"), VALUES)
def test_stream_without_values_has_keys_only(consumer, flags, value, datatype, count):
    consumer.open(flags=F.PRODUCER | flags)
    for number in range(count):
        consumer.set(b"%d" % number, b"{}", datatype=1, flags=7)
    consumer.stream(end=count)
    _, *changes = consumer.changes()
    assert [change.key for change in changes] == [b"%d" % number for number in range(count)]
    assert {(change.value, change.datatype, change.flags) for change in changes} == {(value, datatype, 7)}


def test_extended_metadata_follows_values(client, consumer):
    store_documents(client, 40)
    consumer.open()
    assert consumer.control("enable_ext_metadata", "true") == S.SUCCESS
    consumer.stream(end=44)
    frames = list(stream_frames(consumer))
    for frame in frames[1:]:
        position = -3 if frame.opcode == Opcode.DCP_MUTATION else -2
        nmeta = int.from_bytes(frame.extras[position:][:2], "big")
        assert frame.value[len(frame.value) - nmeta :] == SECTION
        assert frame.value[:-nmeta] == (b"value" if frame.opcode == Opcode.DCP_MUTATION else b"")
    assert len(frames) == 43


def stream_frames(client) -> Iterator[Frame]:
    while (frame := client.receive()).opcode != Opcode.DCP_STREAM_END:
        yield frame


def test_extended_metadata_counts_for_flow_control(client, consumer):
    for number in range(50):
        client.set(b"%d" % number, bytes(100))
    consumer.open()
    consumer.control("enable_ext_metadata", "true")
    consumer.control("connection_buffer_size", "500")
    consumer.stream(end=50)
    received: list[Frame] = []
    while len(received) < 51:
        received.append(consumer.receive())
        unacked = int(client.stats()["ep_dcp_unacked_bytes"])
        assert unacked < 500 + received[-1].size
        consumer.acknowledge(received[-1].size)
    assert consumer.message().reason == StreamEndReason.OK


def test_consumer_that_acknowledges_nothing_stops_at_its_window(client, consumer):
    for number in range(50):
        client.set(b"%d" % number, bytes(1000))
    consumer.open()
    for key, value in (("set_noop_interval", "0.1"), ("enable_noop", "true"), ("connection_buffer_size", "5000")):
        assert consumer.control(key, value) == S.SUCCESS
    consumer.stream(end=50)
    sent = 0
    noops: list[Frame] = []
    while len(noops) < 3:  # they come while the window is full
        frame = consumer.receive()
        if frame.opcode == Opcode.DCP_NOOP:
            noops.append(frame)
            consumer.send(DcpReply(opaque=frame.opaque).encode(Opcode.DCP_NOOP))
        else:
            assert not noops
            sent += frame.size
    stats = client.stats("dcp")
    assert 5000 <= sent < 5000 + 1100
    assert (stats["eq_dcpq:test:unacked_bytes"], stats["eq_dcpq:test:max_buffer_bytes"]) == (str(sent), "5000")


def test_first_acknowledgement_of_too_many_bytes_is_logged(consumer, caplog):
    caplog.set_level("INFO", "penstock.node")
    consumer.open().control("connection_buffer_size", "5000")
    for nbytes in (70, 80):
        consumer.acknowledge(nbytes)
    assert consumer.status(Noop()) == S.SUCCESS
    assert [message for message in caplog.messages if "acknowledges" in message] == [
        "test acknowledges 70 bytes, while 0 are unacknowledged"
    ]


@pytest.mark.parametrize("name", [name for name in TEXTS if not name.isprintable()])
def test_name_of_a_connection_forges_no_line_of_the_log(consumer, caplog, name):
    caplog.set_level("INFO", "penstock.node")
    consumer.open(name).control("connection_buffer_size", "5000")
    consumer.acknowledge(70)
    assert consumer.status(Noop()) == S.SUCCESS
    (message,) = [message for message in caplog.messages if "acknowledges" in message]
    assert message == f"{escape_text(name)} acknowledges 70 bytes, while 0 are unacknowledged"
    assert message.isprintable()


def test_v7_statuses_are_sent_if_enabled(consumer):
    consumer.open()
    assert consumer.close_stream(1) == S.KEY_ENOENT
    assert consumer.control("v7_dcp_status_codes", "true") == S.SUCCESS
    assert consumer.close_stream(1) == S.DCP_STREAM_NOT_FOUND


LATE = [
    (False, S.KEY_ENOENT, True),
    (False, S.KEY_EEXISTS, True),
    (False, S.DCP_STREAM_NOT_FOUND, True),
    (True, S.DCP_STREAM_NOT_FOUND, True),
    (True, S.OPAQUE_NO_MATCH, True),
    (True, S.NOT_MY_VBUCKET, True),
    (True, S.KEY_ENOENT, False),
    (True, S.KEY_EEXISTS, False),
    (False, S.EINVAL, False),
]


@pytest.mark.parametrize(("v7", "status", "ignored"), LATE)
def test_responses_to_a_closed_stream_are_accepted(consumer, v7, status, ignored):
    consumer.open()
    if v7:
        consumer.control("v7_dcp_status_codes", "true")
    consumer.send(Frame(Magic.RESPONSE, Opcode.DCP_MUTATION, status))
    if ignored:
        assert consumer.status(Noop()) == S.SUCCESS
    else:
        assert consumer.ended()


def test_replica_has_streams_without_active_vb_only(client, consumer):
    client.set(b"k")
    client.ask(SetVbucket(state=VbucketState.REPLICA))
    consumer.open()
    assert consumer.stream(flags=StreamFlag.ACTIVE_VB_ONLY).specific == S.NOT_MY_VBUCKET
    assert consumer.stream().specific == S.SUCCESS
    assert (consumer.message().end_seqno, consumer.message().key) == (1, b"k")
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    assert consumer.message().reason == StreamEndReason.STATE_CHANGED


@pytest.mark.parametrize("state", [VbucketState.PENDING, VbucketState.DEAD])
def test_pending_and_dead_vbuckets_refuse_streams(client, consumer, state):
    client.set(b"k")
    client.ask(SetVbucket(state=state))
    consumer.open()
    assert consumer.stream().specific == S.NOT_MY_VBUCKET
    assert consumer.stream(start=5, end=4).specific == S.NOT_MY_VBUCKET  # the state is checked first
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    assert consumer.stream().specific == S.SUCCESS


def test_flush_ends_streams(client, consumer):
    client.set(b"k")
    consumer.open().stream()
    assert [consumer.message().opcode for _ in range(2)] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    client.ask(Flush())
    assert consumer.message().reason == StreamEndReason.STATE_CHANGED


def test_live_change_without_options_is_sent_as_stored(client, consumer):
    consumer.open().stream(opaque=9)
    stored = client.set(b"k", b"v", flags=3)
    consumer.message()
    assert consumer.message() == Mutation(
        opaque=9, key=b"k", value=b"v", flags=3, cas=stored.cas, by_seqno=1, rev_seqno=1
    )
