"""The node as a DCP consumer: settings, streams, snapshots, flow control, and peers that break the rules."""

from dataclasses import replace

import pytest

from penstock.errors import TemporaryFailure
from penstock.node import Node
from penstock.node.auth import User
from penstock.node.auth.users import make_account
from penstock.node.auth.users_file import change_users
from penstock.store.documents.incoming_changes import IncomingChanges
from penstock.wire.codec.constants import MAX_SEQNO, Feature, VbucketState
from penstock.wire.codec.flags import Datatype, OpenFlag, SnapshotFlag, StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status as S
from penstock.wire.messages.dcp import (
    AddStream,
    BufferAck,
    CloseStream,
    Control,
    DcpNoop,
    Deletion,
    DeletionV2,
    Expiration,
    Mutation,
    Open,
    OsoSnapshot,
    Prepare,
    SeqnoAdvanced,
    SetVbucketState,
    SnapshotMarker,
    SnapshotMarkerV2,
    StreamEnd,
    StreamReq,
    SystemEvent,
    pack_rollback,
    unpack_rollback,
)
from penstock.wire.messages.dcp_values import pack_stream_id
from penstock.wire.messages.kv import Delete, FailoverEntry, Get, Noop, SelectBucket, SetVbucket, pack_failover_log
from penstock.wire.messages.sasl import SaslAuth
from tests.node.producing_peer import LOG, make_replica, mutation, producing, read_history
from tests.node.test_login import ITERATIONS
from tests.node.wire_client import connected

NAMES = [b"connection_buffer_size", b"enable_noop", b"set_noop_interval"]


@pytest.fixture
def peer(node, client):
    """A peer of a consumer whose vbucket 0 is a replica."""
    make_replica(client)
    with producing(node) as peer:
        yield peer.open_consumer()


@pytest.fixture
def streaming(peer):
    """A peer with an accepted stream of vbucket 0."""
    assert peer.add_stream().start_seqno == 0
    peer.accept()
    return peer


# Settings


def test_consumer_requests_settings_one_by_one_before_its_stream(peer):
    peer.send(AddStream(opaque=0x900), AddStream(vbucket=1, opaque=0x901))
    assert peer.message().key == NAMES[0]
    assert peer.receive()[:3] == (Magic.RESPONSE, Opcode.DCP_ADD_STREAM, S.NOT_MY_VBUCKET)  # vbucket 1 is active
    peer.send(Frame(Magic.RESPONSE, Opcode.DCP_CONTROL, S.SUCCESS, opaque=2))
    settings, frame = peer.negotiate()
    assert [setting.key for setting in settings] == NAMES[1:]
    request = decode_frame(frame)
    assert isinstance(request, StreamReq)
    assert (request.vbucket, request.start_seqno, request.end_seqno) == (0, 0, MAX_SEQNO)


def test_peer_with_collections_gets_more_settings(node, client):
    make_replica(client)
    with producing(node) as peer:
        peer.hello(Feature.COLLECTIONS).open_consumer()
        peer.send(AddStream(opaque=0x900))
        settings, _ = peer.negotiate()
        assert [setting.key for setting in settings[:4]] == [*NAMES, b"set_priority"]
        assert (settings[-1].key, settings[-1].value) == (b"cache_transfer", b"true")


def test_stream_is_requested_though_the_peer_refuses_all_settings(peer):
    peer.send(AddStream(opaque=0x900))
    settings, frame = peer.negotiate(S.EINVAL)
    assert len(settings) == len(NAMES)
    assert isinstance(decode_frame(frame), StreamReq)


def test_open_takes_the_name_of_a_consumer(node):
    request = Open(key=b"a", datatype=int(Datatype.JSON), value=b'{"consumer_name":"n_0"}')
    with connected(node) as client:
        assert client.hello(Feature.JSON).status(request) == S.SUCCESS


