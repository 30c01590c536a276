"""Takeover by the DCP producer: the messages, the writers of the vbucket, and consumers that fail."""

import json

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import Feature, VbucketState
from penstock.wire.codec.flags import SnapshotFlag, StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.codec.statuses import StreamEndReason
from penstock.wire.messages.dcp import Mutation, SetVbucketState, SnapshotMarker, StreamEnd
from penstock.wire.messages.kv import DelVbucket, Noop, Set, SetVbucket
from penstock.wire.messages.observe import StopPersistence
from tests.node.disks import copy_files
from tests.node.manifests import ALE, DEFAULT, make_beers, set_scopes
from tests.node.wire_client import connected

ACTIVE, PENDING, DEAD, REPLICA = (
    VbucketState.ACTIVE,
    VbucketState.PENDING,
    VbucketState.DEAD,
    VbucketState.REPLICA,
)
OPAQUE = 0x4444


def request_takeover(consumer, **fields):
    """Request a takeover of vbucket 0, and return the status."""
    return consumer.stream(flags=StreamFlag.TAKEOVER, opaque=OPAQUE, **fields).specific


def receive(consumer, kind):
    """Return the next message, which must be of a kind."""
    message = decode_frame(consumer.receive())
    assert isinstance(message, kind), message
    return message


def receive_changes(consumer, *keys):
    """Receive a snapshot with these keys."""
    assert receive(consumer, SnapshotMarker).flags & SnapshotFlag.ACK
    assert [receive(consumer, Mutation).key for _ in keys] == list(keys)


def make_answer(opcode, status=S.SUCCESS):
    return Frame(Magic.RESPONSE, opcode, status, opaque=OPAQUE)


def answer_marker(consumer, status=S.SUCCESS):
    consumer.send(make_answer(Opcode.DCP_SNAPSHOT_MARKER, status))


def answer_state(consumer, status=S.SUCCESS):
    consumer.send(make_answer(Opcode.DCP_SET_VBUCKET_STATE, status))


def read_state(node):
    return node.buckets["default"].store.vbuckets[0].history.state


def become_pending(consumer):
    """Take the vbucket over, up to the announcement of the pending state."""
    assert request_takeover(consumer) == S.SUCCESS
    receive_changes(consumer, b"a")
    answer_marker(consumer)
    assert receive(consumer, SetVbucketState).state == PENDING


@pytest.fixture
def filled(client):
    """A client of a node whose vbucket 0 has one document."""
    client.set(b"a", b"1")
    return client


def test_consumer_gets_all_changes_before_it_is_active(node, filled, consumer):
    log = node.buckets["default"].store.vbuckets[0].history.failover_log
    become_pending(consumer)
    assert filled.set(b"b").specific == S.SUCCESS  # it is sent once the vbucket is dead
    answer_state(consumer)
    receive_changes(consumer, b"b")
    assert filled.set(b"c").specific == S.NOT_MY_VBUCKET
    assert filled.get(b"a").specific == S.NOT_MY_VBUCKET
    answer_marker(consumer)
    assert receive(consumer, SetVbucketState).state == ACTIVE
    answer_state(consumer)
    assert receive(consumer, StreamEnd).reason == StreamEndReason.OK
    assert read_state(node) is DEAD
    assert node.buckets["default"].store.vbuckets[0].history.failover_log == log


def test_empty_vbucket_is_taken_over(node, client, consumer):
    assert request_takeover(consumer, end=0) == S.SUCCESS  # a takeover has no end
    for state in (PENDING, ACTIVE):
        assert receive(consumer, SetVbucketState).state == state
        answer_state(consumer)
    assert receive(consumer, StreamEnd).reason == StreamEndReason.OK
    assert read_state(node) is DEAD


def test_new_changes_follow_while_a_marker_is_unanswered(filled, consumer):
    assert request_takeover(consumer) == S.SUCCESS
    receive_changes(consumer, b"a")
    filled.set(b"b")
    receive_changes(consumer, b"b")
    answer_marker(consumer)
    filled.set(b"c")
    receive_changes(consumer, b"c")
    answer_marker(consumer)
    answer_marker(consumer)
    assert receive(consumer, SetVbucketState).state == PENDING


