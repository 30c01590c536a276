"""Commands on whole vbuckets, and their effect on documents and streams; expiry."""

import struct

import pytest

from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.flags import Datatype, StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status, StreamEndReason
from penstock.wire.messages.dcp import DcpGetFailoverLog, Deletion, Mutation, SnapshotMarker, StreamEnd
from penstock.wire.messages.kv import (
    DelVbucket,
    Flush,
    GetAllVbSeqnos,
    GetAndTouch,
    GetVbucket,
    Noop,
    OldestSetVbucket,
    OldSetVbucket,
    SetVbucket,
    Touch,
    unpack_failover_log,
    unpack_vb_seqnos,
)
from tests.node.wire_client import connected

S = Status
ACTIVE, REPLICA, PENDING, DEAD = VbucketState
PAST = 1_000_000_000  # epoch seconds


def make_request(opcode, **parts) -> Frame:
    return Frame(Magic.REQUEST, opcode, **{"opaque": 77, **parts})


def read_state(client, vbucket) -> int:
    found = client.ask(GetVbucket(vbucket=vbucket))
    assert found.specific == S.SUCCESS
    return int.from_bytes(found.value, "big")


def set_state(client, vbucket, state):
    assert client.status(SetVbucket(vbucket=vbucket, state=state)) == S.SUCCESS


def read_failover_log(client, vbucket):
    return unpack_failover_log(client.ask(make_request(Opcode.GET_FAILOVER_LOG, specific=vbucket)).value)


CONVERSATION = [
    # Columns: request, status, value of the reply. A real server was recorded with the first three.
    ("80000001 00000000 00000001 00000000 0000000000000000 78", S.NOT_MY_VBUCKET, None),
    ("803d0000 04000000 00000004 00000000 0000000000000000 00000001", S.SUCCESS, ""),
    ("803e0000 00000000 00000000 00000000 0000000000000000", S.SUCCESS, "00000001"),
    ("80000001 00000000 00000001 00000000 0000000000000000 78", S.KEY_ENOENT, ""),
    ("803d0000 01000000 00000001 00000000 0000000000000000 03", S.SUCCESS, ""),
    ("803e0000 00000000 00000000 00000000 0000000000000000", S.SUCCESS, "00000003"),
    ("803d0000 00000000 00000004 00000000 0000000000000000 00000002", S.SUCCESS, ""),
    ("803e0000 00000000 00000000 00000000 0000000000000000", S.SUCCESS, "00000002"),
    ("803f0000 00000000 00000000 00000000 0000000000000000", S.SUCCESS, ""),
    ("803e0000 00000000 00000000 00000000 0000000000000000", S.NOT_MY_VBUCKET, None),
]


def test_vbucket_is_created_and_deleted(client):
    client.status(DelVbucket())
    for sent, status, value in CONVERSATION:
        client.send(bytes.fromhex(sent))
        reply = client.receive()
        assert (reply.magic, reply.opcode, reply.specific) == (Magic.RESPONSE, bytes.fromhex(sent)[1], status)
        if value is not None:
            assert reply.value == bytes.fromhex(value)


REFUSED = [
    ("no state", SetVbucket(state=0), S.EINVAL),
    ("a fifth state", SetVbucket(state=5), S.EINVAL),
    ("a state of four bytes", OldSetVbucket(state=0x01000000), S.EINVAL),
    ("a state in the value", OldestSetVbucket(state=0), S.EINVAL),
    ("a short state in the value", make_request(Opcode.SET_VBUCKET, value=b"\0\0\1"), S.EINVAL),
    ("neither state", make_request(Opcode.SET_VBUCKET), S.EINVAL),
    ("two forms at once", make_request(Opcode.SET_VBUCKET, extras=b"\0\0\0\1", value=b"\0\0\0\1"), S.EINVAL),
    ("a key", make_request(Opcode.SET_VBUCKET, extras=b"\1", key=b"k"), S.EINVAL),
    ("two bytes", make_request(Opcode.SET_VBUCKET, extras=b"\0\1"), S.EINVAL),
    ("a vbucket beyond the last", SetVbucket(vbucket=16, state=1), S.ERANGE),
    ("a topology without the JSON datatype", SetVbucket(state=2, value=b"{}"), S.EINVAL),
    ("JSON not agreed on", SetVbucket(state=2, value=b"{}", datatype=Datatype.JSON), S.EINVAL),
    ("the state of a missing vbucket", GetVbucket(vbucket=16), S.NOT_MY_VBUCKET),
    ("the state, with extras", make_request(Opcode.GET_VBUCKET, extras=b"\0"), S.EINVAL),
    ("deletion of a missing vbucket", DelVbucket(vbucket=16), S.NOT_MY_VBUCKET),
    ("deletion with an unknown option", DelVbucket(value=b"async=1"), S.EINVAL),
    ("a flush later", Flush(delay=1), S.NOT_SUPPORTED),
    ("a quiet flush later", make_request(Opcode.FLUSHQ, extras=b"\0\0\0\1"), S.NOT_SUPPORTED),
    ("a flush with a key", make_request(Opcode.FLUSH, key=b"k"), S.EINVAL),
    ("a touch of a missing document", Touch(key=b"nowhere", expiry=0), S.KEY_ENOENT),
    ("a touch without a key", make_request(Opcode.TOUCH, extras=bytes(4)), S.EINVAL),
    ("a touch without a time", make_request(Opcode.TOUCH, key=b"k"), S.EINVAL),
    ("a touch in a missing vbucket", Touch(key=b"k", expiry=0, vbucket=16), S.NOT_MY_VBUCKET),
    ("a long key", Touch(key=b"k" * 251, expiry=0), S.EINVAL),
    ("get and touch of a missing document", GetAndTouch(key=b"nowhere", expiry=0), S.KEY_ENOENT),
]


