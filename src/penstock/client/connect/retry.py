"""Decide which failures another attempt may mend, and when that attempt is due; and make the attempts.

A node that restarts comes back in steps, and a client meets each of them: nobody listens; the port is open, but the
bucket is not there; the bucket is there, but its vbuckets are not; the vbuckets are there, but no cluster map is.
A bucket that is not there has two meanings. To a client that the bucket has served before it means "not yet", to a
first connection it means "no such bucket". So the decision needs both the error and `has_served`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.client.connect.address import Address
from penstock.errors import (
    BucketNotServed,
    ConnectionClosed,
    Error,
    NoBucket,
    OperationTimeout,
    OrderViolation,
    StatusError,
    Unreachable,
)

__all__ = ["LONGEST_DELAY", "Retry", "is_lasting", "may_mend", "retrying"]

T = TypeVar("T")

logger = logging.getLogger("penstock.client")

_FIRST_DELAY, LONGEST_DELAY = 0.05, 2.0
_QUIET_SECONDS = 1.0
"""A node that is away for less is not worth a word."""

_LOST = (OSError, ConnectionClosed, OperationTimeout, OrderViolation)
"""The node, or the connection to it, is away; or a stream cannot go on over this connection."""

_MOST_VIOLATIONS = 3
"""A producer that breaks the order of its streams so often in a row will do it again."""

_NOT_THERE = (BucketNotServed, NoBucket)
"""The node is there, and the bucket is not: not yet, or no longer. memcached answers KEY_ENOENT or NO_BUCKET, and an
empty cluster map until its cluster manager has sent one. Source: kv_engine, select_bucket_executor.cc,
cluster_config_executor.cc."""


def may_mend(error: BaseException, *, has_served: bool) -> bool:
    """Tell whether another attempt may succeed after this failure.

    Args:
        error: the failure.
        has_served: whether the bucket has served this client before.
    """
    if isinstance(error, _NOT_THERE):
        return has_served
    return isinstance(error, _LOST) or (isinstance(error, StatusError) and error.retriable)


def is_lasting(error: BaseException) -> bool:
    """Tell whether a failure that another attempt may mend may just as well last: the bucket may have been deleted."""
    return isinstance(error, _NOT_THERE)


class Retry:
    """How long to wait before the next attempt, and when to give up: `seconds` after the first failure in a row.

    One warning is logged for each row of failures that lasts longer than a moment.
    """

    def __init__(
        self, seconds: float, clock: Callable[[], float], has_served: Callable[[], bool] = lambda: True
    ) -> None:
        """Begin without a failure.

        Args:
            seconds: the limit.
            clock: seconds, monotonic.
            has_served: tells whether the bucket has served this client before, as of `may_mend`.
        """
        self._seconds = seconds
        self._clock = clock
        self._has_served = has_served
        self.succeeded()

    def succeeded(self) -> None:
        self._since: float | None = None
        self._delay = _FIRST_DELAY
        self._has_warned = False
        self._violations = 0

    def lasted(self) -> None:
        """Restart the time, because what failed had worked for a while. Violations of the order still count."""
        violations = self._violations
        self.succeeded()
        self._violations = violations

    def may_mend(self, error: BaseException) -> bool:
        return may_mend(error, has_served=self._has_served())

    def next_delay(self, error: Exception, address: Address) -> float:
        """Return the seconds to wait. Raises the error itself if no attempt can mend it, Unreachable past the limit."""
        if not self.may_mend(error):
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
                f"{address} did not serve for {waited:.3g} s (limit {self._seconds:g} s); last failure: {error}"
            ) from error
        if isinstance(error, OrderViolation):
            logger.warning("%s broke the order of its streams (%s); connecting again", address, error)
        elif waited >= _QUIET_SECONDS and not self._has_warned:
            self._has_warned = True
            limit = f" for up to {self._seconds:g} s" if self._seconds < math.inf else ""
            logger.warning("%s does not serve (%s); trying again%s", address, error, limit)
        delay, self._delay = self._delay, min(self._delay * 2, LONGEST_DELAY)
        return min(delay, self._seconds - waited)


async def retrying(
    attempt: Callable[[], Awaitable[T]],
    address: Address,
    has_served: Callable[[], bool] = lambda: False,
    only: tuple[type[Exception], ...] = (OSError, Error),
) -> T:
    """Return what `attempt` returns, trying again after each failure that another attempt may mend.

    Args:
        attempt: makes one attempt.
        address: what is connected to; its option retry_seconds is the limit.
        has_served: as of Retry.
        only: failures of other types are raised at once.

    Raises:
        Unreachable: the attempts failed for as long as the limit.
        Error, OSError: the failure itself, if no attempt can mend it.
    """
    retry = Retry(address.options.retry_seconds, asyncio.get_running_loop().time, has_served)
    while True:
        try:
            return await attempt()
        except only as error:
            delay = retry.next_delay(error, address)
        await asyncio.sleep(delay)
