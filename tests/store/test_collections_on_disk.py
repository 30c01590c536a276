"""Collections of a bucket on disk: restarts, kills, power losses, repairs and a full disk."""

import errno
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from penstock.errors import (
    StoreDamaged,
    TemporaryFailure,
)
from penstock.store.definition.manifest import DEFAULT_MANIFEST, Manifest
from penstock.store.definition.manifest_changes import compare_manifests, make_event_subjects
from penstock.store.disk.bucket_files import Directory
from penstock.store.history.event_frames import pack_events
from penstock.store.recovery import repair_run as repairing
from penstock.wire.codec.constants import VbucketState
from penstock.wire.messages.dcp import DeletionV2
from tests.store.failing import Place, directory_in_memory, read_files
from tests.store.model import START, make_bucket
from tests.store.shop import (
    ITEMS,
    SHOP,
    USERS,
    change_items_ttl,
    copy_changes,
    erase_dropped,
    make_key,
    read_changes,
    read_system_events,
)
from tests.store.written import flip_bit, write_files


@pytest.fixture
def disk() -> Iterator[Place]:
    with directory_in_memory() as path:
        yield Place(path / "beer")


def test_reopened_bucket_has_its_collections_and_documents(disk: Place) -> None:
    bucket = disk()
    bucket.record.set_properties({"replicas": 1, "flush": True})
    bucket.rollout.set_manifest(SHOP)
    for vbucket in bucket.vbuckets:
        for number in range(20):
            vbucket.set(make_key(ITEMS, f"{number}"), b"." * 50)
            vbucket.set(make_key(USERS, f"{number}"), b"." * 50)
        vbucket.set(make_key(0), b"1")
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    bucket.vbuckets[0].collections.eraser.erase_some()
    expected = [
        [(vbucket.collections.item_count(one), vbucket.collections.high_seqno(one)) for one in (0, ITEMS, USERS)]
        for vbucket in bucket.vbuckets
    ]
    bucket.close()
    again = disk()
    assert (again.manifests.current, again.record.properties) == (
        bucket.manifests.current,
        {"replicas": 1, "flush": True},
    )
    for vbucket, counts in zip(again.vbuckets, expected, strict=True):
        assert (vbucket.changes.items, vbucket.collections.eraser.is_due, vbucket.collections.ids) == (
            21,
            False,
            {0, USERS},
        )
        assert [
            (vbucket.collections.item_count(one), vbucket.collections.high_seqno(one)) for one in (0, ITEMS, USERS)
        ] == (counts)
        assert vbucket.get(make_key(ITEMS, "3")) is None
        assert vbucket.get(make_key(USERS, "3")) is not None
    again.compactor.rewrite_all()
    assert again.collect_stats().dead_bytes == 0
    again.close()
    last = disk()
    assert [vbucket.changes.items for vbucket in last.vbuckets] == [21] * 4
    last.close()


@pytest.mark.parametrize("compacted", [False, True])
def test_reopened_bucket_has_modified_collections_until_they_end(disk: Place, compacted: bool) -> None:
    bucket = disk()
    bucket.rollout.set_manifest(SHOP)
    manifest = change_items_ttl(bucket)
    bucket.close()
    bucket = disk()
    assert [vbucket.collections.read_manifest() for vbucket in bucket.vbuckets] == [manifest] * 4
    assert bucket.vbuckets[0].collections.high_seqno(ITEMS) == 4
    if compacted:
        bucket.compactor.rewrite_all()
    bucket.rollout.set_manifest(manifest.without_collection("shop", "items"))
    expected = read_system_events(bucket.vbuckets[0])
    bucket.close()
    bucket = disk()
    vbucket = bucket.vbuckets[0]
    assert (read_system_events(vbucket), vbucket.changes.items, vbucket.collections.ids) == (expected, 0, {0, USERS})
    vbucket.set_state(VbucketState.REPLICA)
    assert vbucket.rollback(4) == 4
    assert vbucket.collections.read_manifest() == manifest
    bucket.close()


def test_vbuckets_left_behind_by_a_kill_catch_up(disk: Place) -> None:
    bucket = disk()
    bucket.rollout.set_manifest(SHOP)
    for vbucket in bucket.vbuckets:
        vbucket.set(make_key(ITEMS), b"1")
    bucket.log.commits.run()
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items").with_collection("shop", "orders"))
    disk.directory.kill()
    again = disk()
    assert again.manifests.current == bucket.manifests.current
    for vbucket in again.vbuckets:
        assert [(event.kind, event.subject.manifest_uid) for event in read_system_events(vbucket, 4)] == [
            (1, 3),
            (0, 5),
        ]
    erase_dropped(again)
    assert again.collect_stats().items == 0
    again.close()