def test_other_streams_of_the_vbucket_continue(node, filled, consumer):
    with connected(node) as other:
        other.open("other").stream()
        assert [receive(other, kind) for kind in (SnapshotMarker, Mutation)]
        become_pending(consumer)
        filled.set(b"b")
        answer_state(consumer)
        receive_changes(consumer, b"b")
        assert receive(other, SnapshotMarker).end_seqno == 2
        assert receive(other, Mutation).key == b"b"
        answer_marker(consumer)
        assert receive(consumer, SetVbucketState).state == ACTIVE
        answer_state(consumer)
        receive(consumer, StreamEnd)
        assert other.status(Noop()) == S.SUCCESS
        assert other.frames == []
        assert filled.status(DelVbucket()) == S.SUCCESS
        assert receive(other, StreamEnd).reason == StreamEndReason.STATE_CHANGED


def test_lost_connection_leaves_the_vbucket_dead(node, filled, consumer):
    become_pending(consumer)
    answer_state(consumer)
    assert receive(consumer, SetVbucketState).state == ACTIVE
    consumer.disconnect()
    assert read_state(node) is DEAD
    assert filled.status(SetVbucket(state=ACTIVE)) == S.SUCCESS
    assert filled.set(b"b").specific == S.SUCCESS


def test_lost_connection_before_the_answer_leaves_the_vbucket_active(node, filled, consumer):
    become_pending(consumer)
    consumer.disconnect()
    assert read_state(node) is ACTIVE
    assert filled.set(b"b").specific == S.SUCCESS


@pytest.mark.parametrize("message", ["marker", "state"])
def test_refused_message_ends_the_connection(node, filled, consumer, message):
    assert request_takeover(consumer) == S.SUCCESS
    receive_changes(consumer, b"a")
    if message == "marker":
        answer_marker(consumer, status=S.NOT_MY_VBUCKET)
    else:
        answer_marker(consumer)
        receive(consumer, SetVbucketState)
        answer_state(consumer, status=S.NOT_MY_VBUCKET)
    assert consumer.ended()
    assert read_state(node) is ACTIVE
    assert filled.set(b"b").specific == S.SUCCESS


@pytest.mark.parametrize("opcode", [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_SET_VBUCKET_STATE])
def test_answer_to_nothing_ends_the_connection(node, filled, consumer, opcode):
    assert request_takeover(consumer) == S.SUCCESS
    receive_changes(consumer, b"a")
    answer_marker(consumer)
    assert receive(consumer, SetVbucketState).state == PENDING
    consumer.send(*[make_answer(opcode)] * 2)  # in one packet: nothing is sent in between
    assert consumer.ended()
    assert read_state(node) is (ACTIVE if opcode == Opcode.DCP_SNAPSHOT_MARKER else DEAD)


def test_state_change_by_others_ends_the_takeover(node, filled, consumer):
    become_pending(consumer)
    assert filled.status(SetVbucket(state=REPLICA)) == S.SUCCESS
    assert receive(consumer, StreamEnd).reason == StreamEndReason.STATE_CHANGED
    answer_state(consumer)
    assert consumer.status(Noop()) == S.SUCCESS
    assert read_state(node) is REPLICA


def test_second_takeover_of_a_vbucket_ends(node, filled, consumer):
    with connected(node) as second:
        become_pending(consumer)
        become_pending(second.open("second"))
        answer_state(consumer)
        assert receive(second, StreamEnd).reason == StreamEndReason.STATE_CHANGED
        assert receive(consumer, SetVbucketState).state == ACTIVE


def test_closed_stream_ends_the_takeover(node, filled, consumer):
    become_pending(consumer)
    assert consumer.close_stream() == S.SUCCESS
    answer_state(consumer)
    assert consumer.status(Noop()) == S.SUCCESS
    assert read_state(node) is ACTIVE
    assert request_takeover(consumer, start=1, vbuuid=0) == S.ROLLBACK


# Requests


