"""Flushes, which empty one vbucket after the other while the bucket is in use."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.event_frames import SYSTEM_PREFIX
from penstock.wire.codec.constants import VbucketState
from tests.store.failing import Place, directory_in_memory
from tests.store.model import make_bucket
from tests.store.shop import ITEMS, SHOP, erase_dropped, make_key, read_changes, read_system_events
from tests.store.test_behind_manifest import STEPS, VBUCKETS, ManifestRun


class FlushRun(ManifestRun):
    """Runs steps on a bucket, including flushes and deleted vbuckets; if `eager`, a flush empties all at once."""

    def step(self, action: str, number: int) -> None:
        bucket, vbucket = self.bucket, self.bucket.vbuckets[number % VBUCKETS]
        if action == "empty" and not self.eager:
            bucket.rollout.begin_flush()
        elif action == "empty":
            for each in bucket.vbuckets:
                if each.history.state is VbucketState.ACTIVE:
                    each.reset()
        elif action == "remove" and vbucket.history.state is not None:
            vbucket.remove()
        elif action == "replica":
            vbucket.set_state(VbucketState.REPLICA)
        elif action == "active":
            vbucket.set_state(VbucketState.ACTIVE)
        elif vbucket.history.state is VbucketState.ACTIVE or action in ("manifest", "spread", "erase"):
            super().step(action, number)

    def list_contents(self) -> list[object]:
        """Return the state, the counters and the documents of each vbucket after all have caught up.

        Seqnos differ: a vbucket that is emptied behind two manifests writes the events of the second one only.
        """
        erase_dropped(self.bucket)
        assert not self.bucket.rollout.is_due
        return [
            (
                *(
                    vbucket.history.state,
                    len(vbucket.history.failover_log),
                    vbucket.changes.items,
                    vbucket.collections.read_manifest(),
                ),
                {
                    change.key: (type(change), change.value)
                    for change in read_changes(vbucket)
                    if not is_event(change.key)
                },
            )
            for vbucket in self.bucket.vbuckets
        ]


def is_event(key: bytes) -> bool:
    return key.startswith(SYSTEM_PREFIX)


@given(
    st.lists(
        STEPS
        | st.tuples(st.just("empty"), st.just(0))
        | st.tuples(st.sampled_from(("remove", "replica", "active")), st.integers(0, VBUCKETS - 1)),
        max_size=30,
    )
)
def test_vbucket_content_does_not_depend_on_when_it_is_emptied(steps: list[tuple[str, int]]) -> None:
    eager, lazy = FlushRun(True), FlushRun(False)
    for action, number in steps:
        eager.step(action, number)
        lazy.step(action, number)
    assert lazy.list_contents() == eager.list_contents()


@pytest.fixture
def place() -> Iterator[Place]:
    with directory_in_memory() as path:
        yield Place(path / "beer")


def fill_bucket(bucket: BucketStore) -> BucketStore:
    for vbucket in bucket.vbuckets:
        vbucket.set(make_key(0), b"old")
    return bucket


def read_values(bucket: BucketStore) -> list[bytes]:
    """Return all values without a command, because a command would empty its vbucket."""
    return [change.value for vbucket in bucket.vbuckets for change in read_changes(vbucket)]


def test_one_call_empties_some_vbuckets_only() -> None:
    bucket = fill_bucket(make_bucket(vbuckets=1024, segment_bytes=1 << 20))
    bucket.rollout.begin_flush()
    left = [len(read_values(bucket))]
    while bucket.rollout.catch_up_some():
        left.append(len(read_values(bucket)))
    assert left[0] == 1024
    assert {before - after for before, after in pairwise(left)} == {32}
    assert not bucket.rollout.is_due


def test_vbuckets_of_many_collections_are_emptied_one_by_one() -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    manifest = SHOP
    for number in range(300):
        manifest = manifest.with_collection("shop", f"c{number}")
    bucket.rollout.set_manifest(manifest)
    bucket.rollout.begin_flush()
    logs = [vbucket.history.failover_log for vbucket in bucket.vbuckets]
    assert bucket.rollout.catch_up_some()
    assert [vbucket.history.failover_log for vbucket in bucket.vbuckets][1:] == logs[1:]
    assert bucket.vbuckets[0].history.failover_log != logs[0]
    assert len(read_system_events(bucket.vbuckets[0])) == 303


def test_commands_find_the_whole_bucket_empty_at_once() -> None:
    bucket = fill_bucket(make_bucket())
    emptied: list[int] = []
    bucket.rollout.on_flush = lambda vbucket: emptied.append(vbucket.id)
    bucket.rollout.begin_flush()
    assert bucket.vbuckets[3].get(make_key(0)) is None
    assert emptied == [3]
    assert bucket.vbuckets[2].set(make_key(1), b"new").seqno == 1
    assert emptied == [3, 2]
    assert read_values(bucket) == [b"old", b"old", b"new"]
    assert not bucket.rollout.catch_up_some()
    assert emptied == [3, 2, 0, 1]
    assert read_values(bucket) == [b"new"]


def test_a_replica_is_not_emptied() -> None:
    bucket = fill_bucket(make_bucket())
    bucket.vbuckets[1].set_state(VbucketState.REPLICA)
    bucket.rollout.begin_flush()
    assert not bucket.rollout.catch_up_some()
    assert read_values(bucket) == [b"old"]


def test_vbucket_deleted_during_a_flush_is_emptied_once() -> None:
    bucket = fill_bucket(make_bucket())
    emptied: list[int] = []
    bucket.rollout.on_flush = lambda vbucket: emptied.append(vbucket.id)
    bucket.rollout.begin_flush()
    bucket.vbuckets[1].remove()
    bucket.vbuckets[1].set_state(VbucketState.ACTIVE)
    bucket.vbuckets[1].set(make_key(1), b"new")
    assert not bucket.rollout.catch_up_some()
    assert (sorted(emptied), read_values(bucket)) == ([0, 1, 2, 3], [b"new"])


def test_flush_writes_no_dropped_collection() -> None:
    bucket = make_bucket()
    bucket.rollout.set_manifest(SHOP)
    bucket.vbuckets[0].set(make_key(ITEMS), b"old")
    bucket.rollout.begin_flush()
    bucket.rollout.begin_manifest(SHOP.without_collection("shop", "items"))
    erase_dropped(bucket)
    vbucket = bucket.vbuckets[0]
    assert (vbucket.changes.items, ITEMS in vbucket.collections.ids, vbucket.collections.manifest_uid) == (
        0,
        False,
        bucket.manifests.current.uid,
    )


def test_full_disk_refuses_a_flush(place: Place) -> None:
    bucket = fill_bucket(place())
    place.directory.fail("write", errno.ENOSPC)
    bucket.log.commits.run()
    with pytest.raises(TemporaryFailure):
        bucket.rollout.begin_flush()
    assert not bucket.rollout.is_due
    assert bucket.vbuckets[0].get(make_key(0)) is not None
    place.directory.heal()
    bucket.close()


def test_abandoned_flush_leaves_whole_vbuckets(place: Place) -> None:
    bucket = fill_bucket(place())
    before = read_values(bucket)
    bucket.rollout.begin_flush()
    assert bucket.vbuckets[1].get(make_key(0)) is None
    place.directory.fail("write", errno.ENOSPC)
    bucket.log.commits.run()
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due) == (False, True)
    with pytest.raises(TemporaryFailure):
        bucket.vbuckets[0].set(make_key(0), b"refused")
    assert bucket.rollout.abandon_flush()
    place.directory.heal()
    bucket.log.commits.run()
    assert not bucket.rollout.catch_up_some()
    assert not bucket.rollout.is_due
    assert (read_values(bucket), bucket.rollout.abandon_flush()) == (before[1:], False)
    bucket.close()


def test_kill_during_a_flush_leaves_whole_vbuckets(place: Place) -> None:
    bucket = fill_bucket(place())
    bucket.rollout.set_manifest(SHOP)
    bucket.rollout.begin_flush()
    bucket.vbuckets[0].get(make_key(0))
    bucket.vbuckets[2].set(make_key(ITEMS), b"new")
    bucket.log.commits.run()
    expected = [read_contents(vbucket) for vbucket in bucket.vbuckets]
    place.directory.kill()
    again = place()
    assert [read_contents(vbucket) for vbucket in again.vbuckets] == expected
    assert [vbucket.get(make_key(0)) is None for vbucket in again.vbuckets][:4] == [True, False, True, False]
    assert again.vbuckets[2].get(make_key(ITEMS)) is not None
    again.close()


def read_contents(vbucket: Vbucket) -> list[tuple[int, bytes, bytes]]:
    return [(change.by_seqno, change.key, change.value) for change in read_changes(vbucket)]


def test_purge_after_a_flush_keeps_new_documents(place: Place) -> None:
    bucket = place(vbuckets=1, purge_age=0)
    vbucket, names = bucket.vbuckets[0], [make_key(0, f"{number}") for number in range(10)]
    for name in names:
        vbucket.set(name, b"old")
    for name in names:
        vbucket.delete(name)
    vbucket.set(make_key(0, "newest"), b"")
    place.now += 10**9
    bucket.log.room.seal_active()
    bucket.log.commits.run()
    while vbucket.index.purge_seqno < vbucket.changes.high_seqno - 1:
        compaction = bucket.compactor.next_piece(everything=True)
        assert compaction is not None
        compaction.run()
        assert compaction.finish()
        bucket.log.commits.run()
    bucket.rollout.begin_flush()
    while bucket.rollout.catch_up_some():
        pass
    for name in 2 * names:
        vbucket.set(name, b"new")
    while (compaction := bucket.compactor.next_piece()) is not None:
        compaction.run()
        assert compaction.finish()
        bucket.log.commits.run()
    assert [name for name in names if not vbucket.versions.has_document(name)] == []
    assert vbucket.changes.keys.count == vbucket.changes.items == len(names)
    bucket.close()


def test_one_pager_call_checks_some_vbuckets_only() -> None:
    """The limit holds for empty vbuckets too, because starting a vbucket takes longer than a document."""
    bucket = fill_bucket(make_bucket(vbuckets=1024, segment_bytes=1 << 20))
    calls = 1
    while bucket.pager.expire_some():
        calls += 1
    assert calls == 1024 // 64 + 1
