"""Restarts of a node: after a stop it has all changes, after a kill it has the persisted changes."""

import json
from contextlib import contextmanager

import pytest

from penstock.errors import StoreDamaged, StoreRefused, UsageError
from penstock.node import Node
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import MAX_SEQNO, Dialect, Feature, VbucketState
from penstock.wire.codec.flags import SnapshotFlag
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import SnapshotMarker
from penstock.wire.messages.kv import (
    DelVbucket,
    Flush,
    GetClusterConfig,
    GetVbucket,
    SeqnoPersistence,
    SetVbucket,
)
from tests.client.receiver import messages_in
from tests.node.disks import copy_files
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat

S = Status
VBUCKETS = 8
SMALL = BucketSettings(segment_bytes=64 * 1024)


@contextmanager
def running(path, buckets=("beer",), **options):
    with Node.running(buckets, VBUCKETS, data_dir=path, **options) as node:
        yield node


def wait_until_persisted(client, vbucket):
    """Wait until all changes of a vbucket are on disk."""
    high = client.stats(f"vbucket-seqno {vbucket}")[f"vb_{vbucket}:high_seqno"]
    assert client.status(SeqnoPersistence(vbucket=vbucket, seqno=int(high))) == S.SUCCESS


def read_changes(node, number, *, dead):
    """Return the messages of a vbucket's stream. A dead vbucket has no stream, so its store is read."""
    vbucket = node.buckets["beer"].store.vbuckets[number]
    if dead:
        return messages_in(
            run(node, lambda: vbucket.history.open_snapshot(0, vbucket.changes.high_seqno).read(0, 1 << 20).data),
            Dialect.DCP,
        )
    with connected(node, "beer") as consumer:
        consumer.open(f"reader of {number}")
        assert consumer.stream(number, end=vbucket.changes.high_seqno).specific == S.SUCCESS
        return list(consumer.changes())


def read_bucket(client):
    """Return the documents, tombstones, states and histories of a bucket, by vbucket."""
    found = {}
    for vbucket in range(VBUCKETS):
        state = client.ask(GetVbucket(vbucket=vbucket))
        if state.specific != S.SUCCESS:
            continue
        seqnos = client.stats(f"vbucket-seqno {vbucket}")
        changes = [
            (change.by_seqno, change.opcode, change.key, change.value, change.cas)
            for change in read_changes(client.node, vbucket, dead=state.value == bytes((0, 0, 0, VbucketState.DEAD)))
            if change.opcode in (Opcode.DCP_MUTATION, Opcode.DCP_DELETION)
        ]
        kept = {name: value for name, value in seqnos.items() if "persisted" not in name}
        found[vbucket] = state.value, client.stats(f"failovers {vbucket}"), kept, changes
    return found


@contextmanager
def connect_to_beer(node):
    with connected(node, "beer") as client:
        client.node = node
        yield client


def fill_bucket(client, turn=0):
    for number in range(200):
        client.set(b"key-%d" % number, b"%d of %d" % (number, turn), vbucket=number % VBUCKETS)
    for number in range(0, 200, 7):
        client.delete(b"key-%d" % number, vbucket=number % VBUCKETS)
    assert client.status(SetVbucket(vbucket=1, state=VbucketState.REPLICA)) == S.SUCCESS
    assert client.status(SetVbucket(vbucket=2, state=VbucketState.DEAD)) == S.SUCCESS
    assert client.status(SetVbucket(vbucket=3, state=VbucketState.REPLICA)) == S.SUCCESS
    assert client.status(SetVbucket(vbucket=3, state=VbucketState.ACTIVE)) == S.SUCCESS
    assert client.status(DelVbucket(vbucket=4)) == S.SUCCESS


def test_stopped_node_restores_everything(tmp_path):
    with running(tmp_path, settings=SMALL) as node, connect_to_beer(node) as client:
        fill_bucket(client)
        before, config = read_bucket(client), json.loads(client.ask(GetClusterConfig()).value)
        stats = client.stats()
    assert {4}.isdisjoint(before)
    for _ in range(2):
        with running(tmp_path, settings=SMALL) as node, connect_to_beer(node) as client:
            assert node.buckets["beer"].store.recovery_summary.startswith("229 changes in ")
            assert read_bucket(client) == before
            later = json.loads(client.ask(GetClusterConfig()).value)
            assert all(
                later[name] == config[name] for name in ("name", "uuid", "nodeLocator", "collectionsManifestUid")
            )
            assert later["vBucketServerMap"]["vBucketMap"] == config["vBucketServerMap"]["vBucketMap"]
            assert (later["revEpoch"], later["rev"]) > (config["revEpoch"], config["rev"])
            config = later
            again = client.stats()
            assert again["ep_uuid"] == stats["ep_uuid"]
            assert again["curr_items"] == stats["curr_items"]


