"""Requests of a DCP connection and their replies: opening, settings, stream requests, closing."""

from typing import Any

import pytest

from penstock.wire.codec.constants import MAX_SEQNO, Dialect, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag, StreamFlag
from penstock.wire.codec.frame import HEADER, Frame, cut_frame
from penstock.wire.codec.layout import LAYOUTS
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    AddStream,
    BufferAck,
    CloseStream,
    Control,
    DcpGetFailoverLog,
    Deletion,
    DeletionV2,
    Mutation,
    Open,
    Prepare,
    SetVbucketState,
    SnapshotMarker,
    StreamEnd,
    StreamReq,
    SystemEvent,
    unpack_rollback,
)
from penstock.wire.messages.kv import Noop, unpack_failover_log
from tests.node.wire_client import connected
from tests.strategies import plain_frame

S = Status
ASK: dict[str, Any] = {"start_seqno": 0, "end_seqno": MAX_SEQNO, "vbuuid": 0, "snap_start": 0, "snap_end": 0}

OPENS = [
    ("a producer", Open(key=b"name", flags=1), S.SUCCESS),
    ("the longest name", Open(key=b"n" * 250, flags=1), S.SUCCESS),
    ("a longer name", Open(key=b"n" * 251, flags=1), S.EINVAL),
    ("xattrs", Open(key=b"name", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS), S.SUCCESS),
    ("no name", Frame(Magic.REQUEST, Opcode.DCP_OPEN, extras=bytes(8)), S.EINVAL),
    ("short extras", Frame(Magic.REQUEST, Opcode.DCP_OPEN, key=b"name", extras=bytes(4)), S.EINVAL),
    ("a value", Open(key=b"name", flags=1, value=b"{}"), S.EINVAL),
    ("a cas, which has no meaning", Open(key=b"name", flags=1, cas=1), S.SUCCESS),
    ("a consumer", Open(key=b"name", flags=0), S.SUCCESS),
    ("a notifier", Open(key=b"name", flags=2), S.EINVAL),
    ("no values", Open(key=b"name", flags=0x09), S.SUCCESS),
    ("no values, but their datatypes", Open(key=b"name", flags=0x41), S.SUCCESS),
    ("no values in both ways", Open(key=b"name", flags=0x49), S.EINVAL),
    ("deleted user xattrs", Open(key=b"name", flags=0x105), S.SUCCESS),
    ("deleted user xattrs without xattrs", Open(key=b"name", flags=0x101), S.EINVAL),
    ("no deletions in the backfill", Open(key=b"name", flags=0x201), S.SUCCESS),
    ("no deletions in a consumer's backfill", Open(key=b"name", flags=0x200), S.EINVAL),
    ("the withdrawn collections flag", Open(key=b"name", flags=0x11), S.EINVAL),
    ("delete times", Open(key=b"name", flags=0x21), S.SUCCESS),
    ("the withdrawn point in time flag", Open(key=b"name", flags=0x81), S.EINVAL),
    ("an unknown flag", Open(key=b"name", flags=0x80000001), S.EINVAL),
]


@pytest.mark.parametrize(("case", "message", "status"), OPENS, ids=[row[0] for row in OPENS])
def test_open_checks_flags_name_and_value(client, case, message, status):
    assert Status(client.status(message)) == status
    assert client.status(Noop()) == S.SUCCESS


@pytest.mark.parametrize(
    ("value", "status"), [(b"{}", S.SUCCESS), (b'{"consumer_name":"n"}', S.EINVAL), (b'{"x":1}', S.EINVAL)]
)
def test_value_of_a_producer_is_an_empty_object(client, value, status):
    client.hello(Feature.JSON)
    assert client.status(Open(key=b"name", flags=1, value=value, datatype=Datatype.JSON)) == status


UNSERVED = {
    Opcode.DCP_FLUSH: S.NOT_SUPPORTED,
    Opcode.DCP_SEQNO_ADVANCED: S.UNKNOWN_COMMAND,
    Opcode.DCP_OSO_SNAPSHOT: S.UNKNOWN_COMMAND,
}
"""Messages that no client may send, before and after OPEN, and the status of the answer."""

