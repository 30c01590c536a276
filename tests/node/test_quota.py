"""Buckets at their memory quota: refused changes, freed memory, and deleted documents."""

import asyncio
from contextlib import contextmanager

import pytest

from penstock.node import Node
from penstock.node.buckets.bucket_spec import BucketSpec
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import Deletion, Mutation
from penstock.wire.messages.kv import Flush, GetLocked
from tests.node.manifests import ALE, DEFAULT, make_beers, set_scopes
from tests.node.wire_client import connected, until_stat
from tests.patience import PATIENCE

S = Status
MEGABYTE = 1 << 20
QUOTA = 8 * MEGABYTE
VALUE = bytes(64 * 1024)
TRIES = 100_000


@contextmanager
def running(**options):
    settings = BucketSettings(memory_bytes=QUOTA)
    with Node.running(["default"], 4, settings=settings, **options) as node, connected(node) as client:
        yield client


def store_document(client, key, value=VALUE):
    """Store a document, retry while the status is ETMPFAIL, and return the last status."""
    statuses = (client.set(key, value).specific for _ in range(TRIES))
    return next(status for status in statuses if status != S.ETMPFAIL)


def fill_bucket(client):
    """Store documents until the bucket is full, and return their number."""
    for number in range(1000):
        status = store_document(client, b"key-%d" % number)
        if status != S.SUCCESS:
            assert status == S.ENOMEM
            return number
    raise AssertionError("1000 documents were stored below the quota")


def read_memory(client):
    return {name: int(value) for name, value in client.stats("memory").items()}


def test_bucket_full_of_documents_refuses_changes_and_counts_them():
    with running() as client:
        assert fill_bucket(client) > 100
        assert {client.set(b"more", VALUE).specific for _ in range(200)} == {S.ENOMEM}
        stats = read_memory(client)
        assert stats["ep_oom_errors"] == 201
        assert stats["mem_used"] > QUOTA


def test_space_of_deleted_documents_is_reused():
    with running() as client:
        stored = fill_bucket(client)
        assert {client.delete(b"key-%d" % number).specific for number in range(stored)} == {S.SUCCESS}
        assert fill_bucket(client) > 0.9 * stored
        assert read_memory(client)["ep_log_live_bytes"] > QUOTA // 2


def test_space_of_flushed_documents_is_reused():
    with running() as client:
        stored = fill_bucket(client)
        assert client.status(Flush()) == S.SUCCESS
        assert fill_bucket(client) > 0.9 * stored


def test_overwritten_documents_fit_below_the_quota():
    with running() as client:
        assert {store_document(client, b"key-%d" % (number % 50)) for number in range(1000)} == {S.SUCCESS}
        stats = read_memory(client)
        assert stats["mem_used"] <= QUOTA
        assert stats["ep_oom_errors"] == 0


def test_deletions_are_accepted_above_the_quota_and_new_keys_refused():
    with running() as client:
        fill_bucket(client)
        assert client.delete(b"key-0").specific == S.SUCCESS
        assert client.set(b"a new one").specific in (S.ENOMEM, S.ETMPFAIL)


def test_larger_quota_applies_at_once():
    with Node.running(["default"], 4, settings=BucketSettings(memory_bytes=QUOTA)) as node, connected(node) as client:
        fill_bucket(client)
        node.loop.call_soon_threadsafe(
            node.buckets["default"].store.set_settings, BucketSettings(memory_bytes=4 * QUOTA)
        )
        assert S.SUCCESS in (client.set(b"more", VALUE).specific for _ in range(TRIES))


def test_collections_start_in_all_vbuckets_when_there_is_room():
    """No client uses the vbuckets meanwhile, since any request would make its vbucket write the events."""
    with Node.running(["default"], 4, settings=BucketSettings(memory_bytes=QUOTA)) as node, connected(node) as client:
        fill_bucket(client)
        before = int(client.stats("vbucket-seqno")["vb_3:high_seqno"])
        set_scopes(client, 1, DEFAULT, make_beers(ALE))
        assert int(client.stats("vbucket-seqno")["vb_3:high_seqno"]) == before
        node.loop.call_soon_threadsafe(
            node.buckets["default"].store.set_settings, BucketSettings(memory_bytes=4 * QUOTA)
        )
        until_stat(client, "vb_3:high_seqno", before + 2, group="vbucket-seqno")