def test_vbuckets_reach_the_manifest_wherever_a_kill_cuts_the_log(disk: Place) -> None:
    bucket = disk(segment_bytes=100_000)
    bucket.rollout.set_manifest(SHOP)
    for vbucket in bucket.vbuckets:
        vbucket.set(make_key(ITEMS), b"1")
    bucket.log.commits.run()
    start = bucket.log.segments.active.end
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items").with_collection("shop", "orders"))
    bucket.log.commits.run()
    disk.directory.kill()
    files = read_files(disk.path)
    seen = set()
    for end in range(start, len(files["log-0000000001"]) + 1, 23):
        write_files(disk.path, {**files, "log-0000000001": files["log-0000000001"][:end]})
        again = disk(segment_bytes=100_000)
        erase_dropped(again)
        for vbucket in again.vbuckets:
            assert (vbucket.collections.ids, vbucket.changes.items, vbucket.collections.manifest_uid) == (
                {0, USERS, 11},
                0,
                5,
            )
            assert vbucket.collections.read_manifest() == again.manifests.current
            seen.add(tuple(event.subject.manifest_uid for event in read_system_events(vbucket, 4)))
        again.close()
    assert seen == {(3, 5)}


def test_killed_replica_knows_its_received_events(disk: Place) -> None:
    bucket, source = disk(segment_bytes=100_000), make_bucket()
    copy, leader = bucket.vbuckets[0], source.vbuckets[0]
    copy.set_state(VbucketState.REPLICA)
    bucket.log.commits.run()
    start = bucket.log.segments.active.end
    source.rollout.set_manifest(SHOP)
    leader.set(make_key(ITEMS), b"1")
    leader.set(make_key(USERS), b"1")
    copy_changes(leader, copy, snapshot_end=8)
    source.rollout.set_manifest(SHOP.without_collection("shop", "items").with_collection("shop", "orders"))
    leader.set(make_key(11), b"1")
    copy_changes(leader, copy, snapshot_end=8)
    bucket.log.commits.run()
    disk.directory.kill()
    files = read_files(disk.path)
    expected = [{0}, {0}, {0, ITEMS}, *[{0, ITEMS, USERS}] * 3, {0, USERS}, *[{0, USERS, 11}] * 2]
    items = [0, 0, 0, 0, 1, 2, 1, 1, 2]
    seen = set()
    for end in range(start, len(files["log-0000000001"]) + 1, 19):
        write_files(disk.path, {**files, "log-0000000001": files["log-0000000001"][:end]})
        again = disk(segment_bytes=100_000)
        erase_dropped(again)
        vbucket = again.vbuckets[0]
        high = vbucket.changes.high_seqno
        assert (vbucket.collections.ids, vbucket.changes.items) == (expected[high], items[high])
        assert sum(map(vbucket.collections.item_count, vbucket.collections.ids)) == items[high]
        vbucket.rollback(high - 1)
        assert (vbucket.collections.ids, vbucket.changes.items) == (expected[max(high - 1, 0)], items[max(high - 1, 0)])
        seen.add(high)
        again.close()
    assert seen == {*range(9)}


def test_vbuckets_write_their_events_again_after_a_power_loss(disk: Place) -> None:
    bucket = disk()
    bucket.rollout.set_manifest(SHOP)
    disk.directory.lose_power()
    again = disk()
    assert [(vbucket.collections.ids, vbucket.changes.high_seqno) for vbucket in again.vbuckets] == [
        ({0, ITEMS, USERS}, 3)
    ] * 4
    again.close()


def test_repaired_bucket_reaches_its_manifest(disk: Place) -> None:
    """The damage loses the end event of a collection, but the collection does not come back."""
    bucket = disk(retention_seconds=None, segment_bytes=100_000)
    bucket.rollout.set_manifest(SHOP)
    for vbucket in bucket.vbuckets:
        vbucket.set(make_key(ITEMS), b"." * 1000)
    bucket.compactor.rewrite_all()
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    erase_dropped(bucket)
    bucket.vbuckets[0].set(make_key(USERS), b"1")
    bucket.compactor.rewrite_all()
    bucket.vbuckets[0].set(make_key(USERS), b"2")
    bucket.close()
    newest = max(disk.path.glob("segment-*"))
    newest.write_bytes(flip_bit(newest.read_bytes(), 100))
    with pytest.raises(StoreDamaged):
        disk()
    files = Directory(disk.path)
    record = repairing.lock_for_repair(files)
    vbuuids = count(1000)
    report = repairing.check_bucket(files, record, clock=lambda: START, new_vbuuid=lambda: next(vbuuids))
    assert report.losses
    repairing.repair_bucket(files, report)
    files.unlock()
    again = disk()
    erase_dropped(again)
    for vbucket in again.vbuckets:
        assert (vbucket.collections.ids, vbucket.collections.manifest_uid) == ({0, USERS}, 4)
        assert vbucket.get(make_key(ITEMS)) is None
        assert vbucket.collections.read_manifest() == again.manifests.current
        assert vbucket.changes.items == vbucket.collections.item_count(USERS) == int(vbucket.id == 0)
    again.close()


