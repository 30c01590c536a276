"""Recovery of a change stream from failures: vbuckets wait for their node, and attempts reconnect to it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.cluster_map import NO_NODE, ClusterMap
from penstock.client.connect.map_request import request_cluster_map
from penstock.client.connect.retry import LONGEST_DELAY, is_retriable
from penstock.client.discovery.endpoint import Endpoint, format_endpoint
from penstock.client.feeds.consumer_feed import ConsumerFeed, StreamFailure
from penstock.client.streams.dialect_check import explain_refused_dialect
from penstock.client.streams.outages import EVERY_NODE, Outages
from penstock.client.streams.stream_connection import StreamConnection
from penstock.client.streams.stream_connections import NO_CONNECTION, StreamConnections
from penstock.client.streams.stream_map import StreamMap
from penstock.client.topology.missing_vbuckets import make_not_served_error
from penstock.client.tracing.span_types import describe_failure
from penstock.client.tracing.tracer import WorkSpan
from penstock.errors import (
    AuthenticationStale,
    ConnectionClosed,
    Error,
    NotMyVbucket,
    NotSupported,
    OrderViolation,
    StatusError,
    UnknownCommand,
)
from penstock.wire.codec.constants import Dialect

EndSeqnos = Callable[[Sequence[int]], Awaitable[dict[int, int]]]
"""Returns the current end seqnos of some vbuckets; without the vbuckets to skip."""


_POLL_SECONDS = 10.0
"""Between requests of the cluster map to nodes that push none: Couchbase before 5.5, or one that did not grant it."""


class StreamRecovery:
    """Connects a change stream to the nodes of its vbuckets, at first and after each failure.

    Attributes:
        held: vbuckets without a connection to their node.
        is_closed: whether `close` was called; no connection is opened after that.
        map: the newest cluster map.
    """

    def __init__(
        self, address: Address, feed: ConsumerFeed, connections: StreamConnections, end_seqnos: EndSeqnos | None
    ) -> None:
        self.held = set(feed.find_unfinished())
        self.is_closed = False
        self._address = address
        self._feed = feed
        self._connections = connections
        self._end_seqnos = end_seqnos
        self._loop = asyncio.get_running_loop()
        self.map = StreamMap(address, feed.vbuckets, feed.dialect)
        self._attempt: asyncio.Task[None] | None = None
        """Connects to the nodes of held vbuckets, and requests end seqnos."""
        self._attempts = 0
        self._unconfirmed: set[int] = set()
        """Vbuckets that failed and were connected again, but have not received anything on the new connection."""
        self._places: dict[int, Endpoint] = {}
        """Vbucket -> the node, as the map named it, to which its last stream request went."""
        self._poll_at = self._loop.time() + _POLL_SECONDS
        feed.connection_ids.update(dict.fromkeys(self.held, NO_CONNECTION))
        is_patient = feed.is_endless and address.options.missing_vbuckets is MissingVbuckets.SKIP
        record_error = connections.journal.record_error
        self._outages = Outages(address, self._loop.time, limitless=is_patient, record_error=record_error)

    def confirm_recovery(self, connection_id: int) -> None:
        """Delete the failures of a connection's vbuckets after a delivery, unless it has unanswered requests."""
        if self._outages and not self._feed.count_unanswered(connection_id):
            connection_ids = self._feed.connection_ids
            self._unconfirmed = {vb for vb in self._unconfirmed if connection_ids.get(vb) != connection_id}
            self._outages.forget_recovered(self._feed.recovering | self.held | self._unconfirmed)

    def find_next_due(self) -> float | None:
        """Return the loop's time of the next attempt; None: an attempt is running, or no attempt is needed."""
        if self._attempt is not None:
            return None
        due = self._outages.find_next_due(self.held.intersection(self._feed.find_unfinished()))
        if self._needs_polls:
            return self._poll_at if due is None else min(due, self._poll_at)
        return due

    @property
    def _needs_polls(self) -> bool:
        """Whether the cluster map is requested at intervals, because no node would push a newer one."""
        return self.map.is_clustered and not self._connections.has_pushes

    # failures

    async def handle_ended(self) -> None:
        """Handle pushed maps, and the ends of connection attempts, streams and connections since the last call.

        Raises:
            Error, OSError: a failure is permanent, or has lasted for the limit.
        """
        self._connections.has_ended = False
        if self.map.adopt_received(self._connections.received_map):
            self._outages.make_due(self.held)  # vbuckets that wait may have another node now
            self._hold_moved()
        if self._attempt is not None and self._attempt.done():
            attempt, self._attempt = self._attempt, None
            attempt.result()
        by_id: dict[int, list[StreamFailure]] = {}
        for failure in self._feed.failures.pop_all():
            by_id.setdefault(failure.connection_id, []).append(failure)
        for connection_id, failures in by_id.items():
            await self._handle_stream_failures(connection_id, failures)
        for each in [*self._connections.by_id.values()]:
            link = each.link
            if link.closed.done() and not (link.closed_cleanly and self._feed.dump.record_connection_end()):
                await self._handle_lost_connection(each, link.make_end_error())

    def _hold_moved(self) -> set[int]:
        """Hold the vbuckets whose stream is at another node than the newest map names; return them.

        Their node may send nothing more and not end them: Couchbase 3.x and 7.x end no stream after a takeover.
        """
        streamed = {vb: self._places[vb] for vb in self._feed.find_unfinished() if vb in self._places}
        moved = {vb for vb, place in streamed.items() if self.map.find_owner(vb) not in (None, place)} - self.held
        for connection in self._connections.by_id.values():
            gone = self._connections.list_vbuckets(connection) & moved
            connection.link.send(self._feed.release_streams(sorted(gone)))
        self._feed.connection_ids.update(dict.fromkeys(moved, NO_CONNECTION))
        self.held |= moved
        return moved

    async def _handle_stream_failures(self, connection_id: int, failures: list[StreamFailure]) -> None:
        error, connection = failures[-1].error, self._connections.by_id.get(connection_id)
        if connection is None:
            return  # the next connection requests all its streams again
        if failures[-1].vbucket is None or isinstance(error, AuthenticationStale):
            await self._handle_lost_connection(connection, error)
            return
        vbuckets = {failure.vbucket for failure in failures if failure.vbucket is not None}
        if isinstance(error, NotMyVbucket):
            error = make_not_served_error(vbuckets, self._feed.vbuckets, self._address)
        self.held.update(vbuckets)
        self._feed.connection_ids.update(dict.fromkeys(vbuckets, NO_CONNECTION))
        has_lasted = self._loop.time() - connection.asked_at > LONGEST_DELAY
        lasted = has_lasted and all(failure.was_open for failure in failures)
        self._outages.record_failure(connection.endpoint, vbuckets, error, had_worked=lasted)

    async def _handle_lost_connection(self, connection: StreamConnection, error: Exception) -> None:
        """Hold the vbuckets of a connection that has ended, until another attempt is due.

        Raises:
            ConnectionClosed: the stream cannot resume (TAP with start "now").
            Error, OSError: the failure is permanent, or failures have lasted for the limit.
        """
        connection.record_unanswered(self._feed.count_unanswered(connection.connection_id), self._loop.time())
        if not is_retriable(error, has_served=True):
            if isinstance(error, NotSupported | UnknownCommand) and self._feed.dialect is Dialect.TAP:
                raise await explain_refused_dialect(self._address, Dialect.TAP) from error
            raise error
        if not self._feed.can_resume and not isinstance(error, StatusError):
            await self.close()
            raise ConnectionClosed(f"{self._address}: {error}; TAP cannot resume") from error
        lost = await self._drop(connection)
        if isinstance(error, OrderViolation) and error.seqnos_restarted:
            await self._drop_all()  # the feed has restarted all streams, also those of other connections
        if lost:
            self._record_outage(connection.endpoint, lost, error, had_worked=connection.has_lasted())

    def _record_outage(
        self, endpoint: Endpoint, vbuckets: Collection[int], error: Exception, *, had_worked: bool = False
    ) -> None:
        """Record that a node is down. Raises the errors of Outages.record_failure."""
        if len(self.map.newest.endpoints) <= 1:
            self._outages.record_failure(EVERY_NODE, vbuckets, error, had_worked=had_worked)
            return
        if self._connections and not isinstance(error, OrderViolation):
            error = make_not_served_error(
                vbuckets, self._feed.vbuckets, self._address, f"{format_endpoint(*endpoint)}: {error}"
            )
        self._outages.record_failure(endpoint, vbuckets, error, had_worked=had_worked)

    async def _drop(self, connection: StreamConnection) -> Collection[int]:
        lost = self._connections.drop(connection)
        self.held.update(lost)  # before `await`: an attempt may be running
        await connection.link.close()
        return lost

    async def close(self) -> None:
        """Close all connections, and stop connection attempts."""
        self.is_closed = True
        self._connections.log_drops(at_once=True)
        self._connections.wake.set()
        self._connections.fail_all()  # before `await`: a caller that is cancelled leaves no connection open
        await self.cancel_attempt()
        await self._drop_all()

    async def _drop_all(self) -> None:
        for each in self._connections.fail_all():
            await self._drop(each)

    # attempts

    def start_attempt(self) -> None:
        """Start the requests that are due before stream requests, in a task, while the other vbuckets go on."""
        if self._attempt is not None or self.is_closed:
            return
        if self._needs_polls and self._loop.time() >= self._poll_at:
            self._poll_at = self._loop.time() + _POLL_SECONDS
            self.map.is_outdated = True
        waiting = self.held.intersection(self._feed.find_unfinished())
        due = self._outages.find_due(waiting)
        if due or self.map.is_outdated or self._feed.pending_ends - waiting or self._feed.outdated_collections:
            self._attempt = self._loop.create_task(self._connect(due))
            self._attempt.add_done_callback(self._connections.record_end)

    def send_due_requests(self) -> None:
        """Send the stream requests that are due."""
        self._connections.send_due_requests(self.held, is_clustered=self.map.is_clustered)

    async def cancel_attempt(self) -> None:
        """Cancel the running attempt, if there is one, and wait for its end."""
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
            await asyncio.wait([attempt])

    async def _connect(self, due: Collection[int]) -> None:
        """Connect to the nodes of some vbuckets; request missing end seqnos, and collections that have changed."""
        if self.map.is_outdated and not due:
            due = await self._find_moved()
        if due:
            with self._connections.journal.trace_attempt(len(due), is_again=bool(self._outages)) as span:
                try:
                    if not self.map.has_arrived:
                        self.map.adopt(await self._request_map(self._connections.find_slot(min(due))))
                        due = {*due, *self._hold_moved()}
                    self.map.has_arrived = False  # if the map does not help, the next attempt requests it
                except (OSError, Error) as error:
                    span.add_event("failed", describe_failure(error, len(due)))
                    if self._connections and is_retriable(error, has_served=True):
                        error = make_not_served_error(due, self._feed.vbuckets, self._address, str(error))
                    self._outages.record_failure(EVERY_NODE, due, error)
                    return
                await self._connect_owners(due, span)
        await self._connections.refresh_collections()
        if self._feed.pending_ends:
            await self._set_end_seqnos()

    async def _find_moved(self) -> Collection[int]:
        """Request the map, because there is or may be a newer one; return the vbuckets that have moved."""
        self.map.is_outdated = False
        try:
            self.map.adopt(await self._request_map(0))
        except (OSError, Error) as error:
            if not is_retriable(error, has_served=True):
                raise
            return ()
        self.map.has_arrived = True
        return self._hold_moved()

    async def _request_map(self, slot: int) -> ClusterMap:
        """Request the cluster map, on open connections or on a new one with this slot."""
        connections = self._connections.open_connections
        self._attempts += 1
        if not connections:
            return (await self._connections.connect(self.map.endpoints, slot, must_have_data=True)).session.map
        first = self._attempts % len(connections)  # in turn, because one node may have an old map
        for asked in (*connections[first:], *connections[:first]):
            found = await request_cluster_map(asked.link, asked.endpoint, self._address)
            if found.version >= self.map.announced:
                break
        return found

    async def _connect_owners(self, due: Collection[int], span: WorkSpan) -> None:
        """Connect to the nodes of these vbuckets, to all nodes concurrently."""
        places: dict[tuple[Endpoint, int], set[int]] = {}
        nowhere: set[int] = set()
        for vbucket in due:
            owner = self.map.newest.owners[vbucket]
            if owner == NO_NODE:
                nowhere.add(vbucket)
                continue
            place = self.map.newest.endpoints[owner], self._connections.find_slot(vbucket)
            places.setdefault(place, set()).add(vbucket)
        # Vbuckets without an end seqno are excluded: the request of end seqnos waits for them, or skips them.
        nowhere -= self._feed.pending_ends
        if nowhere:
            self._outages.record_failure(
                NO_NODE, nowhere, make_not_served_error(nowhere, self._feed.vbuckets, self._address)
            )
        await _wait_for_all(
            self._connect_owner(endpoint, slot, vbuckets, span) for (endpoint, slot), vbuckets in places.items()
        )

    async def _connect_owner(self, endpoint: Endpoint, slot: int, vbuckets: set[int], span: WorkSpan) -> None:
        opened = self._connections.open_connections
        existing = [each for each in opened if (each.endpoint, each.slot) == (endpoint, slot)]
        try:
            connection = existing[0] if existing else await self._connections.connect([endpoint], slot)
        except (OSError, Error) as error:
            span.add_event("failed", describe_failure(error, len(vbuckets)))
            self._record_outage(endpoint, vbuckets, error)
            return
        if connection.session.map.version > self.map.newest.version and not existing:
            self.map.adopt(connection.session.map)
        self._feed.connection_ids.update(dict.fromkeys(vbuckets, connection.connection_id))
        self.held -= vbuckets
        self._unconfirmed |= vbuckets if self._outages else set()
        self._places.update(dict.fromkeys(vbuckets, endpoint))
        self._feed.request_again(vbuckets)
        self._hold_moved()  # a newer map may have arrived since the attempt began

    async def _set_end_seqnos(self) -> None:
        """Request the seqnos that "now" stands for: the ends of streams on a new connection or of a new history."""
        assert self._end_seqnos is not None
        pending = sorted(self._feed.pending_ends)
        end_seqnos = await self._end_seqnos(pending)
        for vbucket in pending:
            if vbucket in end_seqnos:
                self._feed.set_end(vbucket, end_seqnos[vbucket])
            else:
                self._feed.skip_vbucket(vbucket)


async def _wait_for_all(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait until all calls have ended, then raise the first of their errors."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
