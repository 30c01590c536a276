"""A bucket on disk holds its rows and keys in memory, and one log file's frames; what was rewritten goes."""

import gc
import tracemalloc
import weakref
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from tests.store.model import START, read_all

SEGMENT_BYTES = 64 * 1024
SECOND = 10**9


@pytest.fixture
def bucket(tmp_path: Path) -> Iterator[BucketStore]:
    bucket = opened(tmp_path)
    yield bucket
    bucket.close()


def opened(path: Path) -> BucketStore:
    vbuuids, looks = count(1), count()
    return BucketStore.open(
        path,
        "b",
        vbuckets=4,
        clock=lambda: START + next(looks) * SECOND // 2,  # a segment rests for a minute when there was little to gain
        new_vbuuid=lambda: next(vbuuids),
        settings=BucketSettings(segment_bytes=SEGMENT_BYTES),
    )


def overwrite(bucket: BucketStore, number: int) -> None:
    """Store the next one of a few documents, with a commit and some rewriting now and then, as a node does."""
    bucket.vbuckets[number % 4].set(b"%d" % (number % 40), b"." * 1000)
    if number % 50 == 49:
        bucket.log.commits.run()
        compaction = bucket.compactor.next_piece()
        if compaction is not None:
            compaction.run()
            compaction.finish()


def mapped(path: Path) -> set[str]:
    """Return the files in a directory that this process has mapped, as the system names them."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.partition(f"{path}/")[2] for line in lines if str(path) in line}


@pytest.mark.long
def test_memory_does_not_grow_with_what_is_on_disk(bucket: BucketStore) -> None:
    for number in range(200):
        overwrite(bucket, number)  # so that all is imported
    tracemalloc.start()
    try:
        for number in range(5000):
            overwrite(bucket, number)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bucket.log.segments.frame_bytes < 8 * SEGMENT_BYTES  # of 5.2 MB written
    assert current < 8 * SEGMENT_BYTES
    assert peak < 32 * SEGMENT_BYTES


def test_no_buffer_of_an_old_log_file_stays(bucket: BucketStore) -> None:
    buffers: list[weakref.ref[Any]] = []
    for number in range(500):
        bucket.vbuckets[number % 4].set(b"%d" % number, b"." * 1000)
        active = bucket.log.segments.active.buffer.obj
        if not buffers or buffers[-1]() is not active:
            buffers.append(weakref.ref(active))
    assert len(buffers) > 5
    reader = bucket.vbuckets[0].history.open_snapshot(0, 125)
    bucket.compactor.rewrite_all()
    del active
    kept = [buffer() for buffer in buffers]
    assert len([buffer for buffer in kept if buffer is not None]) > 5  # by the reader
    del kept
    assert len(read_all(reader)) == 125
    assert [buffer() for buffer in buffers if buffer() is not None] == []


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says which files a process has mapped")
def test_no_old_file_stays_mapped(tmp_path: Path) -> None:
    bucket = opened(tmp_path)
    for number in range(1000):
        overwrite(bucket, number)
    bucket.log.commits.run()
    assert mapped(tmp_path) == {name for name in names(tmp_path) if name.startswith("segment-")}
    bucket.close()
    del bucket
    gc.collect()
    bucket = opened(tmp_path)
    while bucket.keys.load_some():
        pass
    bucket.compactor.rewrite_all()
    assert mapped(tmp_path) == {name for name in names(tmp_path) if name.startswith("segment-")}
    bucket.close()


def names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}
