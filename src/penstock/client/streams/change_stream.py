"""Follow changes over connections that may end: the feed decides, this waits.

There is one connection to each node that has any of the vbuckets (StreamConnections). A connection that ends, or a
stream that the producer ends or refuses, holds its vbuckets: they wait while the others go on. An attempt asks for the
newest cluster map, connects where there is no connection, and lets the streams go on from their positions
(StreamRecovery).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Self

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.session_pool import SessionPool
from penstock.client.streams.silence_watch import SilenceWatch
from penstock.client.streams.stream_connections import StreamConnections
from penstock.client.streams.stream_recovery import EndSeqnos, StreamRecovery
from penstock.client.topology.item_counts import ItemCounts
from penstock.errors import Error
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change

__all__ = ["ChangeStream"]

logger = logging.getLogger("penstock.client")

ItemCountSource = Callable[[], Awaitable[ItemCounts | None]]


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`, then `stream.positions` to go on later.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, each vbucket's in order.
    The connections are there from the first batch asked for until the last one, or `close`, after which none follows.
    While one of several nodes is away, its vbuckets are `missing`, and the changes of the others go on.
    A producer that breaks the order of its streams is left, with a warning, and each stream goes on from its position.
    Raises Unreachable when a node stays away, OrderViolation when it breaks the order three times in a row without a
    change in between, RemoteProtocolError when it sends what cannot be decoded, StatusError when it refuses a stream
    for good, ConnectionClosed when a connection is lost whose stream no other can go on with (TAP,
    from now on).
    """

    def __init__(
        self,
        address: Address,
        feed: ConsumerFeed,
        end_seqnos: EndSeqnos | None = None,
        *,
        item_counts: ItemCountSource | None = None,
        pool: SessionPool | None = None,
    ) -> None:
        """Begin without a connection.

        Args:
            address: where the bucket is.
            feed: decides what is asked for, and what an answer means.
            end_seqnos: asks the node where streams end that end "now"; of no use without any such.
            item_counts: asks the node how many documents there are; without, no TAP stream is checked to be complete.
            pool: where to take connections from, and to leave them once all streams have ended.
        """
        self._address = address
        self._feed = feed
        self._item_counts = item_counts
        self._connections = StreamConnections(address, feed, pool)
        self._recovery = StreamRecovery(address, feed, self._connections, end_seqnos)
        self._watch = SilenceWatch(address, feed, self._connections)
        self._failure: Exception | None = None
        """What is to be raised once all that came before it was handed out."""
        self._last_delivery: Delivery | None = None
        self.positions: dict[int, Position] = dict(feed.positions)
        """By vbucket, where the batches handed out so far end. Empty with TAP, which cannot go on from anywhere."""

    @property
    def given_up(self) -> list[int]:
        """Vbuckets left alone because the producer's history is not the expected one."""
        return self._feed.given_up

    @property
    def missing(self) -> tuple[int, ...]:
        """Vbuckets that wait: their node is away, or no node serves them. The changes of the others go on."""
        if self._feed.is_done:
            return ()
        ended = {connection_id for connection_id, each in self._connections.by_id.items() if each.link.closed.done()}
        waiting = self._recovery.held | self._feed.recovering
        waiting.update(vb for vb, connection_id in self._feed.connection_ids.items() if connection_id in ended)
        return tuple(sorted(waiting.intersection(self._feed.find_unfinished())))

    @property
    def dropped(self) -> dict[DropReason, int]:
        """How many frames and changes were received and not handed out, by reason."""
        return self._connections.dropped

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that have been received and not been dealt with."""
        return self._feed.queued_bytes

    @property
    def is_connected(self) -> bool:
        return bool(self._connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._recovery.close()

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Give the same changes as objects."""
        while (delivery := await self.next_delivery()) is not None:
            for change in delivery.changes:
                yield change

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as record batches, as the stream itself does when it is iterated over."""
        while (delivery := await self.next_delivery()) is not None:
            yield delivery.batch

    async def next_delivery(self) -> Delivery | None:
        """Return what arrived next, None once every stream has ended."""
        self._acknowledge()
        self._watch.resume()
        try:
            await self._recover_ended()
            while not self._feed.deliveries or self._recovery.is_closed:
                self.positions.update(self._feed.take_positions())
                if self._recovery.is_closed or self._feed.is_done:
                    self._connections.release_to_pool()
                    await self.close()
                    return None
                await self._make_progress()
        except (OSError, Error):
            await self._recovery.cancel_attempt()
            raise
        finally:
            self._watch.pause()
        delivery = self._last_delivery = self._feed.deliveries.popleft()
        self._recovery.confirm_recovery(delivery.connection_id)
        self.positions.update(delivery.positions)
        return delivery

    def _acknowledge(self) -> None:
        """Acknowledge the delivery handed out before: its caller came back, so it is dealt with."""
        if self._last_delivery is None:
            return
        outgoing, connection = (
            self._feed.acknowledge(self._last_delivery),
            self._connections.by_id.get(self._last_delivery.connection_id),
        )
        self._last_delivery = None
        if outgoing and connection is not None:
            connection.link.send(outgoing)
        if self._feed.queued_bytes <= self._feed.window:
            self._connections.resume_reading()

    async def _recover_ended(self) -> None:
        """Deal with what has ended though there is always something to hand out: its vbuckets are to go on as well."""
        is_due = self._connections.has_ended or self._recovery.held or self._feed.failures
        if not (is_due and self._feed.deliveries and self._connections and self._failure is None):
            return
        if self._feed.dialect is Dialect.TAP:
            return  # there is nothing else to go on with
        try:
            await self._recovery.handle_ended()
            self._recovery.start_attempt()
            self._connections.send_due_requests(self._recovery.held)
        except (OSError, Error) as error:
            self._failure = error  # what came before it holds

    async def _make_progress(self) -> None:
        """Connect if need be, ask for the streams that are due, and wait until something arrives or ends."""
        self._connections.wake.clear()
        if self._failure is not None:
            raise self._failure
        await self._recovery.handle_ended()
        self._recovery.start_attempt()
        if self._feed.dump.needs_counts and self._connections:
            await self._set_counts()
        self._connections.send_due_requests(self._recovery.held)
        self._connections.log_drops()
        if not (self._feed.deliveries or self._feed.is_done or self._feed.failures):
            await self._watch.wait(self._recovery.find_next_due())

    async def _set_counts(self) -> None:
        """Let the feed compare what the node counts with what it was sent."""
        counts = None if self._item_counts is None else await self._item_counts()
        if warning := self._feed.dump.set_counts(counts):
            logger.warning("%s: %s", self._address, warning)
