"""Outages: which vbuckets wait for their node, until when, and when the limit has passed."""

from itertools import count, islice, repeat

import pytest

from penstock.client.connect.address import parse_address
from penstock.client.streams.outages import EVERY_NODE, Outages
from penstock.errors import OrderViolation, RemoteProtocolError, Unreachable


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def make_outages(clock, seconds=30, **options):
    return Outages(parse_address(f"couchbase://h:1/beer?retrySeconds={seconds}"), clock, **options)


def fail(outages, clock, nodes, vbuckets):
    """Record a failure of one node after another, each when the next attempt is due."""
    for node in islice(nodes, 1000):
        outages.record_failure(node, vbuckets, OSError("refused"))
        clock.now = outages.find_next_due(vbuckets)


def fail_until_given_up(outages, clock, node, vbuckets):
    """Return the seconds until a node that always fails is given up."""
    began = clock.now
    with pytest.raises(Unreachable):
        fail(outages, clock, repeat(node), vbuckets)
    return clock.now - began


def test_each_node_has_its_own_time_limit(clock):
    outages = make_outages(clock)
    outages.record_failure("a", {1, 2}, OSError("refused"))
    assert not outages.find_due({1, 2})
    assert outages.find_due({1, 2, 3}) == {3}
    clock.now += 20
    assert outages.find_due({1, 2}) == {1, 2}
    assert fail_until_given_up(outages, clock, "b", {3}) == pytest.approx(30)
    with pytest.raises(Unreachable, match=r"did not serve for 50 s \(limit 30 s\); last failure: refused"):
        outages.record_failure("a", {1, 2}, OSError("refused"))


def test_vbucket_that_moves_from_node_to_node_gets_no_more_time(clock):
    with pytest.raises(Unreachable):
        fail(make_outages(clock), clock, count(), {1})
    assert clock.now == pytest.approx(130)


def test_healthy_node_is_no_outage(clock):
    outages = make_outages(clock)
    assert not outages
    assert outages.find_next_due({1}) is None
    assert outages.find_due(()) == set()
    outages.record_failure("a", {1}, OSError("refused"))
    assert outages.find_next_due({2}) is None
    assert outages.find_next_due({1, 2}) == pytest.approx(100.05)
    clock.now = 100.05
    assert outages.find_due({1}) == {1}


def test_earliest_attempt_of_all_vbuckets_is_the_next_one(clock):
    outages = make_outages(clock)
    outages.record_failure("a", {1}, OSError("refused"))
    outages.record_failure("a", {1}, OSError("refused"))
    outages.record_failure("b", {2}, OSError("refused"))
    assert outages.find_next_due({1, 2}) == pytest.approx(100.05)
    assert outages.find_next_due({1}) == pytest.approx(100.1)


def test_every_node_is_down_until_a_vbucket_recovers(clock):
    outages = make_outages(clock, 10)
    outages.record_failure(EVERY_NODE, {1}, OSError("refused"))
    assert outages.find_due({1, 2}) == {2}
    assert outages.find_next_due({2}) is None
    clock.now += 9
    outages.forget_recovered({1})
    clock.now += 1
    with pytest.raises(Unreachable, match="couchbase://h:1/beer did not serve for 10 s"):
        outages.record_failure(EVERY_NODE, {1}, OSError("refused"))


def test_lasting_failure_is_raised(clock):
    with pytest.raises(RemoteProtocolError, match="garbage"):
        make_outages(clock).record_failure("a", {1}, RemoteProtocolError("garbage"))


def test_recovered_node_has_the_whole_time_limit_again(clock):
    outages = make_outages(clock)
    outages.record_failure("a", {1, 2}, OSError("refused"))
    clock.now += 29
    outages.forget_recovered({2})
    assert outages
    outages.forget_recovered(())
    assert not outages
    assert outages.find_due({1, 2}) == {1, 2}
    assert fail_until_given_up(outages, clock, "a", {1, 2}) == pytest.approx(30)


def test_working_connection_restarts_the_time_limit_but_keeps_violations(clock):
    outages = make_outages(clock)
    for _ in range(5):
        outages.record_failure("a", {1}, OSError("refused"), had_worked=True)
        clock.now += 29
    violation = OrderViolation("seqno 3 after 4", vbucket=1)
    outages.record_failure("a", {1}, violation, had_worked=True)
    outages.record_failure("a", {1}, violation, had_worked=True)
    with pytest.raises(OrderViolation):
        outages.record_failure("a", {1}, violation, had_worked=True)


def test_without_a_limit_one_node_is_waited_for_but_not_an_outage_of_all(clock):
    outages = make_outages(clock, limitless=True)
    fail(outages, clock, repeat("a"), {1, 2})
    assert clock.now > 1000
    assert fail_until_given_up(outages, clock, EVERY_NODE, {1, 2}) == pytest.approx(30)


def test_vbuckets_are_due_at_once_after_a_new_map(clock):
    outages = make_outages(clock)
    outages.record_failure("a", [0, 1], OSError("refused"))
    outages.record_failure("b", [2], OSError("refused"))
    assert outages.find_due([0, 1, 2]) == set()
    outages.make_due([1, 7])
    assert outages.find_due([0, 1, 2]) == {0, 1}