def test_flush_survives_a_restart(tmp_path):
    with running(tmp_path) as node, connect_to_beer(node) as client:
        fill_bucket(client)
        assert client.status(Flush()) == S.SUCCESS
        client.set(b"after", vbucket=0)
        before = read_bucket(client)
    with running(tmp_path) as node, connect_to_beer(node) as client:
        assert read_bucket(client) == before
        assert client.stats()["curr_items"] == "1"


def test_consumer_resumes_after_a_stop(tmp_path):
    with running(tmp_path) as node, connect_to_beer(node) as client:
        for _ in range(5):
            client.set(b"k")
        vbuuid = node.buckets["beer"].store.vbuckets[0].history.vbuuid
    with running(tmp_path) as node, connect_to_beer(node) as client:
        client.set(b"k")
        client.open()
        assert client.stream(start=5, end=6, vbuuid=vbuuid).specific == S.SUCCESS
        assert [change.by_seqno for change in client.changes() if change.opcode == Opcode.DCP_MUTATION] == [6]


def test_changes_before_a_restart_are_a_disk_backfill(tmp_path):
    disk, memory = (flag | SnapshotFlag.CHECKPOINT for flag in (SnapshotFlag.DISK, SnapshotFlag.MEMORY))
    with running(tmp_path) as node, connect_to_beer(node) as client, connected(node, "beer") as consumer:
        client.set(b"before")
        consumer.open().stream()
        assert (consumer.message().flags, consumer.message().key) == (memory, b"before")
    with running(tmp_path) as node, connect_to_beer(node) as client, connected(node, "beer") as consumer:
        consumer.hello(Feature.COLLECTIONS).open()
        consumer.control("enable_noop", "true")
        assert consumer.control("max_marker_version", "2.2") == S.SUCCESS
        consumer.stream()
        marker = consumer.message()
        assert (marker.version, marker.start_seqno, marker.end_seqno, marker.flags) == (2, 0, 1, disk)
        assert consumer.message().by_seqno == 1
        client.set(b"after")
        marker = consumer.message()
        assert isinstance(marker, SnapshotMarker)  # only backfills have version 2.2
        assert (marker.start_seqno, marker.end_seqno, marker.flags) == (2, 2, memory)


@contextmanager
def restart_as_killed(node, target):
    """Start a node on a copy of another node's files, as if the other node had been killed."""
    copy_files(node, "beer", target)
    with running(target) as survivor, connect_to_beer(survivor) as client:
        yield client


def test_killed_node_keeps_confirmed_changes_and_rolls_consumers_back(tmp_path):
    never = BucketSettings(commit_seconds=3600)
    with running(tmp_path / "data", settings=never) as node, connect_to_beer(node) as client:
        for _ in range(5):
            client.set(b"k", b"confirmed")
        wait_until_persisted(client, 0)
        vbuuid = node.buckets["beer"].store.vbuckets[0].history.vbuuid
        for _ in range(5):
            client.set(b"k", b"only in memory")
        with restart_as_killed(node, tmp_path / "copy") as survivor:
            assert survivor.get(b"k").value == b"confirmed"
            failovers = survivor.stats("failovers 0")
            assert (failovers["vb_0:0:seq"], failovers["vb_0:1:id"]) == ("5", str(vbuuid))
            survivor.set(b"k", b"of a new branch")
            survivor.open()
            refused = survivor.stream(start=8, vbuuid=vbuuid)
            assert (refused.specific, refused.value) == (S.ROLLBACK, (5).to_bytes(8, "big"))
            assert survivor.stream(start=5, end=6, vbuuid=vbuuid).specific == S.SUCCESS
            assert [change.by_seqno for change in survivor.changes() if change.opcode == Opcode.DCP_MUTATION] == [6]


@pytest.mark.long
def test_killed_node_loses_no_confirmed_change(tmp_path):
    """The files are copied between two commits, while the node makes commits and rewrites files."""
    settings = BucketSettings(commit_seconds=0.001, segment_bytes=16 * 1024)
    with running(tmp_path / "data", settings=settings) as node, connect_to_beer(node) as client:
        for turn in range(8):
            for number in range(60):
                client.set(b"key-%d" % number, b"%d-" % turn + bytes(200), vbucket=number % 2)
            wait_until_persisted(client, 0)
            for number in range(60):
                client.delete(b"gone-%d" % number, vbucket=1)
                client.set(b"key-%d" % number, b"%d-and more" % turn, vbucket=1)
            with restart_as_killed(node, tmp_path / f"copy-{turn}") as survivor:
                for number in range(0, 60, 2):
                    assert survivor.get(b"key-%d" % number).value.startswith(b"%d-" % turn)
                for number in range(1, 60, 2):
                    found = survivor.get(b"key-%d" % number, vbucket=1).value
                    assert int(found.split(b"-")[0]) >= turn - 1
                survivor.set(b"new")


