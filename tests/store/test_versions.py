"""Functions of less common commands: listed keys, kept expiries, and the values of tombstones."""

from collections.abc import Callable, Iterator
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.errors import KeyExists, Locked
from penstock.store.bucket_store import BucketStore
from penstock.store.definition.manifest import DEFAULT_MANIFEST
from penstock.store.documents.item import Item
from penstock.store.documents.key_listing import choose_random_key, list_keys
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DeletionV2
from penstock.wire.messages.dcp_values import pack_xattrs
from penstock.wire.values.snappy import deflate
from tests.store.documents import ManualClock, make_timed_bucket
from tests.store.failing import Place, directory_in_memory
from tests.store.model import START, read_all

NOW = START // 10**9
XATTR, SNAPPY = int(Datatype.XATTR), int(Datatype.SNAPPY)
BOTH = pack_xattrs({"_sync": b"1", "mine": b"2", "_more": b"3"}, b"body")
SYSTEM = pack_xattrs({"_sync": b"1", "_more": b"3"})


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def bucket(clock: ManualClock) -> BucketStore:
    return make_timed_bucket(clock)


@pytest.fixture
def vbucket(bucket: BucketStore) -> Vbucket:
    return bucket.vbuckets[0]


@pytest.fixture
def place() -> Iterator[Place]:
    with directory_in_memory() as path:
        yield Place(path / "beer")


# Keys


names = st.binary(max_size=3)


@given(st.lists(st.tuples(names, st.sampled_from(["set", "set", "delete", "expire"]))), names, st.integers(0, 9))
def test_keys_are_listed_in_order(changes: list[tuple[bytes, str]], start: bytes, most: int) -> None:
    clock = ManualClock()
    bucket = make_timed_bucket(clock)
    bucket.rollout.set_manifest(DEFAULT_MANIFEST.with_collection("_default", "c"))
    vbucket = bucket.vbuckets[0]
    there: set[bytes | None] = set()
    for name, change in changes:
        vbucket.set(b"\x08" + name, b"v", expiry=1 if change == "expire" else 0)
        vbucket.set(b"\0" + name, b"v")
        there.add(b"\x08" + name)
        if change == "delete":
            vbucket.delete(b"\x08" + name)
        if change != "set":
            there.discard(b"\x08" + name)
    clock.wait(2)
    assert list_keys(vbucket, b"\x08" + start, most) == sorted(key for key in there if key and key[1:] >= start)[:most]
    high = vbucket.changes.high_seqno
    numbers = count()
    found = {
        choose_random_key(vbucket, b"\x08", lambda below: next(numbers) % below) for _ in range(2 * len(changes) + 3)
    }
    assert found == there | ({None} if not there else set())
    assert vbucket.changes.high_seqno == high


def test_unloaded_keys_are_found(place: Place) -> None:
    bucket = place()
    for number in range(5):
        bucket.vbuckets[0].set(b"\0%d" % number, b"v")
    bucket.close()
    for find in (
        lambda vbucket: list_keys(vbucket, b"\0", 1),
        lambda vbucket: [choose_random_key(vbucket, b"\0", lambda _: 0)],
    ):
        again = place()
        assert find(again.vbuckets[0]) == [b"\x000"]
        again.close()


