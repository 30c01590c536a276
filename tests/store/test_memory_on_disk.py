"""Memory of a bucket on disk: rows, keys and the frames of one log file; rewritten files are freed."""

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
    bucket = open_bucket(tmp_path)
    yield bucket
    bucket.close()


def open_bucket(path: Path) -> BucketStore:
    vbuuids, looks = count(1), count()
    return BucketStore.open(
        path,
        "b",
        vbuckets=4,
        clock=lambda: START + next(looks) * SECOND // 2,  # it moves: a segment of little gain is left for a minute
        new_vbuuid=lambda: next(vbuuids),
        settings=BucketSettings(segment_bytes=SEGMENT_BYTES),
    )


def overwrite_document(bucket: BucketStore, number: int) -> None:
    """Store the next one of 40 documents. Every 50th change also commits and rewrites, as a node does."""
    bucket.vbuckets[number % 4].set(b"%d" % (number % 40), b"." * 1000)
    if number % 50 == 49:
        bucket.log.commits.run()
        compaction = bucket.compactor.next_piece()
        if compaction is not None:
            compaction.run()
            compaction.finish()


def list_mapped_files(path: Path) -> set[str]:
    """Return the names of the files in a directory that this process has mapped; a deleted file has a suffix."""
    lines = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    return {line.partition(f"{path}/")[2] for line in lines if str(path) in line}


@pytest.mark.long
def test_memory_does_not_grow_with_the_files(bucket: BucketStore) -> None:
    for number in range(200):
        overwrite_document(bucket, number)  # so that all modules are imported before the measurement
    tracemalloc.start()
    try:
        for number in range(5000):
            overwrite_document(bucket, number)
        current, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert bucket.log.segments.frame_bytes < 8 * SEGMENT_BYTES  # of 5.2 MB written
    assert current < 8 * SEGMENT_BYTES
    assert peak < 32 * SEGMENT_BYTES


def test_buffers_of_old_log_files_are_freed(bucket: BucketStore) -> None:
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
    assert len([buffer for buffer in kept if buffer is not None]) > 5  # the reader keeps them
    del kept
    assert len(read_all(reader)) == 125
    assert [buffer() for buffer in buffers if buffer() is not None] == []


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux lists the files that a process has mapped")
def test_rewritten_files_are_unmapped(tmp_path: Path) -> None:
    bucket = open_bucket(tmp_path)
    for number in range(1000):
        overwrite_document(bucket, number)
    bucket.log.commits.run()
    assert list_mapped_files(tmp_path) == {name for name in list_names(tmp_path) if name.startswith("segment-")}
    bucket.close()
    del bucket
    gc.collect()
    bucket = open_bucket(tmp_path)
    while bucket.keys.load_some():
        pass
    bucket.compactor.rewrite_all()
    assert list_mapped_files(tmp_path) == {name for name in list_names(tmp_path) if name.startswith("segment-")}
    bucket.close()


def list_names(path: Path) -> set[str]:
    return {entry.name for entry in path.iterdir()}
