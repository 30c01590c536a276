"""A disk that refuses, or that nobody can trust any more: what was acknowledged is kept, and nothing else is said."""

import errno
import os
import re
import resource
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count, repeat
from pathlib import Path

import pytest

from penstock.errors import TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.disk.log_file import make_log_name
from penstock.store.documents.vbucket import Vbucket
from penstock.store.log import log_room
from penstock.store.log.records import RECORD_BYTES
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from tests.store.failing import Place, contents, shown
from tests.store.model import START, new_bucket, read_all
from tests.store.mounts import run_with_mounts


@pytest.fixture
def place(memory: Path) -> Place:
    return Place(memory / "beer")


def change(bucket: BucketStore, number: int) -> None:
    bucket.vbuckets[number % 3].set(b"key %d" % (number % 5), b"value %d" % number)


def rewrite(bucket: BucketStore) -> bool:
    """Rewrite all that there is; False: the disk did not take it."""
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    while (compaction := bucket.compactor.next_piece(everything=True)) is not None:
        compaction.run()
        if not compaction.finish():
            return False
        bucket.log.commits.run()
    return bucket.log.room.fault is None


def check_refusal(bucket: BucketStore, why: str) -> None:
    """Check that nothing is stored, and that what there is can be read."""
    assert bucket.log.room.fault is not None
    assert why in bucket.log.room.fault
    before = shown(bucket)
    refused: list[Callable[[], object]] = [
        lambda: bucket.vbuckets[0].set(b"key", b"refused"),
        lambda: bucket.vbuckets[1].set_state(VbucketState.REPLICA),
        bucket.vbuckets[2].reset,
        lambda: bucket.vbuckets[2].rollback(1),
    ]
    for call in refused:
        with pytest.raises(TemporaryFailure, match=re.escape(why)):
            call()
    assert shown(bucket) == before
    assert bucket.vbuckets[0].get(b"key") is None


# Faults that pass


@pytest.mark.parametrize("most", [1, 2, 23, 24, 25, 100])
def test_a_write_may_take_as_little_as_it_likes(place: Place, most: int) -> None:
    place.prepare = lambda directory: setattr(directory, "limit", lambda nbytes: min(nbytes, most))
    bucket = place(segment_bytes=1000)
    for number in range(30):
        change(bucket, number)
    assert rewrite(bucket)
    before = shown(bucket)
    bucket.close()
    assert shown(place()) == before


def test_a_compaction_without_memory_is_tried_again(place: Place) -> None:
    def run_out_of_memory() -> None:
        raise MemoryError

    bucket = place(segment_bytes=1000)
    for number in range(30):
        change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    before = shown(bucket)
    place.directory.during["create"] = run_out_of_memory
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.error is not None
    assert compaction.error.errno == errno.ENOMEM
    assert not compaction.finish()
    assert rewrite(bucket)
    assert shown(bucket) == before
    bucket.close()


