"""Checkpoints: their numbers, and where they begin and end."""

import pytest

from penstock.node.tap_state import tap_checkpoints
from penstock.node.tap_state.tap_checkpoints import Checkpoints, Point
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.constants import VbucketState


@pytest.fixture
def vbucket():
    vbuuids = iter(range(1, 1000))
    return BucketStore("b", vbuckets=1, clock=lambda: 10**18, new_vbuuid=lambda: next(vbuuids)).vbuckets[0]


def test_an_active_vbucket_begins_with_checkpoint_2(vbucket):
    found = Checkpoints(vbucket)
    assert (found.open_id, found.last_closed, found.persisted) == (2, 1, 1)
    assert found.start_of(2) == Point(vbucket.history.vbuuid, 0)
    assert (found.start_of(1), found.start_of(3)) == (None, None)


def test_closing_a_checkpoint(vbucket):
    found = Checkpoints(vbucket)
    vbucket.set(b"a", b"1")
    assert found.create() == 3
    vbucket.set(b"b", b"2")
    assert [found.end_of(each) for each in (1, 2, 3, 4)] == [0, 1, None, None]
    assert found.start_of(3) == Point(vbucket.history.vbuuid, 1)
    assert [found.after(seqno) for seqno in (0, 1, 2)] == [2, 3, 3]
    assert (found.last_closed, found.persisted) == (2, 2)


def test_an_empty_checkpoint_stays_open(vbucket):
    found = Checkpoints(vbucket)
    assert found.create() == 2
    vbucket.set(b"a", b"1")
    assert [found.create(), found.create()] == [3, 3]


def test_a_checkpoint_of_another_history_begins_nowhere(vbucket):
    found = Checkpoints(vbucket)
    vbucket.set(b"a", b"1")
    found.create()
    vbucket.reset()
    assert found.start_of(3) is None
    assert found.start_of(2) is None


def test_a_failover_keeps_what_is_before_it(vbucket):
    found = Checkpoints(vbucket)
    vbucket.set(b"a", b"1")
    found.create()
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.set_state(VbucketState.ACTIVE)
    assert found.start_of(3) is not None


def test_a_copy_follows_the_numbers_of_its_producer(vbucket):
    vbucket.set_state(VbucketState.REPLICA)
    found = Checkpoints(vbucket)
    assert found.open_id == 0
    vbucket.set(b"a", b"1")
    found.begin(5)
    assert (found.open_id, found.end_of(4), found.after(0), found.after(1)) == (5, 1, 4, 5)


def test_only_so_many_are_remembered(vbucket, monkeypatch):
    monkeypatch.setattr(tap_checkpoints, "KEPT", 3)
    found = Checkpoints(vbucket)
    for number in range(6):
        vbucket.set(b"k", b"%d" % number)
        found.create()
    assert found.open_id == 8
    assert [found.start_of(each) is not None for each in (5, 6, 7, 8)] == [False, True, True, True]
    assert found.end_of(2) == 0, "a consumer in there goes on with what is known"
