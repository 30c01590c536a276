"""States, received changes, rollbacks, and expired documents."""

from itertools import repeat
from typing import Any

import pytest

from penstock.errors import KeyExists, KeyNotFound, NotMyVbucket, OutOfRange
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.item import Item, Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO, VbucketState
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from penstock.wire.messages.kv import FailoverEntry
from tests.store.model import START, make_bucket, make_tombstone, read_all

CAS = START & ~0xFFFF
NOW = START // 10**9
STATES = list(VbucketState)


def apply_mutation(
    vbucket: Vbucket, key: bytes, seqno: int | None = None, end: int | None = None, cas: int = 9
) -> Stored:
    return vbucket.incoming.apply(Event.MUTATION, key, b"v", cas=cas, rev_seqno=7, seqno=seqno, snapshot_end=end)


def list_seqnos(vbucket: Vbucket, start: int = 0, end: int = MAX_SEQNO) -> list[int]:
    return [change.by_seqno for change in read_all(vbucket.history.open_snapshot(start, end))]


# States


@pytest.mark.parametrize("before", STATES)
@pytest.mark.parametrize("after", STATES)
@pytest.mark.parametrize("takeover", [False, True])
def test_only_becoming_active_by_itself_begins_a_branch(
    before: VbucketState, after: VbucketState, takeover: bool
) -> None:
    vbucket = make_bucket().find(0)
    vbucket.set_state(before)
    apply_mutation(vbucket, b"k", 4)
    vbucket.set_state(after, takeover=takeover)
    begun = after is VbucketState.ACTIVE and before is not VbucketState.ACTIVE and not takeover
    assert vbucket.history.state is after
    assert vbucket.history.failover_log == (((5, 4),) if begun else ()) + ((1, 0),)


@pytest.mark.parametrize(
    ("hides", "ends"),
    [
        # end of the snapshot that is requested up to 2, up to 3, and so on
        (False, [2, 3, 6, 6, 6]),
        (True, [6, 6, 6, 6, 6]),
    ],
)
def test_snapshot_ends_inside_a_received_one_only_if_that_hides_nothing(hides: bool, ends: list[int]) -> None:
    vbucket = make_bucket().find(0)
    vbucket.set_state(VbucketState.REPLICA)
    for seqno, key in ((2, b"a"), (3, b"b"), (6, b"c")):
        apply_mutation(vbucket, key, seqno, end=LAST_SEQNO)
    assert list_seqnos(vbucket) == []
    vbucket.history.end_snapshot(hides=hides)
    assert vbucket.history.whole_seqno == 6
    assert [vbucket.history.open_snapshot(0, end).end_seqno for end in range(2, 7)] == ends
    assert vbucket.rollback(3) == (0 if hides else 3)


def test_a_branch_starts_at_the_end_of_the_last_complete_snapshot() -> None:
    vbucket = make_bucket().find(0)
    vbucket.set_state(VbucketState.REPLICA)
    apply_mutation(vbucket, b"a", 3, end=4)
    apply_mutation(vbucket, b"b", 4, end=4)
    apply_mutation(vbucket, b"a", 6, end=9)
    apply_mutation(vbucket, b"b", 8, end=9)
    assert (vbucket.changes.high_seqno, vbucket.history.whole_seqno) == (8, 4)
    vbucket.set_state(VbucketState.ACTIVE)
    assert vbucket.history.failover_log == ((5, 4), (1, 0))
    assert vbucket.set(b"c", b"").seqno == 9
    assert vbucket.history.whole_seqno == 9


def test_a_deleted_vbucket_comes_back_empty_with_one_branch() -> None:
    bucket = make_bucket()
    vbucket = bucket.find(1)
    apply_mutation(vbucket, b"k", 4)
    vbucket.remove()
    for find in (bucket.find, bucket.find_existing):
        with pytest.raises(NotMyVbucket):
            find(1)
    vbucket.set_state(VbucketState.ACTIVE)
    assert bucket.find(1) is vbucket
    assert vbucket.history.failover_log == ((5, 0),)
    assert (vbucket.changes.high_seqno, vbucket.changes.items, vbucket.get(b"k")) == (0, 0, None)
    assert vbucket.set(b"k", b"").seqno == 1


