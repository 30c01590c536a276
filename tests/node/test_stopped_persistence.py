"""STOP_PERSISTENCE and START_PERSISTENCE: the effect on commits, requests, streams and compaction."""

from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.log import log_room
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import ObserveSeqno, SeqnoPersistence, unpack_observed
from penstock.wire.messages.observe import CompactDb, EvictKey, StartPersistence, StopPersistence
from tests.node.disks import FullDirectory, copy_files, replace_directory
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat

S = Status
VBUCKETS = 4


@contextmanager
def running(path, *, settings=None, patience=30.0):
    settings = settings or BucketSettings()
    with Node.running(["default"], VBUCKETS, data_dir=path, settings=settings, persistence_timeout=patience) as node:
        yield node


@pytest.fixture
def node(tmp_path):
    with running(tmp_path / "data") as node:
        yield node


@pytest.fixture
def client(node):
    with connected(node) as client:
        yield client


def stop_persistence(client):
    assert client.status(StopPersistence()) == S.SUCCESS
    assert client.stats()["ep_flusher_state"] == "paused"


def start_persistence(client):
    assert client.status(StartPersistence()) == S.SUCCESS
    assert client.stats()["ep_flusher_state"] == "running"


def read_seqnos(client):
    """Return the persisted and the newest seqno of vbucket 0, by OBSERVE_SEQNO."""
    vbuuid = int(client.stats("vbucket-seqno 0")["vb_0:uuid"])
    observed = unpack_observed(client.ask(ObserveSeqno(value=vbuuid.to_bytes(8, "big"))).value)
    return observed.persisted_seqno, observed.current_seqno


def wait_until_persisted(client, seqno):
    assert client.status(SeqnoPersistence(seqno=seqno)) == S.SUCCESS


def test_disk_only_stream_ends_at_the_persisted_seqno(node, client):
    """As in kv_engine's adjustSeqnosForStreamRequest: the end is the persisted seqno, and no stream starts after it."""
    client.set(b"kept")
    wait_until_persisted(client, 1)
    stop_persistence(client)
    client.set(b"not yet")
    vbuuid = node.buckets["default"].store.vbuckets[0].history.vbuuid
    with connected(node) as consumer:
        flags = StreamFlag.DISK_ONLY
        assert consumer.open().stream(flags=flags).specific == S.SUCCESS
        assert [change.key for change in consumer.changes()] == [b"", b"kept"]
        assert consumer.stream(start=2, vbuuid=vbuuid, flags=flags).specific == S.ERANGE
        assert consumer.stream(start=2, vbuuid=vbuuid, flags=flags | StreamFlag.TO_LATEST).specific == S.ERANGE
        assert consumer.stream(start=2, vbuuid=vbuuid, flags=StreamFlag.TO_LATEST).specific == S.SUCCESS
    start_persistence(client)


def test_persisted_seqno_stays_until_the_start(client):
    client.set(b"before")
    wait_until_persisted(client, 1)
    stop_persistence(client)
    for number in range(2000):  # more than a commit takes
        client.set(b"k%d" % number)
    assert read_seqnos(client) == (1, 2001)
    stats = client.stats()
    assert (stats["ep_queue_size"], stats["ep_commit_num"]) == ("2000", "1")
    start_persistence(client)
    wait_until_persisted(client, 2001)
    assert read_seqnos(client) == (2001, 2001)
    assert client.stats()["ep_queue_size"] == "0"


def test_files_hold_exactly_the_changes_before_the_stop(tmp_path, node, client):
    client.set(b"before", b"1")
    client.set(b"now and then", b"1")
    wait_until_persisted(client, 2)
    stop_persistence(client)
    client.set(b"now and then", b"2")
    client.set(b"after", b"2")
    copy_files(node, "default", tmp_path / "copy")
    with running(tmp_path / "copy") as other, connected(other) as reader:
        assert [reader.get(key).value for key in (b"before", b"now and then")] == [b"1", b"1"]
        assert reader.get(b"after").specific == S.KEY_ENOENT
        assert reader.stats("vbucket-seqno 0")["vb_0:high_seqno"] == "2"
        assert reader.stats("failovers 0")["vb_0:num_entries"] == "2"


def test_closing_persists_the_rest(tmp_path):
    with running(tmp_path) as node, connected(node) as client:
        stop_persistence(client)
        client.set(b"k", b"v")
    with running(tmp_path) as node, connected(node) as client:
        assert client.get(b"k").value == b"v"
        assert client.stats("failovers 0")["vb_0:num_entries"] == "1"