EARLY = [
    *(
        Control(key=b"enable_noop", value=b"true"),
        StreamReq(**ASK),
        CloseStream(),
        BufferAck(nbytes=1),
    ),
    # 0x51 would select UPR, and 0x54 needs no OPEN. UNSERVED have another status.
    *(Frame(Magic.REQUEST, opcode) for opcode in (0x52, 0x53, *range(0x55, 0x68)) if opcode not in UNSERVED),
]


@pytest.mark.parametrize("message", EARLY)
def test_requests_before_open_are_refused(client, message):
    assert client.status(message) == S.EINVAL
    assert client.status(Noop()) == S.SUCCESS


def test_failover_log_before_open_sets_no_dialect(client):
    log = client.ask(DcpGetFailoverLog(vbucket=2)).value
    assert len(log) == 16
    assert client.status(DcpGetFailoverLog(vbucket=64)) == S.NOT_MY_VBUCKET
    assert client.status(Open(key=b"name", flags=1)) == S.SUCCESS
    assert client.ask(DcpGetFailoverLog(vbucket=2)).value == log


RAW_ONLY = [
    Open(key=b"other", flags=1),
    Control(key=b"enable_noop", value=b"true"),
    StreamReq(**ASK),
    DcpGetFailoverLog(),
    CloseStream(),
    BufferAck(nbytes=1),
]


@pytest.mark.parametrize("message", RAW_ONLY)
def test_requests_with_a_datatype_are_refused(consumer, message):
    frame = cut_frame(memoryview(message.encode()), 0)
    assert consumer.status(frame._replace(datatype=Datatype.JSON)) == S.EINVAL
    assert consumer.stream().specific == S.SUCCESS


def test_second_open_is_refused(consumer):
    assert consumer.status(Open(key=b"another", flags=1)) == S.EINVAL
    assert consumer.stream().specific == S.SUCCESS


@pytest.mark.parametrize("opcode", UNSERVED)
def test_messages_that_no_client_may_send_are_answered(client, consumer, opcode):
    assert client.status(Frame(Magic.REQUEST, opcode)) == UNSERVED[opcode]
    assert consumer.status(Frame(Magic.REQUEST, opcode)) == UNSERVED[opcode]
    assert consumer.stream().specific == S.SUCCESS


WRONG_ROLE = [0x51, 0x55, 0x56, 0x59, 0x5C, 0x62, 0x63, 0x66, 0x67]
WRONG_ROLE_MESSAGES = [
    Mutation(key=b"k", by_seqno=1),
    Deletion(key=b"k", by_seqno=1),
    SetVbucketState(state=VbucketState.ACTIVE),
    SystemEvent(by_seqno=1, event=0, key=b"c", value=bytes(16)),
    Prepare(key=b"k", by_seqno=1, cas=1),
]


def make_wrong_role(opcode):
    forms = LAYOUTS[Dialect.DCP][Magic.REQUEST][opcode]
    return plain_frame(Opcode(opcode), forms[max(forms)])


@pytest.mark.parametrize("message", [*map(make_wrong_role, WRONG_ROLE), *WRONG_ROLE_MESSAGES], ids=repr)
def test_producer_message_ends_connection(consumer, message):
    consumer.send(message)
    assert consumer.ended()


INVALID_MESSAGES = [
    Mutation(key=b"k", by_seqno=0),
    Deletion(by_seqno=1),
    DeletionV2(key=b"k", by_seqno=1),
    Deletion(key=b"k", by_seqno=1, datatype=Datatype.JSON, value=b"1"),
    AddStream(flags=0x800),
    Prepare(key=b"k", by_seqno=1),
    Prepare(key=b"k", by_seqno=0, cas=1),
    Prepare(key=b"k", by_seqno=1, cas=1, durability=4),
    SystemEvent(by_seqno=1, event=6, value=bytes(16)),
    SystemEvent(by_seqno=1, event=0, version=3, value=bytes(16)),
]


