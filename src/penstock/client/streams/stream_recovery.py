"""What a change stream does about failures: vbuckets wait for their node, and attempts connect to it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.cluster_map import NO_NODE, ClusterMap, Endpoint
from penstock.client.connect.map_request import request_cluster_map
from penstock.client.connect.retry import LONGEST_DELAY, is_retriable
from penstock.client.feeds.consumer_feed import ConsumerFeed, StreamFailure
from penstock.client.streams.dialect_check import explain_refused_dialect
from penstock.client.streams.outages import EVERY_NODE, Outages
from penstock.client.streams.stream_connection import StreamConnection
from penstock.client.streams.stream_connections import NO_CONNECTION, StreamConnections
from penstock.client.topology.missing_vbuckets import make_not_served_error
from penstock.errors import (
    ConnectionClosed,
    Error,
    NotMyVbucket,
    NotSupported,
    OrderViolation,
    RemoteProtocolError,
    StatusError,
    UnknownCommand,
    UsageError,
)
from penstock.wire.codec.constants import Dialect

__all__ = ["EndSeqnos", "StreamRecovery"]

EndSeqnos = Callable[[Sequence[int]], Awaitable[dict[int, int]]]
"""Returns where the streams of some vbuckets end that end "now"; without those that are to be left out."""


class StreamRecovery:
    """Connects a change stream to the nodes of its vbuckets, at first and after each failure.

    Attributes:
        held: vbuckets without a connection to their node.
        is_closed: nothing is connected to any more.
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
        self._endpoints = address.hosts
        self._map = ClusterMap((), ())
        self._attempt: asyncio.Task[None] | None = None
        """Connects to the nodes of vbuckets that are held, and asks where streams end."""
        self._attempts = 0
        self._unconfirmed: set[int] = set()
        """Vbuckets that failed, and have a connection again over which nothing has come yet."""
        feed.connection_ids.update(dict.fromkeys(self.held, NO_CONNECTION))
        is_patient = feed.is_endless and address.options.missing_vbuckets is MissingVbuckets.SKIP
        self._outages = Outages(address, self._loop.time, limitless=is_patient)

    def confirm_recovery(self, connection_id: int) -> None:
        """Forget the failures of the vbuckets whose connection has brought something, unless it owes answers."""
        if self._outages and not self._feed.count_unanswered(connection_id):
            connection_ids = self._feed.connection_ids
            self._unconfirmed = {vb for vb in self._unconfirmed if connection_ids.get(vb) != connection_id}
            self._outages.forget_recovered(self._feed.recovering | self.held | self._unconfirmed)

    def find_next_due(self) -> float | None:
        """Return when the next attempt is due, None: one is being made, or none is needed."""
        if self._attempt is not None:
            return None
        return self._outages.find_next_due(self.held.intersection(self._feed.find_unfinished()))

    # failures

    async def handle_ended(self) -> None:
        """Deal with what has ended since the last time: an attempt to connect, streams, connections."""
        self._connections.has_ended = False
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

    async def _handle_stream_failures(self, connection_id: int, failures: list[StreamFailure]) -> None:
        error, connection = failures[-1].error, self._connections.by_id.get(connection_id)
        if connection is None:
            return  # its streams are asked for again on the next connection anyhow
        if failures[-1].vbucket is None:
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
        """Hold the vbuckets of a connection that has ended, until another attempt is due."""
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
            await self._drop_all()  # the feed has begun all of its streams again
        if lost:
            self._record_outage(connection.endpoint, lost, error, had_worked=connection.has_lasted())

    def _record_outage(
        self, endpoint: Endpoint, vbuckets: Collection[int], error: Exception, *, had_worked: bool = False
    ) -> None:
        """Note that a node is away. Raises as Outages.failed does."""
        if len(self._map.endpoints) <= 1:
            self._outages.record_failure(EVERY_NODE, vbuckets, error, had_worked=had_worked)
            return
        if self._connections and not isinstance(error, OrderViolation):
            error = make_not_served_error(
                vbuckets, self._feed.vbuckets, self._address, f"{endpoint[0]}:{endpoint[1]}: {error}"
            )
        self._outages.record_failure(endpoint, vbuckets, error, had_worked=had_worked)

    async def _drop(self, connection: StreamConnection) -> Collection[int]:
        lost = self._connections.drop(connection)
        self.held.update(lost)  # at once: an attempt may be under way
        await connection.link.close()
        return lost

    async def close(self) -> None:
        """End all connections, and make no more."""
        self.is_closed = True
        self._connections.log_drops(at_once=True)
        self._connections.wake.set()
        await self.cancel_attempt()
        await self._drop_all()

    async def _drop_all(self) -> None:
        for each in self._connections.fail_all():
            await self._drop(each)

    # attempts

    def start_attempt(self) -> None:
        """Connect to the nodes of the vbuckets that are due, while the others go on."""
        if self._attempt is not None or self.is_closed:
            return
        waiting = self.held.intersection(self._feed.find_unfinished())
        due = self._outages.find_due(waiting)
        if due or self._feed.pending_ends - waiting:
            self._attempt = self._loop.create_task(self._connect(due))
            self._attempt.add_done_callback(self._connections.record_end)

    async def cancel_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
            await asyncio.wait([attempt])

    async def _connect(self, due: Collection[int]) -> None:
        """Connect to the nodes of some vbuckets, and find out where their streams end."""
        if due:
            try:
                self._map = await self._request_newest_map()
            except (OSError, Error) as error:
                if self._connections and is_retriable(error, has_served=True):
                    error = make_not_served_error(due, self._feed.vbuckets, self._address, str(error))
                self._outages.record_failure(EVERY_NODE, due, error)
                return
            await self._connect_owners(due)
        if self._feed.pending_ends:
            await self._set_end_seqnos()

    async def _request_newest_map(self) -> ClusterMap:
        """Return the cluster map, of a connection that there is, or of the first one."""
        connections = self._connections.open_connections
        self._attempts += 1
        if connections:
            asked = connections[self._attempts % len(connections)]  # each in turn: one may not know yet
            found = await request_cluster_map(asked.link, asked.endpoint, self._address)
        else:
            found = (await self._connections.connect(self._endpoints)).session.map
        if found.vbuckets != self._feed.vbuckets:
            raise RemoteProtocolError(
                f"{self._address} has {found.vbuckets} vbuckets now, it had {self._feed.vbuckets}"
            )
        if len(found.endpoints) > 1 and self._feed.dialect is Dialect.TAP:
            raise UsageError(f"{self._address} is on {len(found.endpoints)} nodes, and a TAP stream comes from one")
        self._endpoints = (*dict.fromkeys((*self._address.hosts, *found.endpoints)),)
        return found

    async def _connect_owners(self, due: Collection[int]) -> None:
        """Connect to the nodes that have these vbuckets, all at once."""
        by_owner: dict[int, set[int]] = {}
        for vbucket in due:
            by_owner.setdefault(self._map.owners[vbucket], set()).add(vbucket)
        # Those whose end has to be asked for are waited for, or left out, with the answer.
        nowhere = by_owner.pop(NO_NODE, set()) - self._feed.pending_ends
        if nowhere:
            self._outages.record_failure(
                NO_NODE, nowhere, make_not_served_error(nowhere, self._feed.vbuckets, self._address)
            )
        await _wait_for_all(self._connect_owner(self._map.endpoints[owner], each) for owner, each in by_owner.items())

    async def _connect_owner(self, endpoint: Endpoint, vbuckets: set[int]) -> None:
        there = [each for each in self._connections.open_connections if each.endpoint == endpoint]
        try:
            connection = there[0] if there else await self._connections.connect([endpoint])
        except (OSError, Error) as error:
            self._record_outage(endpoint, vbuckets, error)
            return
        self._feed.connection_ids.update(dict.fromkeys(vbuckets, connection.connection_id))
        self.held -= vbuckets
        self._unconfirmed |= vbuckets if self._outages else set()
        self._feed.request_again(vbuckets)

    async def _set_end_seqnos(self) -> None:
        """Find out what "now" is: where the streams of a new connection, or of a new history, are to end."""
        assert self._end_seqnos is not None
        wanted = sorted(self._feed.pending_ends)
        end_seqnos = await self._end_seqnos(wanted)
        for vbucket in wanted:
            if vbucket in end_seqnos:
                self._feed.set_end(vbucket, end_seqnos[vbucket])
            else:
                self._feed.skip_vbucket(vbucket)


async def _wait_for_all(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all calls; raise the first of their errors when all have ended."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
