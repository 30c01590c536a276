"""TAP checkpoints: their ids, starts and ends."""

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
    checkpoints = TapCheckpoints(vbucket)
    assert (checkpoints.open_id, checkpoints.last_closed_id, checkpoints.persisted_id) == (2, 1, 1)
    assert checkpoints.find_start(2) == HistoryPoint(vbucket.history.vbuuid, 0)
    assert (checkpoints.find_start(1), checkpoints.find_start(3)) == (None, None)


def test_closed_checkpoint_has_bounds(vbucket):
    checkpoints = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    assert checkpoints.close_open() == 3
    vbucket.set(b"b", b"2")
    assert [checkpoints.find_end(each) for each in (1, 2, 3, 4)] == [0, 1, None, None]
    assert checkpoints.find_start(3) == HistoryPoint(vbucket.history.vbuuid, 1)
    assert [checkpoints.find_following(seqno) for seqno in (0, 1, 2)] == [2, 3, 3]
    assert (checkpoints.last_closed_id, checkpoints.persisted_id) == (2, 2)


def test_empty_checkpoint_stays_open(vbucket):
    checkpoints = TapCheckpoints(vbucket)
    assert checkpoints.close_open() == 2
    vbucket.set(b"a", b"1")
    assert [checkpoints.close_open(), checkpoints.close_open()] == [3, 3]


def test_checkpoint_of_another_history_has_no_start(vbucket):
    checkpoints = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    checkpoints.close_open()
    vbucket.reset()
    assert checkpoints.find_start(3) is None
    assert checkpoints.find_start(2) is None


def test_failover_keeps_earlier_checkpoints(vbucket):
    checkpoints = TapCheckpoints(vbucket)
    vbucket.set(b"a", b"1")
    checkpoints.close_open()
    vbucket.set_state(VbucketState.REPLICA)
    vbucket.set_state(VbucketState.ACTIVE)
    assert checkpoints.find_start(3) is not None


def test_copy_has_the_checkpoint_ids_of_its_producer(vbucket):
    vbucket.set_state(VbucketState.REPLICA)
    checkpoints = TapCheckpoints(vbucket)
    assert checkpoints.open_id == 0
    vbucket.set(b"a", b"1")
    checkpoints.open_checkpoint(5)
    assert (checkpoints.open_id, checkpoints.find_end(4)) == (5, 1)
    assert [checkpoints.find_following(seqno) for seqno in (0, 1)] == [4, 5]


def test_closed_checkpoints_are_limited(vbucket, monkeypatch):
    monkeypatch.setattr(tap_checkpoints, "MAX_CLOSED", 3)
    checkpoints = TapCheckpoints(vbucket)
    for number in range(6):
        vbucket.set(b"k", b"%d" % number)
        checkpoints.close_open()
    assert checkpoints.open_id == 8
    assert [checkpoints.find_start(each) is not None for each in (5, 6, 7, 8)] == [False, True, True, True]
    assert checkpoints.find_end(2) == 0, "the end of a forgotten checkpoint is 0"