@pytest.mark.parametrize("message", INVALID_MESSAGES, ids=repr)
def test_invalid_producer_message_is_answered(consumer, message):
    assert consumer.status(message) == S.EINVAL
    assert consumer.stream().specific == S.SUCCESS


def test_deletion_with_collections_has_a_time(node):
    with connected(node) as client:
        client.hello(Feature.COLLECTIONS).open()
        assert client.status(Deletion(key=b"\0k", by_seqno=1)) == S.EINVAL
        client.send(DeletionV2(key=b"\0k", by_seqno=1))
        assert client.ended()


@pytest.mark.parametrize("opcode", [Opcode.DCP_CONTROL, Opcode.DCP_GET_FAILOVER_LOG, Opcode.DCP_STREAM_REQ])
def test_answer_to_a_request_that_was_not_sent_is_ignored(consumer, opcode):
    consumer.send(Frame(Magic.RESPONSE, opcode))
    assert consumer.stream().specific == S.SUCCESS
    consumer.send(Frame(Magic.RESPONSE, opcode, Status.EINVAL))
    assert consumer.ended()


def test_missing_key_of_a_commit_ends_the_connection(consumer):
    consumer.send(Frame(Magic.RESPONSE, Opcode.DCP_MUTATION, Status.KEY_ENOENT))
    assert consumer.stream().specific == S.SUCCESS
    consumer.send(Frame(Magic.RESPONSE, Opcode.DCP_COMMIT, Status.KEY_ENOENT))
    assert consumer.ended()


def test_length_beyond_the_body_ends_the_connection(consumer):
    consumer.send(HEADER.pack(Magic.REQUEST, Opcode.DCP_GET_FAILOVER_LOG, 10, 0, 0, 0, 0, 0, 0))
    assert consumer.ended()


def test_malformed_producer_message_is_refused(consumer):
    assert consumer.status(Frame(Magic.REQUEST, Opcode.DCP_MUTATION, extras=bytes(28), key=b"k")) == S.EINVAL
    assert consumer.status(Frame(Magic.REQUEST, 0x61, extras=bytes(8))) == S.EINVAL
    for state in (0, 5):
        assert consumer.status(Frame(Magic.REQUEST, Opcode.DCP_SET_VBUCKET_STATE, extras=bytes([state]))) == S.EINVAL
    assert consumer.status(Noop()) == S.SUCCESS


