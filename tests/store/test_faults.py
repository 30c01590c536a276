"""Faults of the disk: acknowledged changes are kept, and nothing is acknowledged that may not be on disk."""

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
from tests.store.failing import Place, capture_state, read_files
from tests.store.model import START, make_bucket, read_all
from tests.store.mounts import run_with_mounts


@pytest.fixture
def place(memory_path: Path) -> Place:
    return Place(memory_path / "beer")


def write_change(bucket: BucketStore, number: int) -> None:
    bucket.vbuckets[number % 3].set(b"key %d" % (number % 5), b"value %d" % number)


def rewrite_everything(bucket: BucketStore) -> bool:
    """Rewrite all log files and segments; return False if the disk refused it."""
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    while (compaction := bucket.compactor.next_piece(everything=True)) is not None:
        compaction.run()
        if not compaction.finish():
            return False
        bucket.log.commits.run()
    return bucket.log.room.fault is None


def check_refusal(bucket: BucketStore, reason: str) -> None:
    """Check that changes are refused for this reason, and that all documents can still be read."""
    assert bucket.log.room.fault is not None
    assert reason in bucket.log.room.fault
    before = capture_state(bucket)
    refused: list[Callable[[], object]] = [
        lambda: bucket.vbuckets[0].set(b"key", b"refused"),
        lambda: bucket.vbuckets[1].set_state(VbucketState.REPLICA),
        bucket.vbuckets[2].reset,
        lambda: bucket.vbuckets[2].rollback(1),
    ]
    for call in refused:
        with pytest.raises(TemporaryFailure, match=re.escape(reason)):
            call()
    assert capture_state(bucket) == before
    assert bucket.vbuckets[0].get(b"key") is None


# Faults that pass


@pytest.mark.parametrize("most", [1, 2, 23, 24, 25, 100])
def test_short_writes_lose_nothing(place: Place, most: int) -> None:
    place.prepare = lambda directory: setattr(directory, "limit", lambda nbytes: min(nbytes, most))
    bucket = place(segment_bytes=1000)
    for number in range(30):
        write_change(bucket, number)
    assert rewrite_everything(bucket)
    before = capture_state(bucket)
    bucket.close()
    assert capture_state(place()) == before


def test_compaction_that_runs_out_of_memory_is_tried_again(place: Place) -> None:
    def run_out_of_memory() -> None:
        raise MemoryError

    bucket = place(segment_bytes=1000)
    for number in range(30):
        write_change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    before = capture_state(bucket)
    place.directory.during["create"] = run_out_of_memory
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.error is not None
    assert compaction.error.errno == errno.ENOMEM
    assert not compaction.finish()
    place.directory.during["create"] = run_out_of_memory
    with pytest.raises(TemporaryFailure, match=r"^there is no memory for a new segment$"):
        bucket.compactor.rewrite_all()
    place.directory.fail("create", errno.ENOSPC, times=1)
    with pytest.raises(TemporaryFailure, match=r"^the disk does not accept writes: No space left on device$"):
        bucket.compactor.rewrite_all()
    assert rewrite_everything(bucket)
    assert capture_state(bucket) == before
    bucket.close()


@pytest.mark.parametrize("is_durable", [False, True], ids=["in memory", "on disk"])
def test_compaction_begins_later_after_a_lack_of_memory(place: Place, is_durable: bool) -> None:
    lacks_memory = False

    def read_clock() -> int:
        if lacks_memory:
            raise MemoryError
        return START

    place.clock = read_clock
    bucket = place() if is_durable else make_bucket(clock=read_clock)
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
    assert rewrite_everything(bucket)
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


@pytest.mark.long
@pytest.mark.parametrize(("operation", "number"), PASSING)
@pytest.mark.parametrize("times", [1, 3])
def test_refusal_ends_when_the_disk_accepts_writes_again(place: Place, operation: str, number: int, times: int) -> None:
    failures = 0
    for after in range(12):
        bucket = place(segment_bytes=1000)
        directory = place.directory
        directory.fail(operation, number, after=after, times=times)
        for more in range(40):
            write_change(bucket, more)
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
        while not rewrite_everything(bucket):
            assert directory.failures
        failures += directory.failures
        before = capture_state(bucket)
        bucket.close()
        bucket = place()
        assert capture_state(bucket) == before
        bucket.close()
    assert failures


