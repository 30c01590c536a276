"""DCP streams: their messages, the order of the messages, flow control, NOOPs, and the end of a stream."""

import threading
from dataclasses import replace
from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import DcpNoop, DcpReply, Deletion, Mutation, SnapshotMarker, StreamEnd
from penstock.wire.messages.kv import Noop, Set, unpack_failover_log
from penstock.wire.messages.observe import CompactDb
from tests.node.wire_client import connected, find_session
from tests.patience import PATIENCE

S = Status
MARKER_BYTES = 44
END_BYTES = 28


def test_stream_sends_the_history_and_then_new_changes(client, consumer):
    stored = [client.set(b"a", b"1", vbucket=3, flags=7), client.set(b"b", b"2", vbucket=3)]
    stored += [client.set(b"a", b"3", vbucket=3)]
    client.delete(b"b", vbucket=3)
    stored += [client.meta(b"b", vbucket=3)]
    consumer.stream(3, opaque=0xABCD)
    marker, *changes = (consumer.message() for _ in range(3))
    common: dict[str, Any] = {"vbucket": 3, "opaque": 0xABCD}
    assert marker == SnapshotMarker(**common, start_seqno=0, end_seqno=4, flags=5)
    assert changes == [
        Mutation(**common, key=b"a", value=b"3", cas=stored[2].cas, by_seqno=3, rev_seqno=2, datatype=Datatype.JSON),
        Deletion(**common, key=b"b", cas=stored[3].cas, by_seqno=4, rev_seqno=2),
    ]
    live = client.set(b"c", b"4", vbucket=3, expiry=4_000_000_000, flags=0xDEADBEEF)
    marker, change = consumer.message(), consumer.message()
    assert marker == SnapshotMarker(**common, start_seqno=5, end_seqno=5, flags=5)
    new = Mutation(**common, key=b"c", value=b"4", cas=live.cas, by_seqno=5, rev_seqno=1)
    assert change == replace(new, flags=0xDEADBEEF, expiry=4_000_000_000, datatype=Datatype.JSON)


def test_reply_precedes_the_stream(client, consumer):
    client.set(b"k")
    consumer.stream(opaque=5)
    assert consumer.frames == [] or consumer.frames[0].opcode == Opcode.DCP_SNAPSHOT_MARKER
    assert consumer.message().opcode == Opcode.DCP_SNAPSHOT_MARKER


def test_changes_of_several_vbuckets_are_sent_together(node, client, consumer, monkeypatch):
    """A consumer is not woken for each vbucket: one turn of the node is one write."""
    for vbucket in range(8):
        consumer.stream(vbucket)
    writes: list[int] = []
    output = find_session(node, consumer).output
    send = output.write

    def write(data):
        writes.append(len(data))
        send(data)

    monkeypatch.setattr(output, "write", write)
    client.send(*[Set(key=b"k", vbucket=vbucket) for vbucket in range(8)])  # one segment, so the node serves it at once
    received = [consumer.message() for _ in range(16)]
    assert sorted(type(message).__name__ for message in received) == ["Mutation"] * 8 + ["SnapshotMarker"] * 8
    assert len([nbytes for nbytes in writes if nbytes]) == 1


def test_stream_ends_exactly_at_its_end_seqno(client, consumer):
    for number in range(10):
        client.set(b"key %d" % number)
    consumer.stream(end=4)
    marker, *changes = consumer.changes()
    assert (marker.start_seqno, marker.end_seqno) == (0, 4)
    assert [change.by_seqno for change in changes] == [1, 2, 3, 4]


def test_stream_waits_for_its_end_seqno(client, consumer):
    client.set(b"k")
    consumer.stream(end=3)
    assert (consumer.message().end_seqno, consumer.message().by_seqno) == (1, 1)
    for _ in range(2):
        client.set(b"k")
    messages = list(consumer.changes())
    assert messages[-1].by_seqno == 3
    assert client.stats()["ep_dcp_num_running_streams"] == "0"


def test_stream_resumes_at_its_last_seqno(client, consumer):
    for number in range(10):
        client.set(b"key %d" % number)
    log = unpack_failover_log(consumer.stream(end=6).value)
    list(consumer.changes())
    consumer.stream(0, 6, 10, vbuuid=log[0].vbuuid, snap=(0, 6))
    marker, *changes = consumer.changes()
    # The first marker goes back to the start of the snapshot that the consumer was in.
    assert (marker.start_seqno, marker.end_seqno) == (0, 10)
    assert [change.by_seqno for change in changes] == [7, 8, 9, 10]


