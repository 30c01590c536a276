"""Snapshots compared with a model, while tiny segments are sealed and rewritten all the time."""

import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import parse_event_key
from penstock.store.history.frame_chunks import FewFrames, ManyFrames
from penstock.store.history.history_snapshot import Snapshot
from penstock.store.log.compaction import Compaction
from penstock.wire.codec.constants import MAX_SEQNO
from tests.examples import scaled
from tests.store.model import HistoryModel, make_bucket, read_all
from tests.store.story import BucketStory, count_live_bytes

keys = st.sampled_from([b"a", b"bb", b"ccc", b"d" * 40])
step = st.one_of(
    st.tuples(st.just("set"), st.integers(0, 3), keys),
    st.tuples(st.just("set"), st.just(2), st.integers(0, 99).map(lambda number: b"%d" % number)),
    st.tuples(st.just("delete"), st.integers(0, 3), keys),
    st.tuples(st.just("apply"), st.integers(0, 3), st.tuples(keys, st.integers(0, 4), st.integers(0, 6))),
    st.tuples(st.just("apply_tombstone"), st.integers(0, 3), st.tuples(keys, st.integers(0, 4), st.integers(0, 6))),
    st.tuples(st.just("rollback"), st.integers(0, 3), st.integers(0, 12)),
    st.tuples(st.just("promote"), st.integers(0, 3), st.booleans()),
    st.tuples(st.just("reset"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("change_manifest"), st.just(0), st.sampled_from([0, 1, 9, 9, -1, -2])),
    st.tuples(
        st.just("change_in_collection"),
        st.integers(0, 3),
        st.tuples(st.sampled_from(["set", "set", "delete"]), st.integers(0, 2), keys),
    ),
    st.tuples(st.just("open_snapshot"), st.integers(0, 3), st.tuples(st.integers(0, 120), st.integers(0, 120))),
    st.tuples(st.just("read_snapshots"), st.just(0), st.tuples(st.integers(0, 400), st.none() | st.integers(0, 200))),
)
compaction = st.tuples(st.sampled_from(["seal", "begin", "run", "finish"]), st.just(0), st.booleans())
steps = st.sampled_from([0, 60]).flatmap(lambda least: st.lists(step, min_size=least, max_size=120))
compacted = st.lists(st.one_of(step, step, compaction), min_size=20, max_size=120)
sizes = st.integers(0, 90) | st.sampled_from([500, 700])


@settings(max_examples=scaled(150), deadline=None)
@given(steps, sizes, st.sampled_from([512, 1500]), st.sampled_from([0, 8]))
def test_snapshots_are_exact(story: list[tuple[str, int, object]], size: int, segment_bytes: int, few: int) -> None:
    check_snapshots(BucketStory(make_bucket(segment_bytes=segment_bytes), size), story, few)


@settings(max_examples=scaled(150), deadline=None)
@given(compacted, sizes, st.sampled_from([512, 1500]), st.sampled_from([0, 8]))
def test_snapshots_are_exact_during_compactions(
    story: list[tuple[str, int, object]], size: int, segment_bytes: int, few: int
) -> None:
    check_snapshots(CompactedStory(make_bucket(segment_bytes=segment_bytes), size), story, few)


class CompactedStory(BucketStory):
    """Steps of a bucket in memory, whose compactions begin and end at any step.

    Attributes:
        piece: the compaction that is under way, if any.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self.bucket.log.room.compact = lambda: None
        self.piece: Compaction | None = None

    def seal(self, *_: object) -> None:
        self.bucket.log.room.seal_active()

    def begin(self, _: Vbucket, __: HistoryModel, everything: bool) -> None:
        self.piece = self.bucket.compactor.next_piece(everything) or self.piece

    def run(self, *_: object) -> None:
        if self.piece is not None:
            self.piece.run()

    def finish(self, *_: object) -> None:
        piece, self.piece = self.piece, None
        if piece is not None:
            piece.finish()


def check_snapshots(runner: BucketStory, story: list[tuple[str, int, object]], few: int) -> None:
    bucket = runner.bucket
    for step in story:
        runner.step(*step)
        runner.erase_all()
        assert bucket.log.segments.dead_bytes == bucket.log.segments.frame_bytes - count_live_bytes(runner.histories)
    for reader in runner.readers:
        reader.read_to_the_end()
    runner.check_collections()
    for vbucket, history in zip(bucket.vbuckets, runner.histories, strict=True):
        check_documents(vbucket, history)
        index = bucket.log.segments.indexes[vbucket.id]
        dropped = [change for change in history.changes if index.find(change.by_seqno) is None]
        lowest = max(map(history.find_superseding, dropped), default=0)
        assert vbucket.index.lowest_snapshot_end == lowest
        assert vbucket.history.whole_seqno == history.whole_seqno
        assert [tuple(entry) for entry in vbucket.history.failover_log] == history.failover_log
        for end in range(1, vbucket.changes.high_seqno + 1):
            snapshot = vbucket.history.open_snapshot(0, end)
            assert snapshot.end_seqno == (
                history.find_ceiling(max(min(end, history.whole_seqno), lowest))
                if lowest <= history.whole_seqno > 0
                else 0
            )
            exact = Snapshot(index, end // 3, snapshot.end_seqno, few=few)
            assert read_all(exact) == history.list_snapshot(end // 3, snapshot.end_seqno)


def check_documents(vbucket: Vbucket, history: HistoryModel) -> None:
    documents = history.documents
    assert vbucket.changes.high_seqno == history.high_seqno
    assert vbucket.changes.items == len(documents)
    for key in {change.key for change in history.changes if parse_event_key(change.key) is None}:
        item, document = vbucket.get(key), documents.get(key)
        if document is None:
            assert item is None
        else:
            assert item is not None
            assert (item.value, item.cas, item.seqno) == (document.value, document.cas, document.by_seqno)
            assert item.rev_seqno == document.rev_seqno


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_snapshots_of_long_histories_are_exact(seed: int) -> None:
    """New keys come first, so that segments have few dead frames and snapshots may end anywhere; later keys repeat."""
    random = Random(seed)
    bucket = make_bucket(segment_bytes=4096)
    histories = [HistoryModel(vbucket) for vbucket in range(4)]
    keys: list[bytes] = []
    merged = False
    for number in range(3000):
        if random.random() > number / 2500:
            keys.append(b"%d" % number)
        key = random.choice(keys) if random.random() < number / 1500 else keys[-1]
        vbucket = random.choice(bucket.vbuckets)
        value = b"." * random.choice([5, 20, 200])
        before = len(bucket.log.segments.sealed)
        histories[vbucket.id].store(key, value, vbucket.set(key, value).cas)
        merged |= len(bucket.log.segments.sealed) < before
        if number % 500 == 499:
            check_random_snapshots(bucket, histories, random)
    for vbucket, history in zip(bucket.vbuckets, histories, strict=True):
        check_documents(vbucket, history)
    assert merged


def check_random_snapshots(bucket: BucketStore, histories: list[HistoryModel], random: Random) -> None:
    for vbucket, history in zip(bucket.vbuckets, histories, strict=True):
        for _ in range(6):
            lowest = random.choice([vbucket.index.lowest_snapshot_end, vbucket.changes.high_seqno - 30])
            end = random.randint(max(lowest, vbucket.index.lowest_snapshot_end), vbucket.changes.high_seqno)
            start = random.choice([0, random.randint(0, end)])
            snapshot = vbucket.history.open_snapshot(start, end)
            assert snapshot.end_seqno == end
            assert read_all(snapshot, max_bytes=random.choice([300, 100_000])) == history.list_snapshot(start, end)


ENDS = [
    # Requested (start, end], actual end. Of 10 changes, the first four are dropped, superseded by those up to the 8th.
    ((0, 10), 10),
    ((0, MAX_SEQNO), 10),
    ((0, 9), 9),
    ((0, 8), 8),
    ((0, 7), 8),
    ((6, 7), 8),
    ((7, 7), 7),
    ((10, 10), 10),
    ((10, MAX_SEQNO), 10),
    ((7, 3), 7),
]


@pytest.mark.parametrize(("requested", "end"), ENDS)
def test_snapshot_end_is_raised_to_the_lowest_possible_one(requested: tuple[int, int], end: int) -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    vbucket = bucket.find(0)
    for key in (b"a", b"b", b"c", b"d", b"d", b"c", b"b", b"a"):
        vbucket.set(key, b"")
    bucket.log.room.make_room(1 << 20)
    for key in (b"a", b"b"):
        vbucket.set(key, b"")
    assert vbucket.index.lowest_snapshot_end == 8
    snapshot = vbucket.history.open_snapshot(*requested)
    assert (snapshot.start_seqno, snapshot.end_seqno) == (requested[0], end)
    seqnos = [change.by_seqno for change in read_all(snapshot)]
    assert seqnos[-1:] == ([end] if end > requested[0] else [])


def make_frames(lengths: list[int], gap: int) -> tuple[FewFrames, ManyFrames]:
    """Return frames of these lengths in both forms, spread over three buffers; every second frame has a gap behind."""
    buffers = [memoryview(bytes(range(256)) * 100) for _ in range(3)]
    few, where, at = [], [], [0, 0, 0]
    for number, length in enumerate(lengths):
        buffer = 3 * number // len(lengths)
        few.append((buffers[buffer], at[buffer], length))
        where.append(buffer << 32 | at[buffer])
        at[buffer] += length + gap * (number % 2)
    return FewFrames(few), make_many_frames(buffers, where, lengths)


def make_many_frames(buffers: list[memoryview], where: list[int], lengths: list[int]) -> ManyFrames:
    return ManyFrames(buffers, np.array(where, np.int64), np.array(lengths, np.uint32))


@given(
    st.lists(st.integers(43, 200), min_size=1, max_size=80),
    st.sampled_from([0, 7]),
    st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 1000), st.integers(1, 20)), min_size=1),
)
def test_both_ways_to_copy_frames_return_the_same(
    lengths: list[int], gap: int, reads: list[tuple[int, int, int]]
) -> None:
    few, many = make_frames(lengths, gap)
    while few.remaining:
        for limits in reads:
            one, other = few.read(0xDEADBEEF, *limits), many.read(0xDEADBEEF, *limits)
            assert one.frame_count <= limits[2]
            assert one.data == other.data
            assert list(one.offsets) == list(other.offsets)
            assert one.frame_count == other.frame_count
            assert few.remaining == many.remaining


WINDOWS = [
    # max_bytes, window, frames of 59 bytes read
    (1000, None, 4),
    (118, None, 2),
    (117, None, 1),
    (0, None, 1),
    (1000, 0, 0),
    (1000, -5, 0),
    (1000, 1, 1),
    (1000, 59, 1),
    (1000, 60, 2),
    (117, 60, 1),
]


@pytest.mark.parametrize("few", [0, 8])
@pytest.mark.parametrize(("max_bytes", "window", "frames"), WINDOWS)
def test_read_respects_max_bytes_and_window(max_bytes: int, window: int | None, frames: int, few: int) -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    for key in (b"a", b"b", b"c", b"d"):
        bucket.find(1).set(key + b"key", b"")
    snapshot = Snapshot(bucket.log.segments.indexes[1], 0, 4, few=few)
    chunk = snapshot.read(0, max_bytes, window)
    assert chunk.frame_count == frames
    assert snapshot.remaining == 4 - frames


def test_document_larger_than_a_segment_is_streamed() -> None:
    bucket = make_bucket()
    history = HistoryModel(1)
    for number in range(40):
        key, value = b"%d" % (number % 7), b"." * (2000 if number % 3 == 0 else 20)
        history.store(key, value, bucket.find(1).set(key, value).cas)
    assert read_all(bucket.find(1).history.open_snapshot(0, MAX_SEQNO), max_bytes=100) == history.list_snapshot(0, 40)


@pytest.mark.long
def test_memory_does_not_grow_with_overwrites() -> None:
    bucket = make_bucket(segment_bytes=64 * 1024)
    keys = [b"%d" % number for number in range(40)]
    tracemalloc.start()
    try:
        for number in range(8000):
            bucket.vbuckets[number % 4].set(keys[number % 40], b"." * 1000)
            stats = bucket.collect_stats()
            assert stats.live_bytes + stats.dead_bytes <= 4 * 64 * 1024
        assert stats.dead_bytes > 0
        current, _ = tracemalloc.get_traced_memory()
        assert current < 1024 * 1024  # of 8.4 MB written
    finally:
        tracemalloc.stop()


def test_columns_do_not_grow_with_overwrites() -> None:
    bucket = make_bucket(segment_bytes=4096)
    for _ in range(5000):
        bucket.find(0).set(b"a", b"")
    assert bucket.log.segments.index_bytes < 8192
    assert len(bucket.log.segments.sealed) <= 2
