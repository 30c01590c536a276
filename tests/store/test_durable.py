"""A bucket on disk is, once it is opened again, as it was."""

from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import StoreRefused
from penstock.store.bucket import Bucket
from penstock.store.durable import DurableLog
from penstock.store.files import Directory
from penstock.store.settings import Settings
from penstock.wire.constants import VbucketState
from tests.store.model import START, read_all


class Opened:
    """Opens a bucket in one directory again and again, with tiny log files and vbuuids that count on."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.vbuuids = count(1)

    def __call__(self, **settings: Any) -> Bucket:
        return Bucket.open(
            self.path,
            "beer",
            vbuckets=4,
            clock=lambda: START,
            new_vbuuid=lambda: next(self.vbuuids),
            settings=Settings(**{"segment_bytes": 2048, **settings}),
        )


@pytest.fixture
def opened(tmp_path: Path) -> Opened:
    return Opened(tmp_path / "beer")


def fill(bucket: Bucket) -> None:
    for number in range(200):
        bucket.vbuckets[number % 3].set(b"key %d" % (number % 40), b"value %d" % number)
    for number in range(0, 40, 3):
        bucket.vbuckets[0].delete(b"key %d" % number)
    bucket.vbuckets[1].set_state(VbucketState.REPLICA)
    bucket.vbuckets[1].rollback(bucket.vbuckets[1].high_seqno - 2)
    bucket.vbuckets[2].reset()
    bucket.vbuckets[2].set(b"new", b"history")
    bucket.vbuckets[3].remove()


def directory(bucket: Bucket) -> Directory:
    assert isinstance(bucket.log, DurableLog)
    return bucket.log.directory


def crash(bucket: Bucket) -> None:
    """Let go of the directory without a word."""
    directory(bucket).unlock()


def shown(bucket: Bucket) -> list[Any]:
    """Return all that a client could see of a bucket."""
    return [
        (
            vbucket.state,
            vbucket.failover_log,
            vbucket.high_seqno,
            vbucket.whole_seqno,
            vbucket.items,
            read_all(vbucket.snapshot(0, vbucket.high_seqno)),
            [vbucket.get(b"key %d" % number) for number in range(40)],
        )
        for vbucket in bucket.vbuckets
    ]


def test_after_a_clean_stop(opened: Opened) -> None:
    bucket = opened()
    fill(bucket)
    before = shown(bucket)
    bucket.close()
    bucket = opened()
    assert bucket.recovered.endswith("log files")
    assert shown(bucket) == before
    assert [vbucket.persisted_seqno for vbucket in bucket.vbuckets] == [v.high_seqno for v in bucket.vbuckets]


def test_after_a_crash_active_vbuckets_begin_a_branch(opened: Opened) -> None:
    bucket = opened()
    fill(bucket)
    bucket.commit()
    before = shown(bucket)
    crash(bucket)
    bucket = opened()
    assert bucket.recovered.endswith("after a stop that was not clean")
    for (state, log, high, *rest), (_, new_log, *new) in zip(before, shown(bucket), strict=True):
        assert [high, *rest] == new
        assert new_log[state is VbucketState.ACTIVE :] == log
        assert new_log[0].seqno == (high if state is VbucketState.ACTIVE else log[0].seqno)


def test_what_no_commit_has_taken_is_lost(opened: Opened) -> None:
    bucket = opened()
    bucket.vbuckets[0].set(b"a", b"1")
    bucket.commit()
    assert (bucket.uncommitted, bucket.vbuckets[0].persisted_seqno) == (0, 1)
    bucket.vbuckets[0].set(b"a", b"2")
    assert (bucket.uncommitted, bucket.vbuckets[0].persisted_seqno) == (1, 1)
    crash(bucket)
    item = opened().vbuckets[0].get(b"a")
    assert item is not None
    assert item.value == b"1"


def test_compaction_changes_nothing_but_the_files(opened: Opened) -> None:
    bucket = opened()
    fill(bucket)
    bucket.commit()
    before = shown(bucket)
    files = directory(bucket).names()
    bucket.compact()
    assert shown(bucket) == before
    assert len(directory(bucket).names()) < len(files)
    assert bucket.stats().dead_bytes == 0
    bucket.close()
    assert shown(opened()) == before


def test_keys_are_read_when_they_are_needed_or_bit_by_bit(opened: Opened) -> None:
    bucket = opened()
    fill(bucket)
    before = shown(bucket)
    bucket.close()
    bucket = opened()
    while bucket.load_keys():
        pass
    assert shown(bucket) == before


def test_one_process_at_a_time(opened: Opened) -> None:
    bucket = opened()
    with pytest.raises(StoreRefused, match=r"beer: in use by process \d+"):
        opened()
    bucket.close()
    opened().close()
