"""A bucket on disk: reopening, commits, compactions, retention and quotas."""

from collections import deque
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.errors import OutOfMemory, StoreRefused, TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.bucket_files import Directory
from penstock.store.disk.durable_log import DurableLog
from penstock.wire.codec.constants import VbucketState
from tests.store.model import START, read_all


class DurableOpener:
    """Opens a bucket in one directory, as often as a test likes; call it to open the bucket.

    Attributes:
        path: the directory.
        vbuuids: the vbuuids of new branches, which count from 1 over all openings.
        now: time of the bucket's clock, in ns since the epoch.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.vbuuids = count(1)
        self.now = START

    def __call__(self, **settings: Any) -> BucketStore:
        return BucketStore.open(
            self.path,
            "beer",
            vbuckets=4,
            clock=lambda: self.now,
            new_vbuuid=lambda: next(self.vbuuids),
            settings=BucketSettings(**{"segment_bytes": 2048, **settings}),
        )


@pytest.fixture
def reopen(tmp_path: Path) -> DurableOpener:
    return DurableOpener(tmp_path / "beer")


def fill_bucket(bucket: BucketStore) -> None:
    for number in range(200):
        bucket.vbuckets[number % 3].set(b"key %d" % (number % 40), b"value %d" % number)
    for number in range(0, 40, 3):
        bucket.vbuckets[0].delete(b"key %d" % number)
    bucket.vbuckets[1].set_state(VbucketState.REPLICA)
    bucket.vbuckets[1].rollback(bucket.vbuckets[1].changes.high_seqno - 2)
    bucket.vbuckets[2].reset()
    bucket.vbuckets[2].set(b"new", b"history")
    bucket.vbuckets[3].remove()


def get_directory(bucket: BucketStore) -> Directory:
    assert isinstance(bucket.log, DurableLog)
    return bucket.log.directory


def crash_bucket(bucket: BucketStore) -> None:
    """Unlock the directory without a commit, as the end of a process does."""
    get_directory(bucket).unlock()


def capture_history(bucket: BucketStore) -> list[Any]:
    """Return everything that a client can see of a bucket, including its branches."""
    return [
        (
            vbucket.history.state,
            vbucket.history.failover_log,
            vbucket.changes.high_seqno,
            vbucket.history.whole_seqno,
            vbucket.changes.items,
            read_all(vbucket.history.open_snapshot(0, vbucket.changes.high_seqno)),
            [vbucket.get(b"key %d" % number) for number in range(40)],
        )
        for vbucket in bucket.vbuckets
    ]


def test_clean_stop_keeps_the_bucket_as_it_was(reopen: DurableOpener) -> None:
    bucket = reopen()
    fill_bucket(bucket)
    before = capture_history(bucket)
    bucket.close()
    bucket = reopen()
    assert bucket.recovery_summary.endswith("log files")
    assert capture_history(bucket) == before
    assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == [
        v.changes.high_seqno for v in bucket.vbuckets
    ]


def test_active_vbuckets_start_a_branch_after_a_crash(reopen: DurableOpener) -> None:
    bucket = reopen()
    fill_bucket(bucket)
    bucket.log.commits.run()
    before = capture_history(bucket)
    crash_bucket(bucket)
    bucket = reopen()
    assert bucket.recovery_summary.endswith("after a stop that was not clean")
    for (state, log, high, *rest), (_, new_log, *new) in zip(before, capture_history(bucket), strict=True):
        assert [high, *rest] == new
        assert new_log[state is VbucketState.ACTIVE :] == log
        assert new_log[0].seqno == (high if state is VbucketState.ACTIVE else log[0].seqno)


def test_uncommitted_changes_are_lost(reopen: DurableOpener) -> None:
    bucket = reopen()
    bucket.vbuckets[0].set(b"a", b"1")
    bucket.log.commits.run()
    assert (bucket.log.commits.uncommitted_records, bucket.vbuckets[0].history.persisted_seqno) == (0, 1)
    bucket.vbuckets[0].set(b"a", b"2")
    assert (bucket.log.commits.uncommitted_records, bucket.vbuckets[0].history.persisted_seqno) == (1, 1)
    crash_bucket(bucket)
    item = reopen().vbuckets[0].get(b"a")
    assert item is not None
    assert item.value == b"1"


def test_compaction_changes_nothing_but_the_files(reopen: DurableOpener) -> None:
    bucket = reopen()
    fill_bucket(bucket)
    bucket.log.commits.run()
    before = capture_history(bucket)
    files = get_directory(bucket).list_names()
    bucket.compactor.rewrite_all()
    assert capture_history(bucket) == before
    assert len(get_directory(bucket).list_names()) < len(files)
    assert bucket.collect_stats().dead_bytes == 0
    bucket.close()
    assert capture_history(reopen()) == before


def test_keys_loaded_in_steps_show_the_same_bucket(reopen: DurableOpener) -> None:
    bucket = reopen()
    fill_bucket(bucket)
    before = capture_history(bucket)
    bucket.close()
    bucket = reopen()
    while bucket.keys.load_some():
        pass
    assert capture_history(bucket) == before


def test_open_bucket_cannot_be_opened_again(reopen: DurableOpener) -> None:
    bucket = reopen()
    with pytest.raises(StoreRefused, match=r"beer: in use by process \d+"):
        reopen()
    bucket.close()
    reopen().close()


def test_tombstones_are_purged_after_the_purge_age(reopen: DurableOpener) -> None:
    bucket = reopen(purge_age=60)
    vbucket = bucket.vbuckets[0]
    for key in (b"a", b"b"):
        vbucket.set(key, b"value")
        vbucket.delete(key)
    vbucket.set(b"c", b"last")
    reopen.now += 59 * 10**9
    bucket.compactor.rewrite_all()
    assert [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, 5))] == [2, 4, 5]
    reopen.now += 2 * 10**9
    bucket.compactor.rewrite_all()
    assert [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, 5))] == [5]
    assert vbucket.index.purge_seqno == 4
    assert bucket.collect_stats().items == 1
    bucket.close()
    vbucket = reopen().vbuckets[0]
    assert (vbucket.index.purge_seqno, vbucket.changes.high_seqno, vbucket.get(b"a")) == (4, 5, None)
    vbucket.set(b"a", b"again")
    item = vbucket.get(b"a")
    assert item is not None
    assert item.rev_seqno == 3  # above the tombstone's, so that it wins against older copies


def test_the_newest_change_stays_even_if_it_is_a_tombstone(reopen: DurableOpener) -> None:
    bucket = reopen(purge_age=0)
    bucket.vbuckets[0].set(b"a", b"value")
    bucket.vbuckets[0].delete(b"a")
    reopen.now += 10**9
    bucket.compactor.rewrite_all()
    bucket.close()
    assert reopen().vbuckets[0].changes.high_seqno == 2


def test_superseded_frames_stay_for_the_retention_time(reopen: DurableOpener) -> None:
    bucket = reopen(retention_seconds=60)
    vbucket = bucket.vbuckets[0]
    for number in range(5):
        vbucket.set(b"key", b"%d" % number)
    bucket.compactor.rewrite_all()
    reopen.now += 59 * 10**9
    bucket.compactor.rewrite_all()
    assert (
        vbucket.index.lowest_snapshot_end,
        [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, 3))],
    ) == (0, [3])
    reopen.now += 2 * 10**9
    bucket.compactor.rewrite_all()
    assert (
        vbucket.index.lowest_snapshot_end,
        [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, 3))],
    ) == (5, [5])


@pytest.mark.parametrize("segment_bytes", [100_000, 5000])
def test_new_segment_size_applies_to_the_next_segment(reopen: DurableOpener, segment_bytes: int) -> None:
    bucket = reopen(segment_bytes=10_000)
    bucket.set_settings(BucketSettings(segment_bytes=segment_bytes))
    sizes = []
    for number in range(400):
        bucket.vbuckets[0].set(b"%d" % number, bytes(500))
        sizes.append(len(bucket.log.segments.active.buffer))
    assert sizes[0] == 10_000
    assert sizes[-1] // segment_bytes == 1
    bucket.close()


def test_quota_limits_memory_of_keys_and_rows(reopen: DurableOpener) -> None:
    bucket = reopen(memory_bytes=20_000)
    with pytest.raises(OutOfMemory, match=r"^\d+ bytes of memory in use, limit 20000$"):
        store_each(bucket, 1000)
    assert 15_000 < bucket.collect_stats().index_bytes < 30_000


def store_each(bucket: BucketStore, count: int) -> None:
    """Try to store documents; commit and rewrite after each."""
    for number in range(count):
        with suppress(TemporaryFailure):
            bucket.vbuckets[0].set(b"key %d" % number, b"")
        bucket.log.commits.run()
        rewrite_pieces(bucket)


def rewrite_pieces(bucket: BucketStore) -> None:
    while (piece := bucket.compactor.next_piece()) is not None:
        piece.run()
        assert piece.finish()
        bucket.log.commits.run()


def test_frames_that_wait_for_the_disk_are_dropped_a_second_later(reopen: DurableOpener) -> None:
    """A rewrite keeps superseded frames until the changes that supersede them are on disk."""
    bucket = reopen()
    for _ in range(2):
        bucket.log.commits.run()
        for number in range(40):
            bucket.vbuckets[0].set(b"key %d" % number, bytes(100))
        while (piece := bucket.compactor.next_piece()) is not None:
            piece.run()
            assert piece.finish()
    bucket.log.commits.run()
    rewrite_pieces(bucket)
    assert bucket.log.segments.dead_bytes > bucket.log.segments.frame_bytes / 3
    reopen.now += 10**9
    rewrite_pieces(bucket)
    assert bucket.log.segments.dead_bytes == 0


def test_backlog_at_the_quota_is_a_temporary_refusal(reopen: DurableOpener) -> None:
    bucket = reopen(memory_bytes=20_000)
    with pytest.raises(TemporaryFailure, match=r"limit 20000: memory is being freed, try again soon$"):
        deque(bucket.vbuckets[0].set(b"key %d" % number, b"." * 1000) for number in range(100))
    assert (bucket.log.quota.temporary_errors, bucket.log.quota.errors) == (1, 0)
    bucket.log.commits.run()
    rewrite_pieces(bucket)
    bucket.vbuckets[0].set(b"again", b"." * 1000)


def test_values_on_disk_do_not_count_against_the_quota(reopen: DurableOpener) -> None:
    bucket = reopen(memory_bytes=20_000)
    stored = 0
    while stored < 50:
        with suppress(TemporaryFailure):
            bucket.vbuckets[0].set(b"key %d" % stored, b"." * 4000)
            stored += 1
        bucket.log.commits.run()
        rewrite_pieces(bucket)
    stats = bucket.collect_stats()
    assert stats.live_bytes > 10 * 20_000 > 10 * stats.memory_bytes
    assert [bucket.vbuckets[0].get(b"key %d" % number) is not None for number in range(50)] == [True] * 50


def test_pager_deletes_expired_documents_of_active_vbuckets(reopen: DurableOpener) -> None:
    bucket = reopen()
    for vbucket in bucket.vbuckets:
        for number in range(100):
            vbucket.set(b"key %d" % number, b"", expiry=number % 3 * 10)
    bucket.vbuckets[3].set_state(VbucketState.REPLICA)
    reopen.now += 15 * 10**9
    while bucket.pager.expire_some():
        pass
    assert [vbucket.changes.items for vbucket in bucket.vbuckets] == [67, 67, 67, 100]
    assert bucket.changed == {0, 1, 2}