def test_a_vbucket_is_found_in_any_state() -> None:
    bucket = make_bucket()
    for state in STATES:
        bucket.vbuckets[2].set_state(state)
        assert bucket.find_existing(2).id == 2
    with pytest.raises(NotMyVbucket):
        bucket.find_existing(4)


# Received changes


def test_incoming_change_keeps_its_fields() -> None:
    vbucket = make_bucket().find(2)
    assert vbucket.incoming.apply(
        Event.MUTATION,
        b"k",
        b"value",
        cas=77,
        rev_seqno=5,
        seqno=12,
        flags=1,
        expiry=NOW + 9,
        lock_time=2,
        nru=3,
        datatype=1,
    ) == (77, 12)
    assert vbucket.get(b"k") == Item(77, 1, 1, b"value", NOW + 9, 5, 12)
    assert read_all(vbucket.history.open_snapshot(0, MAX_SEQNO)) == [
        Mutation(
            vbucket=2,
            key=b"k",
            value=b"value",
            cas=77,
            datatype=1,
            by_seqno=12,
            rev_seqno=5,
            flags=1,
            expiry=NOW + 9,
            lock_time=2,
            nru=3,
        )
    ]


@pytest.mark.parametrize("event", [Event.DELETION, Event.EXPIRATION])
def test_a_tombstone_needs_no_document(event: Event) -> None:
    vbucket = make_bucket().find(0)
    assert vbucket.incoming.apply(event, b"k", b"meta", cas=3, rev_seqno=8, datatype=4, delete_time=NOW - 5) == (3, 1)
    same: dict[str, Any] = {"key": b"k", "value": b"meta", "datatype": 4}
    assert read_all(vbucket.history.open_snapshot(0, 1)) == [
        make_tombstone(event, **same, cas=3, by_seqno=1, rev_seqno=8, delete_time=NOW - 5)
    ]
    assert vbucket.get(b"k") is None
    assert vbucket.changes.items == 0
    apply_mutation(vbucket, b"k")
    assert vbucket.changes.items == 1
    vbucket.incoming.apply(event, b"k", cas=4, rev_seqno=9)
    assert vbucket.changes.items == 0
    assert read_all(vbucket.history.open_snapshot(0, 3)) == [
        make_tombstone(event, key=b"k", cas=4, by_seqno=3, rev_seqno=9)
    ]


@pytest.mark.parametrize("seqno", [0, 4, 5, LAST_SEQNO + 1, MAX_SEQNO])
def test_a_seqno_must_be_above_those_before(seqno: int) -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"k", 5)
    with pytest.raises(OutOfRange, match=f"seqno {seqno} after 5"):
        apply_mutation(vbucket, b"k", seqno)
    assert (vbucket.changes.high_seqno, vbucket.changes.items) == (5, 1)


def test_highest_rev_seqno_leaves_room_for_the_next() -> None:
    vbucket = make_bucket().find(0)
    with pytest.raises(OutOfRange, match=f"rev_seqno {LAST_SEQNO + 1}, limit {LAST_SEQNO}"):
        vbucket.incoming.apply(Event.MUTATION, b"k", cas=1, rev_seqno=LAST_SEQNO + 1)
    vbucket.incoming.apply(Event.MUTATION, b"k", cas=1, rev_seqno=LAST_SEQNO)
    vbucket.set(b"k", b"next")
    assert vbucket.changes.items == 1


def test_no_change_follows_the_highest_seqno() -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"a", 1)
    apply_mutation(vbucket, b"a", LAST_SEQNO)
    assert list_seqnos(vbucket) == [LAST_SEQNO]
    with pytest.raises(OutOfRange):
        apply_mutation(vbucket, b"a")


def test_vbucket_continues_from_received_changes() -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"k", 5, cas=CAS + 1000)
    assert vbucket.set(b"k", b"") == (CAS + 1001, 6)
    item = vbucket.get(b"k")
    assert item is not None
    assert item.rev_seqno == 8


ENDS = [
    # Requested (start, end], actual end. The changes are 2, 5 and 6 of a snapshot up to 6, and 9 of one up to 12.
    ((0, 1), 2),
    ((0, 3), 5),
    ((2, 3), 5),
    ((0, 6), 6),
    ((0, 7), 6),
    ((0, MAX_SEQNO), 6),
    ((6, MAX_SEQNO), 6),
    ((9, MAX_SEQNO), 9),
]


