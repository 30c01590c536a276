"""Retry with back-off: which failures are temporary, when the next attempt is due, and the attempts themselves.

A restarting node returns in steps, and a client meets each of them. The port is closed; then it is open without the
bucket; then there is the bucket without a cluster map, or without vbuckets. A missing bucket is temporary for a client
that the bucket has served before. For a first connection it means that the bucket does not exist. So the decision needs
both the error and `has_served`.

| answer | first connection | later |
| --- | --- | --- |
| connection refused, reset or closed, or silence | waits | waits |
| ETMPFAIL, EBUSY, NOT_INITIALIZED, NOT_MY_VBUCKET of any request | waits | waits |
| GET_CLUSTER_CONFIG: KEY_ENOENT | waits | waits |
| GET_CLUSTER_CONFIG: an empty map | fails | waits |
| SELECT_BUCKET: KEY_ENOENT or EACCESS | fails | waits |
| NO_BUCKET of any request | fails | waits |
| AUTH_ERROR, EACCESS of another request, EINTERNAL, EINVAL | fails | fails |
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.errors import (
    BucketAccessDenied,
    BucketNotServed,
    ConnectionClosed,
    Error,
    NoBucket,
    OperationTimeout,
    OrderViolation,
    Unreachable,
)

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
_QUIET_SECONDS = 1.0
"""Shorter outages are not logged."""

_CONNECTION_FAILURES = (OSError, ConnectionClosed, OperationTimeout, OrderViolation)
"""The node or the connection failed, or a stream cannot continue on this connection."""

_MOST_VIOLATIONS = 3
"""Order violations in a row after which a retry is useless: the producer is faulty."""

_BUCKET_MISSING = (BucketNotServed, BucketAccessDenied, NoBucket)
"""The node has no such bucket: not yet, or no longer. memcached answers KEY_ENOENT, EACCESS or NO_BUCKET. 3.x answers
with an empty cluster map until its cluster manager has sent one.
Source: kv_engine, select_bucket_executor.cc, cluster_config_executor.cc."""


def is_retriable(error: BaseException, *, has_served: bool) -> bool:
    """Return whether another attempt may succeed after a failure.

    Args:
        error: the failure.
        has_served: whether the bucket has served this client before.
    """
    if isinstance(error, _BUCKET_MISSING):
        return has_served or error.retriable
    return isinstance(error, _CONNECTION_FAILURES) or (isinstance(error, Error) and error.retriable)


def is_bucket_missing(error: BaseException) -> bool:
    """Return whether a retriable failure may also be permanent, because the bucket may have been deleted."""
    return isinstance(error, _BUCKET_MISSING) and not error.retriable


class Retry:
    """The delay before the next attempt, and the limit: `seconds` after the first of consecutive failures.

    Logs one warning for each series of failures that lasts longer than _QUIET_SECONDS.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], has_served: Callable[[], bool] = lambda: True
    ) -> None:
        """Create a retry without failures.

        Args:
            seconds: the limit.
            clock: returns monotonic seconds.
            has_served: returns whether the bucket has served this client before, see `is_retriable`.
        """
        self._seconds = seconds
        self._clock = clock
        self._has_served = has_served
        self.reset()

    def reset(self) -> None:
        """Forget all failures, after a success."""
        self._since: float | None = None
        self._delay = _FIRST_DELAY
        self._has_warned = False
        self._violations = 0

    def restart_timer(self) -> None:
        """Restart the time limit, because the connection had worked before it failed. Order violations still count."""
        violations = self._violations
        self.reset()
        self._violations = violations

    def is_retriable(self, error: BaseException) -> bool:
        """Return whether another attempt may succeed after a failure."""
        return is_retriable(error, has_served=self._has_served())

    def next_delay(self, error: Exception, address: Address) -> float:
        """Return the seconds until the next attempt.

        Args:
            error: the failure.
            address: the bucket, for messages.

        Raises:
            error: the failure is permanent.
            Unreachable: the failures have lasted for the limit.
        """
        if not self.is_retriable(error):
            raise error
        if isinstance(error, OrderViolation):
            self._violations += 1
            if self._violations >= _MOST_VIOLATIONS:
                raise error
        now = self._clock()
        if self._since is None:
            self._since = now
        waited = now - self._since
        if waited >= self._seconds:
            raise Unreachable(
                f"{address} did not serve for {round(waited, 3):g} s (limit {self._seconds:g} s); last failure: {error}"
            ) from error
        if isinstance(error, OrderViolation):
            logger.warning("%s violated the order of its streams (%s); reconnecting", address, error)
        elif waited >= _QUIET_SECONDS and not self._has_warned:
            self._has_warned = True
            limit = f" for up to {self._seconds:g} s" if self._seconds < math.inf else ""
            logger.warning("%s does not serve (%s); retrying%s", address, error, limit)
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_DELAY)
        return min(delay, self._seconds - waited)


async def run_with_retry(
    attempt: Callable[[], Awaitable[T]],
    address: Address,
    has_served: Callable[[], bool] = lambda: False,
    only: tuple[type[Exception], ...] = (OSError, Error),
) -> T:
    """Make attempts until one succeeds, with back-off after each retriable failure.

    Raises Unreachable after the limit, and a permanent failure at once.

    Args:
        attempt: makes one attempt.
        address: the bucket; its option retry_seconds is the limit.
        has_served: returns whether the bucket has served this client before.
        only: failures of other types are raised at once.

    Returns:
        The result of the successful attempt.
    """
    retry = Retry(address.options.retry_seconds, asyncio.get_running_loop().time, has_served)
    while True:
        try:
            return await attempt()
        except only as error:
            delay = retry.next_delay(error, address)
        await asyncio.sleep(delay)
