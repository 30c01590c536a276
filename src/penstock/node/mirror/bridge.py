"""The bridge: keeps the vbuckets of a bucket as copies of another node's, through one dialect, and serves them in all.

The position to continue from is not remembered but read from the store for each connection. It is the last complete
snapshot of each vbucket, limited to the branches that the upstream's failover log shares. So every failure, of the
connection, the upstream or a local vbucket, has the same remedy: follow again. One exception: if the upstream has
several nodes and one of them is unreachable, its vbuckets wait for it while the others continue.

TAP has neither seqnos nor branches. The copies then have their own, and every connection starts from zero.
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
from penstock.client.connect.retry import LONGEST_DELAY, Retry, is_bucket_missing
from penstock.client.feeds.collection_selection import PLAIN_CONTENT, CollectionSelection, StreamContent
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.feed import Feed
from penstock.client.feeds.vbucket_stream import StreamTarget
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.streams.dialect_check import check_dialect
from penstock.client.tap.tap_feed import TapFeed
from penstock.errors import Error, OrderViolation, Unreachable, UsageError
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.mirror.delivery_writer import DeliveryWriter
from penstock.node.mirror.vbucket_copies import VbucketCopies, make_position
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import Dialect

logger = logging.getLogger("penstock.node")


class Upstream(NamedTuple):
    """A bucket to follow.

    Attributes:
        address: its address and the connection's options.
        vbuckets: its number of vbuckets.
    """

    address: Address
    vbuckets: int


async def find_upstream(address: Address) -> Upstream:
    """Connect to a bucket and return its address with its number of vbuckets.

    Returns:
        The bucket.

    Raises:
        Unreachable: it does not serve within `retry_seconds`.
        UsageError: the bucket or its server cannot be followed.
        RemoteProtocolError: the peer speaks another protocol.
    """
    async with Bucket(address) as bucket:
        if bucket.vbuckets & (bucket.vbuckets - 1):
            raise UsageError(f"{address} has {bucket.vbuckets} vbuckets, expected a power of two")
        await check_dialect(address, address.options.protocol)
        return Upstream(address, bucket.vbuckets)


class Bridge:
    """Keeps a served bucket equal to the bucket at an address.

    Attributes:
        address: the upstream's address.
        dialect: the dialect of the streams.
        copies: the mirrored vbuckets.
        connections: number of connections so far.
        task: runs until `stop`, or ends with an Error that no retry can mend.
    """

    def __init__(self, served: ServedBucket, address: Address) -> None:
        """Begin to follow.

        Args:
            served: the bucket that becomes the copy.
            address: the upstream.

        Raises:
            UsageError: none of the bucket's vbuckets is a replica.
        """
        self.address = address
        self.dialect = address.options.protocol
        self.connections = 0
        self.copies = VbucketCopies(served, address, has_positions=self.dialect is not Dialect.TAP)
        self._writer = DeliveryWriter(served, self.copies, address)
        self._served = served
        # The bucket makes no retries of its own: each attempt continues from the state that the previous one has left.
        # Within an attempt, unreachable nodes of a cluster are retried without limit.
        options = replace(address.options, retry_seconds=0, missing_vbuckets=MissingVbuckets.SKIP)
        self._upstream = Bucket(replace(address, options=options))
        self._stream: ChangeStream | None = None
        self._loop = asyncio.get_running_loop()
        self._connection_retry = Retry(math.inf, self._loop.time)
        self._bucket_retry = Retry(address.options.retry_seconds, self._loop.time)
        self._opened_at = math.inf
        served.bridge = self
        served.listeners[self.copies] = None
        self.task = self._loop.create_task(self._run())
        self.task.add_done_callback(_log_end)

    async def stop(self) -> None:
        """Stop to follow; the copies stay."""
        self._served.listeners.pop(self.copies, None)
        self.task.cancel()
        await asyncio.wait([self.task])
        await self._upstream.close()

    @property
    def is_connected(self) -> bool:
        """Whether streams from the upstream are open."""
        return self._stream is not None and self._stream.is_connected

    def stats(self) -> Iterator[tuple[str, object]]:
        """Yield the statistics of the group `follow`."""
        yield "url", str(self.address)
        yield "dialect", self.dialect.value
        yield "connected", str(self.is_connected).lower()
        yield "connections", self.connections
        yield "vbuckets", len(self.copies.mirrored)
        yield "changes", self.copies.changes
        yield "rollbacks", self.copies.rollbacks
        yield "queued_bytes", self._stream.queued_bytes if self._stream else 0
        yield from self.copies.list_seqnos()

    # Connections

    async def _run(self) -> None:
        try:
            while True:
                await self._attempt()
        except Error as error:
            raise Error(f"cannot follow {self.address}: {error}") from error

    async def _attempt(self) -> None:
        """Follow until an error, and wait before the next attempt.

        An unreachable upstream is retried without limit: the copies are served meanwhile. An upstream without its
        bucket is
        retried for `retry_seconds`: it may have restarted and not be ready, or the bucket was deleted.
        """
        try:
            await self._follow()
        except (OSError, Error) as error:
            cause = error.__cause__ if isinstance(error, Unreachable) and error.__cause__ is not None else error
            assert isinstance(cause, Exception)
            logger.info("%s: %s", self.address, cause)
            if isinstance(cause, OrderViolation) and cause.seqnos_restarted:
                await self._empty_copies()
            if self._loop.time() - self._opened_at > LONGEST_DELAY:
                self._connection_retry.reset()
            if is_bucket_missing(cause):
                delay = self._bucket_retry.next_delay(cause, self.address)
            else:
                self._bucket_retry.reset()
                delay = self._connection_retry.next_delay(cause, self.address)
            await asyncio.sleep(delay)

    async def _empty_copies(self) -> None:
        """Empty every copy: the upstream was flushed, and would accept positions of its old history."""
        for number in sorted(self.copies.mirrored):
            await self._writer.retry_while_refused(
                number, partial(self.copies.roll_back, self._served.store.vbuckets[number], 0, ())
            )

    async def _follow(self) -> None:
        """Follow over one connection, until it ends or other vbuckets must be followed."""
        self.copies.restart.clear()
        self._opened_at = math.inf
        stream: ChangeStream | None = None
        closing: asyncio.Task[None] | None = None
        try:
            feed = await self._make_feed()
            if not self.copies.mirrored:
                await self.copies.restart.wait()
            if self.copies.restart.is_set():
                return
            upstream = self._upstream
            stream = self._stream = ChangeStream(upstream.address, feed, item_counts=upstream.reports.item_counts)
            closing = self._loop.create_task(self._close_on_restart(stream))
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

    async def _close_on_restart(self, stream: ChangeStream) -> None:
        await self.copies.restart.wait()
        await stream.close()

    async def _make_feed(self) -> ConsumerFeed:
        """Return the feed that continues from the history that copies and upstream share.

        Roll the copies back to it first.
        """
        count, window = len(self._served.store.vbuckets), self.address.options.stream_window
        if self.dialect is Dialect.TAP:
            await self._check_upstream()
            for vbucket in self.copies.select_vbuckets():
                await self._roll_back(vbucket, partial(self.copies.roll_back, vbucket, 0, ()))
            return TapFeed(count, self.copies.mirrored, window=window)
        logs = await self._upstream.failover_logs(range(count))
        wanted: dict[int, StreamTarget] = {}
        for vbucket in self.copies.select_vbuckets():
            log = logs[vbucket.id]
            if await self._roll_back(vbucket, partial(self.copies.reconcile, vbucket, log)):
                wanted[vbucket.id] = StreamTarget(position=make_position(vbucket, log))
        everything = StreamContent(selection=CollectionSelection(), xattrs=True)
        content = everything if self.dialect is Dialect.DCP else PLAIN_CONTENT
        return Feed(count, wanted, window=window, dialect=self.dialect, deliver_positions=True, content=content)

    async def _roll_back(self, vbucket: Vbucket, work: Callable[[], None]) -> bool:
        """Change a vbucket before its stream is requested.

        Nothing may run between the change and the return, because the requested position depends on the vbucket's
        state.

        Returns:
            Whether the vbucket is still mirrored.
        """
        await self._writer.yield_if_due()
        await self._writer.retry_while_refused(vbucket.id, work)
        return vbucket.id in self.copies.mirrored

    async def _check_upstream(self) -> None:
        """Connect and close. The copies are emptied only if the upstream can fill them again."""
        await self._upstream.connect()
        await self._upstream.close()


def _log_end(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        logger.error("%s", error, exc_info=None if isinstance(error, Error) else error)