def test_resumed_stream_completes_a_partial_snapshot(client, consumer):
    """The consumer's part lacks the first version of `a`, so it needs the change at 8, which replaces that version."""
    for number in range(10):
        client.set(b"a" if number in {1, 7} else b"key %d" % number)
    log = unpack_failover_log(consumer.stream(end=1).value)
    list(consumer.changes())
    consumer.stream(0, 4, 5, vbuuid=log[0].vbuuid, snap=(0, 8))
    marker, *changes = consumer.changes()
    assert (marker.start_seqno, marker.end_seqno) == (0, 8)
    assert [change.by_seqno for change in changes] == [5, 6, 7, 8]


def test_burst_of_requests_opens_all_vbuckets(node, client):
    for number in range(1000):
        client.send(Set(key=b"key %d" % number, value=b"x" * 500, vbucket=number % 16, opaque=number))
    assert [client.receive().opaque for _ in range(1000)] == list(range(1000))
    client.open()
    for vbucket in range(16):
        client.stream(vbucket, end=62 if vbucket < 8 else 10, opaque=1000 + vbucket)
    ends: dict[int, int] = {}
    seqnos: dict[int, int] = {}
    while len(ends) < 16:
        message = client.message()
        assert message.opaque == 1000 + message.vbucket
        assert message.vbucket not in ends
        if isinstance(message, StreamEnd):
            ends[message.vbucket] = message.reason
        elif isinstance(message, Mutation):
            assert message.by_seqno == seqnos.get(message.vbucket, 0) + 1
            seqnos[message.vbucket] = message.by_seqno
    assert seqnos == {vbucket: 62 if vbucket < 8 else 10 for vbucket in range(16)}
    assert set(ends.values()) == {StreamEndReason.OK}


def test_snapshot_is_exact_during_writes():
    """The stream sends each document in its version at the snapshot's end, while a writer replaces all documents."""
    count = 20_000
    with Node.running(vbuckets=1) as node, connected(node) as writer:
        store_documents(writer, range(count), bytes(600))
        stop = threading.Event()

        def keep_writing():
            while not stop.is_set():
                store_documents(writer, range(count), b"newer", until=stop)

        thread = threading.Thread(target=keep_writing)
        with connected(node, receive_buffer=1 << 16) as consumer:
            consumer.open().stream()
            marker = consumer.message()
            thread.start()
            try:
                changes = [consumer.message() for _ in range(count)]
                following = consumer.message()
            finally:
                stop.set()
                thread.join(PATIENCE)
    assert (marker.start_seqno, marker.end_seqno) == (0, count)
    assert [change.by_seqno for change in changes] == list(range(1, count + 1))
    assert all(change.value == bytes(600) for change in changes)
    assert following.start_seqno == count + 1
    assert following.end_seqno > count + 100


def store_documents(client, numbers, value, until=None):
    """Store documents, 100 requests at a time, until all are stored or `until` is set."""
    for start in range(numbers.start, numbers.stop, 100):
        if until is not None and until.is_set():
            return
        client.send(*(Set(key=b"%d" % number, value=value) for number in range(start, start + 100)))
        for _ in range(100):
            assert client.receive().specific == S.SUCCESS


def test_closed_stream_sends_nothing_more(client, consumer):
    client.set(b"k")
    consumer.stream()
    assert (consumer.message().end_seqno, consumer.message().by_seqno) == (1, 1)
    assert consumer.close_stream() == S.SUCCESS
    client.set(b"k")
    assert consumer.status(Noop()) == S.SUCCESS
    assert consumer.frames == []
    assert client.stats()["ep_dcp_num_running_streams"] == "0"


def test_closed_stream_sends_its_end_if_enabled(client, consumer):
    consumer.control("send_stream_end_on_client_close_stream", "true")
    consumer.stream(opaque=5)
    assert consumer.close_stream() == S.SUCCESS
    assert consumer.message() == StreamEnd(vbucket=0, opaque=5, reason=StreamEndReason.CLOSED)
    assert consumer.close_stream() == S.KEY_ENOENT
    consumer.control("connection_buffer_size", "1")
    client.set(b"k")
    consumer.stream()
    assert consumer.message().end_seqno == 1
    assert consumer.close_stream() == S.SUCCESS
    # The end waits for room in the window, and until then the stream exists.
    assert consumer.close_stream() == S.KEY_ENOENT
    assert consumer.stream().specific == S.KEY_EEXISTS
    consumer.acknowledge(MARKER_BYTES)
    assert consumer.message().reason == StreamEndReason.CLOSED
    assert consumer.stream().specific == S.SUCCESS


