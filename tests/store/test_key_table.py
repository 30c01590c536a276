"""The key table of vbuckets with very many keys."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from sys import getsizeof

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.bucket_store import BucketStore
from penstock.store.log import key_search
from penstock.store.log.key_search import UnloadedKeys
from penstock.store.log.key_table import KeyTable
from tests.store.failing import Place, directory_in_memory

KEYS = 20_000
MOST_IN_A_PART = KEYS // 16


def make_name(number: int) -> bytes:
    return b"\0key-%06d" % number


@pytest.fixture(scope="module")
def stored() -> Iterator[Path]:
    """Yield the directory of a closed bucket, whose one vbucket has many documents."""
    with directory_in_memory() as path:
        bucket = Place(path / "beer")(vbuckets=1)
        for number in range(KEYS):
            bucket.vbuckets[0].set(make_name(number), b"v")
        bucket.close()
        yield path / "beer"


@pytest.fixture
def opened(stored: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Place, BucketStore]]:
    """Yield a bucket that was opened with a copy of the stored files."""
    monkeypatch.setattr(key_search, "MANY_KEYS", KEYS)
    with directory_in_memory() as path:
        place = Place(path / "beer")
        shutil.copytree(stored, place.path)
        bucket = place(vbuckets=1)
        yield place, bucket
        bucket.close()


def load_keys(bucket: BucketStore) -> None:
    while bucket.keys.load_some():
        pass


@given(st.lists(st.tuples(st.binary(max_size=2), st.one_of(st.none(), st.integers(1, 9)))))
def test_a_table_holds_the_same_as_a_dict(changes: list[tuple[bytes, int | None]]) -> None:
    table, expected = KeyTable(), dict[bytes, int]()
    for key, seqno in changes:
        if seqno is not None:
            table[key] = expected[key] = seqno
        elif key in expected:
            del table[key], expected[key]
        assert table.get(key) == expected.get(key)
        assert (key in table) == (key in expected)
    assert dict(table) == expected
    assert len(table) == len(expected)


def test_no_part_of_a_table_is_large() -> None:
    table = KeyTable()
    table.insert((make_name(number), number) for number in range(KEYS))
    assert max(map(len, table._parts)) < MOST_IN_A_PART


def test_replaced_table_is_freed_in_steps() -> None:
    old = KeyTable()
    old.insert((make_name(number), number) for number in range(KEYS))
    table = KeyTable(old)
    del old
    full = getsizeof(table)
    assert len(table) == 0
    assert table.get(make_name(7)) is None
    assert table.free_some() < MOST_IN_A_PART
    freed = getsizeof(table)
    assert freed < full
    table[make_name(7)] = 64
    assert getsizeof(table) < freed
    while table.free_some():
        pass
    assert getsizeof(table) < full // 4
    assert dict(table) == {make_name(7): 64}


@pytest.mark.long
def test_a_vbucket_of_many_keys_is_emptied(opened: tuple[Place, BucketStore]) -> None:
    _, bucket = opened
    vbucket = bucket.vbuckets[0]
    load_keys(bucket)
    assert vbucket.changes.keys.count == KEYS
    before = vbucket.changes.keys.nbytes
    vbucket.reset()
    assert vbucket.get(make_name(7)) is None
    vbucket.set(make_name(7), b"new")
    load_keys(bucket)
    assert vbucket.changes.keys.nbytes < before // 4
    assert (vbucket.changes.keys.count, vbucket.changes.items) == (1, 1)


@pytest.mark.long
def test_a_vbucket_is_emptied_while_its_keys_are_loaded(opened: tuple[Place, BucketStore]) -> None:
    place, bucket = opened
    vbucket = bucket.vbuckets[0]
    assert bucket.keys.load_some()
    vbucket.reset()
    vbucket.set(make_name(7), b"new")
    load_keys(bucket)
    assert (vbucket.get(make_name(8)), vbucket.changes.keys.count, vbucket.changes.items) == (None, 1, 1)
    bucket.close()
    again = place(vbuckets=1)
    assert again.vbuckets[0].changes.keys.count == 1
    again.close()


@pytest.mark.long
def test_documents_change_while_many_keys_are_loaded(opened: tuple[Place, BucketStore]) -> None:
    _, bucket = opened
    vbucket = bucket.vbuckets[0]
    vbucket.delete(make_name(3))
    assert bucket.keys.load_some()
    vbucket.set(make_name(5), b"new")
    vbucket.set(make_name(KEYS), b"more")
    load_keys(bucket)
    values = [None if (item := vbucket.get(make_name(n))) is None else item.value for n in (3, 4, 5, KEYS)]
    assert values == [None, b"v", b"new", b"more"]
    assert (vbucket.changes.keys.count, vbucket.changes.items) == (KEYS + 1, KEYS)


@pytest.mark.long
def test_a_vbucket_of_many_keys_is_rolled_back(opened: tuple[Place, BucketStore]) -> None:
    _, bucket = opened
    vbucket = bucket.vbuckets[0]
    load_keys(bucket)
    end = vbucket.changes.high_seqno
    vbucket.set(make_name(5), b"new")
    vbucket.delete(make_name(6))
    vbucket.set(make_name(KEYS), b"more")
    for _ in range(2):  # the second time while the keys are being loaded
        assert vbucket.rollback(end) == end
        assert vbucket.changes.items == KEYS
        vbucket.set(make_name(4), b"newest")
        values = [None if (item := vbucket.get(make_name(n))) is None else item.value for n in (4, 5, 6, KEYS)]
        assert values == [b"newest", b"v", b"v", None]
        assert isinstance(vbucket.changes.newest, UnloadedKeys)
    load_keys(bucket)
    assert (vbucket.changes.keys.count, vbucket.changes.items) == (KEYS, KEYS)
