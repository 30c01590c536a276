"""The change stream of a bucket: waits for its connections, and survives their failures. The feed makes the decisions.

There is a connection to each node that has any of the vbuckets (StreamConnections). If a connection ends, or the
producer ends or refuses a stream, its vbuckets are held: they wait, and the other vbuckets go on. A connection attempt
requests the newest cluster map, opens missing connections, and resumes the streams at their positions (StreamRecovery).
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from typing import NamedTuple, Self

import pyarrow as pa

from penstock.client.connect.address import Address
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.persistence_gate import BranchLost, PersistenceGate
from penstock.client.streams.session_pool import SessionPool
from penstock.client.streams.silence_watch import SilenceWatch
from penstock.client.streams.stream_connections import StreamConnections
from penstock.client.streams.stream_journal import StreamJournal
from penstock.client.streams.stream_recovery import EndSeqnos, StreamRecovery
from penstock.client.topology.item_counts import ItemCounts
from penstock.errors import Error
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.codec.constants import Dialect
from penstock.wire.columns.schema import Change

__all__ = ["ChangeStream", "RollbackMitigation"]

logger = logging.getLogger("penstock.client")

ItemCountSource = Callable[[], Awaitable[ItemCounts | None]]
"""Requests the document counts of a node; returns None if the node has no counts."""


class RollbackMitigation(NamedTuple):
    """Lets changes pass only once no failover makes them void.

    Attributes:
        gate: waits until all copies have the changes.
        make_feed: returns a feed that starts at other positions. It takes the place of a feed that has received changes
            of a branch that was lost.
    """

    gate: PersistenceGate
    make_feed: Callable[[Mapping[int, Position]], ConsumerFeed]


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`. A later stream can start at `stream.positions`.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, in order within each
    vbucket. The first call for a batch opens the connections; the end of the last stream, or `close`, closes them.
    While one of several nodes is down, its vbuckets are `missing`, and the changes of the others go on. If a producer
    violates the order of its streams, the client logs a warning, reconnects, and resumes each stream at its position.

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
        self._address = address
        self._end_seqnos = end_seqnos
        self._item_counts = item_counts
        self._pool = pool
        self._mitigation = mitigation
        self._held: Delivery | None = None
        """A delivery that `mitigation` has not let pass yet."""
        self._passed_logs: dict[int, FailoverLog] = {}
        """Failover logs of deliveries that the filter left out. The next delivery brings them."""
        self.positions: dict[int, Position] = dict(feed.positions)
        self._journal = StreamJournal(address)
        self.counts = self._journal.counts
        self._begin(feed)

    def _begin(self, feed: ConsumerFeed) -> None:
        self._feed = feed
        self._connections = StreamConnections(self._address, feed, self._pool, self._journal)
        self._recovery = StreamRecovery(self._address, feed, self._connections, self._end_seqnos)
        self._watch = SilenceWatch(self._address, feed, self._connections)
        self._failure: Exception | None = None
        """An error to raise after the delivery of all changes that arrived before it."""
        self._unacknowledged: list[Delivery] = []
        """Deliveries of this feed that the caller has and has not processed; the oldest is first."""

    @property
    def given_up(self) -> list[int]:
        """Vbuckets whose stream was given up, because the producer has a different history than expected."""
        return self._feed.given_up

    @property
    def missing(self) -> tuple[int, ...]:
        """Vbuckets that wait because their node is down, or no node serves them. The changes of the others go on."""
        if self._feed.is_done:
            return ()
        ended = {connection_id for connection_id, each in self._connections.by_id.items() if each.link.closed.done()}
        waiting = self._recovery.held | self._feed.recovering
        waiting.update(vb for vb, connection_id in self._feed.connection_ids.items() if connection_id in ended)
        return tuple(sorted(waiting.intersection(self._feed.find_unfinished())))

    @property
    def bucket_uuid(self) -> str:
        """The uuid of the bucket that the stream reads; empty before a connection, or if the server reports none."""
        return self._recovery.map.newest.uuid

    @property
    def dropped(self) -> dict[DropReason, int]:
        """The number of frames and changes that were received and not delivered, by reason."""
        return self._connections.dropped

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that were received, and that the caller has not consumed yet."""
        return self._feed.queued_bytes

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
        await self._recovery.close()

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield the changes as objects."""
        while (delivery := await self.next_delivery()) is not None:
            for change in delivery.changes:
                yield change

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield the changes as record batches, the same as iteration over the stream."""
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
        for earlier in () if is_ahead else (*self._unacknowledged,):
            self.acknowledge(earlier)
        while (delivery := await self._receive_delivery()) is not None:
            if self._mitigation is not None:
                try:
                    await self._mitigation.gate.wait_until_persisted(delivery)
                except BranchLost as lost:
                    logger.warning("%s: %s; reading the changes again that were not delivered", self._address, lost)
                    await self._recovery.close()
                    self._held = None
                    self._begin(self._mitigation.make_feed(self.positions))
                    continue
            self._held = None
            self._recovery.confirm_recovery(delivery.connection_id)
            chosen = self._feed.content.change_filter.select_changes(delivery.content, self.counts.unreadable)
            is_left_out = len(chosen) < len(delivery.content) and not len(chosen)
            self._passed_logs.update(delivery.logs)
            delivery = delivery._replace(content=chosen, logs=dict(self._passed_logs))
            self._journal.record_delivery(delivery, self.positions)
            self.positions.update(delivery.positions)
            self._unacknowledged.append(delivery)
            if not is_left_out:  # a delivery that came without changes reports the end of a snapshot
                self._passed_logs.clear()
                return delivery
            self.acknowledge(delivery)
        return None

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery that the caller has processed, so that the producer may send as many bytes again.

        Args:
            delivery: a delivery of this stream. One that was acknowledged before, or arrived before the stream began
                again after a lost branch, is ignored.
        """
        waiting = [each for each in self._unacknowledged if each is not delivery]
        if len(waiting) == len(self._unacknowledged):
            return
        self._unacknowledged = waiting
        outgoing = self._feed.acknowledge(delivery)
        connection = self._connections.by_id.get(delivery.connection_id)
        if outgoing and connection is not None:
            connection.link.send(outgoing)
        if not self._connections.is_full:
            self._connections.resume_reading()

    async def _receive_delivery(self) -> Delivery | None:
        """Return the delivery that is held, or the next one; None after the end of all streams."""
        if self._held is not None:
            return self._held
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
        self._held = self._feed.deliveries.popleft()
        return self._held

    async def _recover_ended(self) -> None:
        """Restart ended streams and connections while deliveries are waiting.

        Without this, a busy node would always have a delivery, and the vbuckets of a failed node would never resume.
        """
        has_failed = self._connections.has_ended or self._recovery.held or self._feed.failures
        if not (
            (has_failed or self._feed.outdated_collections)
            and self._feed.deliveries
            and self._connections
            and self._failure is None
        ):
            return
        if self._feed.dialect is Dialect.TAP:
            return  # TAP has one connection, so no other stream could go on
        try:
            await self._recovery.handle_ended()
            self._recovery.start_attempt()
            self._recovery.send_due_requests()
        except (OSError, Error) as error:
            self._failure = error  # changes that arrived before the error are valid, and are delivered first

    async def _make_progress(self) -> None:
        """Open missing connections, send the due stream requests, and wait for a message or the end of a connection."""
        self._connections.wake.clear()
        if self._failure is not None:
            raise self._failure
        await self._recovery.handle_ended()
        self._recovery.start_attempt()
        if self._feed.dump.needs_counts and self._connections:
            await self._set_counts()
        self._recovery.send_due_requests()
        self._connections.log_drops()
        if not (self._feed.deliveries or self._feed.is_done or self._feed.failures):
            await self._watch.wait(self._recovery.find_next_due())

    async def _set_counts(self) -> None:
        """Give the node's document counts to the feed, which compares them with the received changes."""
        counts = None if self._item_counts is None else await self._item_counts()
        if warning := self._feed.dump.set_counts(counts):
            logger.warning("%s: %s", self._address, warning)
