"""Collections in a bucket: system events, counters, drops, received events and time limits."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import count

import pytest

from penstock.errors import (
    CannotApplyManifest,
    RemoteProtocolError,
    UsageError,
)
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest
from penstock.store.definition.manifest_json import pack_manifest, unpack_manifest
from penstock.store.documents.conflict import Meta
from penstock.store.history.event_frames import pack_events
from penstock.wire.codec.constants import SystemEventKind, VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages import system_event
from penstock.wire.messages.dcp import DeletionV2, Mutation
from tests.store.failing import Place, directory_in_memory
from tests.store.model import START, make_bucket, read_all
from tests.store.shop import (
    ITEMS,
    NOW,
    SHOP,
    USERS,
    change_items_ttl,
    copy_changes,
    erase_dropped,
    make_key,
    read_changes,
    read_system_events,
)


@pytest.fixture(params=["in memory", "on disk"])
def place(request: pytest.FixtureRequest) -> Iterator[Callable[[], BucketStore]]:
    """Yield a function that opens a bucket of four vbuckets, in memory or on disk."""
    if request.param == "in memory":
        yield make_bucket
    else:
        with directory_in_memory() as path:
            yield Place(path / "beer")


@pytest.fixture
def bucket(place: Callable[[], BucketStore]) -> Iterator[BucketStore]:
    bucket = place()
    yield bucket
    bucket.close()


def test_active_vbuckets_write_the_events_of_the_manifest(bucket: BucketStore) -> None:
    bucket.vbuckets[1].set_state(VbucketState.REPLICA)
    bucket.rollout.set_manifest(SHOP)
    assert bucket.manifests.current == SHOP
    vbucket = bucket.vbuckets[0]
    assert [event.subject for event in read_system_events(vbucket)] == [
        system_event.CreatedScope(0, 8, "shop"),
        system_event.CreatedCollection(0, 8, ITEMS, "items"),
        system_event.CreatedCollection(3, 8, USERS, "users"),
    ]
    first = read_changes(vbucket)[0]
    assert isinstance(first, Mutation)
    assert (first.key, first.by_seqno, first.rev_seqno, first.flags) == (b"\1_scope\x08", 1, 1, 3)
    assert (vbucket.collections.ids, vbucket.collections.manifest_uid, vbucket.changes.items) == (
        {0, ITEMS, USERS},
        3,
        0,
    )
    assert vbucket.collections.read_manifest() == SHOP
    assert bucket.vbuckets[1].changes.high_seqno == 0
    assert bucket.changed == {0, 2, 3}


def test_equal_manifest_writes_no_events(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    bucket.rollout.set_manifest(unpack_manifest(pack_manifest(SHOP)))
    assert bucket.vbuckets[0].changes.high_seqno == 3


def test_refused_manifest_changes_nothing(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    with pytest.raises(CannotApplyManifest):
        bucket.rollout.set_manifest(DEFAULT_MANIFEST)
    with pytest.raises(CannotApplyManifest):
        bucket.rollout.set_manifest(Manifest(3, DEFAULT_MANIFEST.scopes))
    assert bucket.manifests.current == SHOP


def test_documents_of_each_collection_are_counted(bucket: BucketStore) -> None:
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(0), b"1")
    assert (vbucket.collections.item_count(0), vbucket.collections.high_seqno(0)) == (1, 1)
    assert (vbucket.collections.item_count(ITEMS), vbucket.collections.high_seqno(ITEMS)) == (0, 0)
    bucket.rollout.set_manifest(SHOP)
    assert [vbucket.collections.high_seqno(one) for one in (0, ITEMS, USERS)] == [1, 3, 4]
    vbucket.set(make_key(ITEMS, "a"), b"1")
    vbucket.set(make_key(ITEMS, "b"), b"1")
    vbucket.set(make_key(ITEMS, "a"), b"2")
    vbucket.delete(make_key(ITEMS, "b"))
    vbucket.set(make_key(107), b"in a collection that does not exist")
    assert [vbucket.collections.item_count(one) for one in (0, ITEMS, USERS, 107)] == [1, 1, 0, 0]
    assert [vbucket.collections.high_seqno(one) for one in (0, ITEMS, USERS, 107)] == [1, 8, 4, 0]
    assert vbucket.changes.items == 3


def test_a_collection_with_a_long_id_is_counted(bucket: BucketStore) -> None:
    many = Manifest(1, DEFAULT_MANIFEST.scopes, 2**31).with_collection("_default", "far")
    bucket.rollout.set_manifest(many)
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(2**31), b"1")
    assert vbucket.collections.item_count(2**31) == 1
    bucket.rollout.set_manifest(many.without_collection("_default", "far"))
    erase_dropped(bucket)
    assert (vbucket.changes.items, vbucket.get(make_key(2**31))) == (0, None)


def test_documents_of_a_dropped_collection_are_erased(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    for collection in (0, ITEMS, USERS):
        vbucket.set(make_key(collection), b"%d" % collection)
    vbucket.delete(make_key(USERS))
    before = vbucket.history.open_snapshot(0, vbucket.changes.high_seqno)
    bucket.rollout.set_manifest(SHOP.without_scope("shop"))
    assert vbucket.collections.ids == {0}
    assert [event.kind for event in read_system_events(vbucket, 7)] == [1, 1, 4]
    erase_dropped(bucket)
    assert (vbucket.changes.items, vbucket.get(make_key(ITEMS)), vbucket.collections.item_count(ITEMS)) == (1, None, 0)
    assert [change.key for change in read_all(before)][-3:] == [make_key(0), make_key(ITEMS), make_key(USERS)]
    assert [change.key[:1] for change in read_changes(vbucket)] == [b"\0", b"\1", b"\1", b"\1"]
    assert all(isinstance(change, DeletionV2) for change in read_changes(vbucket)[1:])
    assert vbucket.versions.find_newest_seqno(make_key(USERS)) is None


def test_each_erase_call_erases_some_documents() -> None:
    bucket = make_bucket(segment_bytes=1500)
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    for number in range(60):
        vbucket.set(make_key(ITEMS, f"{number}"), b"." * 40)
        vbucket.set(make_key(USERS, f"{number}"), b"." * 40)
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    counts = []
    while vbucket.collections.eraser.erase_some(7):
        counts.append(vbucket.changes.items)
        vbucket.set(make_key(USERS, "0"), b"." * 40)  # so that segments are sealed and rewritten during the erasing
    assert counts[0] > counts[-1] == 60
    assert counts == sorted(counts, reverse=True)
    assert len(counts) > 15
    live = sum(len(change.encode()) for change in read_changes(vbucket))
    live += sum(len(change.encode()) for other in bucket.vbuckets[1:] for change in read_changes(other))
    assert bucket.log.segments.frame_bytes - bucket.log.segments.dead_bytes == live


def test_erased_documents_lose_their_locks(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(ITEMS), b"1")
    assert vbucket.lock(make_key(ITEMS), 15) is not None
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    erase_dropped(bucket)
    assert not vbucket.locks.held


def test_rollback_to_before_a_drop_restores_the_collection(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(ITEMS), b"1")
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    erase_dropped(bucket)
    vbucket.set_state(VbucketState.REPLICA)
    assert vbucket.rollback(4) == 4
    assert (vbucket.collections.ids, vbucket.changes.items, vbucket.collections.item_count(ITEMS)) == (
        {0, ITEMS, USERS},
        1,
        1,
    )
    assert vbucket.get(make_key(ITEMS)) is not None
    assert vbucket.collections.read_manifest() == SHOP
    vbucket.set_state(VbucketState.ACTIVE)
    erase_dropped(bucket)
    assert (vbucket.collections.ids, vbucket.changes.items, vbucket.changes.high_seqno) == ({0, USERS}, 0, 5)


def test_rollback_during_erasing_restores_the_counters(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    for number in range(9):
        vbucket.set(make_key(ITEMS, f"{number}"), b"1")
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    vbucket.set(make_key(0), b"1")
    vbucket.set(make_key(0), b"2")
    vbucket.collections.eraser.erase_some(5)
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.rollback(14)
    assert vbucket.collections.eraser.is_due
    erase_dropped(bucket)
    assert (vbucket.changes.items, vbucket.changes.high_seqno) == (1, 14)
    vbucket.rollback(12)
    assert (vbucket.changes.items, vbucket.collections.eraser.is_due) == (9, False)


def test_late_consumer_receives_the_creation_of_a_modified_collection(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    change_items_ttl(bucket, 5)
    manifest = change_items_ttl(bucket)
    vbucket = bucket.vbuckets[0]
    events = [(event.kind, event.key, event.subject) for event in read_system_events(vbucket)][1:]
    assert events == [
        (0, b"\1_collection\x09", system_event.CreatedCollection(0, 8, ITEMS, "items")),
        (0, b"\1_collection\x0a", system_event.CreatedCollection(3, 8, USERS, "users")),
        (5, b"\1_modify\x09", system_event.CreatedCollection(5, 8, ITEMS, "items", max_ttl=7)),
    ]
    assert (vbucket.collections.ids, vbucket.collections.high_seqno(ITEMS), vbucket.changes.items) == (
        {0, ITEMS, USERS},
        5,
        0,
    )
    assert vbucket.collections.read_manifest() == manifest


def test_end_of_a_collection_removes_its_modify_event(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    manifest = change_items_ttl(bucket)
    vbucket = bucket.vbuckets[0]
    before = vbucket.history.open_snapshot(0, vbucket.changes.high_seqno)
    dropped = manifest.without_scope("shop")
    bucket.rollout.set_manifest(dropped)
    ends = [(event.kind, event.subject.manifest_uid) for event in read_system_events(vbucket)]
    assert ends == [(1, 4), (1, 4), (4, 5)]
    assert (vbucket.changes.high_seqno, vbucket.changes.items, vbucket.collections.read_manifest()) == (
        7,
        0,
        replace(dropped, next_id=8),
    )
    assert vbucket.versions.find_newest_seqno(b"\1_modify\x09") is None
    assert [change.by_seqno for change in read_all(before)] == [1, 2, 3, 4]


def test_rollback_to_before_the_end_of_a_collection_restores_its_modify_event() -> None:
    bucket = make_bucket(segment_bytes=100_000)
    bucket.rollout.set_manifest(SHOP)
    manifest = change_items_ttl(bucket)
    bucket.rollout.set_manifest(manifest.without_collection("shop", "items"))
    vbucket = bucket.vbuckets[0]
    vbucket.set_state(VbucketState.REPLICA)
    assert vbucket.rollback(4) == 4
    assert [event.kind for event in read_system_events(vbucket)] == [3, 0, 0, 5]
    assert (vbucket.collections.read_manifest(), vbucket.collections.high_seqno(ITEMS)) == (manifest, 4)
    assert vbucket.rollback(3) == 3
    assert vbucket.collections.read_manifest() == SHOP


def test_replica_receives_modified_collections(bucket: BucketStore) -> None:
    copy, source = bucket.vbuckets[0], make_bucket()
    copy.set_state(VbucketState.REPLICA)
    source.rollout.set_manifest(SHOP)
    manifest = change_items_ttl(source)
    copy_changes(source.vbuckets[0], copy)
    assert (read_system_events(copy), copy.collections.read_manifest()) == (
        read_system_events(source.vbuckets[0]),
        manifest,
    )
    source.rollout.set_manifest(manifest.without_collection("shop", "items"))
    copy_changes(source.vbuckets[0], copy)
    assert read_system_events(copy) == read_system_events(source.vbuckets[0])
    assert (copy.collections.ids, copy.changes.items) == ({0, USERS}, 0)


@pytest.mark.parametrize("how", ["reset", "remove"])
def test_new_history_starts_with_the_present_collections(bucket: BucketStore, how: str) -> None:
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(ITEMS), b"1")
    getattr(vbucket, how)()
    vbucket.set_state(VbucketState.ACTIVE)
    assert [event.subject.manifest_uid for event in read_system_events(vbucket)] == [0, 0, 3]
    assert (vbucket.changes.high_seqno, vbucket.changes.items, vbucket.collections.ids) == (3, 0, {0, ITEMS, USERS})


def test_replica_streams_its_received_events(bucket: BucketStore) -> None:
    source = make_bucket()
    source.rollout.set_manifest(SHOP)
    source.vbuckets[0].set(make_key(ITEMS), b"1")
    source.rollout.set_manifest(SHOP.without_collection("shop", "items").with_max_ttl("shop", "users", 9))
    copy = bucket.vbuckets[0]
    copy.set_state(VbucketState.REPLICA)
    copy_changes(source.vbuckets[0], copy)
    assert (copy.collections.ids, copy.collections.manifest_uid, copy.changes.items) == ({0, USERS}, 5, 1)
    assert [change.encode() for change in read_changes(copy)] == [
        change.encode() for change in read_changes(source.vbuckets[0])
    ]
    erase_dropped(bucket)
    assert copy.changes.items == 0
    copy.set_state(VbucketState.ACTIVE)  # the copy keeps its collections, although the bucket's manifest has none
    assert copy.collections.read_manifest() == Manifest(5, source.manifests.current.scopes, 11)
    bucket.rollout.set_manifest(copy.collections.read_manifest())
    assert copy.changes.high_seqno == source.vbuckets[0].changes.high_seqno
    bucket.rollout.set_manifest(bucket.manifests.current.without_scope("shop"))
    assert copy.collections.ids == {0}


def test_replica_behind_the_manifest_catches_up_when_it_becomes_active(bucket: BucketStore) -> None:
    vbucket = bucket.vbuckets[0]
    bucket.rollout.set_manifest(SHOP)
    vbucket.set(make_key(ITEMS), b"1")
    vbucket.set_state(VbucketState.REPLICA)
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items").with_collection("shop", "orders"))
    assert vbucket.changes.high_seqno == 4
    vbucket.set_state(VbucketState.ACTIVE)
    assert [(event.kind, event.subject.manifest_uid) for event in read_system_events(vbucket, 4)] == [(1, 3), (0, 5)]
    erase_dropped(bucket)
    assert (vbucket.collections.ids, vbucket.changes.items) == ({0, USERS, 11}, 0)


def test_repeated_creation_of_a_collection_empties_it(bucket: BucketStore) -> None:
    """A producer sends the flush of a collection as a second creation event."""
    copy = bucket.vbuckets[0]
    copy.set_state(VbucketState.REPLICA)
    source = make_bucket()
    source.rollout.set_manifest(SHOP)
    copy_changes(source.vbuckets[0], copy)
    copy.incoming.apply(Event.MUTATION, make_key(ITEMS), b"1", cas=7, rev_seqno=1, seqno=5)
    (other,) = pack_events([(SystemEventKind.COLLECTION_MODIFY, system_event.CreatedCollection(4, 8, ITEMS, "i", 7))])
    copy.incoming.apply(Event.MUTATION, other.key, other.value, cas=8, rev_seqno=1, seqno=7, flags=5)
    assert copy.collections.read_manifest().collections[ITEMS].max_ttl == 7
    (begin,) = pack_events([(SystemEventKind.COLLECTION_BEGIN, system_event.CreatedCollection(4, 8, ITEMS, "items"))])
    copy.incoming.apply(Event.MUTATION, begin.key, begin.value, cas=9, rev_seqno=2, seqno=8, flags=0)
    assert (copy.changes.items, copy.get(make_key(ITEMS)), copy.collections.eraser.is_due) == (0, None, False)
    assert (copy.collections.item_count(ITEMS), copy.collections.high_seqno(ITEMS)) == (0, 8)
    assert copy.collections.read_manifest().collections[ITEMS].max_ttl is None
    copy.incoming.apply(Event.MUTATION, make_key(ITEMS), b"2", cas=8, rev_seqno=1, seqno=9)
    assert (copy.changes.items, copy.collections.item_count(ITEMS), copy.collections.high_seqno(ITEMS)) == (1, 1, 9)


(_SCOPE,) = pack_events([(SystemEventKind.SCOPE_CREATE, system_event.CreatedScope(1, 9, "s"))])
SCOPE_9 = _SCOPE.value
(_MODIFIED,) = pack_events(
    [(SystemEventKind.COLLECTION_MODIFY, system_event.CreatedCollection(1, 8, ITEMS, "items", 7))]
)
ITEMS_7 = _MODIFIED.value


@pytest.mark.parametrize(
    ("name", "value", "flags"),
    [
        (b"\1_collection\x09", b"no table", 0),
        (b"\1_collection\x09", SCOPE_9, 2),
        (b"\1_collection\x09", SCOPE_9, 3),
        (b"\1_scope\x08", SCOPE_9, 3),
        (b"\1_collection\x09", ITEMS_7, 5),
        (b"\1_modify\x09", ITEMS_7, 0),
        (b"\1_modify\x0a", ITEMS_7, 5),
    ],
)
def test_invalid_incoming_system_event_is_refused(bucket: BucketStore, name: bytes, value: bytes, flags: int) -> None:
    copy = bucket.vbuckets[0]
    with pytest.raises(RemoteProtocolError) as raised:
        copy.incoming.apply(Event.MUTATION, name, value, cas=1, rev_seqno=1, seqno=1, flags=flags)
    assert not raised.value.fatal
    assert (copy.changes.high_seqno, copy.collections.ids) == (0, {0})


# Time limits


def test_time_limit_of_a_collection_takes_precedence_over_the_buckets() -> None:
    vbuuids = count(1)
    bucket = BucketStore(
        "b", vbuckets=1, clock=lambda: START, new_vbuuid=lambda: next(vbuuids), settings=BucketSettings(max_ttl=100)
    )
    manifest = SHOP.with_max_ttl("shop", "items", 10).with_max_ttl("shop", "users", 0)
    bucket.rollout.set_manifest(manifest)
    vbucket = bucket.vbuckets[0]
    requested = {0: 0, 5: 5, 50: 50, 500: 500}
    expected = {0: [100, 5, 50, 100], ITEMS: [10, 5, 10, 10], USERS: [0, 5, 50, 500]}
    for collection, seconds in expected.items():
        for expiry, expires in zip(requested, seconds, strict=True):
            vbucket.set(make_key(collection), b"1", expiry=expiry)
            item = vbucket.get(make_key(collection))
            assert item is not None
            assert item.expiry == (NOW + expires if expires else 0)
    item = vbucket.touch(make_key(ITEMS), 0)
    assert item is not None
    assert item.expiry == NOW + 10
    vbucket.incoming.apply(Event.MUTATION, make_key(ITEMS), b"1", cas=1, rev_seqno=1)
    item = vbucket.get(make_key(ITEMS))
    assert item is not None
    assert item.expiry == 0
    bucket.set_settings(BucketSettings())
    bucket.rollout.set_manifest(manifest.without_collection("shop", "items"))
    assert vbucket.writer.time_limits is None


def test_time_limit_applies_to_documents_stored_with_metadata() -> None:
    bucket = BucketStore(
        "b", vbuckets=1, clock=lambda: START, new_vbuuid=lambda: 1, settings=BucketSettings(max_ttl=100)
    )
    bucket.rollout.set_manifest(SHOP.with_max_ttl("shop", "items", 10).with_max_ttl("shop", "users", 0))
    vbucket = bucket.vbuckets[0]
    expected = {0: [100, 5, 50, 100], ITEMS: [10, 5, 10, 10], USERS: [0, 5, 50, 500]}
    for collection, seconds in expected.items():
        for revision, (requested, expires) in enumerate(zip([0, 5, 50, 500], seconds, strict=True), start=1):
            meta = Meta(cas=revision, rev_seqno=revision, expiry=NOW + requested if requested else 0)
            vbucket.incoming.store_with_meta(Event.MUTATION, make_key(collection), b"1", meta)
            item = vbucket.get(make_key(collection))
            assert item is not None
            assert item.expiry == (NOW + expires if expires else 0)
        vbucket.incoming.store_with_meta(
            Event.DELETION, make_key(collection), b"", Meta(cas=9, rev_seqno=9, expiry=NOW - 7)
        )
        tombstone = vbucket.versions.find_tombstone(make_key(collection))
        assert tombstone is not None
        assert tombstone.expiry == NOW - 7


def test_time_limit_is_sent_with_the_collection(bucket: BucketStore) -> None:
    bucket.rollout.set_manifest(SHOP)
    bucket.rollout.set_manifest(SHOP.with_max_ttl("shop", "items", 7))
    (event,) = read_system_events(bucket.vbuckets[0], 3)
    assert event.subject == system_event.CreatedCollection(4, 8, ITEMS, "items", max_ttl=7)
    assert event.kind is SystemEventKind.COLLECTION_MODIFY


@pytest.mark.parametrize("seconds", [-1, 2**31])
def test_a_time_limit_out_of_range_is_refused(seconds: int) -> None:
    with pytest.raises(UsageError, match="max_ttl"):
        BucketSettings(max_ttl=seconds)