CONTROLS = [
    *(("connection_buffer_size", value, S.SUCCESS) for value in ("0", "1", "10485760", "4294967295")),
    *(("connection_buffer_size", value, S.EINVAL) for value in ("-1", "4294967296", "1.5", "x", "1e3", " 1", "\uff19")),
    ("stream_buffer_size", "100", S.NOT_SUPPORTED),
    *(("enable_noop", value, S.SUCCESS) for value in ("true", "false", "TRUE")),
    *(("set_noop_interval", value, S.SUCCESS) for value in ("20", "10800", "10801", "1", "0.1", "120")),
    *(("set_noop_interval", value, S.EINVAL) for value in ("0", "0.09", "-1", "nan", "inf", "x")),
    *(("set_priority", value, S.SUCCESS) for value in ("high", "medium", "low")),
    ("set_priority", "highest", S.EINVAL),
    ("enable_ext_metadata", "true", S.SUCCESS),
    ("enable_ext_metadata", "yes", S.SUCCESS),
    ("enable_value_compression", "true", S.SUCCESS),
    ("force_value_compression", "true", S.EINVAL),
    *(("supports_cursor_dropping", value, S.SUCCESS) for value in ("true", "false")),
    ("supports_cursor_dropping", "yes", S.SUCCESS),
    ("supports_cursor_dropping_vulcan", "true", S.SUCCESS),
    ("supports_hifi_MFU", "true", S.SUCCESS),
    ("send_stream_end_on_client_close_stream", "true", S.SUCCESS),
    ("send_stream_end_on_client_close_stream", "false", S.SUCCESS),
    ("enable_expiry_opcode", "true", S.SUCCESS),
    ("enable_stream_id", "true", S.SUCCESS),
    ("enable_stream_id", "false", S.EINVAL),
    ("enable_sync_writes", "true", S.NOT_SUPPORTED),  # without collections
    ("consumer_name", "replica", S.SUCCESS),
    ("include_deleted_user_xattrs", "true", S.EINVAL),
    *(("backfill_order", value, S.SUCCESS) for value in ("round-robin", "sequential")),
    ("backfill_order", "random", S.EINVAL),
    *(("enable_out_of_order_snapshots", value, S.SUCCESS) for value in ("true", "true_with_seqno_advanced")),
    ("v7_dcp_status_codes", "true", S.SUCCESS),
    ("v7_dcp_status_codes", "false", S.EINVAL),
    ("flatbuffers_system_events", "true", S.SUCCESS),
    ("change_streams", "true", S.SUCCESS),
    ("max_marker_version", "2.2", S.NOT_SUPPORTED),
    ("max_marker_version", "9", S.EINVAL),
    *(("cache_transfer", value, S.SUCCESS) for value in ("true", "false", "any")),
    ("enable_noo", "true", S.EINVAL),
    ("e", "true", S.EINVAL),
    ("Enable_noop", "true", S.EINVAL),
    ("whatever", "true", S.EINVAL),
]


@pytest.mark.parametrize(("key", "value", "status"), CONTROLS)
def test_control_accepts_known_settings(consumer, key, value, status):
    assert Status(consumer.control(key, value)) == status


@pytest.mark.parametrize("parts", [{"key": b"enable_noop"}, {"value": b"true"}])
def test_control_needs_a_key_and_a_value(consumer, parts):
    assert consumer.status(Frame(Magic.REQUEST, Opcode.DCP_CONTROL, **parts)) == S.EINVAL


STREAMS = [
    ("a missing vbucket", {"vbucket": 16}, S.NOT_MY_VBUCKET),
    ("a missing vbucket and wrong seqnos", {"vbucket": 16, "start_seqno": 5, "end_seqno": 1}, S.NOT_MY_VBUCKET),
    ("an unknown flag and a missing vbucket", {"vbucket": 16, "flags": 0x200}, S.EINVAL),
    ("the withdrawn flag", {"flags": 0x08}, S.EINVAL),
    ("takeover", {"flags": StreamFlag.TAKEOVER}, S.SUCCESS),
    ("cache transfer", {"flags": 0x100}, S.SUCCESS),
    ("a filter", {"value": b"{}"}, S.EINVAL),
    ("a key", {"key": b"k"}, S.EINVAL),
    ("a cas, which has no meaning", {"cas": 1}, S.SUCCESS),
    ("the start after the end", {"start_seqno": 2, "snap_start": 2, "snap_end": 2, "end_seqno": 1}, S.ERANGE),
    ("the start before its snapshot", {"start_seqno": 1, "snap_start": 2, "snap_end": 2}, S.ERANGE),
    ("the start behind its snapshot", {"start_seqno": 3, "snap_start": 2, "snap_end": 2}, S.ERANGE),
    ("latest, which ends before it starts", {"flags": 0x40, "end_seqno": 2}, S.ERANGE),
    ("strict, of an unknown branch", {"flags": StreamFlag.STRICT_VBUUID, "vbuuid": 5}, S.ROLLBACK),
    ("strict, without a branch", {"flags": StreamFlag.STRICT_VBUUID}, S.SUCCESS),
    ("active only", {"flags": StreamFlag.ACTIVE_VB_ONLY | StreamFlag.IGNORE_PURGED_TOMBSTONES}, S.SUCCESS),
    ("reserved bits", {"reserved": 5}, S.SUCCESS),
]