@pytest.mark.parametrize(("requested", "end"), ENDS)
def test_snapshot_of_a_replica_ends_at_a_complete_snapshot(requested: tuple[int, int], end: int) -> None:
    vbucket = make_bucket(segment_bytes=1 << 20).find(0)
    for seqno in (2, 5, 6):
        apply_mutation(vbucket, b"%d" % seqno, seqno, end=6)
    apply_mutation(vbucket, b"9", 9, end=12)
    assert vbucket.history.open_snapshot(*requested).end_seqno == end


def test_change_that_only_an_incomplete_snapshot_can_show_is_not_sent() -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    vbucket = bucket.find(0)
    apply_mutation(vbucket, b"a", 1)
    apply_mutation(vbucket, b"a", 2, end=3)
    bucket.log.room.make_room(1 << 20)
    assert vbucket.index.lowest_snapshot_end == 2
    assert list_seqnos(vbucket) == []
    apply_mutation(vbucket, b"b", 3, end=3)
    assert list_seqnos(vbucket) == [2, 3]


def test_rollback_restores_superseded_versions() -> None:
    vbucket = make_bucket(segment_bytes=1 << 20).find(0)
    vbucket.set(b"a", b"1")
    vbucket.set(b"b", b"1")
    vbucket.delete(b"a")
    vbucket.set(b"b", b"2")
    assert vbucket.rollback(2) == 2
    assert [item and item.value for item in map(vbucket.get, (b"a", b"b"))] == [b"1", b"1"]
    assert (vbucket.changes.items, list_seqnos(vbucket)) == (2, [1, 2])
    assert vbucket.set(b"a", b"3").seqno == 3


def test_a_rollback_between_two_changes_ends_at_the_lower_one() -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"a", 3)
    apply_mutation(vbucket, b"b", 9)
    vbucket.history.set_failover_log([(30, 8), (20, 5), (10, 0)])
    assert vbucket.rollback(6) == 3
    assert (vbucket.changes.high_seqno, vbucket.history.failover_log) == (3, ((10, 0),))


def test_rollback_below_every_change_starts_a_new_history() -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"a", 3)
    assert vbucket.rollback(2) == 0
    assert vbucket.history.failover_log == ((5, 0),)


def test_rollback_to_a_dropped_version_starts_a_new_history() -> None:
    bucket = make_bucket(segment_bytes=1 << 20)
    vbucket = bucket.find(0)
    for key in (b"a", b"b", b"a"):
        vbucket.set(key, b"")
    bucket.log.room.make_room(1 << 20)
    vbucket.set(b"c", b"")
    assert vbucket.rollback(3) == 3
    assert vbucket.rollback(2) == 0
    assert (vbucket.changes.items, vbucket.changes.high_seqno, vbucket.index.lowest_snapshot_end) == (0, 0, 0)


def test_rollback_above_every_change_drops_later_branches_only() -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"a", 3)
    vbucket.history.set_failover_log([(30, 9), (10, 0)])
    assert vbucket.rollback(5) == 3
    assert (vbucket.history.failover_log, list_seqnos(vbucket)) == (((10, 0),), [3])
    vbucket.history.set_failover_log([(30, 9)])
    assert vbucket.rollback(3) == 3
    assert vbucket.history.failover_log == (FailoverEntry(5, 3),)


LOGS = [
    ([(30, 8), (20, 5), (10, 0)], ((30, 8), (20, 5), (10, 0))),
    ([(30, 5), (20, 5)], ((30, 5), (20, 5))),
    ([(30, 8), (0, 5), (10, 0)], ((30, 8), (10, 0))),
    ([(30, 4), (20, 5), (10, 0)], ((30, 4), (10, 0))),
    ([(0, 0)], ((5, 3),)),
    ([], ((5, 3),)),
    ([(number, 0) for number in range(1, 40)], tuple((number, 0) for number in range(1, 26))),
]


@pytest.mark.parametrize(("log", "kept"), LOGS)
def test_received_failover_log_is_sanitised(log: list[tuple[int, int]], kept: tuple[tuple[int, int], ...]) -> None:
    vbucket = make_bucket().find(0)
    apply_mutation(vbucket, b"a", 3)
    vbucket.history.set_failover_log(log)
    assert vbucket.history.failover_log == kept


