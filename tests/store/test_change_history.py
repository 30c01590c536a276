"""Change history in the store: which older versions stay, and which of them a snapshot holds."""

from functools import partial
from itertools import count
from pathlib import Path

import pytest

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.history.history_snapshot import KeptVersions, open_parts
from penstock.wire.codec.flags import SnapshotFlag
from tests.store.memory_disk import MemoryDisk
from tests.store.model import START, read_all

SECOND = 10**9
DISK = SnapshotFlag.DISK | SnapshotFlag.CHECKPOINT
HISTORY = SnapshotFlag.HISTORY
DUPLICATES = SnapshotFlag.MAY_CONTAIN_DUPLICATES


class Clock:
    """The time of a bucket, which a test sets.

    Attributes:
        seconds: seconds since the bucket was made.
    """

    def __init__(self):
        self.seconds = 0

    def __call__(self):
        return START + self.seconds * SECOND


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture(params=["memory", "disk"])
def make(request: pytest.FixtureRequest, clock):
    """Return a function that makes the bucket with some settings, in memory or on a disk in memory."""
    disk, vbuuids = MemoryDisk(), count(1)

    def make_bucket(**settings):
        common = {"vbuckets": 1, "clock": clock, "new_vbuuid": partial(next, vbuuids)}
        chosen = BucketSettings(**{"segment_bytes": 10_000, **settings})
        if request.param == "memory":
            return BucketStore("b", segment_bytes=chosen.segment_bytes, settings=chosen, **common)
        return BucketStore.open(Path("/b"), "b", settings=chosen, directory=disk, **common)

    return make_bucket


def compact(bucket, once=False):
    """Seal the active segment and rewrite all segments, or once the oldest one."""
    bucket.log.commits.run()
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    while (piece := bucket.log.compactions.next_piece(everything=True)) is not None:
        piece.run()
        assert piece.finish()
        bucket.log.commits.run()
        if once:
            break


def read_parts(vbucket, start=0):
    """Return the flags and the seqnos of each part of the snapshot from a seqno, in which collection 0 has history."""
    versions = KeptVersions(vbucket.index.history_floor, {0: 0})
    parts = open_parts(vbucket.index, start, vbucket.changes.high_seqno, versions)
    return [(part.flags, [change.by_seqno for change in read_all(part)]) for part in parts]


def test_history_starts_at_the_first_change_while_nothing_was_dropped(make):
    bucket = make(retention_seconds=None)
    for _ in range(3):
        bucket.vbuckets[0].set(b"\0k", b"")
    flags = SnapshotFlag.MEMORY | SnapshotFlag.CHECKPOINT | HISTORY
    assert read_parts(bucket.vbuckets[0]) == [(flags, [1, 2, 3])]
    compact(bucket)
    assert bucket.vbuckets[0].index.history_floor == 0
    assert read_parts(bucket.vbuckets[0]) == [(DISK | HISTORY | DUPLICATES, [1, 2, 3])]


def test_versions_are_pruned_by_seconds(make, clock):
    bucket = make(retention_seconds=60, segment_bytes=100)
    vbucket = bucket.vbuckets[0]
    for _ in range(4):  # versions 1 to 8, two in each segment, 30 seconds apart
        vbucket.set(b"\0k", b"")
        vbucket.set(b"\0k", b"")
        compact(bucket)
        clock.seconds += 30
    clock.seconds = 91  # the segments were sealed at 0, 30, 60 and 90
    compact(bucket)
    assert vbucket.index.history_floor == 4  # versions 1 to 3 were superseded up to seqno 4, at second 30 or before
    assert read_parts(vbucket) == [(DISK | HISTORY | DUPLICATES, [5, 6, 7, 8])]
    clock.seconds = 1000
    vbucket.set(b"\0other", b"")
    compact(bucket)
    assert [seqnos for _, seqnos in read_parts(vbucket)] == [[8], [9]]


def test_versions_are_pruned_by_bytes(make):
    bucket = make(retention_bytes=10**6, segment_bytes=100)
    vbucket = bucket.vbuckets[0]
    for _ in range(4):
        vbucket.set(b"\0k", b"")
        compact(bucket)
    for less, floor in ((0, 0), (1, 2)):
        segments = bucket.log.segments
        rows = [segment for segment in segments.sealed if segment.size]
        following = sum(segment.size for segment in rows[2:]) + segments.active.end
        bucket.set_settings(BucketSettings(retention_bytes=following - less, segment_bytes=100))
        compact(bucket, once=True)  # on disk, the note of a dropped frame follows, too
        assert vbucket.index.history_floor == floor, "the second segment stays while so few bytes follow it"


def test_snapshot_below_the_history_has_two_parts(make):
    bucket = make()
    vbucket = bucket.vbuckets[0]
    for key in (b"\0a", b"\0b", b"\0a", b"\0c"):
        vbucket.set(key, b"")
    compact(bucket)
    assert vbucket.index.history_floor == 3
    bucket.set_settings(BucketSettings(retention_seconds=60))
    for key in (b"\0b", b"\0d", b"\0d"):
        vbucket.set(key, b"")
    assert read_parts(vbucket) == [(DISK, [3]), (DISK | HISTORY | DUPLICATES, [4, 5, 6, 7])]
    assert [seqnos for _, seqnos in read_parts(vbucket, 3)] == [[4, 5, 6, 7]]
    assert [seqnos for _, seqnos in read_parts(vbucket, 5)] == [[6, 7]]


def test_tombstones_stay_as_long_as_versions(make, clock):
    bucket = make(retention_seconds=60, purge_age=0)
    vbucket = bucket.vbuckets[0]
    vbucket.set(b"\0k", b"")
    vbucket.delete(b"\0k")
    vbucket.set(b"\0other", b"")
    clock.seconds = 30
    compact(bucket)
    assert [seqnos for _, seqnos in read_parts(vbucket)] == [[1, 2, 3]]
    clock.seconds = 1000
    compact(bucket)
    compact(bucket)
    assert [seqnos for _, seqnos in read_parts(vbucket)] == [[3]]
    assert vbucket.index.history_floor == 2


def test_gap_ends_the_history_unless_all_versions_are_received(make):
    bucket = make(retention_seconds=60)
    vbucket = bucket.vbuckets[0]
    vbucket.set(b"\0k", b"")
    vbucket.index.begin_gap(5)
    assert vbucket.index.history_floor == 4
    vbucket.index.has_all_versions = True
    vbucket.index.begin_gap(9)
    assert vbucket.index.history_floor == 4


def test_no_retention_keeps_no_versions(make):
    bucket = make()
    assert not bucket.settings.keeps_history
    for _ in range(3):
        bucket.vbuckets[0].set(b"\0k", b"")
    compact(bucket)
    assert bucket.vbuckets[0].index.history_floor == 3
    assert read_parts(bucket.vbuckets[0]) == [(DISK, [3])]