@pytest.mark.parametrize(("case", "fields", "status"), STREAMS, ids=[row[0] for row in STREAMS])
def test_stream_requests_get_their_status(client, consumer, case, fields, status):
    for _ in range(3):
        client.set(b"k")
    reply = consumer.ask(StreamReq(**{**ASK, "opaque": 99, **fields}))
    assert (Status(reply.specific), reply.opaque, reply.extras) == (status, 99, b"")
    if status not in (S.SUCCESS, S.ROLLBACK):
        assert reply.value == b""


def test_stream_request_with_short_extras_is_refused(consumer):
    assert consumer.status(Frame(Magic.REQUEST, Opcode.DCP_STREAM_REQ, extras=bytes(40))) == S.EINVAL


def test_xattrs_need_noop(client):
    client.open(flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_XATTRS)
    assert client.stream(0, 5, 1).specific == S.NOT_SUPPORTED
    client.control("enable_noop", "true")
    assert client.stream(0, 5, 1).specific == S.ERANGE
    assert client.stream().specific == S.SUCCESS


def test_second_stream_of_a_vbucket_is_refused(consumer):
    assert consumer.stream(1).specific == S.SUCCESS
    assert consumer.stream(1).specific == S.KEY_EEXISTS
    assert consumer.stream(2).specific == S.SUCCESS
    assert consumer.close_stream(1) == S.SUCCESS
    assert consumer.close_stream(1) == S.KEY_ENOENT
    assert consumer.close_stream(3) == S.KEY_ENOENT
    assert consumer.stream(1).specific == S.SUCCESS


# The branches are 2222 from seqno 3 and 1111 from seqno 0; the high seqno is 10. The last column is the rollback point.
ROLLBACKS = [
    ("in the middle of a snapshot that left the branch", 1111, (1, 4), 3, 1),
    ("a whole snapshot on the branch", 1111, (3, 3), 3, None),
    ("beyond the branch", 1111, (5, 8), 6, 3),
    ("at the start of a snapshot that left the branch", 1111, (4, 9), 4, 3),
    ("in a snapshot beyond the high seqno", 2222, (1, 12), 10, 1),
    ("a whole snapshot on the newest branch", 2222, (1, 10), 10, None),
    ("in the middle of a snapshot on the newest branch", 2222, (1, 10), 7, None),
    ("beyond the high seqno", 2222, (12, 12), 12, 10),
    ("an unknown branch", 9999, (5, 5), 5, 0),
    ("no branch, but changes", 0, (5, 5), 5, 0),
    ("no changes", 0, (0, 0), 0, None),
    ("no changes of an unknown branch", 9999, (0, 0), 0, None),
]


@pytest.mark.parametrize(("case", "vbuuid", "snap", "start", "point"), ROLLBACKS, ids=[row[0] for row in ROLLBACKS])
def test_stream_requests_roll_back(node, client, consumer, case, vbuuid, snap, start, point):
    for number in range(10):
        client.set(b"key %d" % number)
    vbucket = node.buckets["default"].store.vbuckets[0]
    entry = type(vbucket.history.failover_log[0])
    vbucket.history.failover_log = (entry(2222, 3), entry(1111, 0))
    reply = consumer.stream(0, start, vbuuid=vbuuid, snap=snap)
    if point is None:
        assert reply.specific == S.SUCCESS
        assert unpack_failover_log(reply.value) == ((2222, 3), (1111, 0))
        marker = consumer.message() if start < 10 else None
        assert marker is None or (marker.start_seqno, marker.end_seqno) == (snap[0], 10)
    else:
        assert (reply.specific, unpack_rollback(reply.value)) == (S.ROLLBACK, point)
        assert consumer.stream(0).specific == S.SUCCESS


def test_failover_log_lists_the_branches(node, consumer):
    log = node.buckets["default"].store.vbuckets[3].history.failover_log
    assert unpack_failover_log(consumer.ask(DcpGetFailoverLog(vbucket=3)).value) == log
    refused = consumer.ask(DcpGetFailoverLog(vbucket=16))
    assert (refused.specific, refused.value) == (S.NOT_MY_VBUCKET, b"")


