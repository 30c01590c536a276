"""A node that is down: how long the client retries, and which warnings it logs."""

import asyncio
import math

import pytest

from penstock import Node, connect
from penstock.client.connect.address import parse_address
from penstock.client.connect.map_request import ClusterMapPending
from penstock.client.connect.retry import LONGEST_DELAY, Retry, is_bucket_missing, is_retriable, run_with_retry
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketAccessDenied,
    BucketNotServed,
    Busy,
    ConnectionClosed,
    InternalError,
    InvalidArguments,
    NoBucket,
    NotInitialized,
    NotMyVbucket,
    OperationTimeout,
    OrderViolation,
    RemoteProtocolError,
    TemporaryFailure,
    Unreachable,
    UsageError,
)
from penstock.wire.columns.schema import Event
from tests.patience import PATIENCE

ADDRESS = parse_address("couchbase://127.0.0.1/beer")


class Clock:
    now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


FAILURES = [
    (ConnectionRefusedError(111, "refused"), True, True),
    (ConnectionClosed("the node closed it"), True, True),
    (OperationTimeout("no answer"), True, True),
    (TemporaryFailure("warming up"), True, True),
    (NotMyVbucket("not yet"), True, True),
    (BucketNotServed("no bucket 'beer'"), False, True),
    (NoBucket("no bucket yet"), False, True),
    (ClusterMapPending("no cluster map yet"), True, True),
    (BucketAccessDenied("no such bucket, or none for this user"), False, True),
    (Busy("too much to do"), True, True),
    (NotInitialized("not yet"), True, True),
    (InternalError("EINTERNAL"), False, False),
    (AccessDenied("not for you"), False, False),
    (AuthenticationFailed("wrong password"), False, False),
    (InvalidArguments("EINVAL"), False, False),
    (RemoteProtocolError("garbage"), False, False),
    (UsageError("no such option"), False, False),
    (Unreachable("tried for long enough"), False, False),
]
"""A failure; whether it is retried for a first connection, and for a bucket that was served before."""


@pytest.mark.parametrize(("error", "at_first", "later"), FAILURES, ids=lambda value: type(value).__name__)
def test_failure_is_retriable_or_not(error, at_first, later):
    assert (is_retriable(error, has_served=False), is_retriable(error, has_served=True)) == (at_first, later)


@pytest.mark.parametrize(
    ("error", "lasting"),
    [
        (NoBucket("none"), True),
        (BucketNotServed("none"), True),
        (ClusterMapPending("not yet"), False),
        (OSError(), False),
    ],
)
def test_missing_bucket_is_a_failure_that_may_last(error, lasting):
    assert is_bucket_missing(error) is lasting


def fail(retry, clock, times=1000):
    for _ in range(times):
        clock.now += retry.next_delay(OSError("refused"), ADDRESS)


def fail_for_good(retry, clock):
    """Fail again and again; return the seconds until the node is given up."""
    began = clock.now
    with pytest.raises(Unreachable, match="did not serve for 30 s"):
        fail(retry, clock)
    return clock.now - began


def test_node_is_retried_up_to_the_limit(clock):
    assert fail_for_good(Retry(30.0, clock), clock) == pytest.approx(30.0)


def test_each_outage_is_logged_once(clock, caplog):
    retry = Retry(30.0, clock)
    fail(retry, clock, times=3)
    assert not caplog.messages
    fail_for_good(retry, clock)
    (message,) = caplog.messages
    assert message == f"{ADDRESS} does not serve (refused); retrying for up to 30 s"
    retry.reset()
    fail_for_good(retry, clock)
    assert len(caplog.messages) == 2


def test_a_warning_comes_after_a_second_and_no_sooner(clock, caplog):
    retry = Retry(30.0, clock)
    retry.next_delay(OSError("refused"), ADDRESS)
    clock.now += 0.99
    retry.next_delay(OSError("refused"), ADDRESS)
    assert caplog.messages == []
    clock.now = 101.0
    retry.next_delay(OSError("refused"), ADDRESS)
    assert len(caplog.messages) == 1


def test_a_warning_names_no_limit_where_there_is_none(clock, caplog):
    retry = Retry(math.inf, clock)
    fail(retry, clock, times=10)
    assert caplog.messages == [f"{ADDRESS} does not serve (refused); retrying"]


def test_each_delay_is_twice_the_one_before_up_to_the_longest(clock):
    retry = Retry(30.0, clock)
    delays = [retry.next_delay(OSError("refused"), ADDRESS) for _ in range(8)]
    assert delays == [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, LONGEST_DELAY, LONGEST_DELAY]
    retry.reset()
    assert retry.next_delay(OSError("refused"), ADDRESS) == 0.05


