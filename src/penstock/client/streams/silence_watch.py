"""How long a change stream waits for anything, and which connections it then gives up."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence

from penstock.client.connect.address import Address
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.streams.stream_connection import Deadline, list_deadlines
from penstock.client.streams.stream_connections import StreamConnections
from penstock.errors import OperationTimeout

__all__ = ["SilenceWatch"]

_SETTLE_SECONDS = 2.0
"""A TAP producer that sends nothing for so long has no backfill to send, or sends none after a crash."""


class SilenceWatch:
    """Waits, and ends the connections that are silent for too long.

    The time in which the caller does not ask for anything does not count against a node: an answer may lie unread.
    """

    def __init__(self, address: Address, feed: ConsumerFeed, connections: StreamConnections) -> None:
        self._options = address.options
        self._feed = feed
        self._connections = connections
        self._loop = asyncio.get_running_loop()
        self._waiting_since = self._left_at = self._loop.time()
        self._silences = 0
        """Connections that ended because nothing came."""

    def resume(self) -> None:
        """Note that the caller asks for something."""
        self._waiting_since = self._loop.time()
        for each in self._connections.by_id.values():
            each.asked_at += self._waiting_since - self._left_at

    def pause(self) -> None:
        """Note that the caller has what it asked for."""
        self._left_at = self._loop.time()

    async def wait(self, attempt_due: float | None) -> None:
        """Wait for anything that arrives, a connection's end, or the time of an attempt to connect."""
        feed, now = self._feed, self._loop.time()
        limits: list[Deadline] = []
        for each in self._connections.by_id.values():
            each.record_unanswered(feed.count_unanswered(each.connection_id), now)
            limits += list_deadlines(each, feed, self._options, self._waiting_since, self._silences)
        settled_at = math.inf
        if feed.dump.is_unsettled and self._connections:  # TAP, which promises neither signs of life nor answers
            settled_at = max(each.alive_at for each in self._connections.by_id.values()) + _SETTLE_SECONDS
        times = [limit.time for limit in limits] + ([] if attempt_due is None else [attempt_due])
        until = min((*times, settled_at))
        try:
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._connections.wake.wait()
        except TimeoutError:
            self._time_out(limits, settled_at)

    def _time_out(self, limits: Sequence[Deadline], settled_at: float) -> None:
        now = self._loop.time()
        if now >= settled_at:
            self._feed.dump.record_silence()
        for limit in limits:
            link = limit.connection.link
            if now >= limit.time and not link.closed.done():
                self._silences += limit.is_silence
                link.fail(OperationTimeout(limit.reason))