@pytest.mark.parametrize(
    "fields",
    [
        {"value": b'{"consumer_name":"n_0"}'},
        {"value": b'{"consumer_name":1}', "datatype": 1},
        {"value": b'{"other":"n_0"}', "datatype": 1},
        {"value": b"{", "datatype": 1},
        {"value": b'{"consumer_name":"n_0"}', "datatype": 1, "flags": int(OpenFlag.PRODUCER)},
        {"flags": int(OpenFlag.SKIP_DELETES_IN_INITIAL_BACKFILL)},
    ],
)
def test_open_with_a_wrong_value_is_refused(node, fields):
    with connected(node) as client:
        assert client.hello(Feature.JSON).status(Open(key=b"a", **fields)) == S.EINVAL
        assert client.status(Open(key=b"a")) == S.SUCCESS
        assert client.status(Open(key=b"a")) == S.EINVAL


def test_second_connection_of_a_name_ends_the_first(node, peer):
    with producing(node) as other:
        other.open_consumer()
        assert peer.ended()
        with connected(node) as producer:
            producer.open("copy")
            assert other.ended()


# Streams


def test_vbucket_has_one_stream_on_all_connections(node, streaming):
    with producing(node) as other:
        other.open_consumer("other")
        assert other.status(AddStream()) == S.KEY_EEXISTS
        assert streaming.status(CloseStream(vbucket=0)) == S.SUCCESS
        assert other.add_stream().start_seqno == 0


