"""The age of a copy: the time since the last message of the connection that fills it."""

import pytest

from penstock.node import Node
from penstock.node.transport.machine import Machine
from penstock.wire.codec.constants import TapOpaque, VbucketState
from penstock.wire.codec.flags import TapFlag
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import CloseStream, DcpNoop, StreamEnd
from penstock.wire.messages.kv import DelVbucket, SetVbucket
from penstock.wire.messages.tap import TapFlush, TapOpaqueMessage
from tests.node.producing_peer import make_replica, producing
from tests.node.wire_client import connected

SECOND = 1_000_000_000
VBUCKETS = 4


class SteppedClock:
    """A monotonic clock that stands still until a test moves it."""

    now_ns = SECOND

    def read(self):
        return self.now_ns

    def pass_seconds(self, seconds):
        self.now_ns += seconds * SECOND


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def node(clock):
    with Node.running(["default"], VBUCKETS, machine=Machine(monotonic_ns=clock.read)) as node:
        yield node


@pytest.fixture
def peer(node, client):
    """A peer with accepted streams of vbuckets 0 and 1, which are replicas."""
    for vbucket in (0, 1, 2):
        make_replica(client, vbucket)
    with producing(node) as peer:
        peer.open_consumer()
        for vbucket in (1, 0):
            peer.add_stream(vbucket)
            peer.accept()
        yield peer


def read_ages(client):
    """Return the ages of the copies in milliseconds."""
    found = {}
    for name, text in client.stats("vbucket-details").items():
        own, _, statistic = name.partition(":")
        if statistic == "last_message_age_ms":
            found[int(own.removeprefix("vb_"))] = int(text)
    return found


def test_copy_has_no_age_before_its_stream(node, client):
    make_replica(client)
    with producing(node) as peer:
        peer.open_consumer()
        peer.add_stream()
        assert read_ages(client) == {}
        peer.answer(S.KEY_ENOENT)
        assert peer.receive().specific == S.KEY_ENOENT
        assert read_ages(client) == {}


def test_each_message_of_the_connection_counts_for_all_its_streams(peer, client, clock):
    assert read_ages(client) == {0: 0, 1: 0}
    clock.pass_seconds(7)
    assert read_ages(client) == {0: 7000, 1: 7000}
    assert peer.status(DcpNoop()) == S.SUCCESS
    assert read_ages(client) == {0: 0, 1: 0}
    for send in (lambda: peer.marker(1, 2), lambda: peer.mutate(1)):
        clock.pass_seconds(3)
        send()
        peer.settle()
        assert read_ages(client) == {0: 0, 1: 0}
    clock.pass_seconds(3)
    assert client.status(DcpNoop()) != S.SUCCESS  # of another connection
    assert read_ages(client) == {0: 3000, 1: 3000}


@pytest.mark.parametrize("ends_by_producer", [False, True])
def test_copy_without_its_stream_grows_old_beside_a_live_stream(peer, client, clock, ends_by_producer):
    if ends_by_producer:
        peer.send(StreamEnd(opaque=peer.opaque, reason=0))
        peer.settle()
    else:
        assert peer.status(CloseStream()) == S.SUCCESS
    clock.pass_seconds(5)
    assert peer.status(DcpNoop()) == S.SUCCESS
    assert read_ages(client) == {0: 5000, 1: 0}
    peer.add_stream()
    assert read_ages(client) == {0: 5000, 1: 0}
    peer.accept()
    assert read_ages(client) == {0: 0, 1: 0}


def test_copies_grow_old_after_their_connection(node, peer, client, clock):
    peer.close()
    clock.pass_seconds(60)
    assert read_ages(client) == {0: 60_000, 1: 60_000}
    with producing(node) as other:
        other.open_consumer("other")
        assert other.status(DcpNoop()) == S.SUCCESS
        assert read_ages(client) == {0: 60_000, 1: 60_000}


@pytest.mark.parametrize(
    "messages",
    [
        [SetVbucket(state=VbucketState.ACTIVE), SetVbucket(state=VbucketState.REPLICA)],
        [DelVbucket(), SetVbucket(state=VbucketState.REPLICA)],
    ],
)
def test_copy_of_a_former_life_has_no_age(peer, client, clock, messages):
    for message in messages:
        assert client.status(message) == S.SUCCESS
    assert peer.status(DcpNoop()) == S.SUCCESS
    assert read_ages(client) == {1: 0}


def test_flushed_copies_have_no_age(node, peer, client):
    with connected(node) as sender:
        sender.send(TapFlush(tap_flags=TapFlag.ACK))
        assert sender.receive().specific == S.SUCCESS
    assert peer.status(DcpNoop()) == S.SUCCESS
    assert read_ages(client) == {}


def test_copy_that_the_producer_empties_has_an_age_once_it_is_accepted(peer, client, clock):
    peer.marker(1, 1)
    peer.mutate(1)
    assert peer.status(CloseStream()) == S.SUCCESS
    peer.add_stream()
    peer.answer(S.ROLLBACK, bytes(8))
    peer.read_request()
    assert read_ages(client) == {1: 0}
    peer.accept()
    assert read_ages(client) == {0: 0, 1: 0}


def test_tap_message_is_about_its_vbucket_alone(node, client, clock):
    for vbucket in (0, 1):
        make_replica(client, vbucket)
    begin = TapOpaque.INITIAL_VBUCKET_STREAM.to_bytes(4, "big")
    with connected(node) as sender:
        for vbucket in (0, 3):  # 3 is active
            sender.send(TapOpaqueMessage(vbucket=vbucket, engine_private=begin))
        assert sender.status(DcpNoop()) != S.SUCCESS
    clock.pass_seconds(2)
    assert read_ages(client) == {0: 2000}


def test_number_of_a_message_about_no_vbucket_means_nothing(node, client):
    """Other commands of TAP_OPAQUE are about the connection."""
    with connected(node) as sender:
        sender.send(TapOpaqueMessage(vbucket=999, engine_private=bytes(4), tap_flags=TapFlag.ACK))
        assert sender.receive().specific == S.SUCCESS
    assert read_ages(client) == {}
