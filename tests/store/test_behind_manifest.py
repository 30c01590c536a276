"""Vbuckets that write the events of a manifest later than the bucket takes the manifest."""

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
from tests.store.model import START, make_bucket
from tests.store.shop import ITEMS, SHOP, erase_dropped, make_key, read_changes, read_system_events

VBUCKETS = 4
STEPS = st.one_of(
    st.tuples(st.just("manifest"), st.integers(0, 5)),
    st.tuples(st.sampled_from(("set", "delete", "get", "flush", "demote", "back")), st.integers(0, VBUCKETS - 1)),
    st.tuples(st.just("spread"), st.integers(1, 40)),
    st.tuples(st.just("erase"), st.just(0)),
)


def make_next_manifest(manifest: Manifest, number: int) -> Manifest:
    """Return a manifest with one collection more or less; `number` decides it."""
    names = [collection.name for collection in manifest.collections.values() if collection.id]
    if number < len(names) and number % 2:
        return manifest.without_collection("_default", names[number])
    return manifest.with_collection("_default", f"c{manifest.next_id}")


class ManifestRun:
    """Runs steps on a bucket.

    Attributes:
        eager: whether all vbuckets write their events at once; else each writes them when it is used.
        seconds: seconds since START on the bucket's clock.
        bucket: the bucket.
    """

    def __init__(self, eager: bool) -> None:
        self.eager = eager
        self.seconds, vbuuids = 0, count(1)
        self.bucket = BucketStore(
            "b",
            vbuckets=VBUCKETS,
            clock=lambda: START + self.seconds * 10**9,
            new_vbuuid=lambda: next(vbuuids),
            segment_bytes=1 << 20,  # no seals: their time differs between the runs, and a rollback depends on it
        )

    def step(self, action: str, number: int) -> None:
        bucket, vbucket = self.bucket, self.bucket.vbuckets[number % VBUCKETS]
        newest = max(bucket.manifests.current.collections)
        match action:
            case "manifest":
                manifest = make_next_manifest(bucket.manifests.current, number)
                (bucket.rollout.set_manifest if self.eager else bucket.rollout.begin_manifest)(manifest)
            case "set":
                vbucket.set(make_key(newest), b"value")
            case "delete" if vbucket.get(make_key(newest)) is not None:
                vbucket.delete(make_key(newest))
            case "get":
                vbucket.get(make_key(newest))
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

    def list_histories(self) -> list[object]:
        """Return the history of each vbucket after all have written their events and have erased dropped documents."""
        erase_dropped(self.bucket)
        assert not self.bucket.rollout.is_due
        return [
            (
                vbucket.history.failover_log,
                vbucket.changes.items,
                vbucket.collections.read_manifest(),
                read_changes(vbucket),
            )
            for vbucket in self.bucket.vbuckets
        ]


@given(st.lists(STEPS, max_size=30))
def test_vbucket_content_does_not_depend_on_when_it_writes_events(steps: list[tuple[str, int]]) -> None:
    eager, lazy = ManifestRun(True), ManifestRun(False)
    for action, number in steps:
        eager.step(action, number)
        lazy.step(action, number)
    assert lazy.list_histories() == eager.list_histories()


@pytest.fixture
def place() -> Iterator[Place]:
    with directory_in_memory() as path:
        yield Place(path / "beer")


def test_vbucket_writes_manifest_events_before_its_first_change() -> None:
    bucket = make_bucket()
    bucket.rollout.begin_manifest(SHOP)
    assert bucket.manifests.current == SHOP
    assert (bucket.rollout.is_due, bucket.vbuckets[0].changes.high_seqno) == (True, 0)
    assert bucket.vbuckets[0].set(make_key(ITEMS), b"v").seqno == 4
    assert len(read_system_events(bucket.vbuckets[0])) == 3
    assert bucket.vbuckets[1].changes.high_seqno == 0
    assert not bucket.rollout.catch_up_some(1000)
    assert {vbucket.changes.high_seqno for vbucket in bucket.vbuckets} == {3, 4}


