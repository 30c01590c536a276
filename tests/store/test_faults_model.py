"""Changes, commits and faults of the disk in any order: acknowledged changes are never lost."""

import errno
from random import Random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KeyNotFound, TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import FailingDirectory, Place, capture_state, directory_in_memory

keys = st.sampled_from([b"a", b"bb", b"ccc"])
vbuckets = st.integers(0, 3)
faults = st.tuples(
    st.sampled_from(["write", "create", "rename", "remove", "sync", "sync_names"]),
    st.sampled_from([errno.ENOSPC, errno.EIO]),
    st.integers(0, 5),
    st.sampled_from([1, 2, 100]),
)
steps = st.lists(
    st.one_of(
        st.tuples(st.just("set"), vbuckets, keys),
        st.tuples(st.just("set"), vbuckets, keys),
        st.tuples(st.just("delete"), vbuckets, keys),
        st.tuples(st.just("rollback"), vbuckets, st.integers(0, 5)),
        st.tuples(st.just("reset"), vbuckets, st.just(0)),
        st.tuples(st.just("set_state"), vbuckets, st.sampled_from(VbucketState)),
        st.tuples(st.just("seal"), vbuckets, st.just(0)),
        st.tuples(st.just("rewrite"), vbuckets, st.booleans()),
        st.tuples(st.just("commit"), vbuckets, st.just(0)),
        st.tuples(st.just("commit"), vbuckets, st.just(0)),
        st.tuples(st.just("heal"), vbuckets, st.just(0)),
        st.tuples(st.just("fail"), vbuckets, faults),
        st.tuples(st.just("limit"), vbuckets, st.integers(1, 200)),
    ),
    min_size=10,
    max_size=60,
)


class FaultyRun:
    """Runs steps on a bucket; each step is the name of a method, a vbucket and a detail.

    Attributes:
        bucket: the bucket.
        directory: the directory whose operations fail.
        states: the bucket's states since the last one that is certainly on disk, oldest first.
        number: steps so far.
    """

    def __init__(self, bucket: BucketStore, directory: FailingDirectory) -> None:
        self.bucket = bucket
        self.directory = directory
        self.states = [capture_state(bucket)]
        self.number = 0

    def step(self, action: str, vbucket: int, detail: Any) -> None:
        self.number += 1
        bucket = self.bucket
        before, refuses = self.states[-1], bucket.log.room.fault is not None
        try:
            getattr(self, action)(vbucket, detail)
        except TemporaryFailure:
            assert refuses
        after = capture_state(bucket)
        if refuses:
            assert after == before
        self.states.append(after)
        if action == "commit" and bucket.log.room.fault is None:
            assert not bucket.log.commits.uncommitted_records
            del self.states[:-1]

    def set(self, vbucket: int, key: bytes) -> None:
        self.bucket.vbuckets[vbucket].set(key, b"value %d" % self.number)

    def delete(self, vbucket: int, key: bytes) -> None:
        try:
            self.bucket.vbuckets[vbucket].delete(key)
        except KeyNotFound:
            return

    def rollback(self, vbucket: int, distance: int) -> None:
        found = self.bucket.vbuckets[vbucket]
        found.rollback(max(found.changes.high_seqno - distance, 0))

    def reset(self, vbucket: int, _: int) -> None:
        self.bucket.vbuckets[vbucket].reset()

    def set_state(self, vbucket: int, state: VbucketState) -> None:
        self.bucket.vbuckets[vbucket].set_state(state)

    def seal(self, *_: int) -> None:
        self.bucket.log.room.seal_active()

    def rewrite(self, _: int, everything: bool) -> None:
        compaction = self.bucket.compactor.next_piece(everything)
        if compaction is not None:
            compaction.run()
            compaction.finish()

    def commit(self, *_: int) -> None:
        self.bucket.log.commits.run()

    def heal(self, *_: int) -> None:
        self.directory.heal()

    def fail(self, _: int, detail: tuple[str, int, int, int]) -> None:
        operation, number, after, times = detail
        self.directory.fail(operation, number, after=after, times=times)

    def limit(self, _: int, most: int) -> None:
        self.directory.limit = lambda nbytes: min(nbytes, most)


@given(steps, st.randoms(use_true_random=False), st.sampled_from([600, 1500]), st.booleans())
def test_acknowledged_changes_survive_faults(
    story: list[tuple[str, int, Any]], random: Random, segment_bytes: int, power: bool
) -> None:
    with directory_in_memory() as path:
        place = Place(path)
        run = FaultyRun(place(segment_bytes=segment_bytes), place.directory)
        for step in story:
            run.step(*step)
        persisted = [vbucket.history.persisted_seqno for vbucket in run.bucket.vbuckets]
        if power:
            place.directory.lose_power(random)
        else:
            place.directory.kill()
        bucket = place(segment_bytes=segment_bytes)
        assert capture_state(bucket) in run.states
        for vbucket, seqno in zip(bucket.vbuckets, persisted, strict=True):
            assert vbucket.changes.high_seqno >= seqno
            assert vbucket.history.persisted_seqno == vbucket.changes.high_seqno
        bucket.compactor.rewrite_all()
        assert capture_state(bucket) in run.states
        bucket.close()