@pytest.mark.long
def test_bucket_on_disk_can_exceed_its_quota_ten_times(tmp_path):
    count = 10 * QUOTA // len(VALUE)
    with running(data_dir=tmp_path) as client:
        assert {store_document(client, b"key-%d" % number) for number in range(count)} == {S.SUCCESS}
        until_stat(client, "ep_queue_size", 0)
        assert read_memory(client)["ep_log_live_bytes"] > 10 * QUOTA
        assert any(read_memory(client)["mem_used"] < QUOTA for _ in range(TRIES))
        assert all(client.get(b"key-%d" % number).value == VALUE for number in range(count))


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.long)])
def test_dead_frames_above_a_fifth_are_dropped(tmp_path, on_disk):
    """Ten documents change often, and 2000 documents never change."""
    settings = BucketSettings(segment_bytes=256 * 1024)
    options = {"data_dir": tmp_path} if on_disk else {}
    with Node.running(["default"], 4, settings=settings, **options) as node, connected(node) as client:
        for number in range(2000):
            client.set(b"cold-%d" % number, bytes(1000))
            client.set(b"hot-%d" % (number % 10), bytes(1000))
        for number in range(2000):
            client.set(b"hot-%d" % (number % 10), bytes(1000))
        live = read_memory(client)["ep_log_live_bytes"]
        allowed = live / 4 + 3 * node.buckets["default"].store.log.quota.segment_bytes
        assert any(read_memory(client)["ep_log_dead_bytes"] < allowed for _ in range(TRIES))


# Full ephemeral buckets


@contextmanager
def run_ephemeral(eviction):
    spec = BucketSpec(name="wine", kind="ephemeral", vbuckets=4, quota_bytes=QUOTA, eviction=eviction)
    with Node.running(["beer"], 4) as node:
        asyncio.run_coroutine_threadsafe(node.buckets.create(spec), node.loop).result(PATIENCE)
        yield node


def test_full_ephemeral_bucket_refuses_new_documents():
    with run_ephemeral("noEviction") as node, connected(node, "wine") as client:
        stored = fill_bucket(client)
        assert all(client.get(b"key-%d" % number).specific == S.SUCCESS for number in range(stored))
        assert client.stats()["vb_active_auto_delete_count"] == "0"
        assert client.stats("config")["ep_ephemeral_full_policy"] == "fail_new_data"


def test_full_ephemeral_bucket_deletes_its_oldest_documents():
    count = 5 * QUOTA // len(VALUE)
    with run_ephemeral("nruEviction") as node, connected(node, "wine") as client:
        assert {store_document(client, b"key-%d" % number) for number in range(count)} == {S.SUCCESS}
        kept = [client.get(b"key-%d" % number).specific == S.SUCCESS for number in range(count)]
        assert not kept[0]
        assert kept[-1]
        assert count // 20 < sum(kept) <= QUOTA // len(VALUE) + 16
        assert int(client.stats()["vb_active_auto_delete_count"]) == count - sum(kept)
        assert client.stats("config")["ep_ephemeral_full_policy"] == "auto_delete"
        assert read_memory(client)["mem_used"] < 1.2 * QUOTA


def test_streams_send_the_deletions_of_a_full_bucket():
    """The documents that the stream has sent and not deleted are the documents of the bucket."""
    count = 2 * QUOTA // len(VALUE)
    with run_ephemeral("nruEviction") as node, connected(node, "wine") as client, connected(node, "wine") as consumer:
        consumer.open().stream()
        received = set()
        for number in range(count):
            assert store_document(client, b"key-%d" % number) == S.SUCCESS
        end = int(client.stats("vbucket-seqno 0")["vb_0:high_seqno"])
        seqno = 0
        while seqno < end:
            message = consumer.message()
            if isinstance(message, Mutation):
                received.add(message.key)
            elif isinstance(message, Deletion):
                received.discard(message.key)
            seqno = getattr(message, "by_seqno", seqno)
        assert received == {b"key-%d" % n for n in range(count) if client.get(b"key-%d" % n).specific == S.SUCCESS}
        assert 0 < len(received) < count


def test_locked_documents_are_not_deleted():
    with run_ephemeral("nruEviction") as node, connected(node, "wine") as client:
        assert client.set(b"locked").specific == S.SUCCESS
        assert client.status(GetLocked(key=b"locked", lock_time=30)) == S.SUCCESS
        assert {store_document(client, b"key-%d" % number) for number in range(200)} == {S.SUCCESS}
        assert client.get(b"key-0").specific == S.KEY_ENOENT
        assert client.get(b"locked").specific == S.SUCCESS
