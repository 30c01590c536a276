"""Versions that another cluster made: which fields are stored, and when the versions are refused."""

from typing import Any

import pytest

from penstock.errors import KeyExists, KeyNotFound, OutOfRange
from penstock.store.documents.conflict import Meta
from penstock.store.documents.incoming_changes import LAST_SEQNO
from penstock.store.documents.item import Item
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.documents import SECOND, ManualClock, make_timed_bucket
from tests.store.model import START, make_tombstone, read_all

BASE = START & ~0xFFFF
NOW = START // SECOND
SET, DELETED, EXPIRED = Event.MUTATION, Event.DELETION, Event.EXPIRATION
THERE = Meta(cas=BASE + 500, rev_seqno=9, flags=3, expiry=NOW + 100, datatype=1)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vbucket(clock: ManualClock) -> Vbucket:
    return make_timed_bucket(clock).find(2)


def store_incoming(
    vbucket: Vbucket, meta: Meta = THERE, event: Event = SET, value: bytes = b"v", **options: Any
) -> Any:
    return vbucket.incoming.store_with_meta(event, b"k", value, meta, **options)


def test_incoming_document_keeps_its_metadata_but_gets_a_new_seqno(vbucket: Vbucket) -> None:
    vbucket.set(b"other", b"")
    assert store_incoming(vbucket) == (BASE + 500, 2)
    assert vbucket.get(b"k") == Item(BASE + 500, 3, 1, b"v", NOW + 100, 9, 2)
    assert vbucket.versions.find_meta(b"k") == THERE
    assert read_all(vbucket.history.open_snapshot(1, MAX_SEQNO)) == [
        Mutation(
            vbucket=2,
            key=b"k",
            value=b"v",
            cas=BASE + 500,
            datatype=1,
            by_seqno=2,
            rev_seqno=9,
            flags=3,
            expiry=NOW + 100,
        )
    ]


def test_next_change_continues_from_the_incoming_metadata(vbucket: Vbucket) -> None:
    store_incoming(vbucket)
    vbucket.set(b"k", b"")
    assert vbucket.versions.find_meta(b"k") == Meta(cas=BASE + 501, rev_seqno=10)


@pytest.mark.parametrize("event", [DELETED, EXPIRED])
@pytest.mark.parametrize("before", [False, True])
def test_incoming_tombstone_replaces_the_document(vbucket: Vbucket, event: Event, before: bool) -> None:
    if before:
        vbucket.set(b"k", b"")
    stored = store_incoming(vbucket, THERE._replace(deleted=True, expiry=NOW - 5, datatype=4), event, b"\0\0\0\0")
    assert stored == (BASE + 500, 1 + before)
    assert (vbucket.get(b"k"), vbucket.changes.items) == (None, 0)
    assert vbucket.versions.find_meta(b"k") == Meta(BASE + 500, 9, expiry=NOW - 5, datatype=4, deleted=True)
    assert read_all(vbucket.history.open_snapshot(before, MAX_SEQNO)) == [
        make_tombstone(
            event,
            vbucket=2,
            key=b"k",
            value=b"\0\0\0\0",
            datatype=4,
            cas=BASE + 500,
            by_seqno=1 + before,
            rev_seqno=9,
            delete_time=NOW - 5,
        )
    ]


def test_incoming_tombstone_without_a_time_gets_the_present_time(vbucket: Vbucket) -> None:
    store_incoming(vbucket, THERE._replace(deleted=True, expiry=0), DELETED, b"")
    assert vbucket.versions.find_meta(b"k") == Meta(BASE + 500, 9, expiry=NOW, datatype=1, deleted=True)


OLDER, NEWER = THERE._replace(rev_seqno=8, cas=BASE + 501), THERE._replace(rev_seqno=10, cas=BASE + 499)


@pytest.mark.parametrize("event", [SET, DELETED])
@pytest.mark.parametrize("resolution", ["seqno", "lww"])
def test_bucket_setting_decides_the_winner(vbucket: Vbucket, resolution: str, event: Event) -> None:
    vbucket.incoming.conflict_resolution = resolution
    store_incoming(vbucket)
    winner, loser = (NEWER, OLDER) if resolution == "seqno" else (OLDER, NEWER)
    with pytest.raises(KeyExists):
        store_incoming(vbucket, loser._replace(deleted=event is not SET), event)
    assert vbucket.changes.high_seqno == 1
    assert store_incoming(vbucket, winner._replace(deleted=event is not SET), event) == (winner.cas, 2)