def test_memory_of_vbuckets_that_are_reset_is_used_again() -> None:
    bucket = make_bucket(segment_bytes=4096)
    for number in range(3000):
        vbucket = bucket.find(number % 4)
        vbucket.set(b"%d" % (number % 7), b"." * 100)
        if number % 50 == 0:
            vbucket.reset()
    stats = bucket.collect_stats()
    assert stats.live_bytes + stats.dead_bytes <= 4 * 4096
    assert len(bucket.log.segments.sealed) <= 3


def test_a_snapshot_outlives_a_reset() -> None:
    bucket = make_bucket(segment_bytes=512)
    vbucket = bucket.find(0)
    for number in range(40):
        vbucket.set(b"%d" % (number % 20), b"." * 20)
    snapshot = vbucket.history.open_snapshot(0, MAX_SEQNO)
    vbucket.reset()
    for number in range(100):
        bucket.find(number % 4).set(b"%d" % number, b"x")
    assert [change.by_seqno for change in read_all(snapshot, max_bytes=200)] == list(range(21, 41))


# Expiry


def make_expired(expiry: int = NOW) -> Vbucket:
    """Return a vbucket with one document, which expires at NOW if `expiry` is not given."""
    vbucket = make_bucket(times=repeat(START)).find(0)
    vbucket.set(b"k", b"old", expiry=expiry)
    return vbucket


def test_reading_an_expired_document_writes_a_tombstone() -> None:
    bucket = make_bucket(times=repeat(START))
    vbucket = bucket.find(3)
    vbucket.set(b"k", b"v", expiry=NOW)
    vbucket.set(b"later", b"v", expiry=NOW + 1)
    assert bucket.changed == set()
    assert [vbucket.get(b"k"), vbucket.get(b"k")] == [None, None]
    assert bucket.changed == {3}
    assert vbucket.get(b"later") is not None
    assert (vbucket.changes.high_seqno, vbucket.changes.items) == (3, 1)
    assert read_all(vbucket.history.open_snapshot(2, 3)) == [
        make_tombstone(Event.EXPIRATION, key=b"k", vbucket=3, cas=CAS + 2, by_seqno=3, rev_seqno=2)
    ]


def test_expired_document_is_streamed_until_it_is_read() -> None:
    (mutation,) = read_all(make_expired().history.open_snapshot(0, 1))
    assert isinstance(mutation, Mutation)
    assert mutation.expiry == NOW


def test_expired_document_is_missing() -> None:
    vbucket = make_expired()
    for refused in (
        lambda: vbucket.replace(b"k", b""),
        lambda: vbucket.delete(b"k"),
        lambda: vbucket.set(b"k", b"", cas=CAS),
    ):
        with pytest.raises(KeyNotFound):
            refused()
    assert vbucket.touch(b"k", 0) is None
    assert vbucket.changes.high_seqno == 2
    assert make_expired().set(b"k", b"new").seqno == 2
    for other in (make_expired(), vbucket):
        assert other.add(b"k", b"new").seqno == 3
        item = other.get(b"k")
        assert item is not None
        assert (item.value, item.rev_seqno, other.changes.items) == (b"new", 3, 1)


def test_add_to_an_unexpired_document_is_refused() -> None:
    vbucket = make_expired(NOW + 1)
    with pytest.raises(KeyExists):
        vbucket.add(b"k", b"")


@pytest.mark.parametrize("state", [VbucketState.REPLICA, VbucketState.PENDING, VbucketState.DEAD])
def test_only_an_active_vbucket_writes_tombstones(state: VbucketState) -> None:
    vbucket = make_expired()
    vbucket.set_state(state)
    assert vbucket.get(b"k") is None
    assert (vbucket.changes.high_seqno, vbucket.changes.items) == (1, 1)


def test_touch_changes_the_expiry() -> None:
    vbucket = make_expired(NOW + 50)
    vbucket.set(b"k", b"v", flags=5, datatype=1, expiry=100)
    before = vbucket.get(b"k")
    assert before is not None
    assert vbucket.touch(b"k", 100) == before
    assert vbucket.touch(b"k", NOW + 100) == before
    touched = vbucket.touch(b"k", 200)
    assert touched == before._replace(cas=CAS + 2, expiry=NOW + 200, rev_seqno=3, seqno=3)
    assert vbucket.get(b"k") == touched
    assert vbucket.touch(b"k", 0) == vbucket.get(b"k") == touched._replace(cas=CAS + 3, expiry=0, rev_seqno=4, seqno=4)
    assert vbucket.touch(b"other", 0) is None
