"""Commits to disk: when they happen, the requests that wait for them, their reports, and failing disks."""

import logging
import shutil
from contextlib import contextmanager
from dataclasses import replace

import pytest

from penstock.node import Node
from penstock.node.buckets import flusher
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import DurabilityLevel, KeyState, VbucketState
from penstock.wire.codec.flags import OpenFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Open
from penstock.wire.messages.frame_info import Durability, RequestInfos, pack_request_infos
from penstock.wire.messages.kv import (
    Delete,
    DelVbucket,
    Flush,
    GetLocked,
    Noop,
    ObserveSeqno,
    SeqnoPersistence,
    Set,
    SetVbucket,
    unpack_observed,
)
from penstock.wire.messages.observe import Observe, ObserveReply, pack_keys, unpack_observed_keys
from penstock.wire.messages.tap import CheckpointPersistence, CreateCheckpoint
from tests.node.disks import BrokenDirectory, FullDirectory, ReadOnlyDirectory, replace_directory
from tests.node.watch import run
from tests.node.wire_client import WireClient, connected, until_stat

S = Status
VBUCKETS = 4
NEVER = BucketSettings(commit_seconds=3600, commit_count=10**9)
"""Settings without commits, except for requests that wait for one."""


@contextmanager
def running(path, settings=None, **options):
    with Node.running(["default"], VBUCKETS, data_dir=path, settings=settings, **options) as node:
        yield node


@pytest.fixture
def node(tmp_path):
    with running(tmp_path, NEVER) as node:
        yield node


def observe(client, *keys, vbucket=0):
    """Return the state and cas of each key, by OBSERVE."""
    reply = client.ask(Observe(value=pack_keys((vbucket, key) for key in keys)))
    assert reply.specific == S.SUCCESS
    return [(KeyState(found.state), found.cas) for found in unpack_observed_keys(reply.value)]


def read_persisted_seqno(client, vbucket=0):
    return int(client.stats(f"vbucket-seqno {vbucket}")[f"vb_{vbucket}:last_persisted_seqno"])


# Commits


def test_waiting_request_starts_a_commit(client):
    for number in range(3):
        client.set(b"k%d" % number)
    assert read_persisted_seqno(client) == 0
    assert client.status(SeqnoPersistence(seqno=2)) == S.SUCCESS
    assert read_persisted_seqno(client) == 3
    assert client.status(SeqnoPersistence(seqno=3)) == S.SUCCESS
    assert client.status(SeqnoPersistence(seqno=0, vbucket=1)) == S.SUCCESS


def test_full_commit_starts_at_once(tmp_path):
    with running(tmp_path, BucketSettings(commit_seconds=3600, commit_count=10)) as node, connected(node) as client:
        for number in range(9):
            client.set(b"k%d" % number)
        assert read_persisted_seqno(client) == 0
        client.set(b"k9")
        until_stat(client, "ep_total_persisted", 10)
        assert read_persisted_seqno(client) == 10


def test_commit_size_follows_the_settings(node, client):
    client.set(b"k0")
    assert read_persisted_seqno(client) == 0
    run(node, lambda: node.buckets["default"].store.set_settings(replace(NEVER, commit_count=2)))
    client.set(b"k1")
    until_stat(client, "ep_total_persisted", 2)
    assert read_persisted_seqno(client) == 2


def test_single_change_is_committed_soon(tmp_path):
    with running(tmp_path) as node, connected(node) as client:
        began = int(client.stats()["time"])
        client.set(b"k")
        until_stat(client, "ep_total_persisted", 1)
        assert read_persisted_seqno(client) == 1
        stats = client.stats()
        assert (stats["ep_queue_size"], stats["ep_flusher_state"], stats["ep_commit_num"]) == ("0", "running", "1")
        assert (stats["ep_bucket_type"], stats["ep_storage_fault"]) == ("persistent", "")
        assert float(stats["ep_commit_time"]) > 0
        assert began <= int(stats["ep_commit_last"]) <= int(stats["time"])
        assert stats["ep_data_dir"] == str(tmp_path / "default")
        assert int(stats["ep_db_file_size"]) == sum(path.stat().st_size for path in (tmp_path / "default").iterdir())