def test_changes_are_stored_as_they_were_made(node, client, streaming):
    streaming.marker(0, 5)
    streaming.mutate(1, 2, 3, flags=7, expiry=2**31, lock_time=9, nru=2, datatype=int(Datatype.JSON), value=b'{"a":1}')
    streaming.send(Deletion(opaque=streaming.opaque, key=b"k1", by_seqno=4, rev_seqno=2, cas=200))
    streaming.send(Expiration(opaque=streaming.opaque, key=b"k2", by_seqno=5, rev_seqno=2, cas=201, delete_time=77))
    streaming.settle()
    assert read_history(node) == (5, 5)
    assert client.get(b"k3").specific == S.NOT_MY_VBUCKET
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    with connected(node) as consumer:
        consumer.open("reader", OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
        consumer.control("enable_expiry_opcode", "true")
        log = consumer.stream(end=5).value
        assert log[16:] == pack_failover_log(LOG)
        assert int.from_bytes(log[8:16], "big") == 5
        marker, *changes = consumer.changes()
        assert (marker.start_seqno, marker.end_seqno) == (0, 5)
        mutated, deleted, expired = changes
        assert (mutated.key, mutated.flags, mutated.expiry, mutated.lock_time) == (b"k3", 7, 2**31, 9)
        assert (mutated.nru, mutated.datatype, mutated.cas, mutated.by_seqno) == (2, Datatype.JSON, 103, 3)
        assert (deleted.key, deleted.rev_seqno, deleted.cas) == (b"k1", 2, 200)
        assert (type(expired), expired.key, expired.delete_time) == (Expiration, b"k2", 77)


def test_stream_continues_inside_a_snapshot_with_its_bounds(node, peer, streaming):
    streaming.marker(0, 2)
    streaming.mutate(1, 2)
    streaming.marker(3, 9)
    streaming.mutate(4, 5)
    streaming.settle()
    peer.close()
    with producing(node) as again:
        request = again.open_consumer("again").add_stream()
        assert (request.start_seqno, request.vbuuid) == (5, LOG[0].vbuuid)
        assert (request.snap_start, request.snap_end) == (2, 9)
        again.accept()
        again.marker(3, 9)
        again.mutate(9)
        again.settle()
    assert read_history(node) == (9, 9)


@pytest.mark.parametrize("ends", [9, 12], ids=["as before", "further"])
def test_bounds_of_a_snapshot_survive_a_restart(tmp_path, ends):
    with Node.running(["default"], 4, data_dir=tmp_path) as node, connected(node) as client, producing(node) as peer:
        make_replica(client)
        peer.open_consumer().add_stream()
        peer.accept()
        peer.marker(0, 9)
        peer.mutate(1, 2)
        peer.marker(2, ends)
        peer.mutate(5)
        peer.settle()
    with Node.running(["default"], 4, data_dir=tmp_path) as node, producing(node) as peer:
        request = peer.open_consumer().add_stream()
        assert (request.start_seqno, request.snap_start, request.snap_end) == (5, 0, ends)
        assert request.vbuuid == LOG[0].vbuuid


def purging_marker(peer, end, purge_seqno):
    return SnapshotMarkerV2(
        opaque=peer.opaque,
        version=2,
        start_seqno=0,
        end_seqno=end,
        flags=2,
        purge_seqno=purge_seqno,
        high_prepared_seqno=0,
    )


def test_copy_lacks_the_tombstones_that_its_producer_has_purged(tmp_path):
    with Node.running(["default"], 4, data_dir=tmp_path) as node, connected(node) as client, producing(node) as peer:
        make_replica(client)
        peer.open_consumer().add_stream()
        peer.accept()
        peer.send(purging_marker(peer, end=9, purge_seqno=7))
        peer.mutate(5, 9)
        peer.settle()
        assert client.stats("vbucket-seqno 0")["vb_0:purge_seqno"] == "7"
    with Node.running(["default"], 4, data_dir=tmp_path) as node, connected(node) as client:
        client.ask(SetVbucket(state=VbucketState.ACTIVE))
        client.open("reader")
        reply = client.ask(StreamReq(start_seqno=5, end_seqno=9, vbuuid=LOG[0].vbuuid, snap_start=5, snap_end=5))
        assert (reply.specific, unpack_rollback(reply.value)) == (S.ROLLBACK, 0)


@pytest.mark.parametrize(
    "make",
    [
        lambda peer: SnapshotMarker(opaque=peer.opaque, start_seqno=0, end_seqno=2, flags=1),
        lambda peer: CloseStream(opaque=peer.opaque),
    ],
    ids=["marker", "close"],
)
def test_messages_with_a_stream_id_are_refused(node, streaming, make):
    streaming.marker(0, 2)
    streaming.send(replace(make(streaming), framing=pack_stream_id(7)))
    assert streaming.receive().specific == S.EINVAL
    streaming.mutate(2)
    streaming.settle()
    assert read_history(node) == (2, 2)


def test_promotion_inside_a_snapshot_starts_its_branch_at_the_last_complete_one(node, client, streaming):
    streaming.marker(0, 2)
    streaming.mutate(1, 2)
    streaming.marker(3, 9)
    streaming.mutate(4)
    streaming.settle()
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    history = node.buckets["default"].store.vbuckets[0].history
    assert [entry.seqno for entry in history.failover_log] == [2, 0]
    assert streaming.receive()[:3] == (Magic.REQUEST, Opcode.DCP_CLOSE_STREAM, 0)
    streaming.mutate(5)
    assert streaming.receive()[:3] == (Magic.RESPONSE, Opcode.DCP_MUTATION, S.KEY_ENOENT)


def test_snapshot_that_skips_seqnos_ends_nowhere_inside_for_readers(node, client, streaming):
    streaming.marker(0, 6)
    streaming.mutate(2, 4, 6)
    streaming.settle()
    with connected(node) as consumer:
        consumer.open("reader")
        consumer.stream(end=3)
        marker = consumer.message()
        assert (marker.start_seqno, marker.end_seqno) == (0, 6)


def test_seqno_advanced_completes_a_snapshot(node, peer, streaming):
    streaming.marker(0, 6, SnapshotFlag.MEMORY | SnapshotFlag.ACK)
    streaming.mutate(2)
    streaming.send(SeqnoAdvanced(opaque=streaming.opaque, by_seqno=6))
    assert streaming.receive()[:3] == (Magic.RESPONSE, Opcode.DCP_SNAPSHOT_MARKER, S.SUCCESS)
    assert read_history(node) == (2, 2)
    streaming.marker(7, 8)
    streaming.mutate(8)
    streaming.settle()
    assert read_history(node) == (8, 8)


def test_takeover_continues_the_history(node, client, peer):
    assert peer.add_stream(flags=StreamFlag.TAKEOVER).flags == StreamFlag.TAKEOVER
    peer.accept()
    peer.marker(0, 1)
    peer.mutate(1)
    for state in (VbucketState.PENDING, VbucketState.ACTIVE):
        assert peer.status(SetVbucketState(opaque=peer.opaque, state=state)) == S.SUCCESS
    peer.send(StreamEnd(opaque=peer.opaque, reason=0))
    peer.settle()
    history = node.buckets["default"].store.vbuckets[0].history
    assert history.failover_log == LOG
    assert client.get(b"k1").value == b"v"
    assert client.set(b"own").specific == S.SUCCESS


# Rollback


def store_snapshots(peer):
    peer.marker(0, 3)
    peer.mutate(1, 2, 3)
    peer.marker(4, 6)
    peer.mutate(4, 5, 6)
    peer.settle()
    peer.close()


def test_replica_rolls_back_as_the_producer_requires(node, streaming):
    store_snapshots(streaming)
    with producing(node) as peer:
        assert peer.open_consumer("again").add_stream().start_seqno == 6
        peer.answer(S.ROLLBACK, pack_rollback(3))
        request = peer.read_request()
        assert (request.start_seqno, request.snap_start, request.snap_end) == (3, 3, 3)
        peer.accept((FailoverEntry(0xDEF, 3), *LOG))
        peer.marker(4, 4)
        peer.mutate(4, value=b"other")
        peer.settle()
    history = node.buckets["default"].store.vbuckets[0].history
    assert history.failover_log == (FailoverEntry(0xDEF, 3), *LOG)
    assert read_history(node) == (4, 4)


def test_rollback_to_zero_starts_again(node, streaming):
    store_snapshots(streaming)
    with producing(node) as peer:
        peer.open_consumer("again").add_stream()
        peer.answer(S.ROLLBACK, pack_rollback(0))
        request = peer.read_request()
        assert (request.start_seqno, request.snap_start, request.snap_end) == (0, 0, 0)
        assert request.vbuuid != LOG[0].vbuuid


@pytest.mark.parametrize("seqno", [6, 7, MAX_SEQNO])
def test_rollback_that_goes_nowhere_ends_the_stream(node, streaming, seqno):
    store_snapshots(streaming)
    with producing(node) as peer:
        peer.open_consumer("again").add_stream()
        peer.answer(S.ROLLBACK, pack_rollback(seqno))
        assert peer.message().status == S.ROLLBACK
        assert read_history(node) == (6, 6)


def test_repeated_rollback_of_an_empty_vbucket_ends_the_stream(peer):
    peer.add_stream()
    peer.answer(S.ROLLBACK, pack_rollback(0))
    assert peer.read_request().start_seqno == 0
    peer.answer(S.ROLLBACK, pack_rollback(0))
    assert peer.message().status == S.ROLLBACK


@pytest.mark.parametrize("features", [(), (Feature.COLLECTIONS,)], ids=["plain keys", "collections"])
def test_many_changes_of_one_write_are_streamed_on_unchanged(node, client, features):
    make_replica(client)
    prefix = b"\0" * len(features)
    with producing(node) as peer, connected(node) as reader:
        peer.hello(*features).open_consumer().add_stream()
        peer.accept()
        sent = [
            Mutation(
                key=prefix + b"k%d" % seqno,
                value=b"v" * (seqno % 50),
                by_seqno=seqno,
                rev_seqno=3,
                cas=9 + seqno,
                nru=1,
            )
            if seqno % 7
            else DeletionV2(key=prefix + b"gone%d" % seqno, by_seqno=seqno, rev_seqno=2, cas=seqno, delete_time=6)
            for seqno in range(1, 901)
        ]
        peer.marker(0, 900)
        peer.send(*(replace(message, opaque=peer.opaque) for message in sent))
        peer.settle()
        reader.hello(*features).open("reader", flags=OpenFlag.PRODUCER | OpenFlag.INCLUDE_DELETE_TIMES)
        assert reader.status(Control(key=b"enable_noop", value=b"true")) == S.SUCCESS
        assert reader.stream(end=900).specific == S.SUCCESS
        assert isinstance(reader.message(), SnapshotMarker)
        assert [replace(reader.message(), opaque=0) for _ in sent] == sent


# Flow control


def test_acknowledgements_count_every_byte_of_the_streams(streaming):
    value, sent = bytes(1 << 20), 0
    streaming.marker(0, 100)
    sent += len(SnapshotMarker(start_seqno=0, end_seqno=100).encode())
    acked = 0
    for seqno in range(1, 11):
        message = mutation(streaming.opaque, seqno, value=value)
        streaming.send(message)
        sent += len(message.encode())
    streaming.send(Noop())
    while (frame := streaming.receive()).opcode != Opcode.NOOP:
        acknowledgement = decode_frame(frame)
        assert isinstance(acknowledgement, BufferAck)
        assert acknowledgement.nbytes >= 2 << 20
        acked += acknowledgement.nbytes
    assert sent - (2 << 20) < acked <= sent


def test_full_bucket_delays_a_change_and_its_acknowledgement(node, streaming, monkeypatch):
    refusals: list[int] = []
    apply = IncomingChanges.apply

    def refuse_twice(self, *arguments, **fields):
        if fields["seqno"] == 2 and len(refusals) < 2:
            refusals.append(fields["seqno"])
            raise TemporaryFailure("full")
        return apply(self, *arguments, **fields)

    monkeypatch.setattr(IncomingChanges, "apply", refuse_twice)
    streaming.marker(0, 3)
    streaming.mutate(1, 2, 3)
    streaming.settle()
    assert refusals == [2, 2]
    assert read_history(node) == (3, 3)


def test_silent_producer_is_disconnected():
    with Node.running(["default"], 4, idle_timeout=0.2) as node, connected(node) as client, producing(node) as peer:
        make_replica(client)
        peer.open_consumer().add_stream()
        peer.accept()
        assert peer.status(DcpNoop(opaque=3)) == S.SUCCESS
        assert peer.ended()


def test_statistics_name_the_consumer(client, streaming):
    streaming.marker(0, 2)
    streaming.mutate(1)
    streaming.settle()
    found = {name.removeprefix("eq_dcpq:copy:"): value for name, value in client.stats("dcp").items()}
    assert (found["type"], found["num_streams"], found["ep_dcp_consumer_count"]) == ("consumer", "1", "1")
    assert (found["stream_0_items_received"], found["stream_0_state"]) == ("1", "in snapshot")


# Peers that break the rules


def test_messages_of_a_closed_stream_have_no_effect(node, streaming):
    streaming.marker(0, 5)
    streaming.mutate(1)
    for _ in range(2):
        assert streaming.status(CloseStream()) == S.SUCCESS
    streaming.mutate(2)
    streaming.marker(3, 9)
    streaming.send(StreamEnd(opaque=streaming.opaque, reason=1))
    assert streaming.status(CloseStream()) == S.KEY_ENOENT
    assert read_history(node) == (1, 0)
    streaming.mutate(2)
    assert streaming.receive()[:3] == (Magic.RESPONSE, Opcode.DCP_MUTATION, S.KEY_ENOENT)


def test_end_of_an_earlier_stream_is_ignored(streaming):
    streaming.marker(0, 5)
    streaming.send(StreamEnd(opaque=streaming.opaque + 77, reason=0))
    streaming.mutate(1)
    streaming.settle()


@pytest.mark.parametrize(
    ("send", "status"),
    [
        (lambda peer: peer.marker(3, 2), S.EINVAL),
        (lambda peer: peer.send(purging_marker(peer, end=9, purge_seqno=10)), S.EINVAL),
        (lambda peer: peer.marker(0, 0), S.ERANGE),
        (lambda peer: peer.marker(0, 1), S.ERANGE),
        (lambda peer: peer.mutate(1), S.ERANGE),
        (lambda peer: peer.mutate(0), S.EINVAL),
        (lambda peer: peer.mutate(2, vbucket=3), S.KEY_ENOENT),
        (lambda peer: peer.send(mutation(77, 2)), S.KEY_EEXISTS),
        (lambda peer: peer.send(CloseStream(vbucket=2)), S.KEY_ENOENT),
        (lambda peer: peer.send(AddStream()), S.KEY_EEXISTS),
        (lambda peer: peer.send(AddStream(vbucket=77)), S.NOT_MY_VBUCKET),
        (lambda peer: peer.send(AddStream(vbucket=1, flags=0x800)), S.EINVAL),
        (lambda peer: peer.send(SetVbucketState(opaque=peer.opaque, state=9)), S.EINVAL),
        (lambda peer: peer.send(SeqnoAdvanced(opaque=peer.opaque, by_seqno=0)), S.EINVAL),
    ],
)
def test_wrong_messages_are_refused_and_change_nothing(node, streaming, send, status):
    streaming.marker(0, 5)
    streaming.mutate(1)
    send(streaming)
    reply = streaming.receive()
    assert (reply.magic, reply.specific) == (Magic.RESPONSE, status)
    streaming.mutate(2)
    streaming.settle()
    assert read_history(node) == (2, 0)


@pytest.mark.parametrize(
    ("send", "status"),
    [
        (lambda peer: peer.mutate(2, nmeta=2), S.EINVAL),
        (lambda peer: peer.mutate(2, key=bytes(251)), S.EINVAL),
        (lambda peer: peer.mutate(2, datatype=2), S.EINVAL),
        (lambda peer: peer.mutate(2, rev_seqno=2**63), S.ERANGE),
        (lambda peer: peer.send(SystemEvent(opaque=peer.opaque, by_seqno=2, event=9)), S.EINVAL),
        (lambda peer: peer.send(replace(mutation(peer.opaque, 2), framing=pack_stream_id(7))), S.EINVAL),
    ],
)
def test_refused_change_ends_its_stream(node, streaming, send, status):
    """A later change would hide that it is missing: the next stream of the vbucket begins behind the last good one."""
    streaming.marker(0, 5)
    streaming.mutate(1)
    send(streaming)
    assert streaming.receive().specific == status
    streaming.mutate(3)
    assert streaming.receive().specific == S.KEY_ENOENT
    assert read_history(node) == (1, 0)
    request = streaming.add_stream()
    assert (request.start_seqno, request.snap_start, request.snap_end) == (1, 0, 5)


def test_marker_of_received_changes_is_refused_and_the_next_snapshot_is_stored(node, streaming):
    streaming.marker(0, 2)
    streaming.mutate(1, 2)
    streaming.marker(1, 2)
    assert streaming.receive().specific == S.ERANGE
    streaming.marker(2, 2)  # it starts at the last seqno, as the first marker of a resumed stream may
    streaming.marker(3, 4)
    streaming.mutate(3, 4)
    streaming.settle()
    assert read_history(node) == (4, 4)


def test_first_repeated_change_of_a_stream_is_logged(streaming, caplog):
    caplog.set_level("INFO", "penstock.node")
    streaming.marker(0, 5)
    streaming.mutate(1, 2, 1, 2)
    assert [streaming.receive().specific for _ in range(2)] == [S.ERANGE, S.ERANGE]
    (logged,) = [message for message in caplog.messages if "seqno" in message]
    assert logged.startswith("vbucket 0: seqno 1, expected one above 2")


@pytest.mark.parametrize(
    ("send", "reason"),
    [
        (lambda peer: peer.mutate(6), "seqno 6 in the snapshot from 0 to 5"),
        (lambda peer: peer.marker(7, 9), "snapshot from 7 while the snapshot up to 5 ends at 1"),
        (lambda peer: peer.send(SeqnoAdvanced(opaque=peer.opaque, by_seqno=9)), "seqno 9 in the snapshot"),
        (lambda peer: peer.send(OsoSnapshot(opaque=peer.opaque, flags=1)), "DCP_OSO_SNAPSHOT sent to a consumer"),
        (lambda peer: peer.send(Prepare(opaque=peer.opaque, key=b"k", cas=1, by_seqno=2)), "DCP_PREPARE sent to"),
        (lambda peer: peer.send(BufferAck(nbytes=1)), "DCP_BUFFER_ACK sent to a consumer"),
        (lambda peer: peer.send(StreamReq(start_seqno=0, end_seqno=1)), "DCP_STREAM_REQ sent to a consumer"),
        (lambda peer: peer.send(Control(key=b"enable_noop", value=b"true")), "DCP_CONTROL sent to a consumer"),
        (lambda peer: peer.answer(S.SUCCESS, pack_failover_log(LOG)), "has not requested"),
    ],
)
def test_peer_that_breaks_the_order_is_disconnected(node, streaming, caplog, send, reason):
    caplog.set_level("INFO", "penstock.node")
    streaming.marker(0, 5)
    streaming.mutate(1)
    send(streaming)
    assert streaming.ended()
    assert reason in caplog.text
    assert read_history(node) == (1, 0)


def test_change_before_the_start_of_its_snapshot_ends_the_connection(node, streaming):
    streaming.marker(0, 5)
    streaming.mutate(5)
    streaming.marker(8, 9)
    streaming.mutate(7)
    assert streaming.ended()
    assert read_history(node) == (5, 5)


def test_changes_before_a_marker_end_the_connection(streaming):
    streaming.mutate(1)
    assert streaming.ended()


def test_other_clients_that_empty_a_vbucket_end_its_stream(node, client, streaming):
    streaming.marker(0, 5)
    streaming.mutate(1)
    streaming.settle()
    vbucket = node.buckets["default"].store.vbuckets[0]
    assert vbucket.history.state is VbucketState.REPLICA
    client.ask(SetVbucket(state=VbucketState.ACTIVE))
    client.ask(Delete(key=b"k1"))
    make_replica(client)
    assert streaming.receive()[:3] == (Magic.REQUEST, Opcode.DCP_CLOSE_STREAM, 0)
    streaming.mutate(3)
    assert streaming.receive().specific == S.KEY_ENOENT
    assert client.ask(Get(key=b"k3")).specific == S.NOT_MY_VBUCKET


def test_consumer_needs_the_privilege_of_replication(tmp_path):
    path = tmp_path / "users.json"
    with change_users(path) as accounts:
        for name, role in {"reader": "data_dcp_reader[*]", "copier": "replication_target[*]"}.items():
            accounts[name] = make_account(User.from_texts(name, [role]), "password", ITERATIONS)
    with Node.running(["default"], 4, users=path, allow_plain=True) as node:
        for name, status, other in (("reader", S.EACCESS, S.SUCCESS), ("copier", S.SUCCESS, S.SUCCESS)):
            for flags, expected in ((0, status), (OpenFlag.PRODUCER, other)):
                with connected(node) as client:
                    assert client.status(SaslAuth(key=b"PLAIN", value=b"\0%s\0password" % name.encode())) == S.SUCCESS
                    assert client.status(SelectBucket(key=b"default")) == S.SUCCESS
                    assert client.status(Open(key=b"c", flags=flags)) == expected