def test_no_delay_passes_the_limit(clock):
    retry = Retry(30.0, clock)
    retry.next_delay(OSError("refused"), ADDRESS)
    clock.now += 29.99
    assert retry.next_delay(OSError("refused"), ADDRESS) == pytest.approx(0.01)


def test_a_third_broken_order_in_a_row_is_an_error(clock, caplog):
    broken = OrderViolation("vbucket 0: by_seqno 1 after 2", vbucket=0)
    retry = Retry(30.0, clock)
    for _ in range(2):
        for _ in range(2):
            retry.next_delay(broken, ADDRESS)
        retry.reset()
    assert caplog.messages == [f"{ADDRESS} violated the order of its streams ({broken}); reconnecting"] * 4
    for _ in range(2):
        retry.next_delay(broken, ADDRESS)
        retry.next_delay(OSError("refused"), ADDRESS)  # a failure in between changes nothing
    with pytest.raises(OrderViolation):
        retry.next_delay(broken, ADDRESS)


@pytest.mark.parametrize("served", [False, True])
def test_missing_bucket_is_waited_for_if_it_was_served_before(clock, served):
    retry = Retry(30.0, clock, lambda: served)
    if served:
        assert retry.next_delay(NoBucket("none"), ADDRESS) == 0.05
    else:
        with pytest.raises(NoBucket):
            retry.next_delay(NoBucket("none"), ADDRESS)


def test_restarted_timer_has_the_whole_limit_but_violations_still_count(clock):
    retry = Retry(30.0, clock)
    violation = OrderViolation("seqno 3 after 4", vbucket=1)
    retry.next_delay(violation, ADDRESS)
    clock.now += 29
    retry.restart_timer()
    assert retry.next_delay(violation, ADDRESS) == pytest.approx(0.05)
    clock.now += 29
    retry.restart_timer()
    with pytest.raises(OrderViolation):
        retry.next_delay(violation, ADDRESS)
    retry.reset()
    assert fail_for_good(retry, clock) == pytest.approx(30.0)


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock can be moved forward.

    Attributes:
        skipped: seconds that the clock is ahead.
    """

    skipped = 0.0

    def time(self):
        return super().time() + self.skipped


def make_attempt(*outcomes):
    """Return an attempt with these outcomes in turn, and the list of its outcomes so far."""
    had: list[object] = []

    async def attempt():
        had.append(outcomes[len(had)])
        if isinstance(had[-1], Exception):
            raise had[-1]
        return had[-1]

    return attempt, had


def test_attempts_go_on_until_one_succeeds():
    attempt, had = make_attempt(OSError("refused"), ConnectionClosed("closed"), NoBucket("not yet"), "there")
    assert asyncio.run(run_with_retry(attempt, ADDRESS, lambda: True)) == "there"
    assert len(had) == 4


@pytest.mark.parametrize(
    ("error", "options"),
    [
        (AccessDenied("not for you"), {}),
        (NoBucket("none"), {}),
        (OperationTimeout("no answer"), {"only": (OSError,)}),
        (ValueError("ours"), {}),
    ],
)
def test_lasting_failure_is_raised_at_once(error, options):
    attempt, had = make_attempt(error, "there")
    with pytest.raises(type(error)):
        asyncio.run(run_with_retry(attempt, ADDRESS, **options))
    assert had == [error]


def test_attempts_end_at_the_limit_of_the_address():
    attempt, had = make_attempt(*[OSError("refused")] * 1000)
    address = parse_address("couchbase://127.0.0.1/beer?retrySeconds=0.12")
    with pytest.raises(
        Unreachable, match=r"^couchbase://127.0.0.1:11210/beer\S* did not serve for .* \(limit 0.12 s\)"
    ):
        asyncio.run(run_with_retry(attempt, address))
    assert 2 <= len(had) <= 4


async def follow_over_restart(loop):
    """Follow an idle bucket for longer than the retry limit, then restart the node; return the next change."""
    with Node.running(["beer"], vbuckets=4) as node:
        port, url = node.kv_port, f"{node.url('beer')}?retrySeconds=10"
        async with connect(url) as bucket:
            await bucket.upsert("k", b"before")
            stream = bucket.changes("beginning")
            await anext(stream)
            coming = asyncio.ensure_future(anext(stream))
            await bucket.stats()  # meanwhile the stream has had its turns of the event loop
            loop.skipped = 30.0
    with Node.running(["beer"], vbuckets=4, port=port):
        async with asyncio.timeout(PATIENCE):
            change = await coming
        await stream.aclose()
        return change


def test_idle_time_does_not_use_up_the_retry_limit():
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        change = runner.run(follow_over_restart(runner.get_loop()))
    assert (change.event, change.seqno, change.requested_seqno) == (Event.ROLLBACK, 0, 0)