@pytest.mark.parametrize("number", [errno.EROFS, errno.EACCES])
def test_read_only_file_system_refuses_changes_until_it_is_writable(place: Place, number: int) -> None:
    """A file system with an error is remounted read-only: no file can be opened or written, all can be read."""
    reason = os.strerror(number)
    bucket = place(segment_bytes=1000)
    for more in range(60):
        write_change(bucket, more)
    assert rewrite_everything(bucket)
    assert bucket.log.segments.sealed
    write_change(bucket, 61)
    before, manifest = capture_state(bucket), bucket.manifests.current
    files = read_files(place.path)
    for operation in ("create", "reopen", "write", "rename", "remove", "make"):
        place.directory.fail(operation, number)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    for _ in range(2):
        bucket.log.commits.run()
        check_refusal(bucket, reason)
        assert not bucket.log.commits.is_broken
    for refused in (
        lambda: bucket.rollout.set_manifest(manifest.with_scope("shop")),
        lambda: bucket.record.set_properties({"flush": True}),
        bucket.compactor.rewrite_all,
    ):
        with pytest.raises(TemporaryFailure, match=reason):
            refused()
    assert capture_state(bucket) == before
    assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == persisted
    assert read_files(place.path) == files
    place.directory.heal()
    bucket.log.commits.run()
    assert bucket.log.room.fault is None
    bucket.rollout.set_manifest(manifest.with_scope("shop"))
    bucket.record.set_properties({"flush": True})
    write_change(bucket, 62)
    bucket.compactor.rewrite_all()
    before = capture_state(bucket)
    bucket.close()
    bucket = place()
    assert capture_state(bucket) == before
    assert (bucket.manifests.current.find_scope("shop").name, bucket.record.properties) == ("shop", {"flush": True})
    bucket.close()


@pytest.mark.parametrize(
    ("operation", "after"), [("create", 0), ("write", 0), ("write", 1), ("write", 2), ("write", 9), ("sync", 0)]
)
def test_failed_rewrite_changes_nothing(place: Place, operation: str, after: int) -> None:
    bucket = place(segment_bytes=1000)
    for number in range(40):
        write_change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    before, files = capture_state(bucket), read_files(place.path)
    compaction = bucket.compactor.next_piece(everything=True)
    assert compaction is not None
    place.directory.limit = lambda nbytes: 40
    place.directory.fail(operation, errno.ENOSPC, after=after)
    compaction.run()
    assert not compaction.finish()
    assert compaction.error is not None
    assert compaction.error.errno == errno.ENOSPC
    assert (bucket.log.room.fault, bucket.log.commits.is_broken) == (None, False)
    assert (capture_state(bucket), read_files(place.path)) == (before, files)
    write_change(bucket, 1)
    before = capture_state(bucket)
    place.directory.heal()
    bucket.compactor.rewrite_all()
    assert capture_state(bucket) == before
    assert bucket.collect_stats().dead_bytes == 0
    bucket.close()
    assert capture_state(place()) == before


def test_failed_full_rewrite_raises(place: Place) -> None:
    bucket = place()
    write_change(bucket, 0)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    place.directory.fail("create", errno.ENOSPC, after=1)
    with pytest.raises(TemporaryFailure, match="No space left on device"):
        bucket.compactor.rewrite_all()


def test_obsolete_draft_stays_until_the_next_opening(place: Place) -> None:
    """A draft that cannot be removed stays until the bucket is opened again."""
    bucket = place()
    write_change(bucket, 0)
    write_change(bucket, 3)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    bucket.vbuckets[0].rollback(1)
    before = capture_state(bucket)
    place.directory.fail("remove", errno.EIO)
    assert not compaction.finish()
    assert [name[-4:] for name in place.directory.list_names()].count(".new") == 1
    bucket.close()
    assert capture_state(place()) == before
    assert not [name for name in place.directory.list_names() if name.endswith(".new")]


@pytest.mark.parametrize("when", ["before the commit", "when it is listed", "while the disk is full"])
def test_deleted_draft_is_written_again(place: Place, when: str) -> None:
    bucket = place(segment_bytes=1000)
    for number in range(60):
        write_change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    assert compaction.finish()
    (draft,) = (name for name in read_files(place.path) if name.endswith(".new"))

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
    assert draft.partition(".")[0] in read_files(place.path)
    write_change(bucket, 1)
    bucket.log.commits.run()
    before = capture_state(bucket)
    place.directory.kill()
    bucket = place(segment_bytes=1000)
    assert capture_state(bucket) == before
    bucket.close()