# Data that cannot be opened


def assert_refused(path, error, *words, buckets=("beer",), **options):
    with pytest.raises(error) as raised, running(path, buckets, **options):
        pass
    message = str(raised.value)
    assert "\n" not in message
    for word in words:
        assert word in message


def test_bucket_directory_is_used_by_one_node_at_a_time(tmp_path):
    with running(tmp_path):
        assert_refused(tmp_path, StoreRefused, "beer", "in use by process")
    with running(tmp_path):
        pass


def test_different_number_of_vbuckets_is_refused(tmp_path):
    with running(tmp_path):
        pass
    with pytest.raises(StoreRefused, match="8 vbuckets, not 16"), Node.running(["beer"], 16, data_dir=tmp_path):
        pass


def test_file_as_data_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    assert_refused(tmp_path / "file", StoreRefused, "file", "cannot be written to")


def test_damaged_bucket_closes_those_opened_before(tmp_path):
    with running(tmp_path, ("beer", "wine"), settings=SMALL) as node, connected(node, "wine") as client:
        for number in range(300):
            client.set(b"key-%d" % number, bytes(1000))
        wait_until_persisted(client, 0)
    log = max((tmp_path / "wine").glob("log-*"))
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    assert_refused(tmp_path, StoreDamaged, "wine", "checksum", buckets=("beer", "wine"))
    with running(tmp_path) as node, connect_to_beer(node) as client:
        assert client.set(b"k").specific == S.SUCCESS


def test_invalid_options_are_refused(tmp_path):
    assert_refused(tmp_path, UsageError, "other characters than dots", buckets=("..",))
    assert not list(tmp_path.iterdir())


def test_each_bucket_has_a_directory(tmp_path):
    for turn in range(2):
        with running(tmp_path / "made" / "here", ("beer", "wine")) as node:
            for name in ("beer", "wine"):
                with connected(node, name) as client:
                    assert (client.get(b"k").value == name.encode()) is bool(turn)
                    client.set(b"k", name.encode())
    assert sorted(path.name for path in (tmp_path / "made" / "here").iterdir()) == ["beer", "node.json", "wine"]


# Memory


def test_full_bucket_in_memory_refuses_changes():
    with (
        Node.running(["beer"], VBUCKETS, settings=BucketSettings(memory_bytes=8 << 20)) as node,
        connect_to_beer(node) as client,
    ):
        statuses = [client.set(b"key-%d" % number, bytes(1 << 20)).specific for number in range(20)]
        assert statuses[0] == S.SUCCESS
        assert statuses[-1] in {S.ETMPFAIL, S.ENOMEM}
        refused = (client.set(b"one more", bytes(1 << 20)).specific for _ in range(5000))
        assert S.ENOMEM in refused  # ENOMEM, as soon as a compaction can free no more
        assert client.get(b"key-0").specific == S.SUCCESS


# Keys and expiries


def test_keys_are_loaded_after_the_first_requests(tmp_path):
    with running(tmp_path) as node, connect_to_beer(node) as client:
        fill_bucket(client)
    with running(tmp_path) as node, connect_to_beer(node) as client:
        assert client.get(b"key-8", vbucket=0).value == b"8 of 0"
        until_stat(client, "ep_keys_loaded", "true")


def skip_to_deletion(consumer):
    for frame in iter(consumer.message, None):
        if frame.opcode == Opcode.DCP_DELETION:
            return frame
    raise AssertionError


@pytest.mark.parametrize("on_disk", [False, True])
def test_expiry_pager_deletes_unread_documents(tmp_path, on_disk):
    options = {"data_dir": tmp_path} if on_disk else {}
    with Node.running(["beer"], VBUCKETS, **options) as node, connect_to_beer(node) as client:
        client.set(b"over", expiry=1_000_000_000)
        client.set(b"not yet", expiry=4_000_000_000)
        client.open()
        assert client.stream(end=MAX_SEQNO).specific == S.SUCCESS
        run(node, node.buckets["beer"].maintenance.run_pager)
        assert skip_to_deletion(client).key == b"over"
        stats = client.stats()
        assert (stats["curr_items"], stats["ep_num_expiry_pager_runs"]) == ("1", "1")


def test_expiry_pager_runs_at_its_interval(tmp_path):
    with running(tmp_path, pager_seconds=0.01) as node, connect_to_beer(node) as client:
        client.open()
        assert client.stream(end=MAX_SEQNO).specific == S.SUCCESS
        client.set(b"over", expiry=1_000_000_000)
        assert skip_to_deletion(client).key == b"over"
