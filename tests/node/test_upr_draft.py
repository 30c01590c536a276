"""The UPR draft over sockets: it has no statuses, and its producers send messages with the magic of a response."""

from contextlib import closing
from functools import partial
from typing import Any

import pytest

from penstock.node.streams import stream_producer
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, VbucketState
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import DelVbucket, Flush, Noop, Set, SetVbucket, unpack_failover_log
from penstock.wire.messages.upr_draft import (
    DraftDeletion,
    DraftExpiration,
    DraftFailoverLog,
    DraftFlush,
    DraftGetFailoverLog,
    DraftMalformed,
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
from tests.node.upr_client import UprClient, make_stream_request

PAST = 1_000_000_000  # epoch seconds


@pytest.fixture
def consumer(node):
    with closing(UprClient(node, Dialect.UPR_DRAFT)) as client:
        yield client


make_request = partial(make_stream_request, DraftStreamReq, opaque=0x2D)


def get_answer(client, *messages):
    client.send(*messages)
    return client.read_messages()[0]


def test_failover_log_lists_the_branches(node, client, consumer):
    log = node.buckets["default"].store.vbuckets[12].history.failover_log
    found = get_answer(consumer, DraftGetFailoverLog(vbucket=12, opaque=0x2D))
    assert isinstance(found, DraftFailoverLog)
    assert (found.vbucket, found.opaque, unpack_failover_log(found.value)) == (12, 0x2D, log)
    client.ask(DelVbucket(vbucket=12))
    for vbucket in (12, 16):
        assert get_answer(consumer, DraftGetFailoverLog(vbucket=vbucket)) == DraftFailoverLog(vbucket=vbucket)


@pytest.mark.parametrize("reserved", [None, 0])
def test_stream_sends_snapshots(client, consumer, reserved):
    stored = client.set(b"mykey", b"myvalue", vbucket=12, flags=9, expiry=4_000_000_000)
    client.set(b"other", vbucket=12)
    client.delete(b"other", vbucket=12)
    tombstone = client.meta(b"other", vbucket=12)
    common: dict[str, Any] = {"vbucket": 12, "opaque": 0x2D}
    consumer.send(make_request(12, key=b"replication_12", reserved=reserved))
    fields = {**common, "by_seqno": 1, "rev_seqno": 1, "flags": 9, "expiry": 4_000_000_000}
    assert consumer.read_messages(6) == [
        DraftOk(**common),
        DraftStreamStart(**common),
        DraftSnapshotStart(**common),
        DraftMutation(**fields, key=b"mykey", value=b"myvalue", cas=stored.cas),
        DraftDeletion(**common, key=b"other", by_seqno=3, rev_seqno=2, cas=tombstone.cas),
        DraftSnapshotEnd(**common),
    ]
    client.set(b"live", vbucket=12)
    assert [type(message) for message in consumer.read_messages(3)] == [
        DraftSnapshotStart,
        DraftMutation,
        DraftSnapshotEnd,
    ]


def test_stream_sends_many_changes_and_its_end(client, consumer):
    for number in range(300):
        client.set(b"key %d" % number, b"%d" % number)
    client.set(b"k", expiry=PAST)
    client.get(b"k")
    consumer.send(make_request(end=302))
    *_, last, snapshot_end, end = consumer.read_messages(306)
    assert isinstance(last, DraftExpiration)
    assert (last.key, last.by_seqno, last.flags, last.expiry) == (b"k", 302, 0, 0)
    assert (snapshot_end, end) == (DraftSnapshotEnd(opaque=0x2D), DraftStreamEnd(opaque=0x2D))


REFUSALS = [
    ("a missing vbucket", {"vbucket": 16}, DraftFailoverLog(vbucket=16, opaque=5)),
    ("the start after the end", {"start_seqno": 2, "end_seqno": 1}, DraftMalformed(opaque=5)),
    ("an unknown branch", {"start_seqno": 2, "vbuuid": 5}, DraftRollback(opaque=5, rollback_seqno=0)),
    ("an unknown branch from the beginning", {"vbuuid": 5}, DraftOk(opaque=5)),
    ("a wrong high seqno", {"high_seqno": 99}, DraftOk(opaque=5)),
    ("a long group", {"key": b"g" * 251}, DraftMalformed(opaque=5)),
]


@pytest.mark.parametrize(("case", "fields", "expected"), REFUSALS, ids=[row[0] for row in REFUSALS])
def test_stream_requests_get_their_status(client, consumer, case, fields, expected):
    for _ in range(3):
        client.set(b"k")
    request = DraftStreamReq(**{"start_seqno": 0, "end_seqno": MAX_SEQNO, "opaque": 5, **fields})
    assert get_answer(consumer, request) == expected


def test_rollback(node, client, consumer):
    for number in range(10):
        client.set(b"key %d" % number)
    vbucket = node.buckets["default"].store.vbuckets[0]
    entry = type(vbucket.history.failover_log[0])
    vbucket.history.failover_log = (entry(2222, 3), entry(1111, 0))
    consumer.send(make_request(start=5, vbuuid=1111))
    frame = consumer.receive()
    assert frame.value == (3).to_bytes(8, "big")
    assert decode_frame(frame, Dialect.UPR_DRAFT) == DraftRollback(opaque=0x2D, rollback_seqno=3)


def test_vbucket_can_have_several_streams_but_a_request_one(client, consumer):
    client.set(b"k")
    assert get_answer(consumer, make_request(opaque=1)) == DraftOk(opaque=1)
    consumer.read_messages(4)
    assert get_answer(consumer, make_request(1, opaque=1)) == DraftMalformed(vbucket=1, opaque=1)
    assert get_answer(consumer, DraftGetFailoverLog(opaque=1)) == DraftMalformed(opaque=1)
    assert get_answer(consumer, make_request(opaque=2)) == DraftOk(opaque=2)
    assert {message.opaque for message in consumer.read_messages(4)} == {2}
    client.ask(SetVbucket(state=VbucketState.REPLICA))
    assert {message.opaque for message in consumer.read_messages(2)} == {1, 2}


def test_streams_of_a_connection_are_limited(consumer, monkeypatch):
    monkeypatch.setattr(stream_producer, "MAX_STREAMS", 2)
    for number in (1, 2):
        assert get_answer(consumer, make_request(opaque=number)) == DraftOk(opaque=number)
        consumer.read_messages()  # the start of the stream
    assert get_answer(consumer, make_request(opaque=3)) == DraftMalformed(opaque=3)


def test_id_of_an_ended_stream_can_be_used_again(client, consumer):
    client.set(b"k")
    for _ in range(2):
        consumer.send(make_request(end=1))
        assert consumer.read_messages(6)[-1] == DraftStreamEnd(opaque=0x2D)


def test_flush_and_state_change_are_announced(client, consumer):
    client.set(b"k")
    consumer.send(make_request())
    consumer.read_messages(5)
    client.ask(Flush())
    assert consumer.read_messages() == [DraftFlush(opaque=0x2D)]
    client.set(b"new")
    assert consumer.read_messages(3)[1].by_seqno == 1
    client.ask(SetVbucket(state=VbucketState.DEAD))
    assert consumer.read_messages() == [DraftStateChanged(opaque=0x2D)]


MALFORMED = [
    ("a request of kind 0", Frame(Magic.REQUEST, 1, 12, 0, 0x0A)),
    ("an unknown kind", Frame(Magic.REQUEST, 1, 12, 3, 0x0A)),
    ("short extras", Frame(Magic.REQUEST, 1, 12, 1, 0x0A, extras=bytes(31))),
    ("a value", Frame(Magic.REQUEST, 1, 12, 1, 0x0A, extras=bytes(32), value=b"v")),
    ("a cas", Frame(Magic.REQUEST, 1, 12, 1, 0x0A, cas=1, extras=bytes(32))),
    ("a failover log request with a key", Frame(Magic.REQUEST, 1, 12, 2, 0x0A, key=b"k")),
    ("DCP OPEN", Frame(Magic.REQUEST, 0x50, 12, 0, 0x0A, extras=bytes(8), key=b"k")),
    ("UPR's stream request", Frame(Magic.REQUEST, 0x50, 12, 0, 0x0A, extras=bytes(40))),
    ("TAP_CONNECT", Frame(Magic.REQUEST, Opcode.TAP_CONNECT, 12, 0, 0x0A)),
]


@pytest.mark.parametrize(("case", "frame"), MALFORMED, ids=[row[0] for row in MALFORMED])
def test_malformed_requests_get_the_malformed_reply(consumer, case, frame):
    get_answer(consumer, DraftGetFailoverLog())
    assert get_answer(consumer, frame) == DraftMalformed(vbucket=12, opaque=0x0A)
    assert consumer.status(Noop()) == Status.SUCCESS


def test_body_with_wrong_lengths_gets_the_malformed_reply(consumer):
    get_answer(consumer, DraftGetFailoverLog())
    frame = bytearray(DraftStreamReq(start_seqno=0, end_seqno=0, opaque=9).encode())
    frame[2:4] = b"\xff\xff"
    assert get_answer(consumer, bytes(frame)) == DraftMalformed(opaque=9)


def test_draft_connection_stores_documents(consumer):
    get_answer(consumer, DraftGetFailoverLog())
    assert consumer.status(Set(key=b"k", value=b"v")) == Status.SUCCESS
    assert consumer.get(b"k").value == b"v"
    assert consumer.status(Set(key=b"", value=b"v")) == Status.EINVAL
