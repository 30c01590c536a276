"""The change stream of a bucket: waits for its connections, and survives their failures. The feed makes the decisions.

There is a connection to each node that has any of the vbuckets (StreamConnections). If a connection ends, or the
producer ends or refuses a stream, its vbuckets are held: they wait, and the other vbuckets go on. A connection attempt
requests the newest cluster map, opens missing connections, and resumes the streams at their positions (StreamRecovery).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from typing import Self

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.collection_selection import CollectionSelection
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.deliveries import Delivery
from penstock.client.resumed_items import ResumedItems
from penstock.client.streams.delivery_reader import DeliveryReader, ItemCountSource, RollbackMitigation
from penstock.client.streams.session_pool import SessionPool
from penstock.client.streams.stream_connections import StreamConnections
from penstock.client.streams.stream_recovery import EndSeqnos
from penstock.wire.columns.run_decoder import make_batch
from penstock.wire.columns.schema import Change


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`. A later stream can start at `stream.positions`.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, in order within each
    vbucket. The first call for a batch opens the connections; the end of the last stream, or `close`, closes them.
    While one of several nodes is down, its vbuckets are `missing`, and the changes of the others go on. If a producer
    violates the order of its streams, the client logs a warning, reconnects, and resumes each stream at its position.

    A caller that is cancelled while it waits for a batch loses nothing. The next call returns the batch, or raises the
    error, and `positions` stay before it until then.

    The methods that return or yield changes raise these errors:

    - Unreachable: a node is down for longer than the limit.
    - OrderViolation: a producer violated the order three times in a row, without a change in between.
    - RemoteProtocolError: a producer sent a message that cannot be decoded.
    - StatusError: a producer refused a stream permanently.
    - ConnectionClosed: the connection of a stream that cannot resume was lost (TAP with start "now").

    Attributes:
        positions: vbucket -> position after the last delivered batch. Empty for TAP, which cannot resume.
        counts: changes, bytes, rollbacks, reconnects and the last error.
    """

    def __init__(
        self,
        address: Address,
        feed: ConsumerFeed,
        end_seqnos: EndSeqnos | None = None,
        *,
        item_counts: ItemCountSource | None = None,
        pool: SessionPool | None = None,
        mitigation: RollbackMitigation | None = None,
    ) -> None:
        """Create a stream without connections.

        Args:
            address: the bucket.
            feed: makes the requests and interprets the messages.
            end_seqnos: requests the end seqnos of streams that end "now"; None: no stream does.
            item_counts: requests the document counts; None: the client does not check whether a TAP stream is complete.
            pool: lends connections, and gets them back when all streams have ended; None: the stream opens its own.
            mitigation: holds deliveries back until no failover makes them void; None: they are delivered at once.
        """
        self._reader = DeliveryReader(
            address, feed, end_seqnos, item_counts=item_counts, pool=pool, mitigation=mitigation
        )
        self._coming: asyncio.Future[Delivery | None] | None = None
        """The next delivery, which no caller has got yet."""
        self._rest: Iterator[Change] = iter(())
        """The changes of the last delivery that `changes` has not handed out."""
        self.positions = self._reader.positions
        self.counts = self._reader.journal.counts

    @property
    def _connections(self) -> StreamConnections:
        return self._reader.connections

    @property
    def given_up(self) -> list[int]:
        """Vbuckets whose stream was given up, because the producer has a different history than expected."""
        return self._reader.feed.given_up

    @property
    def missing(self) -> tuple[int, ...]:
        """Vbuckets that wait because their node is down, or no node serves them. The changes of the others go on."""
        if self._reader.feed.is_done:
            return ()
        ended = {connection_id for connection_id, each in self._connections.by_id.items() if each.link.closed.done()}
        waiting = self._reader.recovery.held | self._reader.feed.recovering
        waiting.update(vb for vb, connection_id in self._reader.feed.connection_ids.items() if connection_id in ended)
        return tuple(sorted(waiting.intersection(self._reader.feed.find_unfinished())))

    @property
    def selection(self) -> CollectionSelection | None:
        """The selected collections; None: the whole bucket."""
        return self._reader.feed.content.selection

    @property
    def bucket_uuid(self) -> str:
        """The uuid of the bucket that the stream reads; empty before a connection, or if the server reports none."""
        return self._reader.recovery.map.newest.uuid

    @property
    def dropped(self) -> dict[DropReason, int]:
        """The number of frames and changes that were received and not delivered, by reason."""
        return self._connections.dropped

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that were received, and that the caller has not consumed yet."""
        return self._reader.feed.queued_bytes

    @property
    def is_connected(self) -> bool:
        """Whether the stream has a connection."""
        return bool(self._connections)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections. No batch is delivered after that."""
        coming = self._coming
        if coming is not None:
            coming.cancel()
        await self._reader.recovery.close()
        if coming is not None:
            await asyncio.gather(coming, return_exceptions=True)

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    def changes(self) -> AsyncGenerator[Change, None]:
        """Return the changes as objects. A later call goes on after the last change that this one has handed out."""
        return ResumedItems(self._hand_out_changes)

    def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Return the changes as record batches, the same as iteration over the stream."""
        return ResumedItems(self._hand_out_batches)

    async def _hand_out_changes(self) -> AsyncGenerator[Change, None]:
        while True:
            for change in self._rest:
                yield change
            if (delivery := await self.next_delivery()) is None:
                return
            self._rest = iter(delivery.changes)

    async def _hand_out_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        if rest := [*self._rest]:
            yield make_batch(rest)
        while (delivery := await self.next_delivery()) is not None:
            yield delivery.batch

    async def next_delivery(self, *, is_ahead: bool = False) -> Delivery | None:
        """Return the next delivery; None after the end of all streams.

        Args:
            is_ahead: the caller still processes earlier deliveries, and calls `acknowledge` for each. Otherwise this
                call acknowledges them.

        Raises:
            Error: the stream cannot go on; the class lists the errors.
            OSError: the system refused a connection, for a reason that a retry does not repair.
        """
        for earlier in () if is_ahead else (*self._reader.unacknowledged,):
            self.acknowledge(earlier)
        while True:
            coming = self.expect_delivery()
            if not coming.done():
                try:
                    await asyncio.wait([coming])
                except asyncio.CancelledError:
                    self._reader.end_wait()
                    raise
            if coming is self._coming:  # else another call has got it
                return self.hand_out()

    def expect_delivery(self) -> asyncio.Future[Delivery | None]:
        """Return the future of the next delivery, the same one until `hand_out`. It is not the caller's to cancel."""
        self._reader.begin_wait()
        if self._coming is None:
            loop = asyncio.get_running_loop()
            if (ready := self._reader.find_ready()) is None:
                self._coming = loop.create_task(self._reader.find_delivery())
            else:
                self._coming = loop.create_future()
                self._coming.set_result(ready)
        return self._coming

    def hand_out(self) -> Delivery | None:
        """Return the delivery of `expect_delivery`, which is done; None after the end. Raises as `next_delivery`."""
        coming, self._coming = self._coming, None
        assert coming is not None
        self._reader.end_wait()
        if coming.cancelled():  # by `close`
            return None
        delivery = coming.result()
        if delivery is not None:
            self._reader.record(delivery)
        return delivery

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery that the caller has processed, so that the producer may send as many bytes again.

        Args:
            delivery: a delivery of this stream. One that was acknowledged before, or arrived before the stream began
                again after a lost branch, is ignored.
        """
        self._reader.acknowledge(delivery)