def test_persistence_waits_end_at_the_start_or_a_timeout(tmp_path):
    with running(tmp_path, patience=0.05) as node, connected(node) as client:
        stop_persistence(client)
        client.set(b"k")
        assert client.status(SeqnoPersistence(seqno=1)) == S.ETMPFAIL
        run(node, lambda: setattr(node.buckets["default"].flusher.waits, "timeout", 30.0))
        client.send(SeqnoPersistence(seqno=1))
        with connected(node) as other:
            until_stat(other, "ep_persistence_waiters", 1)
            start_persistence(other)
        assert client.receive().specific == S.SUCCESS


def test_stopped_bucket_is_not_compacted(client):
    client.set(b"k")
    stop_persistence(client)
    assert client.status(CompactDb()) == S.ETMPFAIL
    start_persistence(client)
    assert client.status(CompactDb()) == S.SUCCESS


def test_full_bucket_refuses_changes_until_the_start(tmp_path, monkeypatch):
    monkeypatch.setattr(log_room, "_MOST_WAITING_BYTES", 256 * 1024)
    with running(tmp_path, settings=BucketSettings(segment_bytes=64 * 1024)) as node, connected(node) as client:
        stop_persistence(client)
        statuses = [client.set(b"k%d" % number, bytes(10_000)).specific for number in range(60)]
        kept = statuses.index(S.ETMPFAIL)
        assert statuses == [S.SUCCESS] * kept + [S.ETMPFAIL] * (60 - kept)
        start_persistence(client)
        wait_until_persisted(client, kept)
        assert [client.get(b"k%d" % number).specific for number in range(kept)] == [S.SUCCESS] * kept
        later = (client.set(b"again", bytes(10_000)).specific for _ in range(100_000))
        assert S.SUCCESS in later  # as soon as a file has been clustered


def test_second_stop_or_start_is_refused(client):
    assert client.status(StartPersistence()) == S.EINVAL
    stop_persistence(client)
    assert client.status(StopPersistence()) == S.EINVAL
    start_persistence(client)
    assert client.status(StartPersistence()) == S.EINVAL


def test_full_disk_is_not_retried_while_stopped(node, client):
    client.set(b"k")
    wait_until_persisted(client, 1)
    replace_directory(node, "default", FullDirectory)
    client.set(b"k")
    until_stat(client, "ep_flusher_state", "retrying")
    stop_persistence(client)
    replace_directory(node, "default", FullDirectory.__base__)
    assert client.set(b"k").specific == S.ETMPFAIL
    assert client.status(StartPersistence()) == S.SUCCESS
    until_stat(client, "ep_queue_size", 0)
    assert client.set(b"k").specific == S.SUCCESS


@pytest.mark.parametrize(
    ("request_", "status"),
    [(StopPersistence(), S.EINVAL), (StartPersistence(), S.EINVAL), (EvictKey(key=b"k"), S.NOT_SUPPORTED)],
    ids=["stop", "start", "evict"],
)
def test_bucket_in_memory_cannot_be_stopped(request_, status):
    with Node.running(vbuckets=VBUCKETS) as node, connected(node) as client:
        client.set(b"k")
        assert client.status(request_) == status


@pytest.mark.parametrize("request_", [StopPersistence, StartPersistence], ids=["stop", "start"])
def test_stop_and_start_refuse_keys_and_values(client, request_):
    opcode = request_.opcode
    assert client.status(Frame(0x80, opcode, key=b"k")) == S.EINVAL
    assert client.status(Frame(0x80, opcode, value=b"v")) == S.EINVAL
    assert client.stats()["ep_flusher_state"] == "running"


def test_value_is_evicted_once_on_disk(client):
    assert client.status(EvictKey(key=b"k")) == S.KEY_ENOENT
    client.set(b"k", b"v")
    wait_until_persisted(client, 1)
    evicted = client.ask(EvictKey(key=b"k"))
    assert (evicted.specific, evicted.value) == (S.SUCCESS, b"Already ejected.")
    assert client.get(b"k").value == b"v"
    stop_persistence(client)
    client.set(b"k", b"w")
    assert client.status(EvictKey(key=b"k")) == S.KEY_EEXISTS
    assert client.status(EvictKey(vbucket=VBUCKETS, key=b"k")) == S.NOT_MY_VBUCKET