def test_state_change_is_committed(tmp_path):
    with running(tmp_path) as node, connected(node) as client:
        assert client.status(SetVbucket(vbucket=1, state=VbucketState.REPLICA)) == S.SUCCESS
        until_stat(client, "ep_commit_num", 1)


# OBSERVE


def test_observe_follows_a_document_to_disk(client):
    (cas,) = {client.set(b"k").cas}
    assert observe(client, b"k", b"other") == [(KeyState.NOT_PERSISTED, cas), (KeyState.NOT_FOUND, 0)]
    assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
    assert observe(client, b"k") == [(KeyState.PERSISTED, cas)]
    cas = client.set(b"k").cas
    assert observe(client, b"k") == [(KeyState.NOT_PERSISTED, cas)]
    client.delete(b"k")
    cas = client.meta(b"k").cas
    assert observe(client, b"k") == [(KeyState.LOGICALLY_DELETED, cas)]
    assert client.status(SeqnoPersistence(seqno=3)) == S.SUCCESS
    assert observe(client, b"k") == [(KeyState.NOT_FOUND, 0)]


def test_observe_reports_several_vbuckets_and_the_delay(client):
    client.set(b"a", vbucket=1)
    client.set(b"b", vbucket=2)
    assert client.status(SeqnoPersistence(seqno=1, vbucket=1)) == S.SUCCESS
    client.set(b"c", vbucket=2)
    reply = decode_frame(client.ask(Observe(value=pack_keys([(2, b"c"), (1, b"a"), (2, b"b"), (1, b"b")]))))
    assert isinstance(reply, ObserveReply)
    assert [(found.vbucket, found.key, found.state) for found in unpack_observed_keys(reply.value)] == [
        (2, b"c", KeyState.NOT_PERSISTED),
        (1, b"a", KeyState.PERSISTED),
        (2, b"b", KeyState.PERSISTED),
        (1, b"b", KeyState.NOT_FOUND),
    ]
    assert reply.cas >> 32 >= 3600 * 1000
    assert reply.cas & 0xFFFFFFFF == 0


BAD_OBSERVE = [
    ("nothing", b"", S.EINVAL),
    ("half a key", b"\0\0\0\2k", S.EINVAL),
    ("no key", pack_keys([(0, b"")]), S.EINVAL),
    ("too long a key", pack_keys([(0, bytes(251))]), S.EINVAL),
    ("too many keys", pack_keys([(0, b"k")]) * 10_001, S.E2BIG),
    ("a missing vbucket", pack_keys([(0, b"k"), (VBUCKETS, b"k")]), S.NOT_MY_VBUCKET),
]


@pytest.mark.parametrize(("value", "status"), [row[1:] for row in BAD_OBSERVE], ids=[row[0] for row in BAD_OBSERVE])
def test_invalid_observe_is_refused(client, value, status):
    assert client.status(Frame(Magic.REQUEST, Opcode.OBSERVE, value=value)) == status
    assert client.status(Noop()) == S.SUCCESS


@pytest.mark.parametrize("state", VbucketState)
def test_replicas_can_be_observed_and_dead_vbuckets_not(node, client, state):
    client.set(b"k")
    vbuuid = node.buckets["default"].store.vbuckets[0].history.vbuuid
    assert client.status(SetVbucket(state=state)) == S.SUCCESS
    is_alive = state is not VbucketState.DEAD
    expected = S.SUCCESS if is_alive else S.NOT_MY_VBUCKET
    assert client.status(Observe(value=pack_keys([(0, b"k")]))) == expected
    reply = client.ask(ObserveSeqno(value=vbuuid.to_bytes(8, "big")))
    assert reply.specific == (S.SUCCESS if is_alive else S.ETMPFAIL)
    if is_alive:
        assert unpack_observed(reply.value).current_seqno == 1


