"""Which vbuckets wait for their node, until when, and when that is too long."""

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


def outages_of(clock, seconds=30, **options):
    return Outages(parse_address(f"couchbase://h:1/beer?retrySeconds={seconds}"), clock, **options)


def fail(outages, clock, nodes, vbuckets):
    """Fail for one node after the other, at each time that is due."""
    for node in islice(nodes, 1000):
        outages.record_failure(node, vbuckets, OSError("refused"))
        clock.now = outages.find_next_due(vbuckets)


def fail_until_it_is_enough(outages, clock, node, vbuckets):
    """Return the seconds until a node that fails was given up."""
    began = clock.now
    with pytest.raises(Unreachable):
        fail(outages, clock, repeat(node), vbuckets)
    return clock.now - began


def test_each_node_has_its_own_time(clock):
    outages = outages_of(clock)
    outages.record_failure("a", {1, 2}, OSError("refused"))
    assert not outages.find_due({1, 2})
    assert outages.find_due({1, 2, 3}) == {3}
    clock.now += 20
    assert outages.find_due({1, 2}) == {1, 2}
    assert fail_until_it_is_enough(outages, clock, "b", {3}) == pytest.approx(30)
    with pytest.raises(Unreachable, match=r"did not serve for 50 s \(limit 30 s\); last failure: refused"):
        outages.record_failure("a", {1, 2}, OSError("refused"))


def test_a_vbucket_that_is_sent_from_node_to_node_gets_no_more_time(clock):
    with pytest.raises(Unreachable):
        fail(outages_of(clock), clock, count(), {1})
    assert clock.now == pytest.approx(130)


def test_a_node_that_is_well_is_no_outage(clock):
    outages = outages_of(clock)
    assert not outages
    assert outages.find_next_due({1}) is None
    assert outages.find_due(()) == set()
    outages.record_failure("a", {1}, OSError("refused"))
    assert outages.find_next_due({2}) is None
    assert outages.find_next_due({1, 2}) == pytest.approx(100.05)
    clock.now = 100.05
    assert outages.find_due({1}) == {1}


def test_the_first_attempt_for_any_of_them_counts(clock):
    outages = outages_of(clock)
    outages.record_failure("a", {1}, OSError("refused"))
    outages.record_failure("a", {1}, OSError("refused"))
    outages.record_failure("b", {2}, OSError("refused"))
    assert outages.find_next_due({1, 2}) == pytest.approx(100.05)
    assert outages.find_next_due({1}) == pytest.approx(100.1)


def test_every_node_is_away_until_something_comes(clock):
    outages = outages_of(clock, 10)
    outages.record_failure(EVERY_NODE, {1}, OSError("refused"))
    assert outages.find_due({1, 2}) == {2}
    assert outages.find_next_due({2}) is None
    clock.now += 9
    outages.forget_recovered({1})
    clock.now += 1
    with pytest.raises(Unreachable, match="couchbase://h:1/beer did not serve for 10 s"):
        outages.record_failure(EVERY_NODE, {1}, OSError("refused"))


def test_a_failure_that_no_attempt_mends_is_raised(clock):
    with pytest.raises(RemoteProtocolError, match="garbage"):
        outages_of(clock).record_failure("a", {1}, RemoteProtocolError("garbage"))


def test_what_is_well_again_has_all_of_its_time(clock):
    outages = outages_of(clock)
    outages.record_failure("a", {1, 2}, OSError("refused"))
    clock.now += 29
    outages.forget_recovered({2})
    assert outages
    outages.forget_recovered(())
    assert not outages
    assert outages.find_due({1, 2}) == {1, 2}
    assert fail_until_it_is_enough(outages, clock, "a", {1, 2}) == pytest.approx(30)


def test_a_connection_that_lasted_gives_the_time_again_but_no_violations(clock):
    outages = outages_of(clock)
    for _ in range(5):
        outages.record_failure("a", {1}, OSError("refused"), had_worked=True)
        clock.now += 29
    violation = OrderViolation("seqno 3 after 4", vbucket=1)
    outages.record_failure("a", {1}, violation, had_worked=True)
    outages.record_failure("a", {1}, violation, had_worked=True)
    with pytest.raises(OrderViolation):
        outages.record_failure("a", {1}, violation, had_worked=True)


def test_nodes_that_may_be_away_for_ever_and_all_of_them_that_may_not(clock):
    outages = outages_of(clock, limitless=True)
    fail(outages, clock, repeat("a"), {1, 2})
    assert clock.now > 1000
    assert fail_until_it_is_enough(outages, clock, EVERY_NODE, {1, 2}) == pytest.approx(30)
