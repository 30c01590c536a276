"""Synchronous writes over two and three nodes: no acknowledged write is lost when a replica is promoted."""

from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest

from penstock.node import Node
from penstock.wire.codec.constants import DurabilityLevel, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import (
    Abort,
    Commit,
    Mutation,
    Prepare,
    SeqnoAcknowledged,
    SeqnoAdvanced,
    SnapshotMarker,
    SnapshotMarkerV2,
)
from penstock.wire.messages.kv import Count, Delete, Set
from tests.node.frame_proxy import replicating
from tests.node.replication_chains import set_states
from tests.node.test_durability import make_framing, wait_until
from tests.node.wire_client import connected

L, S, V = DurabilityLevel, Status, VbucketState
VBUCKETS = 4
ALL = range(VBUCKETS)


def start_node(tmp_path, name):
    """Return a context with a node; it is on disk if it has a name of its own."""
    return Node.running(["beer"], VBUCKETS, **({"data_dir": tmp_path / name} if name else {}))


@pytest.fixture(params=["memory", "disk"])
def pair(request, tmp_path):
    """Yield an active node and its replica, which are not connected yet."""
    on_disk = request.param == "disk"
    with start_node(tmp_path, on_disk and "a") as active, start_node(tmp_path, on_disk and "b") as replica:
        set_states(replica, V.REPLICA, "a", "b")
        set_states(active, V.ACTIVE, "a", "b")
        yield active, replica


def read_seqnos(node, vbucket=0):
    """Return the high, high prepared, high completed and visible seqno of a vbucket."""
    with connected(node, "beer") as client:
        stats = client.stats(f"vbucket-seqno {vbucket}")
    names = ("high_seqno", "high_prepared_seqno", "high_completed_seqno", "max_visible_seqno")
    return [int(stats[f"vb_{vbucket}:{name}"]) for name in names]


@pytest.mark.parametrize("level", list(L))
def test_replica_has_every_acknowledged_write(pair, level):
    active, replica = pair
    with replicating(active, replica, "beer", ALL, consumer_name="b"), connected(active, "beer") as client:
        for message in (
            Set(key=b"k", value=b"1", framing=make_framing(level)),
            Count(key=b"k", delta=1, framing=make_framing(level)),
            Set(key=b"plain", value=b"plain"),
            Set(key=b"gone", value=b"1", framing=make_framing(level)),
            Delete(key=b"gone", framing=make_framing(level)),
            Set(key=b"last", value=b"large" * 100_000, framing=make_framing(level)),
        ):
            assert client.status(message) == S.SUCCESS, message
        wait_until(lambda: read_seqnos(replica) == read_seqnos(active))
        assert read_seqnos(active) == [11, 10, 10, 11]
    set_states(replica, V.ACTIVE, "b")
    with connected(replica, "beer") as client:
        found = [bytes(client.get(key).value) for key in (b"k", b"plain", b"last")]
        assert found == [b"2", b"plain", b"large" * 100_000]
        assert client.get(b"gone").specific == S.KEY_ENOENT


def test_promoted_replica_commits_undecided_writes(pair):
    active, replica = pair
    with connected(active, "beer") as client, ExitStack() as waiting:
        assert client.status(Set(key=b"k", value=b"old")) == S.SUCCESS
        set_states(active, V.ACTIVE, "a", "b", "c")
        writers = [waiting.enter_context(connected(active, "beer")) for _ in range(3)]
        set_states(active, V.ACTIVE, "a", "c", "d")  # nodes that never acknowledge
        for number, writer in enumerate(writers):
            writer.send(Set(key=b"k%d" % number, value=b"new", framing=make_framing(L.MAJORITY, 65_000)))
            wait_until(lambda number=number: read_seqnos(active)[0] == number + 2)
        with replicating(active, replica, "beer", ALL, consumer_name="b"):
            wait_until(lambda: read_seqnos(replica)[0] == 4)
    assert read_seqnos(replica) == [4, 4, 1, 1]
    set_states(replica, V.ACTIVE, "b", "c")
    with connected(replica, "beer") as client:
        assert client.get(b"k").value == b"old"
        assert client.get(b"k1").specific == S.SYNC_WRITE_RECOMMIT_IN_PROGRESS
        assert client.status(Set(key=b"k1", value=b"x")) == S.SYNC_WRITE_IN_PROGRESS
        set_states(replica, V.ACTIVE, "b")
        wait_until(lambda: read_seqnos(replica)[2] == 4)
        assert [client.get(b"k%d" % number).value for number in range(3)] == [b"new"] * 3