IN_MEMORY = [
    ("couchbase", "persistent", KeyState.PERSISTED, KeyState.NOT_FOUND, 2),
    ("ephemeral", "ephemeral", KeyState.NOT_PERSISTED, KeyState.LOGICALLY_DELETED, 0),
]


@pytest.mark.parametrize(("kind", "shown_type", "stored", "deleted", "seqno"), IN_MEMORY)
def test_bucket_type_decides_the_persisted_seqno_in_memory(kind, shown_type, stored, deleted, seqno):
    """go-dcp and the Kafka and Spark connectors hold back changes of a `couchbase` bucket until they are persisted."""
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        bucket = node.buckets["default"]
        bucket.spec = BucketSpec(name="default", kind=kind)
        client.set(b"k")
        assert [state for state, _ in observe(client, b"k")] == [stored]
        assert client.ask(Observe(value=pack_keys([(0, b"k")]))).cas == 0
        client.delete(b"k")
        assert [state for state, _ in observe(client, b"k")] == [deleted]
        vbuuid = bucket.store.vbuckets[0].history.vbuuid.to_bytes(8, "big")
        assert unpack_observed(client.ask(ObserveSeqno(value=vbuuid)).value)[2:4] == (seqno, 2)
        assert read_persisted_seqno(client) == seqno
        stats = client.stats()
        assert stats["ep_bucket_type"] == client.stats("config")["ep_bucket_type"] == shown_type
        assert stats.get("ep_commit_num", "none") == ("2" if shown_type == "persistent" else "none")
        assert "ep_flusher_state" not in stats


@pytest.mark.parametrize("kind", ["couchbase", "ephemeral"])
def test_seqno_persistence_in_memory_covers_stored_changes(kind):
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        node.buckets["default"].spec = BucketSpec(name="default", kind=kind)
        client.set(b"k")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        assert client.status(SeqnoPersistence(seqno=2)) == S.ETMPFAIL


# Requests that wait


def send_and_wait(client, other, *requests):
    """Send requests of which the first has to wait, and return when it is waiting."""
    client.send(*requests)
    until_stat(other, "ep_persistence_waiters", 1)


def test_wait_for_a_future_change_delays_later_requests(client, other):
    send_and_wait(client, other, Set(key=b"a"), SeqnoPersistence(seqno=2), Delete(key=b"a"), Noop())
    assert client.receive().opcode == Opcode.SET
    assert not client.frames
    assert other.get(b"a").specific == S.SUCCESS
    other.set(b"b")
    answers = [client.receive() for _ in range(3)]
    assert [(answer.opcode, answer.specific) for answer in answers] == [
        (Opcode.SEQNO_PERSISTENCE, S.SUCCESS),
        (Opcode.DELETE, S.SUCCESS),
        (Opcode.NOOP, S.SUCCESS),
    ]
    assert other.stats()["ep_persistence_waiters"] == "0"
    assert read_persisted_seqno(client) == 2


def test_many_waiting_requests_are_all_answered(node, client):
    with connected(node) as first, connected(node) as second:
        first.send(SeqnoPersistence(seqno=2), Noop())
        second.send(SeqnoPersistence(seqno=1), SeqnoPersistence(seqno=3))
        until_stat(client, "ep_persistence_waiters", 2)
        client.set(b"k")
        assert second.receive().specific == S.SUCCESS
        client.set(b"k")
        assert [first.receive().specific for _ in range(2)] == [S.SUCCESS] * 2
        assert client.stats()["ep_persistence_waiters"] == "1"
        client.set(b"k")
        assert second.receive().specific == S.SUCCESS


ENDS = [
    ("made a replica", SetVbucket(state=VbucketState.REPLICA), S.NOT_MY_VBUCKET),
    ("deleted", DelVbucket(), S.NOT_MY_VBUCKET),
    ("flushed", Flush(), S.ETMPFAIL),
]


