"""A bridge that keeps its copy on disk goes on with what is there."""

from contextlib import contextmanager
from functools import partial

import pytest

from penstock.errors import UsageError
from penstock.node import Node
from penstock.node.buckets import flusher
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.wire.codec.constants import VbucketState
from penstock.wire.codec.statuses import Status
from tests.node.disks import FullDirectory, copy_files, replace_directory
from tests.node.test_follow import DIALECTS, STREAMED, VBUCKETS, fill, follow, is_like, original, set_state, write
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat

SMALL = BucketSettings(segment_bytes=64 * 1024)


@contextmanager
def bridge(node, protocol, path, settings=SMALL):
    with Node.running(follow=node.url("beer"), protocol=protocol, data_dir=path, settings=settings) as copy:
        yield copy


@pytest.mark.parametrize("protocol", STREAMED)
def test_restarted_bridge_fetches_only_new_changes(tmp_path, protocol):
    with original() as first:
        write(first.url("beer"), fill)
        for turn in range(3):
            with bridge(first, protocol, tmp_path) as second:
                write(first.url("beer"), lambda bucket, turn=turn: bucket.upsert("new", b"%d" % turn))
                follow(second, first, protocol)
                assert second.bridge.copies.rollbacks == 0
                assert (second.bridge.copies.changes == 1) is bool(turn)


def test_restarted_bridge_over_tap_restarts_from_zero(tmp_path):
    with original() as first:
        write(first.url("beer"), fill)
        for _ in range(2):
            with bridge(first, "tap", tmp_path) as second:
                follow(second, first, "tap")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_killed_bridge_converges_to_the_upstream(tmp_path, protocol):
    with (
        original() as first,
        bridge(first, protocol, tmp_path / "data", BucketSettings(commit_seconds=0.001)) as second,
    ):
        for turn in range(6):
            write(first.url("beer"), partial(fill, turn=turn))
            copy_files(second, "beer", tmp_path / f"copy-{turn}")
            with bridge(first, protocol, tmp_path / f"copy-{turn}") as third:
                follow(third, first, protocol)
        follow(second, first, protocol)


@pytest.mark.parametrize("protocol", DIALECTS)
def test_bridge_waits_while_its_disk_is_full(tmp_path, protocol, monkeypatch):
    monkeypatch.setattr(flusher, "_RETRY_SECONDS", 0.05)
    with original() as first, bridge(first, protocol, tmp_path) as second:
        write(first.url("beer"), fill)
        follow(second, first, protocol)
        connections = second.bridge.connections
        replace_directory(second, "beer", FullDirectory)
        write(first.url("beer"), partial(fill, turn=1))
        with connected(second, "beer") as client:
            until_stat(client, "ep_flusher_state", "retrying")
        write(first.url("beer"), partial(fill, turn=2))
        assert not run(second, is_like(second, first, protocol))
        replace_directory(second, "beer", FullDirectory.__base__)
        follow(second, first, protocol)
        assert second.bridge.connections == connections


def test_bridge_waits_while_its_memory_is_full(caplog):
    with original() as first:
        write(first.url("beer"), lambda bucket: bucket.upsert_many([(f"key-{n}", bytes(1 << 20)) for n in range(8)]))
        with Node.running(follow=first.url("beer"), settings=BucketSettings(memory_bytes=1)) as second:
            with connected(second, "beer") as client:
                while not caplog.messages:
                    client.stats("follow")
                assert client.stats("follow")["connected"] == "true"
            assert second.bridge is not None
            assert not second.bridge.task.done()
    assert caplog.messages[0].startswith(f"bucket beer refuses changes of {first.url('beer')}: ")


def test_promoted_vbucket_stays_active_after_a_restart(tmp_path):
    with original() as first:
        write(first.url("beer"), fill)
        with bridge(first, "dcp", tmp_path) as second:
            follow(second, first, "dcp")
            set_state(second, 1, VbucketState.ACTIVE)
        with bridge(first, "dcp", tmp_path) as second, connected(second, "beer") as client:
            states = list(client.stats("vbucket").values())
            assert states == ["replica", "active", "replica", "replica"]
            assert client.set(b"own", vbucket=1).specific == Status.SUCCESS
            until_stat(client, "vbuckets", 3, "follow")


def test_own_bucket_is_not_replaced_by_a_copy(tmp_path):
    with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as node, connected(node, "beer") as client:
        client.set(b"k", b"own")
    with original() as first:
        with pytest.raises(UsageError, match="none of its vbuckets is a replica"), bridge(first, "dcp", tmp_path):
            pass
        with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as node, connected(node, "beer") as client:
            assert client.get(b"k").value == b"own"