ENDS_AT_ONCE = [
    ("start is end", {"end_seqno": 0}),
    ("up to latest, of an empty vbucket", {"flags": StreamFlag.TO_LATEST, "vbucket": 5}),
    ("from disk, of an empty vbucket", {"flags": StreamFlag.DISK_ONLY, "vbucket": 5}),
    ("from latest to latest", {"flags": StreamFlag.FROM_LATEST | StreamFlag.TO_LATEST}),
]


@pytest.mark.parametrize(("case", "fields"), ENDS_AT_ONCE, ids=[row[0] for row in ENDS_AT_ONCE])
def test_stream_without_changes_ends_at_once(client, consumer, case, fields):
    client.set(b"k")
    request = StreamReq(**{**ASK, "opaque": 99, **fields})
    assert consumer.status(request) == S.SUCCESS
    assert consumer.message() == StreamEnd(vbucket=request.vbucket, opaque=99, reason=0)
    assert consumer.close_stream(request.vbucket) == S.KEY_ENOENT


@pytest.mark.parametrize("flag", [StreamFlag.TO_LATEST, StreamFlag.DISK_ONLY])
def test_stream_to_latest_has_everything(client, consumer, flag):
    for number in range(5):
        client.set(b"key %d" % number)
    assert consumer.stream(end=2, flags=flag).specific == S.SUCCESS
    marker, *changes = consumer.changes()
    assert isinstance(marker, SnapshotMarker)
    assert (marker.start_seqno, marker.end_seqno) == (0, 5)
    assert [change.by_seqno for change in changes] == [1, 2, 3, 4, 5]


def test_disk_only_stream_of_a_bucket_in_memory_has_everything(node, client, consumer):
    client.set(b"k")
    vbuuid = node.buckets["default"].store.vbuckets[0].history.vbuuid
    assert consumer.stream(start=1, vbuuid=vbuuid, flags=StreamFlag.DISK_ONLY).specific == S.SUCCESS
    assert consumer.message().reason == 0


def test_stream_from_latest_has_only_new_changes(client, consumer):
    client.set(b"before")
    assert consumer.stream(flags=StreamFlag.FROM_LATEST).specific == S.SUCCESS
    client.set(b"after")
    marker, change = consumer.message(), consumer.message()
    assert (marker.start_seqno, marker.end_seqno) == (1, 2)
    assert (change.key, change.by_seqno) == (b"after", 2)


def test_second_connection_of_a_name_ends_the_first(node, client, consumer):
    consumer.stream()
    with connected(node) as second:
        second.open("consumer")
        assert consumer.ended()
        second.stream()
        client.set(b"k")
        assert second.message().end_seqno == 1
        assert client.stats()["ep_dcp_producer_count"] == "1"


def test_buckets_have_their_own_producer_names(node, consumer):
    with connected(node, "beer") as second:
        second.open("consumer")
        assert consumer.status(Noop()) == S.SUCCESS


def test_open_enables_only_json(consumer):
    stored = [consumer.set(b"k%d" % datatype, b"{}", datatype=datatype).specific for datatype in (1, 2, 4, 0x81, 0x80)]
    assert stored == [S.SUCCESS, S.EINVAL, S.EINVAL, S.EINVAL, S.EINVAL]
    assert consumer.get(b"k1").datatype == 1


def test_json_datatype_is_hidden_without_agreement(client, consumer):
    consumer.set(b"k", b"{}", datatype=1)
    assert client.get(b"k").datatype == 0
    consumer.stream()
    consumer.message()
    assert consumer.message().datatype == 1


def test_stream_connection_serves_key_value_requests(consumer):
    consumer.stream()
    assert consumer.set(b"k", b"v").specific == S.SUCCESS
    assert consumer.get(b"k").value == b"v"
    assert consumer.message().end_seqno == 1