def test_a_call_that_starts_a_segment_stops_there() -> None:
    """With many vbuckets, starting a segment takes as long as the events of hundreds of vbuckets."""
    bucket = make_bucket(vbuckets=1024, segment_bytes=1 << 16)
    bucket.rollout.begin_manifest(SHOP)
    numbers = [bucket.log.segments.active.number]
    while bucket.rollout.catch_up_some():
        if bucket.log.segments.active.number != numbers[-1]:
            numbers.append(bucket.log.segments.active.number)
            assert bucket.log.segments.active.end == 0
    assert len(numbers) > 4
    assert {vbucket.changes.high_seqno for vbucket in bucket.vbuckets} == {3}


def test_incoming_change_cannot_use_the_seqno_of_an_event() -> None:
    bucket = make_bucket()
    bucket.rollout.begin_manifest(SHOP)
    with pytest.raises(OutOfRange, match="seqno 1 after 3"):
        bucket.vbuckets[0].incoming.apply(Event.MUTATION, make_key(0), b"v", cas=1, rev_seqno=1, seqno=1)


def test_a_recreated_collection_is_empty_for_readers() -> None:
    bucket = make_bucket()
    bucket.rollout.set_manifest(SHOP)
    bucket.vbuckets[0].set(make_key(ITEMS), b"old")
    dropped = SHOP.without_collection("shop", "items")
    bucket.rollout.begin_manifest(dropped)
    bucket.rollout.begin_manifest(Manifest(dropped.uid + 1, SHOP.scopes, SHOP.next_id))
    assert bucket.vbuckets[0].collections.item_count(ITEMS) == 1
    bucket.vbuckets[0].set(make_key(ITEMS, "other"), b"new")
    assert bucket.vbuckets[0].collections.item_count(ITEMS) == 1
    erase_dropped(bucket)
    assert bucket.vbuckets[0].get(make_key(ITEMS)) is None


def test_a_full_disk_leaves_vbuckets_behind_the_manifest(place: Place) -> None:
    bucket = place()
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(0), b"v")
    bucket.rollout.begin_manifest(SHOP)
    place.directory.fail("write", errno.ENOSPC)
    bucket.log.commits.run()
    with pytest.raises(TemporaryFailure):
        vbucket.set(make_key(ITEMS), b"v")
    assert vbucket.get(make_key(0)) is not None
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due, read_system_events(vbucket)) == (False, True, [])
    place.directory.heal()
    bucket.log.commits.run()
    vbucket.set(make_key(ITEMS), b"v")
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due) == (False, False)
    assert [len(read_system_events(each)) for each in bucket.vbuckets] == [3] * len(bucket.vbuckets)
    bucket.close()


def test_a_bucket_at_its_quota_loads_no_keys_for_refused_events() -> None:
    """Loading keys takes time in proportion to the vbucket, and each access tries again to write the events."""
    bucket = make_bucket()
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(0), b"v")
    bucket.set_settings(BucketSettings(memory_bytes=0))
    with pytest.raises(OutOfMemory):
        vbucket.set(make_key(0), b"v" * 100_000)
    keys = vbucket.changes.keys.load_all()
    bucket.rollout.begin_manifest(SHOP)
    assert vbucket.get(make_key(0)) is not None
    assert (bucket.rollout.catch_up_some(), bucket.rollout.is_due, read_system_events(vbucket)) == (False, True, [])
    assert vbucket.changes.keys.load_all() is keys
    bucket.set_settings(BucketSettings())
    assert (bucket.rollout.catch_up_some(1000), bucket.rollout.is_due, len(read_system_events(vbucket))) == (
        False,
        False,
        3,
    )


def test_a_kill_while_vbuckets_are_behind_the_manifest_loses_no_event(place: Place) -> None:
    bucket = place()
    bucket.rollout.begin_manifest(SHOP)
    bucket.vbuckets[1].set(make_key(ITEMS), b"v")
    bucket.log.commits.run()
    place.directory.kill()
    again = place()
    assert again.manifests.current == SHOP
    assert [len(read_system_events(vbucket)) for vbucket in again.vbuckets] == [3] * len(again.vbuckets)
    assert again.vbuckets[1].get(make_key(ITEMS)) is not None
    again.close()