def test_full_disk_refuses_a_new_manifest(disk: Place) -> None:
    bucket = disk()
    disk.directory.fail("rename", errno.ENOSPC)
    with pytest.raises(TemporaryFailure, match="the disk does not accept writes: No space left on device"):
        bucket.rollout.set_manifest(SHOP)
    assert (bucket.manifests.current, bucket.vbuckets[0].changes.high_seqno) == (DEFAULT_MANIFEST, 0)
    disk.directory.heal()
    bucket.rollout.set_manifest(SHOP)
    bucket.close()


def test_refused_vbuckets_write_their_events_later(disk: Place) -> None:
    bucket = disk(memory_bytes=10**9)
    bucket.log.quota.nbytes = 0
    bucket.log.segments.active.limit = 0
    bucket.rollout.set_manifest(SHOP)
    assert bucket.vbuckets[0].collections.ids == {0}
    bucket.log.quota.nbytes = None
    assert not bucket.eraser.erase_some()
    assert [vbucket.collections.ids for vbucket in bucket.vbuckets] == [{0, ITEMS, USERS}] * 4
    bucket.close()


def test_the_newest_tombstone_of_a_collection_is_not_purged(disk: Place) -> None:
    bucket = disk(purge_age=0)
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    for collection in (ITEMS, USERS):
        for name in "ab":
            vbucket.set(make_key(collection, name), b"1")
            vbucket.delete(make_key(collection, name))
    vbucket.set(make_key(0), b"1")
    disk.now += 10**10
    bucket.compactor.rewrite_all()
    tombstones = [change.key for change in read_changes(vbucket) if isinstance(change, DeletionV2)]
    assert tombstones == [make_key(ITEMS, "b"), make_key(USERS, "b")]
    assert vbucket.index.purge_seqno == 9
    bucket.close()
    again = disk(purge_age=0)
    assert [again.vbuckets[0].collections.high_seqno(one) for one in (0, ITEMS, USERS)] == [12, 7, 11]
    again.close()


def test_end_of_a_collection_is_purged_after_its_documents(disk: Place) -> None:
    bucket = disk(purge_age=0)
    bucket.rollout.set_manifest(SHOP)
    vbucket = bucket.vbuckets[0]
    vbucket.set(make_key(ITEMS), b"1")
    bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
    bucket.vbuckets[0].set(make_key(0), b"1")
    disk.now += 10**10
    bucket.compactor.rewrite_all()
    bucket.compactor.rewrite_all()
    assert [event.kind for event in read_system_events(vbucket)] == [3, 0]
    assert vbucket.changes.collection_state is not None
    assert vbucket.changes.collection_state.emptied == {}
    bucket.close()
    again = disk(purge_age=0)
    assert (again.vbuckets[0].changes.items, again.vbuckets[0].collections.ids) == (1, {0, USERS})
    assert again.vbuckets[0].changes.collection_state is not None
    assert again.vbuckets[0].changes.collection_state.emptied == {}
    again.close()


def test_vbuckets_write_the_changes_that_lead_to_the_manifest() -> None:
    bucket = make_bucket()
    manifests = [SHOP, SHOP.with_max_ttl("shop", "items", 5), SHOP.without_scope("shop").with_scope("other")]
    for number, manifest in enumerate(manifests):
        before, high = bucket.manifests.current, bucket.vbuckets[0].changes.high_seqno
        bucket.rollout.set_manifest(Manifest(10 + number, manifest.scopes, manifest.next_id))
        expected = pack_events(
            make_event_subjects(compare_manifests(before, bucket.manifests.current), before.uid, 10 + number)
        )
        assert read_system_events(bucket.vbuckets[0], high) == expected
        assert bucket.vbuckets[0].collections.read_manifest().has_same_content(bucket.manifests.current)


def test_bucket_record_keeps_a_copy_of_the_properties(tmp_path: Path) -> None:
    place = Place(tmp_path / "beer")
    bucket = place()
    properties = {"type": "membase", "more": {"a": [1]}}
    bucket.record.set_properties(properties)
    properties["type"] = "changed"
    assert bucket.record.properties == {"type": "membase", "more": {"a": [1]}}
    bucket.close()
