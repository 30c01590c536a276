"""Reads the deliveries of a change stream: connects, recovers from failures, waits. The feed makes the decisions."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import NamedTuple

from penstock.client.connect.address import Address
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


class DeliveryReader:
    """Finds the next delivery of a stream. `find_delivery` runs to its end: only `close` cancels it.

    Args:
        address: the bucket.
        feed: makes the requests and interprets the messages.
        end_seqnos, item_counts, pool, mitigation: as of ChangeStream.

    Attributes:
        positions: vbucket -> position after the last delivery that was handed out or left out.
        feed: the feed; there is a new one after a lost branch.
        connections: its connections.
        recovery: connects them again.
        journal: counts and logs the events.
        unacknowledged: deliveries of this feed that the caller has and has not processed; the oldest is first.
    """

    def __init__(
        self,
        address: Address,
        feed: ConsumerFeed,
        end_seqnos: EndSeqnos | None,
        *,
        item_counts: ItemCountSource | None,
        pool: SessionPool | None,
        mitigation: RollbackMitigation | None,
    ) -> None:
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
        self.journal = StreamJournal(address)
        self._begin(feed)

    def _begin(self, feed: ConsumerFeed) -> None:
        self.feed = feed
        self.connections = StreamConnections(self._address, feed, self._pool, self.journal)
        self.recovery = StreamRecovery(self._address, feed, self.connections, self._end_seqnos)
        self._watch = SilenceWatch(self._address, feed, self.connections)
        self._failure: Exception | None = None
        """An error to raise after the delivery of all changes that arrived before it."""
        self._before_failure = 0
        """Deliveries that arrived before it. Others may go on to arrive, so that there is always one."""
        self.unacknowledged: list[Delivery] = []

    def find_ready(self) -> Delivery | None:
        """Return the next delivery if it needs no wait."""
        while self.feed.deliveries and not (
            self._mitigation or self._needs_recovery or self.recovery.is_closed or self._is_failure_due
        ):
            if (chosen := self._choose_changes(self._take_delivery())) is not None:
                return chosen
        return None

    def begin_wait(self) -> None:
        """Record that the caller waits for a delivery from now on."""
        self._watch.resume()

    def end_wait(self) -> None:
        """Record that the caller no longer waits: it gets its delivery, or an error, or was cancelled."""
        self._watch.pause()

    async def find_delivery(self) -> Delivery | None:
        """Wait for the next delivery that the filter does not leave out; None after the end of all streams."""
        while (delivery := await self._receive_delivery()) is not None:
            if self._mitigation is not None:
                try:
                    await self._mitigation.gate.wait_until_persisted(delivery)
                except BranchLost as lost:
                    logger.warning("%s: %s; reading the changes again that were not delivered", self._address, lost)
                    await self.recovery.close()
                    self._held = None
                    self._begin(self._mitigation.make_feed(self.positions))
                    continue
            self._held = None
            if (chosen := self._choose_changes(delivery)) is not None:
                return chosen
        return None

    def _choose_changes(self, delivery: Delivery) -> Delivery | None:
        """Return a delivery with the changes that the filter chooses; None if it leaves all out."""
        self.recovery.confirm_recovery(delivery.connection_id)
        chosen = self.feed.content.change_filter.select_changes(delivery.content, self.journal.counts.unreadable)
        is_left_out = len(chosen) < len(delivery.content) and not len(chosen)
        self._passed_logs.update(delivery.logs)
        delivery = delivery._replace(content=chosen, logs=dict(self._passed_logs))
        if not is_left_out:  # a delivery that came without changes reports the end of a snapshot
            self._passed_logs.clear()
            return delivery
        self.record(delivery)
        self.acknowledge(delivery)
        return None

    def record(self, delivery: Delivery) -> None:
        """Record that the caller gets a delivery."""
        self.journal.record_delivery(delivery, self.positions)
        self.positions.update(delivery.positions)
        self.unacknowledged.append(delivery)

    def acknowledge(self, delivery: Delivery) -> None:
        """Acknowledge a delivery, as ChangeStream describes it."""
        waiting = [each for each in self.unacknowledged if each is not delivery]
        if len(waiting) == len(self.unacknowledged):
            return
        self.unacknowledged = waiting
        outgoing = self.feed.acknowledge(delivery)
        connection = self.connections.by_id.get(delivery.connection_id)
        if outgoing and connection is not None:
            connection.link.send(outgoing)
        if not self.connections.is_full:
            self.connections.resume_reading()

    async def _receive_delivery(self) -> Delivery | None:
        """Return the delivery that is held, or the next one; None after the end of all streams."""
        if self._held is not None and not self.recovery.is_closed:
            return self._held
        try:
            # Messages may have arrived before this task began to run, so that it does not wait.
            if self.feed.deliveries:
                self._watch.check()
            await self._recover_ended()
            if self._failure is not None and self._before_failure <= 0:
                raise self._failure
            while not self.feed.deliveries or self.recovery.is_closed:
                self.positions.update(self.feed.take_positions())
                if self.recovery.is_closed or self.feed.is_done:
                    self.connections.release_to_pool()
                    await self.recovery.close()
                    return None
                await self._make_progress()
        except (OSError, Error):
            await self.recovery.cancel_attempt()
            raise
        self._held = self._take_delivery()
        return self._held

    def _take_delivery(self) -> Delivery:
        self._before_failure -= 1
        return self.feed.deliveries.popleft()

    @property
    def _is_failure_due(self) -> bool:
        """Whether the caller has all changes that arrived before an error."""
        return self._failure is not None and self._before_failure <= 0

    @property
    def _needs_recovery(self) -> bool:
        """Whether streams or connections have ended that can start again while deliveries are waiting."""
        if self._failure is not None or self.feed.dialect is Dialect.TAP:
            return False  # TAP has one connection, so no other stream could go on
        has_failed = self.connections.has_ended or self.recovery.held or self.feed.failures
        return bool(has_failed or self.feed.outdated_collections)

    async def _recover_ended(self) -> None:
        """Restart ended streams and connections while deliveries are waiting.

        Without this, a busy node would always have a delivery, and the vbuckets of a failed node would never resume.
        """
        if not (self._needs_recovery and self.feed.deliveries and self.connections):
            return
        try:
            await self.recovery.handle_ended()
            self.recovery.start_attempt()
            self.recovery.send_due_requests()
        except (OSError, Error) as error:
            # Changes that arrived before the error are valid, and are delivered first.
            self._failure, self._before_failure = error, len(self.feed.deliveries)

    async def _make_progress(self) -> None:
        """Open missing connections, send the due stream requests, and wait for a message or the end of a connection."""
        self.connections.wake.clear()
        if self._failure is not None:
            raise self._failure
        await self.recovery.handle_ended()
        self.recovery.start_attempt()
        if self.feed.dump.needs_counts and self.connections:
            await self._set_counts()
        self.recovery.send_due_requests()
        self.connections.log_drops()
        if not (self.feed.deliveries or self.feed.is_done or self.feed.failures):
            await self._watch.wait(self.recovery.find_next_due())

    async def _set_counts(self) -> None:
        """Give the node's document counts to the feed, which compares them with the received changes."""
        counts = None if self._item_counts is None else await self._item_counts()
        if warning := self.feed.dump.set_counts(counts):
            logger.warning("%s: %s", self._address, warning)