@pytest.mark.parametrize("is_durable", [False, True], ids=["in memory", "on disk"])
def test_a_compaction_that_cannot_begin_for_lack_of_memory_begins_later(place: Place, is_durable: bool) -> None:
    lacks_memory = False

    def tell_time() -> int:
        if lacks_memory:
            raise MemoryError
        return START

    place.tell_time = tell_time
    bucket = place() if is_durable else new_bucket(clock=tell_time)
    vbucket = bucket.vbuckets[0]
    for number in range(30):
        vbucket.set(b"key %d" % (number % 5), b"value %d" % number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    lacks_memory = True
    with pytest.raises(TemporaryFailure, match="no memory for a compaction"):
        bucket.compactor.next_piece(everything=True)
    lacks_memory = False
    assert not bucket.log.compactions.is_running
    assert rewrite(bucket)
    assert all(segment.is_clustered for segment in bucket.log.segments.sealed)
    bucket.close()


PASSING = [
    ("write", errno.ENOSPC),
    ("write", errno.EDQUOT),
    ("write", errno.EIO),
    ("create", errno.ENOSPC),
    ("create", errno.EMFILE),
    ("rename", errno.ENOSPC),
    ("remove", errno.EIO),
    ("sync inv", errno.EIO),
]


@pytest.mark.parametrize(("operation", "number"), PASSING)
@pytest.mark.parametrize("times", [1, pytest.param(3, marks=pytest.mark.long)])
def test_a_refusal_ends_when_the_disk_takes_it_again(place: Place, operation: str, number: int, times: int) -> None:
    failures = 0
    for after in range(12):
        bucket = place(segment_bytes=1000)
        directory = place.directory
        directory.fail(operation, number, after=after, times=times)
        for more in range(40):
            change(bucket, more)
            if more % 10 == 9:
                bucket.log.commits.run()
                while bucket.log.room.fault is not None:
                    acknowledged = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
                    check_refusal(bucket, os.strerror(number))
                    assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == acknowledged
                    bucket.log.commits.run()
                assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == [
                    vbucket.changes.high_seqno for vbucket in bucket.vbuckets
                ]
        while not rewrite(bucket):
            assert directory.failures
        failures += directory.failures
        before = shown(bucket)
        bucket.close()
        bucket = place()
        assert shown(bucket) == before
        bucket.close()
    assert failures


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_a_file_system_that_becomes_read_only_and_writable_again(place: Place, number: int) -> None:
    """As a file system that meets an error and is remounted: nothing can be opened or written, all can be read."""
    why = os.strerror(number)
    bucket = place(segment_bytes=1000)
    for more in range(60):
        change(bucket, more)
    assert rewrite(bucket)
    assert bucket.log.segments.sealed
    change(bucket, 61)
    before, manifest = shown(bucket), bucket.manifests.current
    files = contents(place.path)
    for operation in ("create", "reopen", "write", "rename", "remove", "make"):
        place.directory.fail(operation, number)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    for _ in range(2):
        bucket.log.commits.run()
        check_refusal(bucket, why)
        assert not bucket.log.commits.is_broken
    for refused in (
        lambda: bucket.rollout.set_manifest(manifest.with_scope("shop")),
        lambda: bucket.record.set_properties({"flush": True}),
        bucket.compactor.rewrite_all,
    ):
        with pytest.raises(TemporaryFailure, match=why):
            refused()
    assert shown(bucket) == before
    assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == persisted
    assert contents(place.path) == files
    place.directory.heal()
    bucket.log.commits.run()
    assert bucket.log.room.fault is None
    bucket.rollout.set_manifest(manifest.with_scope("shop"))
    bucket.record.set_properties({"flush": True})
    change(bucket, 62)
    bucket.compactor.rewrite_all()
    before = shown(bucket)
    bucket.close()
    bucket = place()
    assert shown(bucket) == before
    assert (bucket.manifests.current.find_scope("shop").name, bucket.record.properties) == ("shop", {"flush": True})
    bucket.close()


@pytest.mark.parametrize(
    ("operation", "after"), [("create", 0), ("write", 0), ("write", 1), ("write", 2), ("write", 9), ("sync", 0)]
)
def test_a_rewrite_that_fails_leaves_everything_as_it_was(place: Place, operation: str, after: int) -> None:
    bucket = place(segment_bytes=1000)
    for number in range(40):
        change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    before, files = shown(bucket), contents(place.path)
    compaction = bucket.compactor.next_piece(everything=True)
    assert compaction is not None
    place.directory.limit = lambda nbytes: 40
    place.directory.fail(operation, errno.ENOSPC, after=after)
    compaction.run()
    assert not compaction.finish()
    assert compaction.error is not None
    assert compaction.error.errno == errno.ENOSPC
    assert (bucket.log.room.fault, bucket.log.commits.is_broken) == (None, False)
    assert (shown(bucket), contents(place.path)) == (before, files)
    change(bucket, 1)
    before = shown(bucket)
    place.directory.heal()
    bucket.compactor.rewrite_all()
    assert shown(bucket) == before
    assert bucket.collect_stats().dead_bytes == 0
    bucket.close()
    assert shown(place()) == before


def test_failed_full_rewrite_raises(place: Place) -> None:
    bucket = place()
    change(bucket, 0)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    place.directory.fail("create", errno.ENOSPC, after=1)
    with pytest.raises(TemporaryFailure, match="No space left on device"):
        bucket.compactor.rewrite_all()


def test_a_draft_that_is_not_wanted_may_stay(place: Place) -> None:
    """Until the bucket is opened again."""
    bucket = place()
    change(bucket, 0)
    change(bucket, 3)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    bucket.vbuckets[0].rollback(1)
    before = shown(bucket)
    place.directory.fail("remove", errno.EIO)
    assert not compaction.finish()
    assert [name[-4:] for name in place.directory.list_names()].count(".new") == 1
    bucket.close()
    assert shown(place()) == before
    assert not [name for name in place.directory.list_names() if name.endswith(".new")]


@pytest.mark.parametrize("when", ["before the commit", "when it is listed", "while the disk is full"])
def test_a_draft_that_was_deleted_is_written_again(place: Place, when: str) -> None:
    bucket = place(segment_bytes=1000)
    for number in range(60):
        change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    (draft,) = (name for name in contents(place.path) if name.endswith(".new"))

    def delete() -> None:
        (place.path / draft).unlink()

    if when == "when it is listed":
        place.directory.during["sync inv"] = delete
        bucket.log.commits.run()
        assert bucket.log.room.fault is not None
    else:
        delete()
    if when == "while the disk is full":
        place.directory.fail("create", errno.ENOSPC)
        bucket.log.commits.run()
        check_refusal(bucket, "No space left on device")
        place.directory.heal()
    bucket.log.commits.run()
    assert bucket.log.room.fault is None
    assert draft.partition(".")[0] in contents(place.path)
    change(bucket, 1)
    bucket.log.commits.run()
    before = shown(bucket)
    place.directory.let_go()
    bucket = place(segment_bytes=1000)
    assert shown(bucket) == before
    bucket.close()


@pytest.mark.long
def test_memory_is_bounded_when_the_disk_does_not_keep_up(place: Place) -> None:
    """Nobody commits, and nobody rewrites what is sealed."""
    bucket = place(segment_bytes=64 * 1024 * 1024)
    value = bytes(16 * 1024 * 1024)
    with pytest.raises(
        TemporaryFailure, match=r"^too many changes wait for the disk: it is too slow, or persistence is stopped$"
    ):
        deque((bucket.vbuckets[0].set(b"%d" % number, value) for number in range(100)), 0)
    stored = bucket.vbuckets[0].changes.high_seqno
    assert 256 <= 16 * stored <= 256 + 2 * 64
    bucket.log.commits.run()
    with pytest.raises(TemporaryFailure, match=r"^too many changes wait for the disk"):
        bucket.vbuckets[0].set(b"key", value)
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    assert bucket.vbuckets[0].set(b"key", value).seqno == stored + 1
    bucket.close()


def test_backlog_limit_follows_the_segment_size(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_room, "_MOST_WAITING_BYTES", 0)
    bucket = place(segment_bytes=1000)
    bucket.set_settings(BucketSettings(segment_bytes=100_000))
    with pytest.raises(TemporaryFailure, match=r"^too many changes wait for the disk"):
        deque((bucket.vbuckets[0].set(b"%d" % number, bytes(10_000)) for number in range(100)), 0)
    assert 400_000 <= bucket.log.segments.frame_bytes <= 600_000
    bucket.close()


@contextmanager
def little_memory(more: int = 256 << 20) -> Iterator[None]:
    """Let this process have so many bytes more than it has now."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("is_durable", [False, True], ids=["in memory", "on disk"])
def test_a_segment_for_which_there_is_no_memory_changes_nothing(place: Place, is_durable: bool) -> None:
    bucket = place() if is_durable else new_bucket()
    vbucket = bucket.vbuckets[0]
    for number in range(3):
        vbucket.set(b"%d" % number, b"")
    for _ in range(2):
        with little_memory(), pytest.raises(TemporaryFailure, match="no memory for the next changes"):
            bucket.log.roll(1 << 30)
        vbucket.set(b"3", b"")
    assert not bucket.log.segments.sealed
    bucket.log.roll(0)
    assert [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))] == [1, 2, 3, 5]
    assert vbucket.index.row_count == 5
    bucket.close()


def test_changes_go_on_while_there_is_no_memory_to_compact_a_bucket_near_its_quota() -> None:
    bucket = new_bucket(segment_bytes=4 << 20, times=repeat(START, 20_000))  # the clock ends a loop without an end
    bucket.set_settings(BucketSettings(memory_bytes=64 << 20))
    vbucket, quota, numbers, value = bucket.vbuckets[0], bucket.log.quota, count(), bytes(64 << 10)
    while quota.measure() < 53 << 20:
        vbucket.set(b"%d" % next(numbers), value)
    old = count()
    with little_memory(2 << 20):  # a rewrite takes more
        while not quota.is_pressed:
            vbucket.delete(b"%d" % next(old))
            vbucket.delete(b"%d" % next(old))
            vbucket.set(b"%d" % next(numbers), value)
    while quota.used_bytes > quota.high_water:
        vbucket.set(b"%d" % next(numbers), value)
    assert vbucket.changes.items == next(numbers) - next(old)


def test_locks_do_not_lengthen_a_log_that_the_disk_refuses(place: Place) -> None:
    bucket = place()
    vbucket = bucket.vbuckets[0]
    vbucket.set(b"key", b"value")
    bucket.log.commits.run()
    place.directory.fail("write", errno.ENOSPC)
    vbucket.set(b"other", b"value")
    bucket.log.commits.run()
    with pytest.raises(TemporaryFailure, match=r"No space left on device$"):
        vbucket.lock(b"key", 5)
    place.directory.heal()
    bucket.log.commits.run()
    bucket.close()


def lock_again_and_again(vbucket: Vbucket) -> None:
    for _ in range(100):
        item = vbucket.lock(b"key", 5)
        assert item is not None
        vbucket.unlock(b"key", item.cas)


def test_locks_wait_for_a_disk_that_does_not_keep_up(place: Place) -> None:
    """Nobody commits log files that have nothing but notes."""
    bucket = place(segment_bytes=64 * 1024 * 1024)
    log, vbucket = bucket.log, bucket.vbuckets[0]
    for _ in range(5):
        log.roll(0)
    while (room := log.segments.active.limit - log.segments.active.end) > 1000:
        vbucket.set(b"key", bytes(min(room - 500, 16 * 1024 * 1024)))
    with pytest.raises(TemporaryFailure, match=r"^too many changes wait for the disk"):
        lock_again_and_again(vbucket)
    bucket.close()


@pytest.mark.process
def test_a_disk_that_is_full(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.full_disk", str(tmp_path)]
    done = run_with_mounts('mount -t tmpfs -o size=1m penstock "$0"', tmp_path, command)
    assert (done.returncode, done.stderr) == (0, "")


# Faults that do not pass


@pytest.mark.parametrize("operation", ["sync log", "sync_names"])
def test_nothing_is_acknowledged_after_a_sync_has_failed(place: Place, operation: str) -> None:
    for after in range(4):
        bucket = place(segment_bytes=1000)
        place.directory.fail(operation, errno.EIO, after=after, times=1)
        for number in range(60):
            if bucket.log.room.fault is None:
                change(bucket, number)
            if number % 20 == 10:
                bucket.log.commits.run()
            if number % 20 == 15 and not bucket.log.commits.is_broken:
                rewrite(bucket)
        assert bucket.log.commits.is_broken
        place.directory.heal()
        persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
        check_refusal(bucket, "a sync has failed (Input/output error): the content of the disk is unknown")
        for _ in range(3):
            bucket.log.commits.run()
            rewrite(bucket)
        assert bucket.log.commits.is_broken
        assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == persisted
        check_refusal(bucket, "until the bucket is opened again")
        place.directory.power_off()
        bucket = place()
        assert bucket.log.room.fault is None
        for vbucket, seqno in zip(bucket.vbuckets, persisted, strict=True):
            assert vbucket.changes.high_seqno >= seqno
        change(bucket, 0)
        bucket.close()


def delete_directory(path: Path) -> None:
    shutil.rmtree(path)


def delete_log(path: Path) -> None:
    max(path.glob("log-*")).unlink()


def rename_log(path: Path) -> None:
    max(path.glob("log-*")).rename(path / "moved")


def replace_log(path: Path) -> None:
    log = max(path.glob("log-*"))
    content = log.read_bytes()
    log.unlink()
    log.write_bytes(content)


def replace_directory(path: Path) -> None:
    path.rename(path.with_name("moved"))
    shutil.copytree(path.with_name("moved"), path)


@pytest.mark.parametrize("hurt", [delete_directory, delete_log, rename_log, replace_log, replace_directory])
def test_the_next_commit_notices_that_its_file_is_gone(place: Place, hurt: Callable[[Path], None]) -> None:
    bucket = place()
    change(bucket, 0)
    bucket.log.commits.run()
    change(bucket, 1)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    hurt(place.path)
    assert bucket.log.room.fault is None
    for _ in range(2):
        bucket.log.commits.run()
        assert bucket.log.commits.is_broken
        assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == persisted
        check_refusal(
            bucket, f"{place.path / make_log_name(1)} was deleted, moved or replaced while the bucket was open"
        )
    bucket.close()


# Two threads


def test_a_new_segment_waits_for_the_commit_that_begins_after_it(place: Place) -> None:
    """What a rewrite has dropped is noted in the log; a commit that was under way may have passed that place."""
    bucket = place(segment_bytes=5000)
    for number in range(40):
        change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    change(bucket, 0)
    place.directory.during["sync"] = compaction.finish
    bucket.log.commits.run()
    assert not place.directory.during
    assert [name for name in place.directory.list_names() if name.startswith("segment")] == [
        "segment-0000000001-0000000001.0.new"
    ]
    assert bucket.log.commits.uncommitted_records
    bucket.log.commits.run()
    assert "segment-0000000001-0000000001" in place.directory.list_names()
    floors = [vbucket.index.lowest_snapshot_end for vbucket in bucket.vbuckets]
    place.directory.power_off()
    assert [vbucket.index.lowest_snapshot_end for vbucket in place().vbuckets] == floors != [0, 0, 0, 0]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_names"])
def test_changes_that_come_during_a_commit_go_with_the_next_one(place: Place, operation: str) -> None:
    bucket = place(segment_bytes=1000)
    bucket.log.room.seal_active()
    change(bucket, 0)
    bucket.log.room.seal_active()

    def meanwhile() -> None:
        for number in range(20):  # over more than one log file
            change(bucket, number)

    place.directory.during[operation] = meanwhile
    bucket.log.commits.run()
    assert bucket.vbuckets[0].history.persisted_seqno < bucket.vbuckets[0].changes.high_seqno
    assert bucket.log.commits.uncommitted_records
    bucket.log.commits.run()
    assert bucket.vbuckets[0].history.persisted_seqno == bucket.vbuckets[0].changes.high_seqno
    assert not bucket.log.commits.uncommitted_records
    before = shown(bucket)
    place.directory.power_off()
    assert shown(place()) == before


def test_a_fault_that_comes_while_room_is_made_is_not_overlooked(place: Place) -> None:
    """A note of the bucket's own begins another log file, fault or not; changes are refused all the same."""
    bucket = place(segment_bytes=5000)
    for number in range(40):
        change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    while bucket.log.segments.active.end + 170 < 5000:
        bucket.vbuckets[0].set(b"other", b"")
    bucket.vbuckets[0].set(b"o" * (5000 - bucket.log.segments.active.end - RECORD_BYTES - 55), b"")  # to the last byte
    files = len(bucket.log.segments.sealed)
    place.directory.fail("write", errno.ENOSPC)
    bucket.log.commits.run()
    assert compaction.finish()
    assert len(bucket.log.segments.sealed) == files + 1
    check_refusal(bucket, "No space left on device")
