"""The bridge: a bucket whose vbuckets are copies of another node's, kept up to date in one dialect, served in all.

Where to go on is not remembered but read from the store, anew for each connection: it ends with the last complete
snapshot of each vbucket, and with the part of it that the upstream's failover log shares. So whatever happens to a
connection, to the upstream or to a vbucket here is dealt with in one way: follow again. One of several nodes of the
upstream is the exception: its vbuckets wait for it, and go on from where they stopped, while the others go on.

TAP knows neither seqnos nor branches. The copies then have their own, and every connection begins with nothing.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from penstock.client.bucket import Bucket
from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.retry import LONGEST_DELAY, Retry, is_lasting
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.feed import Feed, StreamTarget
from penstock.client.feeds.selection import PLAIN_CONTENT, Selection, StreamContent
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import Error, OrderViolation, Unreachable, UsageError
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.mirror.delivery_writer import DeliveryWriter
from penstock.node.mirror.vbucket_copies import VbucketCopies, position_of
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

__all__ = ["Bridge", "Upstream", "find_upstream"]

logger = logging.getLogger("penstock.node")


class Upstream(NamedTuple):
    """A bucket to follow, and how many vbuckets it has."""

    address: Address
    vbuckets: int


async def find_upstream(address: Address) -> Upstream:
    """Connect to a bucket to learn its shape.

    Raises Unreachable if it does not serve within `retry_seconds`, UsageError for a bucket or server that cannot be
    followed, RemoteProtocolError for a peer that speaks another protocol.
    """
    async with Bucket(address) as bucket:
        if bucket.vbuckets & (bucket.vbuckets - 1):
            raise UsageError(f"{address} has {bucket.vbuckets} vbuckets, expected a power of two")
        await check_dialect(address, address.options.protocol)
        return Upstream(address, bucket.vbuckets)


class Bridge:
    """Keeps a served bucket like the one at an address.

    Attributes:
        dialect: in which the upstream is asked.
        copies: the vbuckets that are kept.
        connections: how many there were.
        task: runs until `stop`, or ends with the Error that no retry mends.
    """

    def __init__(self, served: ServedBucket, address: Address) -> None:
        """Begin. Raises UsageError for a bucket of which nothing is a replica."""
        self.address = address
        self.dialect = address.options.protocol
        self.connections = 0
        self.copies = VbucketCopies(served, address, has_positions=self.dialect is not Dialect.TAP)
        self._writer = DeliveryWriter(served, self.copies, address)
        self._served = served
        # Each try is one of its own, since where it begins depends on what the one before has left. But single nodes
        # of several are waited for within a try, without limit.
        options = replace(address.options, retry_seconds=0, missing_vbuckets=MissingVbuckets.SKIP)
        self._upstream = Bucket(replace(address, options=options))
        self._stream: ChangeStream | None = None
        self._loop = asyncio.get_running_loop()
        self._away = Retry(math.inf, self._loop.time)
        self._deleted = Retry(address.options.retry_seconds, self._loop.time)
        self._opened_at = math.inf
        served.bridge = self
        served.listeners.add(self.copies)
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(_log_end)

    async def stop(self) -> None:
        self._served.listeners.discard(self.copies)
        self.task.cancel()
        await asyncio.wait([self.task])
        await self._upstream.close()

    @property
    def is_connected(self) -> bool:
        return self._stream is not None and self._stream.is_connected

    def stats(self) -> Iterator[tuple[str, object]]:
        """The group `follow` of STAT."""
        yield "url", str(self.address)
        yield "dialect", self.dialect.value
        yield "connected", str(self.is_connected).lower()
        yield "connections", self.connections
        yield "vbuckets", len(self.copies.mirrored)
        yield "changes", self.copies.changes
        yield "rollbacks", self.copies.rollbacks
        yield "queued_bytes", self._stream.queued_bytes if self._stream else 0
        yield from self.copies.seqnos()

    # Connections

    async def _run(self) -> None:
        try:
            while True:
                await self._try()
        except Error as error:
            raise Error(f"cannot follow {self.address} any more: {error}") from error

    async def _try(self) -> None:
        """Follow until something fails, and wait before the next attempt.

        An upstream that is away is waited for without limit: the copies here are served meanwhile. An upstream that is
        there without its bucket is given `retry_seconds`: it has restarted and is not ready, or the bucket was deleted.
        """
        try:
            await self._follow()
        except (OSError, Error) as error:
            cause = error.__cause__ if isinstance(error, Unreachable) and error.__cause__ is not None else error
            assert isinstance(cause, Exception)
            logger.info("%s: %s", self.address, cause)
            if isinstance(cause, OrderViolation) and cause.begins_again:
                await self._begin_again()
            if self._loop.time() - self._opened_at > LONGEST_DELAY:
                self._away.succeeded()
            if is_lasting(cause):
                delay = self._deleted.next_delay(cause, self.address)
            else:
                self._deleted.succeeded()
                delay = self._away.next_delay(cause, self.address)
            await asyncio.sleep(delay)

    async def _begin_again(self) -> None:
        """Empty every copy: the upstream was flushed, and would accept positions of its old history."""
        for number in sorted(self.copies.mirrored):
            await self._writer.do(number, partial(self.copies.move, self._served.store.vbuckets[number], 0, ()))

    async def _follow(self) -> None:
        """Follow over one connection, until it ends or other vbuckets are to be followed."""
        self.copies.restart.clear()
        self._opened_at = math.inf
        stream: ChangeStream | None = None
        closing: asyncio.Task[None] | None = None
        try:
            feed = await self._feed()
            if not self.copies.mirrored:
                await self.copies.restart.wait()
            if self.copies.restart.is_set():
                return
            upstream = self._upstream
            stream = self._stream = ChangeStream(upstream.address, feed, item_counts=upstream.reports.item_counts)
            closing = self._loop.create_task(self._close_again(stream))
            self._opened_at = self._loop.time()
            self.connections += 1
            while (delivery := await stream.next_delivery()) is not None:
                await self._writer.write(delivery)
        finally:
            self._stream = None
            if closing is not None:
                closing.cancel()
            if stream is not None:
                await stream.close()

    async def _close_again(self, stream: ChangeStream) -> None:
        await self.copies.restart.wait()
        await stream.close()

    async def _feed(self) -> ConsumerFeed:
        """Return what to ask the upstream for, after the copies went back to what they share with it."""
        count, window = len(self._served.store.vbuckets), self.address.options.flow_control_bytes
        if self.dialect is Dialect.TAP:
            await self._check_upstream()
            for vbucket in self.copies.begin():
                await self._go_back(vbucket, partial(self.copies.move, vbucket, 0, ()))
            return TapFeed(count, self.copies.mirrored, window=window)
        logs = await self._upstream.failover_logs(range(count))
        wanted: dict[int, StreamTarget] = {}
        for vbucket in self.copies.begin():
            log = logs[vbucket.id]
            if await self._go_back(vbucket, partial(self.copies.reconcile, vbucket, log)):
                wanted[vbucket.id] = StreamTarget(position=position_of(vbucket, log))
        everything = StreamContent(selection=Selection(), xattrs=True)
        content = everything if self.dialect is Dialect.DCP else PLAIN_CONTENT
        return Feed(count, wanted, window=window, dialect=self.dialect, every_move=True, content=content)

    async def _go_back(self, vbucket: Vbucket, work: Callable[[], None]) -> bool:
        """Change a vbucket before it is asked for. Returns whether it is still mirrored then.

        Nothing else runs between the change and the return: the position to ask for depends on what was found.
        """
        await self._writer.breathe()
        await self._writer.do(vbucket.id, work)
        return vbucket.id in self.copies.mirrored

    async def _check_upstream(self) -> None:
        """Connect and close: before the copies are emptied, there has to be something to fill them from."""
        await self._upstream.connect()
        await self._upstream.close()


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s", error, exc_info=None if isinstance(error, Error) else error)