@pytest.mark.parametrize(("change", "status"), [row[1:] for row in ENDS], ids=[row[0] for row in ENDS])
def test_wait_ends_when_its_vbucket_is_lost(client, other, change, status):
    send_and_wait(client, other, SeqnoPersistence(seqno=9), Noop())
    assert other.status(change) == S.SUCCESS
    assert client.receive().specific == status
    assert client.receive().opcode == Opcode.NOOP


def test_wait_continues_when_another_vbucket_changes(client, other):
    send_and_wait(client, other, SeqnoPersistence(seqno=1))
    assert other.status(DelVbucket(vbucket=1)) == S.SUCCESS
    assert other.stats()["ep_persistence_waiters"] == "1"
    other.set(b"k")
    assert client.receive().specific == S.SUCCESS


def test_wait_has_a_timeout(tmp_path):
    with running(tmp_path, NEVER, persistence_timeout=0.05) as node, connected(node) as client:
        assert client.status(SeqnoPersistence(seqno=1)) == S.ETMPFAIL
        assert client.stats()["ep_persistence_waiters"] == "0"


def test_closed_connection_ends_its_waits(client, other):
    client.open("same")
    send_and_wait(client, other, SeqnoPersistence(seqno=1))
    assert other.status(Open(key=b"same", flags=OpenFlag.PRODUCER)) == S.SUCCESS  # this ends the older connection
    assert client.ended()
    assert other.stats()["ep_persistence_waiters"] == "0"


def test_closed_peer_is_noticed_during_a_wait(node, other):
    with connected(node) as client:
        send_and_wait(client, other, SeqnoPersistence(seqno=1))
    until_stat(other, "ep_persistence_waiters", 0)
    until_stat(other, "curr_connections", 1)


def test_requests_behind_a_parked_one_keep_their_order(client, other):
    send_and_wait(client, other, SeqnoPersistence(seqno=1))
    requests = [Set(key=b"k", value=b"%d" % number, opaque=number) for number in range(1, 40)]
    for turn, request in enumerate(requests):
        client.send(request)
        if turn < 3:
            assert other.stats()["ep_persistence_waiters"] == "1"
    assert other.get(b"k").specific == S.KEY_ENOENT
    other.set(b"other")
    answers = [client.receive() for _ in range(len(requests) + 1)]
    assert [answer.opaque for answer in answers] == [0, *(request.opaque for request in requests)]
    assert other.get(b"k").value == b"39"


def test_node_stops_during_a_wait(tmp_path):
    with running(tmp_path, NEVER) as node:
        client = WireClient(node)
        with connected(node) as other:
            send_and_wait(client, other, SeqnoPersistence(seqno=1))
    assert client.ended()
    client.close()


def test_wait_for_an_inactive_vbucket_is_refused(client):
    assert client.status(SeqnoPersistence(seqno=1, vbucket=VBUCKETS)) == S.NOT_MY_VBUCKET
    assert client.status(SetVbucket(vbucket=1, state=VbucketState.REPLICA)) == S.SUCCESS
    assert client.status(SeqnoPersistence(seqno=0, vbucket=1)) == S.NOT_MY_VBUCKET


def test_stream_continues_while_a_request_waits(client, other):
    client.open()
    assert client.stream().specific == S.SUCCESS
    send_and_wait(client, other, SeqnoPersistence(seqno=2))
    other.set(b"k")
    assert [client.receive().opcode for _ in range(2)] == [Opcode.DCP_SNAPSHOT_MARKER, Opcode.DCP_MUTATION]
    other.set(b"k")
    assert client.ask(Noop()).specific == S.SUCCESS
    assert Opcode.SEQNO_PERSISTENCE in [frame.opcode for frame in client.frames]


@pytest.mark.parametrize("on_disk", [False, True])
def test_tap_checkpoint_persistence_is_awaited(client, other, on_disk):
    client.set(b"k")
    if on_disk:  # no later commit answers the request
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
    send_and_wait(client, other, CheckpointPersistence(checkpoint_id=2))
    assert other.status(CreateCheckpoint()) == S.SUCCESS
    assert client.receive().specific == S.SUCCESS
    assert other.stats("checkpoint 0")["vb_0:persisted_checkpoint_id"] == "2"
    other.set(b"k")
    assert other.stats("checkpoint 0")["vb_0:num_items_for_persistence"] == "1"