def test_aborts_reach_the_replica(pair):
    active, replica = pair
    set_states(active, V.ACTIVE, "a", "c")
    with replicating(active, replica, "beer", ALL, consumer_name="b"), connected(active, "beer") as client:
        assert client.status(Set(key=b"k", value=b"1", framing=make_framing(L.MAJORITY, 1))) == S.SYNC_WRITE_AMBIGUOUS
        wait_until(lambda: read_seqnos(replica) == read_seqnos(active) == [2, 1, 1, 0])
    set_states(replica, V.ACTIVE, "b")
    with connected(replica, "beer") as client:
        assert client.get(b"k").specific == S.KEY_ENOENT
        assert client.status(Set(key=b"k", value=b"x")) == S.SUCCESS


def test_connection_that_returns_acknowledges_again(pair):
    active, replica = pair
    with connected(active, "beer") as client:
        client.send(Set(key=b"k", value=b"1", framing=make_framing(L.PERSIST_TO_MAJORITY, 65_000)))
        for _ in range(2):
            with replicating(active, replica, "beer", ALL, consumer_name="b"):
                wait_until(lambda: read_seqnos(replica)[0] == 2)
        assert client.receive().specific == S.SUCCESS
        with replicating(active, replica, "beer", ALL, consumer_name="b"):
            assert client.status(Delete(key=b"k", framing=make_framing(L.MAJORITY))) == S.SUCCESS
            wait_until(lambda: read_seqnos(replica) == read_seqnos(active))


def test_majority_of_three_is_two(tmp_path):
    with (
        start_node(tmp_path, "a") as active,
        start_node(tmp_path, "b") as second,
        start_node(tmp_path, "") as third,
    ):
        chain = ("a", "b", "c")
        for replica in (second, third):
            set_states(replica, V.REPLICA, *chain)
        set_states(active, V.ACTIVE, *chain)
        with connected(active, "beer") as client:
            with replicating(active, second, "beer", ALL, consumer_name="b"):
                assert client.status(Set(key=b"k", framing=make_framing(L.PERSIST_TO_MAJORITY))) == S.SUCCESS
            with replicating(active, third, "beer", ALL, consumer_name="c"):
                assert client.status(Set(key=b"l", framing=make_framing(L.MAJORITY))) == S.SUCCESS
                wait_until(lambda: read_seqnos(third) == read_seqnos(active))
            assert client.status(Set(key=b"m", framing=make_framing(L.MAJORITY, 1))) == S.SYNC_WRITE_AMBIGUOUS


def test_acknowledged_writes_survive_the_loss_of_the_active_node(tmp_path):
    """The active node ends while eight clients write; the replica, which restarts too, has all acknowledged writes."""
    numbers = count()
    acknowledged: list[int] = []
    with start_node(tmp_path, "b") as replica:
        set_states(replica, V.REPLICA, "a", "b")
        with start_node(tmp_path, "") as active, ExitStack() as open_clients:
            set_states(active, V.ACTIVE, "a", "b")
            clients = [open_clients.enter_context(connected(active, "beer")) for _ in range(8)]
            with replicating(active, replica, "beer", ALL, consumer_name="b"):
                for _ in range(20):
                    sent = []
                    for client in clients:
                        number = next(numbers)
                        framing = make_framing(L.PERSIST_TO_MAJORITY if number % 2 else L.MAJORITY)
                        client.send(Set(key=b"%d" % number, value=b"v%d" % number, vbucket=number % 4, framing=framing))
                        sent.append((client, number))
                    for client, number in sent:
                        assert client.receive().specific == S.SUCCESS
                        acknowledged.append(number)
                for client in clients:
                    number = next(numbers)
                    client.send(Set(key=b"%d" % number, vbucket=number % 4, framing=make_framing(L.MAJORITY)))
    with start_node(tmp_path, "b") as promoted:
        set_states(promoted, V.ACTIVE, "b")
        with connected(promoted, "beer") as client:
            for number in acknowledged:
                wait_until(
                    lambda number=number: (
                        client.get(b"%d" % number, vbucket=number % 4).specific != S.SYNC_WRITE_RECOMMIT_IN_PROGRESS
                    )
                )
                assert client.get(b"%d" % number, vbucket=number % 4).value == b"v%d" % number


# The messages of a stream


def receive_changes(client, number):
    """Return the next messages of a stream, without the replies around them."""
    found: list[Any] = []
    while len(found) < number:
        message = decode_frame(client.receive())
        if isinstance(message, Prepare | Commit | Abort | Mutation | SnapshotMarkerV2 | SnapshotMarker | SeqnoAdvanced):
            found.append(message)
    return found


@pytest.fixture
def lone():
    """A node whose replica is the test."""
    with Node.running(["beer"], VBUCKETS) as node:
        set_states(node, V.ACTIVE, "a", "b")
        yield node


def open_replica(client, name="b"):
    client.hello(Feature.COLLECTIONS, Feature.XATTR, Feature.JSON).open("replica", OpenFlag.PRODUCER)
    assert client.control("enable_noop", "true") == S.SUCCESS
    assert client.control("enable_sync_writes", "true") == S.SUCCESS
    if name:
        assert client.control("consumer_name", name) == S.SUCCESS


