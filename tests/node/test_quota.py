"""A bucket at its memory quota: what it takes, what it refuses, and what it frees."""

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


def store(client, key, value=VALUE):
    """Store a document, again while the node asks for that, and return the status."""
    statuses = (client.set(key, value).specific for _ in range(TRIES))
    return next(status for status in statuses if status != S.ETMPFAIL)


def fill(client):
    """Store documents until one is refused for good, and return how many were stored."""
    for number in range(1000):
        status = store(client, b"key-%d" % number)
        if status != S.SUCCESS:
            assert status == S.ENOMEM
            return number
    raise AssertionError("the quota is never exceeded")


def memory(client):
    return {name: int(value) for name, value in client.stats("memory").items()}


def test_bucket_full_of_documents_refuses_changes_and_counts_them():
    with running() as client:
        assert fill(client) > 100
        assert {client.set(b"more", VALUE).specific for _ in range(200)} == {S.ENOMEM}
        said = memory(client)
        assert said["ep_oom_errors"] == 201
        assert said["mem_used"] > QUOTA


def test_space_of_deleted_documents_is_reused():
    with running() as client:
        stored = fill(client)
        assert {client.delete(b"key-%d" % number).specific for number in range(stored)} == {S.SUCCESS}
        assert fill(client) > 0.9 * stored
        assert memory(client)["ep_log_live_bytes"] > QUOTA // 2


def test_space_of_flushed_documents_is_reused():
    with running() as client:
        stored = fill(client)
        assert client.status(Flush()) == S.SUCCESS
        assert fill(client) > 0.9 * stored


def test_overwritten_documents_fit_below_the_quota():
    with running() as client:
        assert {store(client, b"key-%d" % (number % 50)) for number in range(1000)} == {S.SUCCESS}
        said = memory(client)
        assert said["mem_used"] <= QUOTA
        assert said["ep_oom_errors"] == 0


def test_deletions_are_accepted_above_the_quota_and_new_keys_refused():
    with running() as client:
        fill(client)
        assert client.delete(b"key-0").specific == S.SUCCESS
        assert client.set(b"a new one").specific in (S.ENOMEM, S.ETMPFAIL)


def test_larger_quota_applies_at_once():
    with Node.running(["default"], 4, settings=BucketSettings(memory_bytes=QUOTA)) as node, connected(node) as client:
        fill(client)
        node.loop.call_soon_threadsafe(
            node.buckets["default"].store.set_settings, BucketSettings(memory_bytes=4 * QUOTA)
        )
        assert S.SUCCESS in (client.set(b"more", VALUE).specific for _ in range(TRIES))


def test_collections_start_everywhere_once_there_is_room():
    """Nobody reads or writes the vbuckets meanwhile, which would let each of them write its events."""
    with Node.running(["default"], 4, settings=BucketSettings(memory_bytes=QUOTA)) as node, connected(node) as client:
        fill(client)
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
        assert {store(client, b"key-%d" % number) for number in range(count)} == {S.SUCCESS}
        until_stat(client, "ep_queue_size", 0)
        assert memory(client)["ep_log_live_bytes"] > 10 * QUOTA
        assert any(memory(client)["mem_used"] < QUOTA for _ in range(TRIES))
        assert all(client.get(b"key-%d" % number).value == VALUE for number in range(count))


@pytest.mark.parametrize("on_disk", [False, pytest.param(True, marks=pytest.mark.long)])
def test_dead_frames_above_a_fifth_are_dropped(tmp_path, on_disk):
    """A few documents change again and again, and many never do."""
    settings = BucketSettings(segment_bytes=256 * 1024)
    where = {"data_dir": tmp_path} if on_disk else {}
    with Node.running(["default"], 4, settings=settings, **where) as node, connected(node) as client:
        for number in range(2000):
            client.set(b"cold-%d" % number, bytes(1000))
            client.set(b"hot-%d" % (number % 10), bytes(1000))
        for number in range(2000):
            client.set(b"hot-%d" % (number % 10), bytes(1000))
        live = memory(client)["ep_log_live_bytes"]
        allowed = live / 4 + 3 * node.buckets["default"].store.log.quota.segment_bytes
        assert any(memory(client)["ep_log_dead_bytes"] < allowed for _ in range(TRIES))


# What an ephemeral bucket does when it is full


@contextmanager
def ephemeral(eviction):
    spec = BucketSpec(name="wine", kind="ephemeral", vbuckets=4, quota_bytes=QUOTA, eviction=eviction)
    with Node.running(["beer"], 4) as node:
        asyncio.run_coroutine_threadsafe(node.buckets.create(spec), node.loop).result(PATIENCE)
        yield node


def test_full_ephemeral_bucket_refuses_new_documents():
    with ephemeral("noEviction") as node, connected(node, "wine") as client:
        stored = fill(client)
        assert all(client.get(b"key-%d" % number).specific == S.SUCCESS for number in range(stored))
        assert client.stats()["vb_active_auto_delete_count"] == "0"
        assert client.stats("config")["ep_ephemeral_full_policy"] == "fail_new_data"


def test_full_ephemeral_bucket_deletes_its_oldest_documents():
    count = 5 * QUOTA // len(VALUE)
    with ephemeral("nruEviction") as node, connected(node, "wine") as client:
        assert {store(client, b"key-%d" % number) for number in range(count)} == {S.SUCCESS}
        kept = [client.get(b"key-%d" % number).specific == S.SUCCESS for number in range(count)]
        assert not kept[0]
        assert kept[-1]
        assert count // 20 < sum(kept) <= QUOTA // len(VALUE) + 16
        assert int(client.stats()["vb_active_auto_delete_count"]) == count - sum(kept)
        assert client.stats("config")["ep_ephemeral_full_policy"] == "auto_delete"
        assert memory(client)["mem_used"] < 1.2 * QUOTA


def test_streams_send_the_deletions_of_a_full_bucket():
    """The documents that a stream has sent and not deleted are those that there are."""
    count = 2 * QUOTA // len(VALUE)
    with ephemeral("nruEviction") as node, connected(node, "wine") as client, connected(node, "wine") as consumer:
        consumer.open().stream()
        there = set()
        for number in range(count):
            assert store(client, b"key-%d" % number) == S.SUCCESS
        end = int(client.stats("vbucket-seqno 0")["vb_0:high_seqno"])
        seqno = 0
        while seqno < end:
            message = consumer.message()
            if isinstance(message, Mutation):
                there.add(message.key)
            elif isinstance(message, Deletion):
                there.discard(message.key)
            seqno = getattr(message, "by_seqno", seqno)
        assert there == {b"key-%d" % n for n in range(count) if client.get(b"key-%d" % n).specific == S.SUCCESS}
        assert 0 < len(there) < count


def test_locked_documents_are_not_deleted():
    with ephemeral("nruEviction") as node, connected(node, "wine") as client:
        assert client.set(b"locked").specific == S.SUCCESS
        assert client.status(GetLocked(key=b"locked", lock_time=30)) == S.SUCCESS
        assert {store(client, b"key-%d" % number) for number in range(200)} == {S.SUCCESS}
        assert client.get(b"key-0").specific == S.KEY_ENOENT
        assert client.get(b"locked").specific == S.SUCCESS
