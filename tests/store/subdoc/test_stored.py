"""Functions of a vbucket for sub-document commands: tombstones with values, and values with their own cas."""

import pytest

from penstock.errors import KeyExists, Locked
from penstock.store.documents.conflict import Meta
from penstock.store.documents.document_locks import LOCKED_CAS
from penstock.store.documents.item import Item, Stored
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import MAX_SEQNO
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import Mutation
from tests.store.documents import SECOND, ManualClock, make_timed_bucket
from tests.store.model import START, make_tombstone, read_all

BASE = START & ~0xFFFF
NOW = START // SECOND


def format_change(cas: int, seqno: int) -> bytes:
    return b"%d of %d" % (seqno, cas)


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def vbucket(clock: ManualClock) -> Vbucket:
    return make_timed_bucket(clock).find(2)


def test_value_can_hold_the_cas_and_seqno_of_its_change(vbucket: Vbucket) -> None:
    vbucket.set(b"other", b"")
    assert vbucket.rewrite(b"k", format_change, flags=5, expiry=100, datatype=1) == Stored(BASE + 1, 2)
    assert vbucket.get(b"k") == Item(BASE + 1, 5, 1, b"2 of %d" % (BASE + 1), NOW + 100, 1, 2)
    assert vbucket.rewrite(b"k", format_change, cas=BASE + 1) == Stored(BASE + 2, 3)
    assert vbucket.get(b"k") == Item(BASE + 2, 0, 0, b"3 of %d" % (BASE + 2), 0, 2, 3)
    assert vbucket.changes.items == 2
    with pytest.raises(KeyExists):
        vbucket.rewrite(b"k", format_change, cas=BASE + 1)
    assert vbucket.changes.high_seqno == 3


@pytest.mark.parametrize("event", [Event.DELETION, Event.EXPIRATION])
def test_deleted_document_keeps_its_system_attributes(vbucket: Vbucket, event: Event) -> None:
    assert vbucket.versions.find_tombstone(b"k") is None
    vbucket.incoming.store_with_meta(event, b"k", b"left", Meta(BASE + 9, 4, expiry=77, datatype=4))
    assert vbucket.versions.find_tombstone(b"k") == Item(BASE + 9, 0, 4, b"left", 77, 4, 1)
    vbucket.set(b"k", b"again")
    assert vbucket.versions.find_tombstone(b"k") is None
    vbucket.delete(b"k")
    assert vbucket.versions.find_tombstone(b"k") == Item(BASE + 11, 0, 0, b"", NOW, 6, 3)


def test_tombstone_can_have_a_value(vbucket: Vbucket) -> None:
    xattr = int(Datatype.XATTR)
    assert vbucket.rewrite(b"k", format_change, deleted=True, datatype=xattr) == Stored(BASE, 1)
    assert vbucket.get(b"k") is None
    assert vbucket.changes.items == 0
    assert vbucket.versions.find_tombstone(b"k") == Item(BASE, 0, xattr, b"1 of %d" % BASE, NOW, 1, 1)
    vbucket.rewrite(b"k", format_change)
    vbucket.rewrite(b"k", format_change, deleted=True, datatype=xattr)
    assert read_all(vbucket.history.open_snapshot(1, MAX_SEQNO)) == [
        make_tombstone(
            vbucket=2,
            key=b"k",
            value=b"3 of %d" % (BASE + 2),
            cas=BASE + 2,
            datatype=xattr,
            by_seqno=3,
            rev_seqno=3,
        )
    ]


def test_expired_document_becomes_a_tombstone_before_a_rewrite(vbucket: Vbucket, clock: ManualClock) -> None:
    vbucket.set(b"k", b"", expiry=5)
    clock.wait(6)
    vbucket.rewrite(b"k", format_change)
    (change,) = read_all(vbucket.history.open_snapshot(1, MAX_SEQNO))
    assert isinstance(change, Mutation)
    assert (change.by_seqno, change.rev_seqno) == (3, 3)


def test_a_locked_document_is_changed_with_the_locks_cas(vbucket: Vbucket) -> None:
    vbucket.set(b"k", b"")
    lock = vbucket.lock(b"k", 15)
    assert lock is not None
    for cas in (0, 1, BASE, LOCKED_CAS):
        with pytest.raises(Locked):
            vbucket.rewrite(b"k", format_change, cas=cas)
    stored = vbucket.rewrite(b"k", format_change, cas=lock.cas)
    item = vbucket.get(b"k")
    assert item is not None
    assert item.cas == stored.cas