@pytest.mark.long
def test_memory_is_bounded_when_the_disk_does_not_keep_up(place: Place) -> None:
    """The test runs no commit and no compaction, as if the disk were too slow for both."""
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
def limit_memory(more: int = 256 << 20) -> Iterator[None]:
    """Limit the address space of this process to its present size and `more` bytes."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


@pytest.mark.parametrize("is_durable", [False, True], ids=["in memory", "on disk"])
def test_lack_of_memory_for_a_segment_changes_nothing(place: Place, is_durable: bool) -> None:
    bucket = place() if is_durable else make_bucket()
    vbucket = bucket.vbuckets[0]
    for number in range(3):
        vbucket.set(b"%d" % number, b"")
    for _ in range(2):
        with limit_memory(), pytest.raises(TemporaryFailure, match="no memory for the next changes"):
            bucket.log.roll(1 << 30)
        vbucket.set(b"3", b"")
    assert not bucket.log.segments.sealed
    bucket.log.roll(0)
    assert [change.by_seqno for change in read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))] == [1, 2, 3, 5]
    assert vbucket.index.row_count == 5
    bucket.close()


def test_changes_continue_without_memory_to_compact_near_the_quota() -> None:
    bucket = make_bucket(
        segment_bytes=4 << 20, times=repeat(START, 20_000)
    )  # so that the clock stops a loop that would not end
    bucket.set_settings(BucketSettings(memory_bytes=64 << 20))
    vbucket, quota, numbers, value = bucket.vbuckets[0], bucket.log.quota, count(), bytes(64 << 10)
    while quota.measure() < 53 << 20:
        vbucket.set(b"%d" % next(numbers), value)
    old = count()
    with limit_memory(2 << 20):  # a rewrite needs more
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


def lock_often(vbucket: Vbucket) -> None:
    for _ in range(100):
        item = vbucket.lock(b"key", 5)
        assert item is not None
        vbucket.unlock(b"key", item.cas)


def test_locks_are_refused_while_the_disk_does_not_keep_up(place: Place) -> None:
    """Log files that hold only notes of locks are limited too, if no commit runs."""
    bucket = place(segment_bytes=64 * 1024 * 1024)
    log, vbucket = bucket.log, bucket.vbuckets[0]
    for _ in range(5):
        log.roll(0)
    while (room := log.segments.active.limit - log.segments.active.end) > 1000:
        vbucket.set(b"key", bytes(min(room - 500, 16 * 1024 * 1024)))
    with pytest.raises(TemporaryFailure, match=r"^too many changes wait for the disk"):
        lock_often(vbucket)
    bucket.close()


@pytest.mark.process
def test_full_disk_loses_nothing_and_recovers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.store.full_disk", str(tmp_path)]
    done = run_with_mounts('mount -t tmpfs -o size=1m penstock "$0"', tmp_path, command)
    assert (done.returncode, done.stderr) == (0, "")


# Faults that do not pass


@pytest.mark.parametrize("operation", ["sync log", "sync_names"])
def test_nothing_is_acknowledged_after_a_failed_sync(place: Place, operation: str) -> None:
    for after in range(4):
        bucket = place(segment_bytes=1000)
        place.directory.fail(operation, errno.EIO, after=after, times=1)
        for number in range(60):
            if bucket.log.room.fault is None:
                write_change(bucket, number)
            if number % 20 == 10:
                bucket.log.commits.run()
            if number % 20 == 15 and not bucket.log.commits.is_broken:
                rewrite_everything(bucket)
        assert bucket.log.commits.is_broken
        place.directory.heal()
        persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
        check_refusal(bucket, "a sync has failed (Input/output error): the content of the disk is unknown")
        for _ in range(3):
            bucket.log.commits.run()
            rewrite_everything(bucket)
        assert bucket.log.commits.is_broken
        assert [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets] == persisted
        check_refusal(bucket, "until the bucket is opened again")
        place.directory.lose_power()
        bucket = place()
        assert bucket.log.room.fault is None
        for vbucket, seqno in zip(bucket.vbuckets, persisted, strict=True):
            assert vbucket.changes.high_seqno >= seqno
        write_change(bucket, 0)
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


@pytest.mark.parametrize("damage", [delete_directory, delete_log, rename_log, replace_log, replace_directory])
def test_next_commit_notices_a_missing_log_file(place: Place, damage: Callable[[Path], None]) -> None:
    bucket = place()
    write_change(bucket, 0)
    bucket.log.commits.run()
    write_change(bucket, 1)
    persisted = [vbucket.history.persisted_seqno for vbucket in bucket.vbuckets]
    damage(place.path)
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


def test_new_segment_gets_its_name_only_in_a_later_commit(place: Place) -> None:
    """The log has a note of the dropped changes; a commit that was under way may have ended in front of the note."""
    bucket = place(segment_bytes=5000)
    for number in range(40):
        write_change(bucket, number)
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    compaction = bucket.compactor.next_piece()
    assert compaction is not None
    compaction.run()
    write_change(bucket, 0)
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
    place.directory.lose_power()
    assert [vbucket.index.lowest_snapshot_end for vbucket in place().vbuckets] == floors != [0, 0, 0, 0]


@pytest.mark.parametrize("operation", ["create", "write", "sync", "sync_names"])
def test_changes_during_a_commit_are_in_the_next_commit(place: Place, operation: str) -> None:
    bucket = place(segment_bytes=1000)
    bucket.log.room.seal_active()
    write_change(bucket, 0)
    bucket.log.room.seal_active()

    def change_meanwhile() -> None:
        for number in range(20):  # enough for more than one log file
            write_change(bucket, number)

    place.directory.during[operation] = change_meanwhile
    bucket.log.commits.run()
    assert bucket.vbuckets[0].history.persisted_seqno < bucket.vbuckets[0].changes.high_seqno
    assert bucket.log.commits.uncommitted_records
    bucket.log.commits.run()
    assert bucket.vbuckets[0].history.persisted_seqno == bucket.vbuckets[0].changes.high_seqno
    assert not bucket.log.commits.uncommitted_records
    before = capture_state(bucket)
    place.directory.lose_power()
    assert capture_state(place()) == before


def test_fault_during_a_switch_of_log_files_still_refuses_changes(place: Place) -> None:
    """A note of the bucket starts another log file even during a fault; changes are refused all the same."""
    bucket = place(segment_bytes=5000)
    for number in range(40):
        write_change(bucket, number)
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