def test_stream_sends_prepare_commit_and_abort(lone):
    with connected(lone, "beer") as replica, connected(lone, "beer") as writer:
        open_replica(replica)
        assert replica.stream().specific == S.SUCCESS
        writer.send(Set(key=b"k", value=b'{"a":1}', flags=5, framing=make_framing(L.MAJORITY)))
        marker, prepare = receive_changes(replica, 2)
        assert isinstance(marker, SnapshotMarkerV2)
        assert (marker.end_seqno, marker.max_visible_seqno) == (1, 0)
        assert (prepare.key, prepare.value, prepare.flags, prepare.datatype) == (b"\0k", b'{"a":1}', 5, Datatype.JSON)
        assert (prepare.by_seqno, prepare.deleted, prepare.durability) == (1, 0, L.MAJORITY)
        replica.send(SeqnoAcknowledged(vbucket=0, opaque=prepare.opaque, prepared_seqno=1))
        _, commit = receive_changes(replica, 2)
        assert isinstance(commit, Commit)
        assert (commit.key, commit.prepared_seqno, commit.by_seqno) == (b"\0k", 1, 2)
        assert writer.receive().specific == S.SUCCESS
        assert writer.status(Delete(key=b"k", framing=make_framing(L.MAJORITY, 1))) == S.SYNC_WRITE_AMBIGUOUS
        found: list[Any] = [one for one in receive_changes(replica, 2) if isinstance(one, Prepare | Abort)]
        found += [] if isinstance(found[-1], Abort) else receive_changes(replica, 2)[1:]
        assert (found[-1].prepared_seqno, found[-1].by_seqno) == (3, 4)
        if len(found) == 2:  # otherwise the abort came before the turn of the stream
            assert (found[0].by_seqno, found[0].deleted, found[0].value) == (3, 1, b"")


def test_backfill_sends_undecided_prepares_only(lone):
    with connected(lone, "beer") as writer, connected(lone, "beer") as other, connected(lone, "beer") as replica:
        set_states(lone, V.ACTIVE, "a")
        assert writer.status(Set(key=b"k", value=b"1", framing=make_framing(L.MAJORITY))) == S.SUCCESS
        set_states(lone, V.ACTIVE, "a", "b")
        other.send(Set(key=b"l", value=b"2", framing=make_framing(L.PERSIST_TO_MAJORITY, 65_000)))
        wait_until(lambda: read_seqnos(lone)[0] == 3)
        open_replica(replica)
        replica.stream()
        marker, mutation, prepare = receive_changes(replica, 3)
        assert (marker.end_seqno, marker.max_visible_seqno, marker.high_completed_seqno) == (3, 2, 2)
        assert isinstance(mutation, Mutation)
        assert (mutation.by_seqno, prepare.by_seqno, prepare.durability) == (2, 3, L.PERSIST_TO_MAJORITY)


def test_other_consumers_see_commits_only(lone):
    with connected(lone, "beer") as writer, connected(lone, "beer") as plain, connected(lone, "beer") as consumer:
        plain.open("plain").stream()
        consumer.hello(Feature.COLLECTIONS).open("collections")
        consumer.control("enable_noop", "true")
        consumer.stream()
        writer.send(Set(key=b"k", value=b"1", framing=make_framing(L.MAJORITY, 65_000)))
        marker, advance = receive_changes(consumer, 2)
        assert (marker.end_seqno, advance) == (1, SeqnoAdvanced(vbucket=0, opaque=advance.opaque, by_seqno=1))
        set_states(lone, V.ACTIVE, "a")
        assert writer.receive().specific == S.SUCCESS
        for client, key in ((plain, b"k"), (consumer, b"\0k")):
            marker, mutation = receive_changes(client, 2)
            assert (marker.end_seqno, mutation.by_seqno, mutation.key, mutation.value) == (2, 2, key, b"1")


def test_acknowledgements_are_checked(lone):
    with connected(lone, "beer") as replica:
        open_replica(replica, "")
        replica.stream()
        assert replica.status(SeqnoAcknowledged(vbucket=0, prepared_seqno=1)) == S.EINVAL
        assert replica.control("consumer_name", "b") == S.SUCCESS
        replica.send(SeqnoAcknowledged(vbucket=1, prepared_seqno=99))  # no stream: ignored
        assert replica.control("enable_stream_id", "true") == S.NOT_SUPPORTED
        assert replica.stream(1, value=b'{"collections":["0"]}').specific == S.NOT_SUPPORTED
        replica.send(SeqnoAcknowledged(vbucket=0, prepared_seqno=99))
        with pytest.raises(EOFError):
            replica.receive()


def test_synchronous_writes_need_collections(lone):
    with connected(lone, "beer") as replica:
        replica.open("old")
        assert replica.control("enable_sync_writes", "true") == S.NOT_SUPPORTED
        assert replica.control("enable_sync_writes", "yes") == S.EINVAL
        assert replica.control("consumer_name", "") == S.EINVAL