def test_random_key_of_an_empty_vbucket_is_none(vbucket: Vbucket) -> None:
    assert choose_random_key(vbucket, b"\0", lambda below: 1 // below) is None


# Kept expiries


@pytest.mark.parametrize("command", ["set", "replace", "rewrite"])
def test_document_keeps_its_expiry_on_request(vbucket: Vbucket, clock: ManualClock, command: str) -> None:
    def store(key: bytes, **fields: int) -> None:
        value: bytes | Callable[[int, int], bytes] = b"new" if command != "rewrite" else lambda cas, seqno: b"new"
        getattr(vbucket, command)(key, value, **fields)

    def read_expiry(key: bytes) -> int:
        item = vbucket.get(key)
        assert item is not None
        return item.expiry

    for expiry in (0, 100):
        vbucket.set(b"k", b"old", expiry=expiry)
        store(b"k", expiry=7, preserve_expiry=True)
        assert read_expiry(b"k") == (NOW + expiry if expiry else 0)
    store(b"k", expiry=7)
    assert read_expiry(b"k") == NOW + 7
    if command != "replace":
        store(b"other", expiry=9, preserve_expiry=True)
        assert read_expiry(b"other") == NOW + 9
        clock.wait(10)
        store(b"other", expiry=9, preserve_expiry=True)
        assert read_expiry(b"other") == NOW + 19


# Values of tombstones


@pytest.mark.parametrize("how", ["delete", "expire"])
@pytest.mark.parametrize(
    ("value", "datatype", "left"),
    [
        (b"body", 0, b""),
        (BOTH, XATTR, SYSTEM),
        (deflate(BOTH), XATTR | SNAPPY, SYSTEM),
        (pack_xattrs({"mine": b"2"}, b"body"), XATTR, b""),
        (b"\xff\xff\xff\xffnone", XATTR, b""),
    ],
)
def test_deleted_document_keeps_its_system_attributes(
    vbucket: Vbucket, clock: ManualClock, how: str, value: bytes, datatype: int, left: bytes
) -> None:
    vbucket.set(b"k", value, datatype=datatype, expiry=5, flags=9)
    if how == "delete":
        vbucket.delete(b"k")
    else:
        clock.wait(5)
        assert vbucket.get(b"k") is None
    found = vbucket.versions.find_tombstone(b"k")
    assert found is not None
    assert (found.value, found.datatype, found.flags) == (left, XATTR if left else 0, 0)
    assert found.expiry == clock.now // 10**9
    (change,) = read_all(vbucket.history.open_snapshot(0, 2))
    assert (change.value, isinstance(change, DeletionV2)) == (left, how == "delete")


def test_kept_attributes_fit_at_any_end_of_a_segment(bucket: BucketStore, clock: ManualClock) -> None:
    vbucket = bucket.vbuckets[0]
    for size in range(60):
        key = b"k%d" % size
        vbucket.set(key, pack_xattrs({"_s": b"." * size}, b"body"), datatype=XATTR, expiry=5)
        clock.wait(6)
        vbucket.set(key, b"." * size)
        vbucket.delete(key)
    assert vbucket.changes.items == 0
    assert len(read_all(vbucket.history.open_snapshot(0, vbucket.changes.high_seqno))) == 60


def test_deleted_version_is_found_and_can_be_revived(vbucket: Vbucket) -> None:
    def make_value(cas: int, seqno: int) -> bytes:
        return pack_xattrs({"_x": b"%020d %09d" % (cas, seqno)})

    first = vbucket.rewrite(b"k", make_value, deleted=True, datatype=XATTR)
    assert vbucket.versions.find_tombstone(b"k") == Item(first.cas, 0, XATTR, make_value(*first), NOW, 1, 1)
    assert (vbucket.get(b"k"), vbucket.changes.items) == (None, 0)
    with pytest.raises(KeyExists):
        vbucket.rewrite(b"k", make_value, cas=first.cas + 1)
    second = vbucket.rewrite(b"k", make_value, cas=first.cas, datatype=XATTR, flags=3, expiry=60)
    assert vbucket.versions.find_tombstone(b"k") is None
    assert vbucket.get(b"k") == Item(second.cas, 3, XATTR, make_value(*second), NOW + 60, 2, 2)
    vbucket.lock(b"k", 15)
    with pytest.raises(Locked):
        vbucket.rewrite(b"k", make_value)


def test_incoming_tombstone_keeps_its_value(vbucket: Vbucket) -> None:
    vbucket.incoming.apply(Event.DELETION, b"k", SYSTEM, cas=5, rev_seqno=4, datatype=XATTR, delete_time=77)
    assert vbucket.versions.find_tombstone(b"k") == Item(5, 0, XATTR, SYSTEM, 77, 4, 1)