# Flow control


def read_sent_frames(consumer):
    """Return the frames that the node has sent: all that the window allows, after three turns of the node."""
    before = []
    for _ in range(3):
        assert consumer.status(Noop()) == S.SUCCESS
        before += consumer.frames
        consumer.frames.clear()
    return before


def test_flow_control_counts_whole_frames_and_exceeds_the_window_by_one(client, consumer):
    for number in range(5):
        client.set(b"key %d" % number, b"v" * 100)
    size = 55 + 5 + 100
    consumer.control("connection_buffer_size", str(MARKER_BYTES + size + 1))
    consumer.stream(end=5)
    # The node sends a frame if the unacknowledged bytes are below the window, so the last frame exceeds it.
    assert [frame.size for frame in read_sent_frames(consumer)] == [MARKER_BYTES, size, size]
    assert client.stats()["ep_dcp_unacked_bytes"] == str(MARKER_BYTES + 2 * size)
    consumer.acknowledge(size - 1)
    assert read_sent_frames(consumer) == []  # the window is exactly full
    consumer.acknowledge(1)
    assert [frame.size for frame in read_sent_frames(consumer)] == [size]
    consumer.acknowledge(3 * size)  # more than is charged: counts as all
    assert [frame.size for frame in read_sent_frames(consumer)] == [size, size]
    consumer.acknowledge(2**32 - 1)
    assert [frame.size for frame in read_sent_frames(consumer)] == [END_BYTES]
    assert client.stats()["ep_dcp_unacked_bytes"] == str(END_BYTES)


def test_window_can_be_changed_and_removed(client, consumer):
    for number in range(5):
        client.set(b"key %d" % number)
    consumer.control("connection_buffer_size", "1")
    consumer.stream()
    assert len(read_sent_frames(consumer)) == 1
    consumer.control("connection_buffer_size", str(MARKER_BYTES + 1))
    assert len(read_sent_frames(consumer)) == 1
    consumer.control("connection_buffer_size", "0")
    assert len(read_sent_frames(consumer)) == 4


def test_deletion_counts_with_its_own_length(client, consumer):
    client.set(b"key")
    client.delete(b"key")
    consumer.control("connection_buffer_size", "1000")
    consumer.stream(end=2)
    assert [frame.size for frame in read_sent_frames(consumer)] == [MARKER_BYTES, 42 + 3, END_BYTES]
    assert client.stats()["ep_dcp_unacked_bytes"] == str(MARKER_BYTES + 45 + END_BYTES)


def test_slow_reader_continues_where_it_is(tmp_path):
    with Node.running(vbuckets=1, data_dir=tmp_path) as node, connected(node) as client, connected(node) as slow:
        for number in range(20):
            client.set(b"key %d" % number, b"old")
        assert slow.open("slow").control("connection_buffer_size", "1") == S.SUCCESS
        slow.stream(opaque=3)
        marker = slow.message()
        for number in range(20):
            client.set(b"key %d" % number, b"new")
        assert client.status(CompactDb()) == S.SUCCESS
        assert slow.control("connection_buffer_size", "0") == S.SUCCESS
        first = [slow.message() for _ in range(20)]
        assert [(change.by_seqno, change.value) for change in first] == [(seqno, b"old") for seqno in range(1, 21)]
        following = slow.message()
        assert (marker.end_seqno, following.start_seqno, following.end_seqno) == (20, 21, 40)
        assert [slow.message().value for _ in range(20)] == [b"new"] * 20


def test_small_window_delivers_everything(client, consumer):
    for number in range(200):
        client.set(b"key %d" % number, b"v" * (number * 7 % 90), vbucket=number % 2)
    consumer.control("connection_buffer_size", "150")
    for vbucket in (0, 1):
        consumer.stream(vbucket, end=100, opaque=vbucket)
    seqnos: dict[int, list[int]] = {0: [], 1: []}
    ended = 0
    while ended < 2:
        frame = consumer.receive()
        consumer.acknowledge(frame.size)
        ended += frame.opcode == Opcode.DCP_STREAM_END
        if frame.opcode == Opcode.DCP_MUTATION:
            seqnos[frame.opaque].append(int.from_bytes(frame.extras[:8], "big"))
    assert seqnos == {vbucket: list(range(1, 101)) for vbucket in (0, 1)}


