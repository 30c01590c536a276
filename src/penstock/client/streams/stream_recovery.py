"""What a change stream does about failures: vbuckets wait for their node, and attempts connect to it again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Sequence

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.cluster_map import NOBODY, ClusterMap, Place
from penstock.client.connect.map_request import request_map
from penstock.client.connect.retry import LONGEST_DELAY, may_mend
from penstock.client.feeds.consumer_feed import ConsumerFeed, Failure
from penstock.client.streams.dialect_check import unsupported_error
from penstock.client.streams.outages import EVERY_NODE, Outages
from penstock.client.streams.stream_connection import StreamConnection
from penstock.client.streams.stream_connections import NOWHERE, StreamConnections
from penstock.client.topology.missing import not_served
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
        self.held = set(feed.unfinished())
        self.is_closed = False
        self._address = address
        self._feed = feed
        self._connections = connections
        self._end_seqnos = end_seqnos
        self._loop = asyncio.get_running_loop()
        self._places = address.hosts
        self._map = ClusterMap((), ())
        self._attempt: asyncio.Task[None] | None = None
        """Connects to the nodes of vbuckets that are held, and asks where streams end."""
        self._attempts = 0
        self._unproven: set[int] = set()
        """Vbuckets that failed, and have a connection again over which nothing has come yet."""
        feed.vias.update(dict.fromkeys(self.held, NOWHERE))
        is_patient = feed.is_endless and address.options.missing_vbuckets is MissingVbuckets.SKIP
        self._outages = Outages(address, self._loop.time, limitless=is_patient)

    def settle(self, via: int) -> None:
        """Forget the failures of the vbuckets whose connection has brought something, unless it owes answers."""
        if self._outages and not self._feed.unanswered(via):
            vias = self._feed.vias
            self._unproven = {vb for vb in self._unproven if vias.get(vb) != via}
            self._outages.settle(self._feed.troubled | self.held | self._unproven)

    def next_due(self) -> float | None:
        """Return when the next attempt is due, None: one is being made, or none is needed."""
        if self._attempt is not None:
            return None
        return self._outages.next_due(self.held.intersection(self._feed.unfinished()))

    # failures

    async def reap(self) -> None:
        """Deal with what has ended since the last time: an attempt to connect, streams, connections."""
        self._connections.has_ended = False
        if self._attempt is not None and self._attempt.done():
            attempt, self._attempt = self._attempt, None
            attempt.result()
        by_via: dict[int, list[Failure]] = {}
        for failure in self._feed.failures.take():
            by_via.setdefault(failure.via, []).append(failure)
        for via, failures in by_via.items():
            await self._stream_failed(via, failures)
        for each in [*self._connections.by_via.values()]:
            link = each.link
            if link.closed.done() and not (link.ended_in_order and self._feed.dump.connection_ended()):
                await self._lose(each, link.ended())

    async def _stream_failed(self, via: int, failures: list[Failure]) -> None:
        error, connection = failures[-1].error, self._connections.by_via.get(via)
        if connection is None:
            return  # its streams are asked for again on the next connection anyhow
        if failures[-1].vbucket is None:
            await self._lose(connection, error)
            return
        vbuckets = {failure.vbucket for failure in failures if failure.vbucket is not None}
        if isinstance(error, NotMyVbucket):
            error = not_served(vbuckets, self._feed.vbuckets, self._address)
        self.held.update(vbuckets)
        self._feed.vias.update(dict.fromkeys(vbuckets, NOWHERE))
        has_lasted = self._loop.time() - connection.asked_at > LONGEST_DELAY
        lasted = has_lasted and all(failure.was_open for failure in failures)
        self._outages.failed(connection.place, vbuckets, error, lasted=lasted)

    async def _lose(self, connection: StreamConnection, error: Exception) -> None:
        """Hold the vbuckets of a connection that has ended, until another attempt is due."""
        connection.count(self._feed.unanswered(connection.via), self._loop.time())
        if not may_mend(error, has_served=True):
            if isinstance(error, NotSupported | UnknownCommand) and self._feed.dialect is Dialect.TAP:
                raise await unsupported_error(self._address, Dialect.TAP) from error
            raise error
        if not self._feed.can_go_on and not isinstance(error, StatusError):
            await self.close()
            raise ConnectionClosed(f"{self._address}: {error}; TAP cannot resume") from error
        lost = await self._drop(connection)
        if isinstance(error, OrderViolation) and error.begins_again:
            await self._disconnect()  # the feed has begun all of its streams again
        if lost:
            self._charge(connection.place, lost, error, lasted=connection.has_lasted())

    def _charge(self, place: Place, vbuckets: Collection[int], error: Exception, *, lasted: bool = False) -> None:
        """Note that a node is away. Raises as Outages.failed does."""
        if len(self._map.places) <= 1:
            self._outages.failed(EVERY_NODE, vbuckets, error, lasted=lasted)
            return
        if self._connections and not isinstance(error, OrderViolation):
            error = not_served(vbuckets, self._feed.vbuckets, self._address, f"{place[0]}:{place[1]}: {error}")
        self._outages.failed(place, vbuckets, error, lasted=lasted)

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
        await self._disconnect()

    async def _disconnect(self) -> None:
        for each in self._connections.fail_all():
            await self._drop(each)

    # attempts

    def start_attempt(self) -> None:
        """Connect to the nodes of the vbuckets that are due, while the others go on."""
        if self._attempt is not None or self.is_closed:
            return
        waiting = self.held.intersection(self._feed.unfinished())
        due = self._outages.due(waiting)
        if due or self._feed.needs_end - waiting:
            self._attempt = self._loop.create_task(self._connect(due))
            self._attempt.add_done_callback(self._connections.note_end)

    async def cancel_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.cancel()
            await asyncio.wait([attempt])

    async def _connect(self, due: Collection[int]) -> None:
        """Connect to the nodes of some vbuckets, and find out where their streams end."""
        if due:
            try:
                self._map = await self._newest_map()
            except (OSError, Error) as error:
                if self._connections and may_mend(error, has_served=True):
                    error = not_served(due, self._feed.vbuckets, self._address, str(error))
                self._outages.failed(EVERY_NODE, due, error)
                return
            await self._reach(due)
        if self._feed.needs_end:
            await self._set_ends()

    async def _newest_map(self) -> ClusterMap:
        """Return the cluster map, of a connection that there is, or of the first one."""
        connections = self._connections.open
        self._attempts += 1
        if connections:
            asked = connections[self._attempts % len(connections)]  # each in turn: one may not know yet
            found = await request_map(asked.link, asked.place, self._address)
        else:
            found = (await self._connections.connect(self._places)).session.map
        if found.vbuckets != self._feed.vbuckets:
            raise RemoteProtocolError(
                f"{self._address} has {found.vbuckets} vbuckets now, it had {self._feed.vbuckets}"
            )
        if len(found.places) > 1 and self._feed.dialect is Dialect.TAP:
            raise UsageError(f"{self._address} is on {len(found.places)} nodes, and a TAP stream comes from one")
        self._places = (*dict.fromkeys((*self._address.hosts, *found.places)),)
        return found

    async def _reach(self, due: Collection[int]) -> None:
        """Connect to the nodes that have these vbuckets, all at once."""
        by_owner: dict[int, set[int]] = {}
        for vbucket in due:
            by_owner.setdefault(self._map.owners[vbucket], set()).add(vbucket)
        # Those whose end has to be asked for are waited for, or left out, with the answer.
        nowhere = by_owner.pop(NOBODY, set()) - self._feed.needs_end
        if nowhere:
            self._outages.failed(NOBODY, nowhere, not_served(nowhere, self._feed.vbuckets, self._address))
        await _all_of(self._reach_one(self._map.places[owner], each) for owner, each in by_owner.items())

    async def _reach_one(self, place: Place, vbuckets: set[int]) -> None:
        there = [each for each in self._connections.open if each.place == place]
        try:
            connection = there[0] if there else await self._connections.connect([place])
        except (OSError, Error) as error:
            self._charge(place, vbuckets, error)
            return
        self._feed.vias.update(dict.fromkeys(vbuckets, connection.via))
        self.held -= vbuckets
        self._unproven |= vbuckets if self._outages else set()
        self._feed.ask_again(vbuckets)

    async def _set_ends(self) -> None:
        """Find out what "now" is: where the streams of a new connection, or of a new history, are to end."""
        assert self._end_seqnos is not None
        wanted = sorted(self._feed.needs_end)
        end_seqnos = await self._end_seqnos(wanted)
        for vbucket in wanted:
            if vbucket in end_seqnos:
                self._feed.set_end(vbucket, end_seqnos[vbucket])
            else:
                self._feed.leave_out(vbucket)


async def _all_of(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all calls; raise the first of their errors when all have ended."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