# Statistics of a vbucket


def test_statistics_show_the_persisted_seqno(client):
    client.set(b"a")
    assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
    client.set(b"b")
    seqnos = client.stats("vbucket-seqno 0")
    names = ("high_seqno", "last_persisted_seqno", "last_persisted_snap_start", "last_persisted_snap_end")
    assert [seqnos[f"vb_0:{name}"] for name in names] == ["2", "1", "1", "1"]
    details = client.stats("vbucket-details 0")
    assert details.pop("vb_0:uuid") == seqnos["vb_0:uuid"]
    assert int(details.pop("vb_0:max_cas")) > 0
    assert int(details.pop("vb_0:ht_memory")) > 0
    assert details == {
        "vb_0": "active",
        "vb_0:history_start_seqno": "0",
        "vb_0:num_items": "2",
        "vb_0:tap_items": "2",
        "vb_0:queue_size": "1",
        "vb_0:high_seqno": "2",
        "vb_0:persisted_seqno": "1",
        "vb_0:whole_seqno": "2",
        "vb_0:unused": "0",
        "vb_0:purge_seqno": "0",
        "vb_0:num_non_resident": "0",
        "vb_0:max_visible_seqno": "2",
    }
    assert len(client.stats("vbucket-details")) == VBUCKETS * 15


# Disks that fail


