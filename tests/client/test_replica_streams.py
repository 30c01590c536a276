"""The pure parts of a replication: states of vbuckets, preparation of the target, goals."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connect.address import parse_address
from penstock.client.replication.replica_streams import ReplicaPhase, ReplicaStreams
from penstock.client.replication.replication_progress import CatchUpGoals, ReplicationProgress, find_lag
from penstock.client.replication.target_states import find_new_replicas
from penstock.errors import ConnectionClosed, Unreachable, UsageError
from penstock.wire.codec.constants import VbucketState

ADDRESS = parse_address("couchbase://127.0.0.1/beer?retrySeconds=5")
LOST = ConnectionClosed("lost")
VBUCKETS = range(4)
vbuckets = st.sets(st.sampled_from(VBUCKETS))


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


STEPS = st.one_of(
    st.just(("take", None)),
    st.tuples(st.just("accept"), st.sampled_from(VBUCKETS)),
    st.tuples(st.sampled_from(["fail", "finish"]), vbuckets),
    st.tuples(st.just("wait"), st.floats(0.01, 3)),
)


@given(st.lists(STEPS, max_size=40))
def test_each_vbucket_is_requested_once_until_its_stream_is_lost(steps):
    clock = Clock()
    streams = ReplicaStreams(VBUCKETS, ADDRESS, clock)
    requested: set[int] = set()
    done: set[int] = set()
    for step, value in steps:
        if step == "take":
            taken = streams.take_due()
            assert not taken & (requested | done)
            requested |= taken
        elif step == "accept" and streams.phases[value] is ReplicaPhase.REQUESTED:
            streams.accept(value)
        elif step == "fail":
            try:
                streams.fail("node", value, LOST)
            except Unreachable:
                return
            requested -= value
        elif step == "finish":
            streams.finish(value)
            done |= value
            requested -= value
        elif step == "wait":
            clock.now += value
        assert streams.find(ReplicaPhase.DONE) == done
        running = streams.find(ReplicaPhase.REQUESTED) | streams.find(ReplicaPhase.RUNNING)
        assert running == requested
    clock.now += 10
    assert streams.take_due() == {*VBUCKETS} - requested - done


def test_attempts_end_after_the_limit_unless_a_stream_runs():
    clock = Clock()
    streams = ReplicaStreams([0], ADDRESS, clock)
    for _ in range(3):
        assert streams.take_due() == {0}
        streams.accept(0)
        clock.now += 100
        streams.fail("node", [0], LOST)
        assert streams.take_due() == set()
        clock.now += 0.06
    assert streams.take_due() == {0}
    clock.now += 6
    with pytest.raises(Unreachable, match="did not serve for"):
        streams.fail("node", [0], LOST)


def test_permanent_failure_is_raised():
    streams = ReplicaStreams([0], ADDRESS, Clock())
    streams.take_due()
    with pytest.raises(UsageError):
        streams.fail("node", [0], UsageError("no"))


@given(st.dictionaries(st.sampled_from(VBUCKETS), st.sampled_from(VbucketState)), vbuckets, st.booleans())
def test_only_replicas_and_empty_or_released_vbuckets_are_taken(states, filled, overwrite):
    seqnos = dict.fromkeys(filled, 7)
    active = {vb for vb in filled if states.get(vb) is VbucketState.ACTIVE}
    if active and not overwrite:
        with pytest.raises(UsageError, match=f"vbucket {min(active)} of the target is active and has 7 changes"):
            find_new_replicas(VBUCKETS, states, seqnos, overwrite=False)
        return
    new = find_new_replicas(VBUCKETS, states, seqnos, overwrite=overwrite)
    assert new == {vb for vb in VBUCKETS if states.get(vb) is not VbucketState.REPLICA}


def test_goal_is_the_seqno_of_the_first_reading_or_less():
    goals = CatchUpGoals()
    assert goals.find_reached([], {0: 10, 1: 5}, {0: 10, 1: 4}) == set()
    assert goals.find_reached([0, 1], {0: 99, 1: 99}, {0: 10, 1: 4}) == {0}
    assert goals.find_reached([0, 1], {0: 99, 1: 3}, {0: 50, 1: 3}) == {0, 1}
    assert goals.find_reached([2], {}, {2: 4}) == set()


def test_lag_is_counted_by_node():
    owned = {("a", 1): {0, 1}, ("b", 2): {2}}
    assert find_lag(owned, {0: 9, 1: 5, 2: 2}, {0: 4, 1: 8}) == {"a:1": 5, "b:2": 2}
    progress = ReplicationProgress(vbuckets=3, running=3, protocol="dcp", nodes={"a:1": 5, "b:2": 2}, seconds=1.23456)
    assert progress.to_dict() == {
        "vbuckets": 3,
        "running": 3,
        "protocol": "dcp",
        "lag": 7,
        "nodes": {"a:1": 5, "b:2": 2},
        "copied": 0,
        "bytes": 0,
        "seconds": 1.235,
    }