def test_a_tombstone_can_win_as_well(vbucket: Vbucket) -> None:
    store_incoming(vbucket, THERE._replace(deleted=True), DELETED)
    with pytest.raises(KeyExists):
        store_incoming(vbucket, OLDER)
    assert vbucket.get(b"k") is None


def test_incoming_version_stays_without_resolution(vbucket: Vbucket) -> None:
    store_incoming(vbucket)
    assert store_incoming(vbucket, OLDER._replace(cas=7), resolve=False) == (7, 2)
    assert vbucket.changes.clock.last == BASE + 500
    assert store_incoming(vbucket, OLDER, resolve=False, new_cas=True) == (BASE + 501, 3)


def test_add_refuses_existing_documents(vbucket: Vbucket) -> None:
    store_incoming(vbucket, add=True)
    for resolve in (True, False):
        with pytest.raises(KeyExists):
            store_incoming(vbucket, NEWER, add=True, resolve=resolve)
    vbucket.delete(b"k")
    with pytest.raises(KeyExists):
        store_incoming(vbucket, NEWER, add=True)
    assert store_incoming(vbucket, NEWER._replace(rev_seqno=11), add=True).seqno == 3


@pytest.mark.parametrize("event", [SET, DELETED])
def test_given_cas_is_compared_with_the_present_document(vbucket: Vbucket, event: Event) -> None:
    newer = NEWER._replace(deleted=event is not SET)
    with pytest.raises(KeyNotFound):
        store_incoming(vbucket, newer, event, cas=1)
    store_incoming(vbucket)
    with pytest.raises(KeyExists):
        store_incoming(vbucket, newer, event, cas=1)
    assert store_incoming(vbucket, newer, event, cas=BASE + 500).seqno == 2
    vbucket.set(b"k", b"")
    vbucket.delete(b"k")
    with pytest.raises(KeyNotFound):
        store_incoming(vbucket, newer._replace(rev_seqno=99), event, cas=BASE + 500)


def test_expired_document_takes_part_in_conflict_resolution_only(vbucket: Vbucket, clock: ManualClock) -> None:
    store_incoming(vbucket)
    clock.wait(100)
    with pytest.raises(KeyExists):
        store_incoming(vbucket, OLDER)
    with pytest.raises(KeyNotFound):
        store_incoming(vbucket, NEWER, cas=BASE + 500)
    assert vbucket.changes.high_seqno == 1
    assert store_incoming(vbucket, NEWER._replace(expiry=0), add=True).seqno == 2


def test_a_lock_does_not_take_part_in_conflict_resolution(vbucket: Vbucket) -> None:
    vbucket.incoming.conflict_resolution = "lww"
    store_incoming(vbucket)
    locked = vbucket.lock(b"k", 15)
    assert locked is not None
    vbucket.unlock(b"k", locked.cas)
    assert store_incoming(vbucket, THERE._replace(cas=BASE + 501)).seqno == 2
    assert locked.cas == BASE + 501


def test_rev_seqno_above_the_maximum_is_refused(vbucket: Vbucket) -> None:
    with pytest.raises(OutOfRange):
        store_incoming(vbucket, THERE._replace(rev_seqno=LAST_SEQNO + 1))
    assert vbucket.changes.high_seqno == 0
    store_incoming(vbucket, THERE._replace(rev_seqno=LAST_SEQNO))


def test_meta_of_missing_and_expired_documents(vbucket: Vbucket, clock: ManualClock) -> None:
    assert vbucket.versions.find_meta(b"k") is None
    store_incoming(vbucket)
    clock.wait(100)
    assert vbucket.versions.find_meta(b"k") == Meta(vbucket.changes.clock.last, 10, expiry=NOW + 100, deleted=True)
    assert [type(change).__name__ for change in read_all(vbucket.history.open_snapshot(0, MAX_SEQNO))] == ["Expiration"]