def list_messages(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_full_disk_refuses_changes_until_there_is_room(tmp_path, caplog, monkeypatch):
    monkeypatch.setattr(flusher, "_RETRY_SECONDS", 0.05)
    with running(tmp_path) as node, connected(node) as client:
        client.set(b"k", b"before")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        replace_directory(node, "default", FullDirectory)
        client.set(b"k", b"in memory")
        until_stat(client, "ep_flusher_state", "retrying")
        assert client.set(b"k", b"refused").specific == S.ETMPFAIL
        assert client.status(SetVbucket(vbucket=1, state=VbucketState.REPLICA)) == S.ETMPFAIL
        assert client.get(b"k").value == b"in memory"
        assert "No space left on device" in client.stats()["ep_storage_fault"]
        assert read_persisted_seqno(client) == 1
        client.send(SeqnoPersistence(seqno=2))
        replace_directory(node, "default", FullDirectory.__base__)
        assert client.receive().specific == S.SUCCESS
        assert client.set(b"k", b"after").specific == S.SUCCESS
        assert client.stats()["ep_storage_fault"] == ""
    started, ended = list_messages(caplog, logging.WARNING)
    assert started.startswith("bucket default: the disk does not accept writes: No space left on device;")
    assert ended == "bucket default: all changes are on disk; changes are accepted again"
    with running(tmp_path) as node, connected(node) as client:
        assert client.get(b"k").value == b"after"


def test_read_only_file_system_refuses_changes_and_serves_reads(tmp_path, monkeypatch):
    monkeypatch.setattr(flusher, "_RETRY_SECONDS", 0.05)
    with running(tmp_path) as node, connected(node) as client, connected(node) as consumer:
        client.set(b"k", b"before")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        replace_directory(node, "default", ReadOnlyDirectory)
        client.set(b"k", b"in memory")
        until_stat(client, "ep_flusher_state", "retrying")
        for _ in range(2):
            assert client.set(b"k", b"refused").specific == S.ETMPFAIL
            assert client.delete(b"k").specific == S.ETMPFAIL
        assert client.get(b"k").value == b"in memory"
        consumer.open()
        assert consumer.stream(end=2).specific == S.SUCCESS
        assert [message.value for message in consumer.changes()][1:] == [b"in memory"]  # after the marker
        assert "Read-only file system" in client.stats()["ep_storage_fault"]
        assert read_persisted_seqno(client) == 1
        replace_directory(node, "default", ReadOnlyDirectory.__base__)
        until_stat(client, "ep_storage_fault", "")
        assert client.set(b"k", b"after").specific == S.SUCCESS
    with running(tmp_path) as node, connected(node) as client:
        assert client.get(b"k").value == b"after"


def test_stop_with_a_full_disk_reports_the_loss(tmp_path, caplog):
    with running(tmp_path) as node, connected(node) as client:
        client.set(b"k", b"kept")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        replace_directory(node, "default", FullDirectory)
        client.set(b"k", b"lost")
        until_stat(client, "ep_flusher_state", "retrying")
    (message,) = list_messages(caplog, logging.ERROR)
    assert message.startswith("bucket default: 1 changes are not on disk, and lost: the disk does not accept writes")
    with running(tmp_path) as node, connected(node) as client:
        assert client.get(b"k").value == b"kept"


@pytest.mark.parametrize("moved", [False, True])
def test_deleted_directory_is_noticed_by_the_next_commit(tmp_path, caplog, moved):
    with running(tmp_path, NEVER) as node, connected(node) as client:
        client.set(b"k", b"kept")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        if moved:
            (tmp_path / "default").rename(tmp_path / "elsewhere")
        else:
            shutil.rmtree(tmp_path / "default")
        client.set(b"k", b"lost")
        assert client.status(SeqnoPersistence(seqno=2)) == S.ETMPFAIL
        assert client.set(b"k", b"refused").specific == S.ETMPFAIL
        durable = pack_request_infos(RequestInfos(durability=Durability(DurabilityLevel.PERSIST_TO_MAJORITY, None)))
        assert client.status(Set(key=b"k", framing=durable)) == S.ETMPFAIL
        assert client.get(b"k").value == b"lost"
        stats = client.stats()
        assert stats["ep_flusher_state"] == "stopped"
        assert "default/log-0000000001 was deleted, moved or replaced" in stats["ep_storage_fault"]
        assert read_persisted_seqno(client) == 1
    messages = list_messages(caplog, logging.ERROR)
    assert messages[0].startswith("bucket default: ")
    assert "was deleted, moved or replaced while the bucket was open" in messages[0]
    assert len([line for line in messages if "was deleted, moved" in line]) <= 2  # at the commit and at the stop


def test_failed_sync_stops_all_confirmations(tmp_path, caplog):
    with running(tmp_path, NEVER) as node, connected(node) as client, connected(node) as other:
        client.set(b"k", b"kept")
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        send_and_wait(client, other, SeqnoPersistence(seqno=3))
        replace_directory(node, "default", BrokenDirectory)
        other.set(b"k", b"lost")
        assert client.receive().specific == S.ETMPFAIL
        replace_directory(node, "default", BrokenDirectory.__base__)
        assert client.status(SeqnoPersistence(seqno=1)) == S.ETMPFAIL
        assert client.set(b"k").specific == S.ETMPFAIL
        assert client.get(b"k").value == b"lost"
        assert client.stats()["ep_flusher_state"] == "stopped"
        run(node, node.buckets["default"].notify_and_compact)
        assert client.status(SeqnoPersistence(seqno=1)) == S.ETMPFAIL
        assert read_persisted_seqno(client) == 1
    messages = list_messages(caplog, logging.ERROR)
    assert len(messages) == 2
    assert messages[0].startswith("bucket default: a sync has failed (Input/output error)")
    assert "until the node is restarted" in messages[0]
    with running(tmp_path) as node, connected(node) as client:
        assert client.get(b"k").specific == S.SUCCESS
        assert client.status(SeqnoPersistence(seqno=1)) == S.SUCCESS
        assert client.set(b"k").specific == S.SUCCESS


def test_lock_cas_is_persisted(tmp_path):
    with running(tmp_path) as node, connected(node) as client:
        client.set(b"k")
        until_stat(client, "ep_flusher_todo", 0)
        assert client.status(GetLocked(key=b"k")) == S.SUCCESS
        until_stat(client, "ep_flusher_todo", 0)
