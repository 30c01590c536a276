"""Bridges that keep their copy on disk and continue with it after a restart."""

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
from tests.node.test_follow import (
    DIALECTS,
    STREAMED,
    VBUCKETS,
    fill_bucket,
    make_copy_check,
    run_upstream,
    set_state,
    wait_until_copied,
    write_to,
)
from tests.node.watch import run
from tests.node.wire_client import connected, until_stat

SMALL = BucketSettings(segment_bytes=64 * 1024)


@contextmanager
def run_bridge_on_disk(node, protocol, path, settings=SMALL):
    with Node.running(follow=node.url("beer"), protocol=protocol, data_dir=path, settings=settings) as copy:
        yield copy


@pytest.mark.parametrize("protocol", STREAMED)
def test_restarted_bridge_fetches_only_new_changes(tmp_path, protocol):
    with run_upstream() as first:
        write_to(first.url("beer"), fill_bucket)
        for turn in range(3):
            with run_bridge_on_disk(first, protocol, tmp_path) as second:
                write_to(first.url("beer"), lambda bucket, turn=turn: bucket.upsert("new", b"%d" % turn))
                wait_until_copied(second, first, protocol)
                assert second.bridge.copies.rollbacks == 0
                assert (second.bridge.copies.changes == 1) is bool(turn)


def test_restarted_bridge_over_tap_restarts_from_zero(tmp_path):
    with run_upstream() as first:
        write_to(first.url("beer"), fill_bucket)
        for _ in range(2):
            with run_bridge_on_disk(first, "tap", tmp_path) as second:
                wait_until_copied(second, first, "tap")


@pytest.mark.parametrize("protocol", DIALECTS)
def test_killed_bridge_converges_to_the_upstream(tmp_path, protocol):
    with (
        run_upstream() as first,
        run_bridge_on_disk(first, protocol, tmp_path / "data", BucketSettings(commit_seconds=0.001)) as second,
    ):
        for turn in range(6):
            write_to(first.url("beer"), partial(fill_bucket, turn=turn))
            copy_files(second, "beer", tmp_path / f"copy-{turn}")
            with run_bridge_on_disk(first, protocol, tmp_path / f"copy-{turn}") as third:
                wait_until_copied(third, first, protocol)
        wait_until_copied(second, first, protocol)


@pytest.mark.parametrize("protocol", DIALECTS)
def test_bridge_waits_while_its_disk_is_full(tmp_path, protocol, monkeypatch):
    monkeypatch.setattr(flusher, "_RETRY_SECONDS", 0.05)
    with run_upstream() as first, run_bridge_on_disk(first, protocol, tmp_path) as second:
        write_to(first.url("beer"), fill_bucket)
        wait_until_copied(second, first, protocol)
        connections = second.bridge.connections
        replace_directory(second, "beer", FullDirectory)
        write_to(first.url("beer"), partial(fill_bucket, turn=1))
        with connected(second, "beer") as client:
            until_stat(client, "ep_flusher_state", "retrying")
        write_to(first.url("beer"), partial(fill_bucket, turn=2))
        assert not run(second, make_copy_check(second, first, protocol))
        replace_directory(second, "beer", FullDirectory.__base__)
        wait_until_copied(second, first, protocol)
        assert second.bridge.connections == connections


def test_bridge_waits_while_its_memory_is_full(caplog):
    with run_upstream() as first:
        write_to(first.url("beer"), lambda bucket: bucket.upsert_many([(f"key-{n}", bytes(1 << 20)) for n in range(8)]))
        with Node.running(follow=first.url("beer"), settings=BucketSettings(memory_bytes=1)) as second:
            with connected(second, "beer") as client:
                while not caplog.messages:
                    client.stats("follow")
                assert client.stats("follow")["connected"] == "true"
            assert second.bridge is not None
            assert not second.bridge.task.done()
    assert caplog.messages[0].startswith(f"bucket beer refuses changes of {first.url('beer')}: ")


def test_promoted_vbucket_stays_active_after_a_restart(tmp_path):
    with run_upstream() as first:
        write_to(first.url("beer"), fill_bucket)
        with run_bridge_on_disk(first, "dcp", tmp_path) as second:
            wait_until_copied(second, first, "dcp")
            set_state(second, 1, VbucketState.ACTIVE)
        with run_bridge_on_disk(first, "dcp", tmp_path) as second, connected(second, "beer") as client:
            states = list(client.stats("vbucket").values())
            assert states == ["replica", "active", "replica", "replica"]
            assert client.set(b"own", vbucket=1).specific == Status.SUCCESS
            until_stat(client, "vbuckets", 3, "follow")


def test_own_bucket_is_not_replaced_by_a_copy(tmp_path):
    with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as node, connected(node, "beer") as client:
        client.set(b"k", b"own")
    with run_upstream() as first:
        with (
            pytest.raises(UsageError, match="none of its vbuckets is a replica"),
            run_bridge_on_disk(first, "dcp", tmp_path),
        ):
            pass
        with Node.running(["beer"], VBUCKETS, data_dir=tmp_path) as node, connected(node, "beer") as client:
            assert client.get(b"k").value == b"own"
