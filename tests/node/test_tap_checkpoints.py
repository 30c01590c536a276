"""Checkpoints: their numbers, and where they begin and end."""

import pytest

from penstock.node.tap_state import tap_checkpoints
from penstock.node.tap_state.tap_checkpoints import HistoryPoint, TapCheckpoints
from penstock.store.bucket_store import BucketStore
from penstock.wire.codec.constants import VbucketState


@pytest.fixture
def vbucket():
    vbuuids = iter(range(1, 1000))
    return BucketStore("b", vbuckets=1, clock=lambda: 10**18, new_vbuuid=lambda: next(vbuuids)).vbuckets[0]


def test_active_vbucket_starts_with_checkpoint_2(vbucket):
    found = TapCheckpoints(vbucket)
    assert (found.open_id, found.last_closed_id, found.persisted_id) == (2, 1, 1)
    assert found.find_start(2) == HistoryPoint(vbucket.history.vbuuid, 0)
    assert (found.find_start(1), found.find_start(3)) == (None, None)


def test_closed_checkpoint_has_bounds(vbucket):
    found = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    assert found.close_open() == 3
    vbucket.set(b"b", b"2")
    assert [found.find_end(each) for each in (1, 2, 3, 4)] == [0, 1, None, None]
    assert found.find_start(3) == HistoryPoint(vbucket.history.vbuuid, 1)
    assert [found.find_following(seqno) for seqno in (0, 1, 2)] == [2, 3, 3]
    assert (found.last_closed_id, found.persisted_id) == (2, 2)


def test_empty_checkpoint_stays_open(vbucket):
    found = TapCheckpoints(vbucket)
    assert found.close_open() == 2
    vbucket.set(b"a", b"1")
    assert [found.close_open(), found.close_open()] == [3, 3]


def test_checkpoint_of_another_history_has_no_start(vbucket):
    found = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    found.close_open()
    vbucket.reset()
    assert found.find_start(3) is None
    assert found.find_start(2) is None


def test_failover_keeps_earlier_checkpoints(vbucket):
    found = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    found.close_open()
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.set_state(VbucketState.ACTIVE)
    assert found.find_start(3) is not None


def test_copy_has_the_checkpoint_ids_of_its_producer(vbucket):
    vbucket.set_state(VbucketState.REPLICA)
    found = TapCheckpoints(vbucket)
    assert found.open_id == 0
    vbucket.set(b"a", b"1")
    found.open_checkpoint(5)
    assert (found.open_id, found.find_end(4), found.find_following(0), found.find_following(1)) == (5, 1, 4, 5)


def test_closed_checkpoints_are_limited(vbucket, monkeypatch):
    monkeypatch.setattr(tap_checkpoints, "MAX_CLOSED", 3)
    found = TapCheckpoints(vbucket)
    for number in range(6):
        vbucket.set(b"k", b"%d" % number)
        found.close_open()
    assert found.open_id == 8
    assert [found.find_start(each) is not None for each in (5, 6, 7, 8)] == [False, True, True, True]
    assert found.find_end(2) == 0, "a consumer in there goes on with what is known"
