"""Vbuckets that write the events of a manifest later than the bucket has it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import OutOfMemory, OutOfRange, TemporaryFailure
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.definition.manifest import Manifest
from penstock.wire.codec.constants import VbucketState
from penstock.wire.columns.schema import Event
from tests.store.failing import Place, directory_in_memory
from tests.store.model import START, new_bucket
from tests.store.shop import ITEMS, SHOP, all_of, erase, key, told

VBUCKETS = 4
STEPS = st.one_of(
    st.tuples(st.just("manifest"), st.integers(0, 5)),
    st.tuples(st.sampled_from(("set", "delete", "get", "flush", "demote", "back")), st.integers(0, VBUCKETS - 1)),
    st.tuples(st.just("spread"), st.integers(1, 40)),
    st.tuples(st.just("erase"), st.just(0)),
)


def next_manifest(manifest: Manifest, number: int) -> Manifest:
    """Return a manifest with one collection more, or one less."""
    names = [collection.name for collection in manifest.collections.values() if collection.id]
    if number < len(names) and number % 2:
        return manifest.without_collection("_default", names[number])
    return manifest.with_collection("_default", f"c{manifest.next_id}")


class Run:
    """The same steps on a bucket. eager: all vbuckets write their events at once."""

    def __init__(self, eager: bool) -> None:
        self.eager = eager
        self.seconds, vbuuids = 0, count(1)
        self.bucket = BucketStore(
            "b",
            vbuckets=VBUCKETS,
            clock=lambda: START + self.seconds * 10**9,
            new_vbuuid=lambda: next(vbuuids),
            segment_bytes=1 << 20,  # seals would come at other times, and a rollback depends on what they drop
        )

    def step(self, what: str, number: int) -> None:
        bucket, vbucket = self.bucket, self.bucket.vbuckets[number % VBUCKETS]
        newest = max(bucket.manifests.current.collections)
        match what:
            case "manifest":
                manifest = next_manifest(bucket.manifests.current, number)
                (bucket.rollout.set_manifest if self.eager else bucket.rollout.begin_manifest)(manifest)
            case "set":
                vbucket.set(key(newest), b"value")
            case "delete" if vbucket.get(key(newest)) is not None:
                vbucket.delete(key(newest))
            case "get":
                vbucket.get(key(newest))
            case "flush":
                vbucket.reset()
            case "demote":
                vbucket.set_state(VbucketState.REPLICA)
                vbucket.set_state(VbucketState.ACTIVE)
            case "back":
                vbucket.rollback(number)
            case "spread":
                bucket.rollout.catch_up_some(number)
            case "erase" if self.eager:
                bucket.eraser.erase_some()

    def histories(self) -> list[object]:
        """Return what each vbucket holds once all have written their events and nothing is left to erase."""
        erase(self.bucket)
        assert not self.bucket.rollout.is_due
        return [
            (vbucket.history.failover_log, vbucket.changes.items, vbucket.collections.read_manifest(), all_of(vbucket))
            for vbucket in self.bucket.vbuckets
        ]


@given(st.lists(STEPS, max_size=30))
def test_a_vbucket_holds_the_same_whenever_it_writes_its_events(steps: list[tuple[str, int]]) -> None:
    eager, lazy = Run(True), Run(False)
    for what, number in steps:
        eager.step(what, number)
        lazy.step(what, number)
    assert lazy.histories() == eager.histories()


@pytest.fixture
def place() -> Iterator[Place]:
    with directory_in_memory() as path:
        yield Place(path / "beer")


def test_events_come_before_the_first_change() -> None:
    bucket = new_bucket()
    bucket.rollout.begin_manifest(SHOP)
    assert bucket.manifests.current == SHOP
    assert (bucket.rollout.is_due, bucket.vbuckets[0].changes.high_seqno) == (True, 0)
    assert bucket.vbuckets[0].set(key(ITEMS), b"v").seqno == 4
    assert len(told(bucket.vbuckets[0])) == 3
    assert bucket.vbuckets[1].changes.high_seqno == 0
    assert not bucket.rollout.catch_up_some(1000)
    assert {vbucket.changes.high_seqno for vbucket in bucket.vbuckets} == {3, 4}


def test_a_call_that_begins_a_segment_ends_with_that() -> None:
    """With many vbuckets it takes as long as the events of some hundred."""
    bucket = new_bucket(vbuckets=1024, segment_bytes=1 << 16)
    bucket.rollout.begin_manifest(SHOP)
    numbers = [bucket.log.segments.active.number]
    while bucket.rollout.catch_up_some():
        if bucket.log.segments.active.number != numbers[-1]:
            numbers.append(bucket.log.segments.active.number)
            assert bucket.log.segments.active.end == 0
    assert len(numbers) > 4
    assert {vbucket.changes.high_seqno for vbucket in bucket.vbuckets} == {3}


def test_a_change_from_elsewhere_does_not_take_the_seqno_of_an_event() -> None:
    bucket = new_bucket()
    bucket.rollout.begin_manifest(SHOP)
    with pytest.raises(OutOfRange, match="seqno 1 after 3"):
        bucket.vbuckets[0].incoming.apply(Event.MUTATION, key(0), b"v", cas=1, rev_seqno=1, seqno=1)


def test_a_collection_that_ends_and_begins_again_is_empty_for_readers() -> None:
    bucket = new_bucket()
    bucket.rollout.set_manifest(SHOP)
    bucket.vbuckets[0].set(key(ITEMS), b"old")
    dropped = SHOP.without_collection("shop", "items")
    bucket.rollout.begin_manifest(dropped)
    bucket.rollout.begin_manifest(Manifest(dropped.uid + 1, SHOP.scopes, SHOP.next_id))
    assert bucket.vbuckets[0].collections.item_count(ITEMS) == 1
    bucket.vbuckets[0].set(key(ITEMS, "other"), b"new")
    assert bucket.vbuckets[0].collections.item_count(ITEMS) == 1
    erase(bucket)
    assert bucket.vbuckets[0].get(key(ITEMS)) is None


def test_a_disk_that_takes_nothing_leaves_vbuckets_behind(place: Place) -> None:
    bucket = place()
    vbucket = bucket.vbuckets[0]
    vbucket.set(key(0), b"v")
    bucket.rollout.begin_manifest(SHOP)
    place.directory.fail("write", errno.ENOSPC)
    bucket.log.commits.run()
    with pytest.raises(TemporaryFailure):
        vbucket.set(key(ITEMS), b"v")
    assert vbucket.get(key(0)) is not None
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due, told(vbucket)) == (False, True, [])
    place.directory.heal()
    bucket.log.commits.run()
    vbucket.set(key(ITEMS), b"v")
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due) == (False, False)
    assert [len(told(each)) for each in bucket.vbuckets] == [3] * len(bucket.vbuckets)
    bucket.close()


def test_a_full_bucket_reads_no_keys_for_events_that_it_refuses() -> None:
    """That takes time in proportion to the vbucket, and each access tries to write them."""
    bucket = new_bucket()
    vbucket = bucket.vbuckets[0]
    vbucket.set(key(0), b"v")
    bucket.set_settings(BucketSettings(memory_bytes=0))
    with pytest.raises(OutOfMemory):
        vbucket.set(key(0), b"v" * 100_000)
    keys = vbucket.changes.keys.load_all()
    bucket.rollout.begin_manifest(SHOP)
    assert vbucket.get(key(0)) is not None
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due, told(vbucket)) == (False, True, [])
    assert vbucket.changes.keys.load_all() is keys
    bucket.set_settings(BucketSettings())
    assert (bucket.rollout.catch_up_some(1000), bucket.rollout.is_due, len(told(vbucket))) == (False, False, 3)


def test_a_kill_while_vbuckets_are_behind_loses_no_event(place: Place) -> None:
    bucket = place()
    bucket.rollout.begin_manifest(SHOP)
    bucket.vbuckets[1].set(key(ITEMS), b"v")
    bucket.log.commits.run()
    place.directory.let_go()
    again = place()
    assert again.manifests.current == SHOP
    assert [len(told(vbucket)) for vbucket in again.vbuckets] == [3] * len(again.vbuckets)
    assert again.vbuckets[1].get(key(ITEMS)) is not None
    again.close()