def test_only_active_vbuckets_are_taken_over(filled, consumer):
    assert filled.status(SetVbucket(state=REPLICA)) == S.SUCCESS
    assert request_takeover(consumer) == S.NOT_MY_VBUCKET
    assert consumer.stream().specific == S.SUCCESS


def test_takeovers_need_different_opaques(filled, consumer):
    assert request_takeover(consumer) == S.SUCCESS
    assert request_takeover(consumer, vbucket=1) == S.EINVAL


def test_takeover_needs_all_collections(node, filled, consumer):
    with connected(node) as collections:
        collections.hello(Feature.COLLECTIONS)
        set_scopes(collections, 1, DEFAULT, make_beers(ALE))
        collections.open("collections")
        assert collections.control("enable_noop", "true") == S.SUCCESS
        wanted = json.dumps({"collections": ["0"]}).encode()
        assert request_takeover(collections, value=wanted) == S.NOT_SUPPORTED
        assert request_takeover(consumer) == S.NOT_SUPPORTED
        assert request_takeover(collections) == S.SUCCESS


def test_new_collection_ends_the_takeover_of_a_consumer_without_collections(node, filled, consumer):
    become_pending(consumer)
    with connected(node) as collections:
        collections.hello(Feature.COLLECTIONS)
        set_scopes(collections, 1, DEFAULT, make_beers(ALE))
    answer_state(consumer)
    assert consumer.ended()
    assert read_state(node) is ACTIVE


# Time limits


def test_writes_are_refused_while_a_takeover_lasts_too_long():
    with Node.running(vbuckets=2, takeover_seconds=0.05) as node, connected(node) as client, connected(node) as slow:
        client.set(b"a", b"1")
        slow.open("slow")
        assert request_takeover(slow) == S.SUCCESS
        receive_changes(slow, b"a")
        while (status := client.set(b"a").specific) == S.SUCCESS:
            pass
        assert status == S.ETMPFAIL
        assert client.delete(b"a").specific == S.ETMPFAIL
        assert client.get(b"a").specific == S.SUCCESS
        assert client.status(Set(key=b"a", vbucket=1)) == S.SUCCESS
        assert slow.close_stream() == S.SUCCESS
        assert client.set(b"a").specific == S.SUCCESS


def test_consumer_that_never_answers_is_disconnected():
    with Node.running(vbuckets=2, idle_timeout=0.2) as node, connected(node) as client, connected(node) as silent:
        client.set(b"a", b"1")
        silent.open("silent")
        assert request_takeover(silent) == S.SUCCESS
        receive_changes(silent, b"a")
        assert silent.ended()
        assert client.set(b"b").specific == S.SUCCESS


# On disk


def test_consumer_is_active_only_after_the_dead_state_is_on_disk(tmp_path):
    with (
        Node.running(vbuckets=2, data_dir=tmp_path) as node,
        connected(node) as client,
        connected(node) as consumer,
    ):
        client.set(b"a", b"1")
        become_pending(consumer.open("consumer"))
        assert client.status(StopPersistence()) == S.SUCCESS
        answer_state(consumer)
        assert consumer.ended()
        assert read_state(node) is DEAD
    with Node.running(vbuckets=2, data_dir=tmp_path) as node:
        assert read_state(node) is DEAD


def test_node_that_crashes_after_a_takeover_does_not_own_the_vbucket(tmp_path):
    with (
        Node.running(vbuckets=2, data_dir=tmp_path / "data") as node,
        connected(node) as client,
        connected(node) as consumer,
    ):
        client.set(b"a", b"1")
        become_pending(consumer.open("consumer"))
        client.set(b"b")
        answer_state(consumer)
        receive_changes(consumer, b"b")
        answer_marker(consumer)
        assert receive(consumer, SetVbucketState).state == ACTIVE
        copy_files(node, "default", tmp_path / "crashed")
        answer_state(consumer)
        assert receive(consumer, StreamEnd).reason == StreamEndReason.OK
    with Node.running(vbuckets=2, data_dir=tmp_path / "crashed") as node:
        assert read_state(node) is DEAD
