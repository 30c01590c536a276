"""A node that is away: how long it is waited for, and what is said meanwhile."""

import asyncio

import pytest

from penstock import Node, connect
from penstock.client.address import parse_address
from penstock.client.retry import Retry, may_mend
from penstock.errors import (
    AccessDenied,
    AuthenticationFailed,
    BucketNotServed,
    ConnectionClosed,
    InvalidArguments,
    NoBucket,
    NotMyVbucket,
    OperationTimeout,
    RemoteProtocolError,
    TemporaryFailure,
    Unreachable,
    UsageError,
)
from penstock.wire.schema import Event

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
    (AccessDenied("not for you"), False, False),
    (AuthenticationFailed("wrong password"), False, False),
    (InvalidArguments("EINVAL"), False, False),
    (RemoteProtocolError("garbage"), False, False),
    (UsageError("no such option"), False, False),
    (Unreachable("tried for long enough"), False, False),
]
"""A failure; whether another attempt may mend it of a first connection, and of one that the bucket has served."""


@pytest.mark.parametrize(("error", "at_first", "later"), FAILURES, ids=lambda value: type(value).__name__)
def test_what_another_attempt_may_mend(error, at_first, later):
    assert (may_mend(error, has_served=False), may_mend(error, has_served=True)) == (at_first, later)


def fail(retry, clock, times=1000):
    for _ in range(times):
        clock.now += retry.next_delay(OSError("refused"), ADDRESS)


def fail_for_good(retry, clock):
    """Fail again and again; return the seconds that passed until it was given up."""
    began = clock.now
    with pytest.raises(Unreachable, match="did not serve for 30 s"):
        fail(retry, clock)
    return clock.now - began


def test_a_node_is_tried_again_up_to_the_limit(clock):
    assert fail_for_good(Retry(30.0, clock), clock) == pytest.approx(30.0)


def test_each_absence_is_told_once(clock, caplog):
    retry = Retry(30.0, clock)
    fail(retry, clock, times=3)
    assert not caplog.messages
    fail_for_good(retry, clock)
    (message,) = caplog.messages
    assert message == f"{ADDRESS} does not serve (refused); trying again for up to 30 s"
    retry.succeeded()
    fail_for_good(retry, clock)
    assert len(caplog.messages) == 2


class SkippingLoop(asyncio.SelectorEventLoop):
    """A loop whose clock can be moved on."""

    skipped = 0.0

    def time(self):
        return super().time() + self.skipped


async def follow_over_restart(loop):
    """Follow a bucket, leave it alone for longer than the retries last, restart the node; return what came then."""
    with Node.running(["beer"], vbuckets=4) as node:
        port, url = node.kv_port, f"{node.url('beer')}?retrySeconds=10"
        async with connect(url) as bucket:
            await bucket.upsert("k", b"before")
            stream = bucket.changes("beginning")
            await anext(stream)
            coming = asyncio.ensure_future(anext(stream))
            await bucket.stats()  # the stream has had its turns of the loop
            loop.skipped = 30.0
    with Node.running(["beer"], vbuckets=4, port=port):
        async with asyncio.timeout(20):
            change = await coming
        await stream.aclose()
        return change


def test_a_quiet_bucket_does_not_use_up_the_time_for_retries():
    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        change = runner.run(follow_over_restart(runner.get_loop()))
    assert (change.event, change.seqno, change.requested_seqno) == (Event.ROLLBACK, 0, 0)
