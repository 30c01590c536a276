"""The waits of a change stream, with the timeouts of its connections."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from penstock.client.connect.address import Address
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.streams.stream_connection import Deadline, list_deadlines
from penstock.client.streams.stream_connections import StreamConnections
from penstock.errors import OperationTimeout

_SETTLE_SECONDS = 2.0
"""A TAP producer that is silent for so long has no backfill to send, or sends no backfill after a crash."""


class SilenceWatch:
    """Waits for messages, and ends connections that are silent for too long.

    Time between two calls of the caller does not count as silence of a node: its answer may be unread in the socket.
    """

    def __init__(self, address: Address, feed: ConsumerFeed, connections: StreamConnections) -> None:
        self._options = address.options
        self._feed = feed
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._waiting_since = self._left_at = self._loop.time()
        self._is_waiting = False
        self._silences = 0
        """Connections that were ended for silence."""

    def resume(self) -> None:
        """Record that the caller started to wait for a delivery. It may be called again while the caller waits."""
        if self._is_waiting:
            return
        self._is_waiting = True
        self._waiting_since = self._loop.time()
        for each in self._connections.by_id.values():
            each.asked_at += self._waiting_since - self._left_at

    def pause(self) -> None:
        """Record that the caller got its delivery, or an error."""
        self._left_at = self._loop.time()
        self._is_waiting = False

    async def wait(self, attempt_due: float | None) -> None:
        """Wait for a message, for the end of a connection, or until a connection attempt is due.

        Args:
            attempt_due: the time of the next connection attempt, on the loop's clock; None: no attempt is scheduled.
        """
        feed, limits = self._feed, self._list_limits()
        settled_at = math.inf
        if feed.dump.is_unsettled and self._connections:  # TAP only: silence may be the only sign of a backfill's end
            settled_at = max(each.alive_at for each in self._connections.by_id.values()) + _SETTLE_SECONDS
        times = [limit.time for limit in limits] + ([] if attempt_due is None else [attempt_due])
        until = min((*times, settled_at))
        try:
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._connections.wake.wait()
        except TimeoutError:
            self._time_out(limits, settled_at)

    def check(self) -> None:
        """End connections that are silent for too long, while others always have messages."""
        self._time_out(self._list_limits(), math.inf)

    def _list_limits(self) -> list[Deadline]:
        feed, now = self._feed, self._loop.time()
        limits: list[Deadline] = []
        for each in self._connections.by_id.values():
            each.record_unanswered(feed.count_unanswered(each.connection_id), now)
            limits += list_deadlines(each, feed, self._options, self._waiting_since, self._silences)
        return limits

    def _time_out(self, limits: Sequence[Deadline], settled_at: float) -> None:
        now = self._loop.time()
        if now >= settled_at:
            self._feed.dump.record_silence()
        for limit in limits:
            link = limit.connection.link
            if now >= limit.time and not link.closed.done():
                self._silences += limit.is_silence
                link.fail(OperationTimeout(limit.reason))
