"""Streams that have not yet sent a deletion when a compaction drops its tombstone: consumers are notified."""

from contextlib import closing
from typing import Any

import pytest

from penstock.node import Node
from penstock.node.tap.tap_stream import make_opaque_message
from penstock.wire.codec.constants import Dialect, TapOpaque
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import StreamEnd
from penstock.wire.messages.observe import CompactDb
from penstock.wire.messages.upr import UprStreamEnd, UprStreamReq
from penstock.wire.messages.upr_draft import DraftStateChanged, DraftStreamReq
from tests.node.tap_client import F, TapClient, set_tap_settings
from tests.node.upr_client import UprClient, make_stream_request
from tests.node.wire_client import connected

S = Status
LARGE = 16
"""Number of documents of 1 MiB: more than the sockets between a node and its peer hold."""


@pytest.fixture
def node(tmp_path):
    with Node.running(["default"], 2, data_dir=tmp_path) as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node) as client:
        yield client


def get_vbuuid(node):
    return node.buckets["default"].store.vbuckets[0].history.vbuuid


def drop_tombstone(client):
    """Delete document `a`, store a later document, and drop the tombstone by a compaction."""
    client.delete(b"a")
    client.set(b"last")
    high = int(client.stats("vbucket-seqno 0")["vb_0:high_seqno"])
    assert client.status(CompactDb(drop_deletes=1)) == S.SUCCESS
    assert client.stats("vbucket-seqno 0")["vb_0:purge_seqno"] == str(high - 1)


def store_large_documents(client):
    client.set(b"a")
    for number in range(LARGE):
        client.set(b"large-%d" % number, bytes(1 << 20))


def read_until(read_message, condition):
    """Return the messages up to the first that meets a condition."""
    messages: list[Any] = []
    while not (messages and condition(messages[-1])):
        messages.append(read_message())
    return messages


def test_dcp_ends_the_stream_with_a_rollback(node, client):
    client.set(b"a", bytes(100))
    client.set(b"b", bytes(100))
    with connected(node) as consumer:
        consumer.open()
        assert consumer.control("connection_buffer_size", "1") == S.SUCCESS
        assert consumer.stream().specific == S.SUCCESS
        marker = consumer.message()
        drop_tombstone(client)
        messages = [marker]
        while not isinstance(messages[-1], StreamEnd):
            consumer.acknowledge(1000)
            messages.append(consumer.message())
        assert [message.key for message in messages] == [b"", b"a", b"b", b""]
        assert messages[-1].reason == StreamEndReason.ROLLBACK
        assert consumer.stream(start=2, vbuuid=get_vbuuid(node)).specific == S.ROLLBACK


@pytest.mark.parametrize(
    ("dialect", "request_", "end"),
    [(Dialect.UPR, UprStreamReq, UprStreamEnd), (Dialect.UPR_DRAFT, DraftStreamReq, DraftStateChanged)],
    ids=["upr", "draft"],
)
def test_upr_ends_the_stream_with_a_state_change(node, client, dialect, request_, end):
    store_large_documents(client)
    with closing(UprClient(node, dialect, receive_buffer=1 << 16)) as consumer:
        consumer.send(make_stream_request(request_))
        read_until(lambda: consumer.read_messages()[0], lambda message: message.key == b"a")
        drop_tombstone(client)
        messages = read_until(lambda: consumer.read_messages()[0], lambda message: isinstance(message, end))
        assert b"last" not in [message.key for message in messages]


def test_tap_restarts_the_vbucket(node, client):
    store_large_documents(client)
    with closing(TapClient(node, receive_buffer=1 << 16)) as tap:
        tap.connect(flags=F.BACKFILL, backfill=0)
        tap.read_message()
        drop_tombstone(client)
        messages = read_until(tap.read_message, lambda message: message.key == b"last")
        keys = [message.key for message in messages]
        assert (keys.count(b"a"), keys.count(b"large-0"), keys.count(b"last")) == (1, 2, 1)
        start_marker = make_opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM).engine_private
        starts = [n for n, each in enumerate(messages) if getattr(each, "engine_private", b"") == start_marker]
        assert keys.index(b"a") < starts[-1] < keys.index(b"last")


def test_tap_restarts_the_vbucket_of_a_purged_refused_deletion(node, client):
    client.set(b"a")
    set_tap_settings(node, backoff_period=0)
    with closing(TapClient(node)) as tap:
        tap.connect(flags=F.BACKFILL | F.SUPPORT_ACK, backfill=0, acks=True)
        end_marker = make_opaque_message(TapOpaque.CLOSE_BACKFILL).engine_private
        for _ in range(2):  # vbuckets
            read_until(tap.read_message, lambda message: getattr(message, "engine_private", b"") == end_marker)
        tap.acks = False
        client.delete(b"a")
        deletion = tap.read_message()
        assert deletion.key == b"a"
        client.set(b"last")
        assert client.status(CompactDb(drop_deletes=1)) == S.SUCCESS
        tap.answer(deletion, S.ETMPFAIL)
        tap.acks = True
        messages = read_until(tap.read_message, lambda message: message.key == b"last")
        if getattr(messages[0], "key", b"") == b"last":  # it was sent before the answer arrived
            messages += read_until(tap.read_message, lambda message: message.key == b"last")
        start_marker = make_opaque_message(TapOpaque.INITIAL_VBUCKET_STREAM).engine_private
        assert start_marker in [getattr(message, "engine_private", b"") for message in messages]


def test_consumers_that_need_no_tombstone_continue(node, client):
    """One consumer has no documents yet, one ignores purged tombstones, and one has received the deletion."""
    client.set(b"a")
    client.set(b"b")
    with connected(node) as empty, connected(node) as ignoring, connected(node) as complete:
        for name, consumer in (("empty", empty), ("ignoring", ignoring)):  # their windows are full for now
            assert consumer.open(name).control("connection_buffer_size", "1") == S.SUCCESS
            assert consumer.stream(vbucket=1).specific == S.SUCCESS
        client.set(b"k", vbucket=1)
        for consumer in (empty, ignoring):
            consumer.skip_to(opcode=Opcode.DCP_SNAPSHOT_MARKER)
        assert empty.stream().specific == S.SUCCESS
        flags = StreamFlag.IGNORE_PURGED_TOMBSTONES
        assert ignoring.stream(start=2, vbuuid=get_vbuuid(node), flags=flags).specific == S.SUCCESS
        assert complete.open("complete").stream().specific == S.SUCCESS
        client.delete(b"a")
        complete.skip_to(opcode=Opcode.DCP_DELETION)
        drop_tombstone(client)
        for consumer in (empty, ignoring, complete):
            consumer.acknowledge(1000)
            while (message := consumer.message()).key != b"last":
                assert not isinstance(message, StreamEnd)
                consumer.acknowledge(1000)
