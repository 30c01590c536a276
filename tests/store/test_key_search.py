"""Vbuckets with so many keys that a look-up does not wait until all keys are loaded."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.store.bucket_store import BucketStore
from penstock.store.log.frame_fields import fingerprint_keys
from penstock.store.log.key_search import UnloadedKeys
from penstock.wire.codec.frame import HEADER
from tests.store.failing import Place, directory_in_memory
from tests.store.shop import ITEMS, SHOP, erase_dropped, make_key

KEYS = 60_000
SEGMENT = 1 << 20


def make_name(number: int) -> bytes:
    return b"\0key-%06d" % number


@pytest.fixture
def opened() -> Iterator[tuple[Place, BucketStore]]:
    """Yield a reopened bucket of one vbucket, whose documents were partly changed or deleted."""
    with directory_in_memory() as path:
        place = Place(path / "beer")
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        vbucket = bucket.vbuckets[0]
        for number in range(KEYS):
            vbucket.set(make_name(number), b"%d" % number)
        for number in range(0, KEYS, 1000):
            vbucket.set(make_name(number), b"again")
        vbucket.delete(make_name(7))
        bucket.close()
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        yield place, bucket
        bucket.close()


def is_loading(bucket: BucketStore) -> bool:
    return isinstance(bucket.vbuckets[0].changes.newest, UnloadedKeys)


def read_value(bucket: BucketStore, number: int) -> bytes | None:
    item = bucket.vbuckets[0].get(make_name(number))
    return None if item is None else bytes(item.value)


def test_documents_are_found_before_all_keys_are_loaded(opened: tuple[Place, BucketStore]) -> None:
    _, bucket = opened
    assert read_value(bucket, KEYS - 1) == b"%d" % (KEYS - 1)
    assert is_loading(bucket)


def test_every_key_is_found_during_loading(opened: tuple[Place, BucketStore]) -> None:
    _, bucket = opened
    for number in (KEYS - 1, 3, 7, 1000, KEYS, 5000, KEYS - 2, 19_000, 0):
        expected = b"again" if number % 1000 == 0 and number < KEYS else b"%d" % number
        assert read_value(bucket, number) == (None if number in (7, KEYS) else expected)


def test_changes_during_loading_are_kept(opened: tuple[Place, BucketStore]) -> None:
    place, bucket = opened
    vbucket = bucket.vbuckets[0]
    for number, text in ((KEYS - 1, b"new"), (KEYS, b"more"), (2, b"newer")):
        vbucket.set(make_name(number), text)
    vbucket.delete(make_name(KEYS - 3))
    assert is_loading(bucket)
    while bucket.keys.load_some():
        pass
    assert not is_loading(bucket)
    assert [read_value(bucket, n) for n in (KEYS - 1, KEYS, 2, KEYS - 3)] == [b"new", b"more", b"newer", None]
    assert vbucket.changes.items == KEYS - 1
    assert vbucket.changes.keys.count == KEYS + 1
    bucket.close()
    again = place(vbuckets=1, segment_bytes=SEGMENT)
    assert [read_value(again, n) for n in (KEYS - 1, KEYS, 2, KEYS - 3)] == [b"new", b"more", b"newer", None]
    again.close()


def test_erased_key_does_not_return_at_the_end_of_loading() -> None:
    with directory_in_memory() as path:
        place = Place(path / "beer")
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        bucket.rollout.set_manifest(SHOP)
        for number in range(KEYS):
            bucket.vbuckets[0].set(make_key(ITEMS, f"{number}"), b"")
        bucket.close()
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        bucket.rollout.set_manifest(SHOP.without_collection("shop", "items"))
        erase_dropped(bucket)
        assert is_loading(bucket)
        assert not [
            number for number in range(KEYS) if bucket.vbuckets[0].versions.has_document(make_key(ITEMS, f"{number}"))
        ]
        assert not is_loading(bucket)
        bucket.close()


def test_keys_with_equal_fingerprints_are_distinguished() -> None:
    with directory_in_memory() as path:
        place = Place(path / "beer")
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        keys = [b"\0customer-%s-%06d-%s-profile" % (b"x" * 20, number, b"y" * 30) for number in range(KEYS)]
        for number, key in enumerate(keys):
            bucket.vbuckets[0].set(key, b"%d" % number)
        bucket.close()
        bucket = place(vbuckets=1, segment_bytes=SEGMENT)
        item = bucket.vbuckets[0].get(keys[-1])
        assert item is not None
        assert item.value == b"%d" % (KEYS - 1)
        bucket.close()


@given(st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=20))
def test_a_fingerprint_depends_only_on_the_key(key: bytes, other: bytes, value: bytes) -> None:
    def make_frame(key: bytes, extras: bytes, value: bytes) -> bytes:
        body = len(extras) + len(key) + len(value)
        return HEADER.pack(0x80, 0x57, len(key), len(extras), 0, 0, body, 7, 9) + extras + key + value

    frames = [
        make_frame(key, bytes(31), value),
        make_frame(other, b"\xff" * 18, b""),
        make_frame(key, b"\xff" * 31, b""),
    ]
    begins = np.cumsum([0, *map(len, frames[:-1])])
    first, second, third = fingerprint_keys(memoryview(b"".join(frames)), begins).tolist()
    assert first == third
    assert (first == second) == (key == other) or len(key) > 24