# NOOP


@pytest.fixture
def impatient_node():
    """Run a node that waits half a second for answers of consumers."""
    with Node.running(vbuckets=2, idle_timeout=0.5) as node:
        yield node


def test_noops_are_sent_without_a_stream(impatient_node):
    with connected(impatient_node) as consumer:
        consumer.open().control("set_noop_interval", "0.1")
        consumer.control("enable_noop", "true")
        assert consumer.message() == DcpNoop(opaque=10_000_001)
        assert consumer.ended()  # since no answer was sent


def test_noops_are_sent_with_a_full_window(impatient_node):
    with connected(impatient_node) as consumer:
        consumer.open().set(b"k")
        consumer.control("set_noop_interval", "0.1")
        consumer.control("enable_noop", "true")
        consumer.control("connection_buffer_size", "1")
        consumer.stream()
        assert consumer.message().opcode == Opcode.DCP_SNAPSHOT_MARKER
        for opaque in (10_000_001, 10_000_002, 10_000_003):
            assert consumer.message() == DcpNoop(opaque=opaque)
            consumer.send(DcpReply(opaque=opaque).encode(Opcode.DCP_NOOP))
        assert consumer.stats()["ep_dcp_unacked_bytes"] == str(MARKER_BYTES)


def test_unanswered_noop_ends_connection(impatient_node):
    with connected(impatient_node) as consumer:
        consumer.open().control("set_noop_interval", "0.1")
        consumer.control("enable_noop", "true")
        consumer.stream()
        assert consumer.message().opcode == Opcode.DCP_NOOP
        assert consumer.ended()


@pytest.mark.parametrize("opaque", [0, 10_000_002])
def test_answer_to_an_unknown_noop_ends_connection(impatient_node, opaque):
    with connected(impatient_node) as consumer:
        consumer.open().control("set_noop_interval", "0.1")
        consumer.control("enable_noop", "true")
        consumer.stream()
        assert consumer.message().opcode == Opcode.DCP_NOOP
        consumer.send(DcpReply(opaque=opaque).encode(Opcode.DCP_NOOP))
        assert consumer.ended()


RESPONSES = [
    *((Opcode.DCP_MUTATION, status, True) for status in (S.SUCCESS, S.KEY_ENOENT, S.KEY_EEXISTS, S.NOT_MY_VBUCKET)),
    (Opcode.DCP_SNAPSHOT_MARKER, S.SUCCESS, True),
    (Opcode.DCP_STREAM_END, S.KEY_ENOENT, True),
    (Opcode.DCP_SET_VBUCKET_STATE, S.SUCCESS, True),
    (Opcode.DCP_SET_VBUCKET_STATE, S.EINVAL, True),
    (Opcode.DCP_DELETION, S.ERANGE, False),
    (Opcode.DCP_MUTATION, S.EINVAL, False),
    (Opcode.DCP_NOOP, S.SUCCESS, False),
    (Opcode.GET, S.SUCCESS, False),
    (0xEE, S.SUCCESS, False),
]


@pytest.mark.parametrize(("opcode", "status", "continues"), RESPONSES)
def test_consumer_responses_continue_or_end_the_connection(consumer, opcode, status, continues):
    consumer.stream()
    consumer.send(Frame(Magic.RESPONSE, opcode, status, opaque=1))
    if continues:
        assert consumer.status(Noop()) == S.SUCCESS
    else:
        assert consumer.ended()


def test_idle_node_takes_no_turns(node, client, consumer):
    """The node counts the turns of streams: open streams without new changes take none."""
    for vbucket in range(16):
        client.set(b"k", vbucket=vbucket)
        consumer.stream(vbucket)
    consumer.control("enable_noop", "true")
    received = read_sent_frames(consumer)
    while sum(frame.opcode == Opcode.DCP_MUTATION for frame in received) < 16:
        received.append(consumer.receive())
    first = client.stats()
    for _ in range(50):
        client.status(Noop())
    second = client.stats()
    assert first["ep_dcp_turns"] == second["ep_dcp_turns"]
    assert second["ep_dcp_num_running_streams"] == "16"
    for name in ("streams_ready", "items_remaining", "unacked_bytes"):
        assert second[f"ep_dcp_{name}"] == "0"
    assert second["ep_requests_waiting"] == second["ep_bytes_unsent"] == "0"
    consumer.disconnect()
    assert client.stats()["ep_dcp_producer_count"] == "0"
