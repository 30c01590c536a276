"""UPR, the first version, over sockets: the failover log, stream requests, and stream messages."""

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import LAYOUTS, decode_frame
from penstock.wire.codec.opcodes import Magic, UprOpcode
from penstock.wire.codec.statuses import Status, UprEndReason
from penstock.wire.messages.kv import DelVbucket, Flush, Noop, SetVbucket, unpack_failover_log
from penstock.wire.messages.upr import (
    UprDeletion,
    UprExpiration,
    UprFlush,
    UprGetFailoverLog,
    UprMutation,
    UprSnapshotEnd,
    UprSnapshotStart,
    UprStreamEnd,
    UprStreamReply,
    UprStreamReq,
    UprStreamStart,
)
from tests.node.upr_client import UprClient, make_stream_request
from tests.strategies import plain_frame

S = Status
PAST = 1_000_000_000  # epoch seconds
OPAQUE = 0xDEADBEEF


@pytest.fixture
def consumer(node):
    with closing(UprClient(node, Dialect.UPR)) as client:
        yield client


make_request = partial(make_stream_request, UprStreamReq, opaque=OPAQUE)


def read_vbuuid(client, vbucket=0) -> int:
    return unpack_failover_log(client.ask(UprGetFailoverLog(vbucket=vbucket)).value)[0].vbuuid


def test_failover_log_lists_the_branches(node, client, consumer):
    log = node.buckets["default"].store.vbuckets[3].history.failover_log
    reply = consumer.ask(UprGetFailoverLog(vbucket=3, opaque=OPAQUE))
    assert (reply.specific, reply.opaque, reply.extras, reply.key) == (S.SUCCESS, OPAQUE, b"", b"")
    assert unpack_failover_log(reply.value) == log
    for state in VbucketState:
        client.ask(SetVbucket(vbucket=3, state=state))
        assert consumer.status(UprGetFailoverLog(vbucket=3)) == S.SUCCESS
    client.ask(DelVbucket(vbucket=3))
    for vbucket in (3, 16):
        refused = consumer.ask(UprGetFailoverLog(vbucket=vbucket))
        assert (refused.specific, refused.value) == (S.NOT_MY_VBUCKET, b"")


def test_stream_sends_the_history_and_then_new_changes(client, consumer):
    first = client.set(b"a", b"1", vbucket=2, flags=7, expiry=4_000_000_000)
    client.set(b"b", b"2", vbucket=2)
    client.delete(b"b", vbucket=2)
    tombstone = client.meta(b"b", vbucket=2)
    reply = consumer.ask(make_request(2, key=b"replication_2"))
    assert (reply.specific, reply.extras, reply.value) == (S.SUCCESS, b"", b"")
    common: dict[str, Any] = {"vbucket": 2, "opaque": OPAQUE}
    fields = {**common, "by_seqno": 1, "rev_seqno": 1, "flags": 7, "expiry": 4_000_000_000}
    assert consumer.read_messages(5) == [
        UprStreamStart(**common),
        UprSnapshotStart(**common),
        UprMutation(**fields, key=b"a", value=b"1", cas=first.cas),
        UprDeletion(**common, key=b"b", cas=tombstone.cas, by_seqno=3, rev_seqno=2),
        UprSnapshotEnd(**common),
    ]
    live = client.set(b"c", b"3", vbucket=2)
    assert consumer.read_messages(3) == [
        UprSnapshotStart(**common),
        UprMutation(**common, key=b"c", value=b"3", cas=live.cas, by_seqno=4, rev_seqno=1),
        UprSnapshotEnd(**common),
    ]


def test_expiration_has_its_own_message(client, consumer):
    client.set(b"k", expiry=PAST)
    assert client.get(b"k").specific == S.KEY_ENOENT
    consumer.ask(make_request())
    *_, change, _ = consumer.read_messages(4)
    assert isinstance(change, UprExpiration)
    assert (change.key, change.by_seqno, change.rev_seqno) == (b"k", 2, 2)


def test_stream_ends_at_its_end_seqno(client, consumer):
    for number in range(5):
        client.set(b"%d" % number)
    consumer.ask(make_request(end=3))
    *_, snapshot_end, end = consumer.read_messages(7)
    assert isinstance(snapshot_end, UprSnapshotEnd)
    assert end == UprStreamEnd(opaque=OPAQUE, reason=UprEndReason.OK)
    consumer.ask(make_request(start=3, end=3, vbuuid=read_vbuuid(consumer)))
    assert consumer.read_messages(2) == [UprStreamStart(opaque=OPAQUE), UprStreamEnd(opaque=OPAQUE, reason=0)]


def test_many_changes_are_encoded_in_columns(client, consumer):
    for number in range(300):
        client.set(b"key %d" % number, b"%d" % number)
    consumer.ask(make_request(end=300))
    start, snapshot, *changes, _, end = consumer.read_messages(304)
    assert [change.by_seqno for change in changes] == list(range(1, 301))
    assert [change.value for change in changes] == [b"%d" % number for number in range(300)]
    assert {change.opaque for change in (start, snapshot, *changes, end)} == {OPAQUE}


def test_datatype_is_hidden_without_agreement(client, consumer):
    client.open()
    client.set(b"k", b"{}", datatype=1)
    consumer.ask(make_request(end=1))
    change = consumer.read_messages(3)[2]
    assert (change.value, change.datatype) == (b"{}", 0)