@pytest.mark.parametrize(("case", "message", "status"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_requests_change_nothing(client, case, message, status):
    client.set(b"k", b"v")
    before = read_failover_log(client, 0)
    assert client.status(message) == status
    assert (client.get(b"k").value, read_state(client, 0), read_failover_log(client, 0)) == (b"v", ACTIVE, before)


TOPOLOGIES = [
    (b'{"topology":[["a","b"]]}', S.SUCCESS),
    (b'{"topology":null}', S.SUCCESS),
    (b"{}", S.SUCCESS),
    (b'{"topology":7}', S.EINVAL),
    (b"[]", S.EINVAL),
    (b"{", S.EINVAL),
    (b"\xff", S.EINVAL),
    (b"[" * 100_000, S.EINVAL),
]


@pytest.mark.parametrize(("value", "status"), TOPOLOGIES)
def test_topology_is_accepted(client, consumer, value, status):
    message = SetVbucket(vbucket=5, state=REPLICA, value=value, datatype=Datatype.JSON)
    assert consumer.status(message) == status
    assert read_state(client, 5) == (REPLICA if status == S.SUCCESS else ACTIVE)


@pytest.mark.parametrize("form", [SetVbucket, OldSetVbucket, OldestSetVbucket])
@pytest.mark.parametrize("new", list(VbucketState))
def test_only_active_vbuckets_serve_documents(client, form, new):
    client.set(b"k", b"v", vbucket=3)
    assert client.status(form(vbucket=3, state=new)) == S.SUCCESS
    assert read_state(client, 3) == new
    expected = S.SUCCESS if new == ACTIVE else S.NOT_MY_VBUCKET
    assert client.get(b"k", vbucket=3).specific == expected
    assert client.set(b"k", vbucket=3).specific == expected
    assert client.delete(b"k", vbucket=3).specific == expected


def test_activation_starts_a_branch(client):
    client.set(b"k", b"v", vbucket=3)
    (first,) = read_failover_log(client, 3)
    set_state(client, 3, ACTIVE)
    set_state(client, 3, REPLICA)
    assert read_failover_log(client, 3) == (first,)
    set_state(client, 3, ACTIVE)
    newest, oldest = read_failover_log(client, 3)
    assert (newest.seqno, oldest) == (1, first)
    assert newest.vbuuid != first.vbuuid
    assert client.get(b"k", vbucket=3).value == b"v"


def test_statistics_show_the_states(client):
    client.set(b"k", vbucket=1)
    client.set(b"k", vbucket=2)
    for vbucket, new in ((2, REPLICA), (3, PENDING), (4, DEAD), (5, DEAD)):
        set_state(client, vbucket, new)
    client.status(DelVbucket(vbucket=6))
    names = {2: "replica", 3: "pending", 4: "dead", 5: "dead"}
    expected = {f"vb_{vbucket}": names.get(vbucket, "active") for vbucket in range(16) if vbucket != 6}
    assert client.stats("vbucket") == expected
    assert client.stats("vbucket 3") == {"vb_3": "pending"}
    assert client.status(Frame(Magic.REQUEST, Opcode.STAT, key=b"vbucket 6")) == S.NOT_MY_VBUCKET
    stats = client.stats()
    assert [stats[f"vb_{name}_num"] for name in ("active", "replica", "pending", "dead")] == ["11", "1", "1", "2"]
    assert (stats["curr_items"], stats["vb_active_curr_items"]) == ("1", "1")
    assert (stats["curr_items_tot"], stats["vb_replica_curr_items"]) == ("2", "1")
    for state, vbuckets in ((None, {*range(16)} - {4, 5, 6}), (REPLICA, {2}), (DEAD, {4, 5})):
        assert unpack_vb_seqnos(client.ask(GetAllVbSeqnos(state=state)).value).keys() == vbuckets


def test_state_change_ends_a_stream_and_permits_another(client, consumer):
    new = REPLICA
    client.set(b"k", b"v", vbucket=3)
    consumer.stream(3, opaque=1)
    assert [consumer.message().opcode for _ in range(2)] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    set_state(client, 3, new)
    ended = StreamEnd(vbucket=3, opaque=1, reason=StreamEndReason.STATE_CHANGED)
    assert consumer.message() == ended
    assert unpack_failover_log(consumer.stream(3, opaque=2).value) == read_failover_log(client, 3)
    assert isinstance(consumer.message(), SnapshotMarker)
    assert isinstance(consumer.message(), Mutation)
    assert unpack_failover_log(consumer.ask(DcpGetFailoverLog(vbucket=3)).value) == read_failover_log(client, 3)
    set_state(client, 3, new)  # no change
    set_state(client, 3, ACTIVE)
    assert consumer.message() == StreamEnd(vbucket=3, opaque=2, reason=StreamEndReason.STATE_CHANGED)
    assert consumer.stream(3, opaque=3).specific == S.SUCCESS


@pytest.mark.parametrize("new", [PENDING, DEAD])
def test_pending_or_dead_vbucket_permits_no_stream(client, consumer, new):
    consumer.stream(3, opaque=1)
    set_state(client, 3, new)
    assert consumer.message() == StreamEnd(vbucket=3, opaque=1, reason=StreamEndReason.STATE_CHANGED)
    assert consumer.stream(3, opaque=2).specific == S.NOT_MY_VBUCKET
    assert unpack_failover_log(consumer.ask(DcpGetFailoverLog(vbucket=3)).value) == read_failover_log(client, 3)


def test_stream_can_require_an_active_vbucket(client, consumer):
    set_state(client, 3, REPLICA)
    assert consumer.stream(3, flags=StreamFlag.ACTIVE_VB_ONLY).specific == S.NOT_MY_VBUCKET
    set_state(client, 3, ACTIVE)
    assert consumer.stream(3, flags=StreamFlag.ACTIVE_VB_ONLY).specific == S.SUCCESS


def test_changes_after_the_end_of_a_stream_are_not_sent(client, consumer):
    for number in range(100):
        client.set(b"%d" % number, b"v" * 1000, vbucket=3)
    assert consumer.control("connection_buffer_size", "100") == S.SUCCESS
    consumer.stream(3)
    marker, first = consumer.message(), consumer.message()
    assert (marker.end_seqno, first.by_seqno) == (100, 1)
    set_state(client, 3, DEAD)
    consumer.acknowledge(10_000)
    assert consumer.message().reason == StreamEndReason.STATE_CHANGED


def test_deleted_vbucket_ends_its_stream_and_restarts_at_zero(client, consumer):
    client.set(b"k", b"v", vbucket=2)
    old = read_failover_log(client, 2)
    consumer.stream(2, start=1, vbuuid=old[0].vbuuid)
    assert client.status(DelVbucket(vbucket=2, value=b"async=0")) == S.SUCCESS
    assert consumer.message().reason == StreamEndReason.STATE_CHANGED
    refused = consumer.stream(2)
    assert (refused.specific, refused.value) == (S.NOT_MY_VBUCKET, b"")
    for message in (DelVbucket(vbucket=2), GetVbucket(vbucket=2), make_request(Opcode.GET_FAILOVER_LOG, specific=2)):
        assert client.status(message) == S.NOT_MY_VBUCKET
    set_state(client, 2, ACTIVE)
    (entry,) = read_failover_log(client, 2)
    assert entry.seqno == 0
    assert entry.vbuuid != old[0].vbuuid
    assert client.get(b"k", vbucket=2).specific == S.KEY_ENOENT
    assert consumer.stream(2, start=1, vbuuid=old[0].vbuuid).specific == S.ROLLBACK


@pytest.mark.parametrize("delay", [None, 0])
def test_flush_empties_active_vbuckets_and_starts_new_histories(client, consumer, delay):
    for vbucket in range(16):
        client.set(b"k", b"v", vbucket=vbucket)
    set_state(client, 7, REPLICA)
    before = [read_failover_log(client, vbucket) for vbucket in range(16)]
    for vbucket in (0, 7):
        consumer.stream(vbucket, opaque=vbucket, start=1, vbuuid=before[vbucket][0].vbuuid)
    assert client.status(Flush(delay=delay)) == S.SUCCESS
    assert consumer.message() == StreamEnd(vbucket=0, opaque=0, reason=StreamEndReason.STATE_CHANGED)
    seqnos = unpack_vb_seqnos(client.ask(GetAllVbSeqnos()).value)
    assert seqnos == {vbucket: int(vbucket == 7) for vbucket in range(16)}
    after = [read_failover_log(client, vbucket) for vbucket in range(16)]
    assert [number for number in range(16) if after[number] == before[number]] == [7]
    assert {entry.seqno for log in after for entry in log} == {0}
    assert client.get(b"k").specific == S.KEY_ENOENT
    assert consumer.stream(0, start=1, vbuuid=before[0][0].vbuuid).specific == S.ROLLBACK
    assert consumer.stream(0).specific == S.SUCCESS
    client.set(b"new")
    assert [consumer.message().end_seqno, consumer.message().key] == [1, b"new"]


def test_quiet_flush_is_not_answered(client):
    client.set(b"k")
    client.send(make_request(Opcode.FLUSHQ), Noop())
    assert client.receive().opcode == Opcode.NOOP
    assert client.get(b"k").specific == S.KEY_ENOENT


def test_other_buckets_are_not_flushed(node, client):
    with connected(node, "beer") as other:
        other.set(b"k", b"v")
        assert client.status(Flush()) == S.SUCCESS
        assert other.get(b"k").value == b"v"


def test_closed_consumer_is_not_notified(node, client):
    with connected(node) as consumer:
        consumer.open("closed").stream(3)
        consumer.disconnect()
    assert client.stats()["ep_dcp_producer_count"] == "0"
    assert node.buckets["default"].listeners == {}


# Expiry


def test_touch_and_get_and_touch_change_the_expiry(client, consumer):
    stored = client.set(b"k", b"v", flags=5)
    consumer.stream(start=1, vbuuid=read_failover_log(client, 0)[0].vbuuid)
    touched = client.ask(Touch(key=b"k", expiry=4_000_000_000))
    assert (touched.specific, touched.extras, touched.value) == (S.SUCCESS, b"", b"")
    assert touched.cas > stored.cas
    assert (consumer.message().end_seqno, consumer.message().expiry) == (2, 4_000_000_000)
    found = client.ask(GetAndTouch(key=b"k", expiry=4_000_000_000))
    assert (found.cas, found.value, found.extras) == (touched.cas, b"v", struct.pack(">I", 5))
    found = client.ask(GetAndTouch(key=b"k", expiry=0))
    assert (found.cas > touched.cas, found.cas) == (True, client.get(b"k").cas)
    assert (consumer.message().end_seqno, consumer.message().expiry) == (3, 0)


def test_gatq_does_not_answer_a_miss(client):
    client.set(b"k", b"v")
    client.send(
        make_request(Opcode.GATQ, key=b"nowhere", extras=bytes(4)),
        make_request(Opcode.GATQ, key=b"k", extras=bytes(4), opaque=5),
        Noop(),
    )
    assert [client.receive().opaque, client.receive().opcode] == [5, Opcode.NOOP]


ACCESSES = [
    make_request(Opcode.GET, key=b"k"),
    make_request(Opcode.GAT, key=b"k", extras=bytes(4)),
    make_request(Opcode.TOUCH, key=b"k", extras=bytes(4)),
    make_request(Opcode.REPLACE, key=b"k", extras=bytes(8)),
    make_request(Opcode.SET, key=b"k", extras=bytes(8), cas=1),
    make_request(Opcode.DELETE, key=b"k"),
]


@pytest.mark.parametrize("access", ACCESSES, ids=[Opcode(row.opcode).name for row in ACCESSES])
def test_expired_document_is_deleted_and_streamed(client, consumer, access):
    stored = client.set(b"k", b"v", expiry=PAST)
    consumer.stream()
    marker, mutation = consumer.message(), consumer.message()
    assert (marker.end_seqno, mutation.expiry) == (1, PAST)
    assert client.status(access) == S.KEY_ENOENT
    marker, tombstone = consumer.message(), consumer.message()
    assert marker.end_seqno == 2
    assert (tombstone.key, tombstone.rev_seqno, tombstone.by_seqno) == (b"k", 2, 2)
    assert isinstance(tombstone, Deletion)
    assert tombstone.cas > stored.cas
    assert client.stats()["curr_items"] == "0"


def test_add_replaces_an_expired_document(client):
    client.set(b"k", b"v", expiry=PAST)
    assert client.status(make_request(Opcode.ADD, key=b"k", extras=bytes(8), value=b"new")) == S.SUCCESS
    assert client.get(b"k").value == b"new"