REFUSALS = [
    ("a missing vbucket", {"vbucket": 16}, S.NOT_MY_VBUCKET),
    ("the start after the end", {"start_seqno": 2, "end_seqno": 1}, S.ERANGE),
    ("an unknown branch", {"start_seqno": 2, "vbuuid": 5}, S.KEY_ENOENT),
    ("no branch, but a start", {"start_seqno": 2}, S.KEY_ENOENT),
    ("an unknown branch from the beginning", {"vbuuid": 5}, S.SUCCESS),
    ("a flag", {"flags": 1}, S.EINVAL),
    ("reserved bits", {"reserved": 1}, S.SUCCESS),
    ("a wrong high seqno", {"high_seqno": 99}, S.SUCCESS),
    ("a long group", {"key": b"g" * 251}, S.EINVAL),
    ("a value", {"value": b"v"}, S.EINVAL),
]


@pytest.mark.parametrize(("case", "fields", "status"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_stream_requests_get_their_status(client, consumer, case, fields, status):
    for _ in range(3):
        client.set(b"k")
    assert consumer.status(UprGetFailoverLog()) == S.SUCCESS
    reply = consumer.ask(UprStreamReq(**{"start_seqno": 0, "end_seqno": MAX_SEQNO, "opaque": 3, **fields}))
    assert (Status(reply.specific), reply.opaque, reply.extras, reply.value) == (status, 3, b"", b"")
    assert consumer.status(Noop()) == S.SUCCESS


def test_group_can_have_many_streams_but_a_vbucket_one(consumer):
    assert consumer.status(make_request(1, key=b"group", opaque=1)) == S.SUCCESS
    assert consumer.status(make_request(1, key=b"group", opaque=2)) == S.KEY_EEXISTS
    assert consumer.status(make_request(2, key=b"group", opaque=3)) == S.SUCCESS


def test_rollback(node, client, consumer):
    for number in range(10):
        client.set(b"key %d" % number)
    vbucket = node.buckets["default"].store.vbuckets[0]
    entry = type(vbucket.history.failover_log[0])
    vbucket.history.failover_log = (entry(2222, 3), entry(1111, 0))
    for branch, start, point in ((1111, 5, 3), (2222, 12, 10)):
        reply = consumer.ask(make_request(start=start, vbuuid=branch))
        assert (reply.specific, len(reply.extras), reply.value) == (S.ROLLBACK, 8, b"")
        message = decode_frame(reply, Dialect.UPR)
        assert isinstance(message, UprStreamReply)
        assert message.rollback() == point
    assert consumer.status(make_request(start=3, vbuuid=1111)) == S.SUCCESS
    assert consumer.read_messages(3)[2].by_seqno == 4


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.DEAD, None])
def test_state_change_ends_stream(client, consumer, state):
    client.set(b"k")
    consumer.ask(make_request())
    consumer.read_messages(4)
    client.ask(DelVbucket() if state is None else SetVbucket(state=state))
    assert consumer.read_messages(1) == [UprStreamEnd(opaque=OPAQUE, reason=UprEndReason.STATE_CHANGED)]


def test_flush_is_announced_and_stream_continues(client, consumer):
    client.set(b"old")
    old = read_vbuuid(consumer)
    consumer.ask(make_request())
    consumer.read_messages(4)
    client.ask(Flush())
    assert consumer.read_messages(1) == [UprFlush(opaque=OPAQUE)]
    assert read_vbuuid(consumer) != old
    client.set(b"new")
    _, change, _ = consumer.read_messages(3)
    assert (change.key, change.by_seqno) == (b"new", 1)


def test_flush_interrupts_a_snapshot(node, client):
    for number in range(60):
        client.set(b"%d" % number, bytes(1 << 20))
    with closing(UprClient(node, Dialect.UPR, receive_buffer=4096)) as slow:
        slow.ask(make_request())
        slow.read_messages(3)
        client.ask(Flush())
        client.set(b"new")
        seqnos = []
        while not isinstance(message := slow.read_messages(1)[0], UprFlush):
            seqnos.append(message.by_seqno)
        assert seqnos == list(range(2, 2 + len(seqnos)))
        assert len(seqnos) < 59
        assert isinstance(slow.read_messages(1)[0], UprSnapshotStart)
        assert slow.read_messages(1)[0].key == b"new"


@pytest.mark.parametrize("opcode", [opcode for opcode in UprOpcode if opcode > UprOpcode.UPR_GET_FAILOVER_LOG])
def test_producer_message_ends_connection(consumer, opcode):
    consumer.ask(UprGetFailoverLog())
    forms = LAYOUTS[Dialect.UPR][Magic.REQUEST][opcode]
    assert consumer.status(Frame(Magic.REQUEST, opcode, extras=bytes(48), key=b"k")) == S.EINVAL, "malformed"
    consumer.send(plain_frame(opcode, forms[max(forms)]))
    assert consumer.ended()


def test_response_ends_connection(client, consumer):
    client.set(b"k")
    consumer.ask(make_request())
    consumer.read_messages(4)
    consumer.send(Frame(Magic.RESPONSE, UprOpcode.UPR_MUTATION))
    assert consumer.ended()
