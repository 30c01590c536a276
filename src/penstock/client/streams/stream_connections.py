"""The connections of a change stream: made, read from, asked for streams, ended, and left to the next stream."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from itertools import count
from typing import Any

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session, stream_name
from penstock.client.connect.cluster_map import Place
from penstock.client.connect.dropped import DropLog, Dropped, DropReason
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.link import NodeLink
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.feeds.selection import KnownCollections, read_manifest
from penstock.client.streams.session_pool import SessionPool
from penstock.client.streams.stream_connection import StreamConnection
from penstock.errors import ConnectionClosed, RemoteProtocolError
from penstock.wire.messages.collections import GetManifest
from penstock.wire.protocol.frame_receiver import ReceiveEvent

__all__ = ["NOWHERE", "StreamConnections"]

NOWHERE = -1
"""The connection of a vbucket that is held."""


class StreamConnections:
    """One connection to each node, known by a number that no other connection of the stream ever has.

    Attributes:
        by_via: the connections by number.
        wake: set when something arrived or ended.
        has_ended: a connection, or an attempt to make some, has ended, and nobody has dealt with it yet.
    """

    def __init__(self, address: Address, feed: ConsumerFeed, pool: SessionPool | None) -> None:
        self.by_via: dict[int, StreamConnection] = {}
        self.wake = asyncio.Event()
        self.has_ended = False
        self._address = address
        self._feed = feed
        self._pool = pool
        self._name = stream_name()
        self._loop = asyncio.get_running_loop()
        self._vias = count()
        self._opaque = 0
        self._left_out = Dropped()
        self._drops = DropLog(address, self._loop.time)
        self._distrusts_pool = False  # connections that waited may know as little as the one that failed

    def __bool__(self) -> bool:
        return bool(self.by_via)

    @property
    def open(self) -> list[StreamConnection]:
        """Those that have not ended."""
        return [each for each in self.by_via.values() if not each.link.closed.done()]

    @property
    def dropped(self) -> dict[DropReason, int]:
        """How many frames and changes were received and not handed out, by reason."""
        links = [each.link.dropped.frames for each in self.by_via.values()]
        return dict(sum(links, self._left_out.frames + self._feed.dropped.frames))

    def log_drops(self, *, at_once: bool = False) -> None:
        """Log what was not handed out, at most once a minute."""
        self._drops.note(lambda: self.dropped, at_once=at_once)

    async def connect(self, places: Sequence[Place]) -> StreamConnection:
        """Connect to one of the places, unless there is a connection that waits."""
        via = next(self._vias)
        purpose, session = self._purpose(via), None
        if self._pool is not None and not self._distrusts_pool:
            session = self._pool.take(self._address, purpose, places)
        if session is None:
            session = await open_session(self._address, purpose, places)
        now = self._loop.time()
        connection = self.by_via[via] = StreamConnection(via, session, now, now, now)
        self._feed.tolerate_opaques(session.link.earlier_opaques, via)
        session.link.closed.add_done_callback(self.note_end)
        if {each.session.collections for each in self.by_via.values()} == {True, False}:
            raise RemoteProtocolError(f"only some nodes of {self._address} have collections")
        if self._feed.content.selection is not None:
            self._feed.use_collections(await self._request_collections(session))
        return connection

    def drop(self, connection: StreamConnection) -> Collection[int]:
        """End a connection at once; return its unfinished vbuckets, which have no connection now."""
        link = connection.link
        self.by_via.pop(connection.via, None)
        self._left_out.frames.update(link.dropped.frames)
        link.closed.remove_done_callback(self.note_end)
        link.fail(ConnectionClosed("it was closed on this side"))
        lost = self._feed.connection_lost(connection.via)
        self._feed.vias.update(dict.fromkeys(lost, NOWHERE))
        self._distrusts_pool = True
        return lost

    def fail_all(self) -> list[StreamConnection]:
        """End all connections at once: what still came by one would be taken for the next connection's."""
        connections = [*self.by_via.values()]
        for each in connections:
            each.link.fail(ConnectionClosed("it was closed on this side"))
        return connections

    def leave(self) -> None:
        """Let the connections wait for another stream, if they can."""
        if self._pool is None or not self._feed.is_tidy:
            return
        connections, self.by_via = self.by_via, {}
        for via, each in connections.items():
            link = each.link
            link.earlier_opaques = link.take_opaque(least=self._opaque + 1)
            link.closed.remove_done_callback(self.note_end)
            link.send(self._feed.leave(via))
            self._left_out.frames.update(link.dropped.frames)
            self._pool.keep(self._address, self._purpose(via), each.session)

    def note_end(self, closed: asyncio.Future[Any]) -> None:
        """Note that a connection, or an attempt to make some, has ended."""
        self.has_ended = True
        self.wake.set()

    def send_due(self, held: Collection[int]) -> None:
        """Send the requests that are due, each to the node that has the vbucket. held: vbuckets to leave out."""
        if not self.by_via:
            return
        by_connection: dict[int, list[bytes]] = {}
        needs_end = self._feed.needs_end
        for request in self._feed.requests(self._take_opaque, {*held, *needs_end} if needs_end else held):
            via = self._feed.vias.get(request.vbucket, NOWHERE)
            by_connection.setdefault(via, []).append(request.encode())
        for via, parts in by_connection.items():
            # TAP asks for all vbuckets at once.
            connection = self.by_via.get(via) or next(iter(self.by_via.values()))
            connection.link.send(b"".join(parts))
            connection.asked_at = self._loop.time()

    def resume_reading(self) -> None:
        for each in self.by_via.values():
            each.link.transport.resume_reading()

    def _take_opaque(self) -> int:
        """Return an opaque that no request of any connection has: what comes by any of them is known by it."""
        self._opaque = max(each.link.take_opaque(least=self._opaque + 1) for each in self.by_via.values())
        return self._opaque

    def _purpose(self, via: int) -> Purpose:
        content = self._feed.content
        return Purpose(
            stream_name=self._name,
            on_stream=partial(self._on_stream, via=via),
            dialect=self._feed.dialect,
            collections=content.selection is not None,
            xattrs=content.xattrs,
            values=content.values,
        )

    async def _request_collections(self, session: ClientSession) -> KnownCollections | None:
        if not session.collections:
            return None
        reply = await session.link.request(GetManifest(), self._address.options.connect_timeout)
        return read_manifest(reply.value)

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent], *, via: int) -> None:
        connection = self.by_via.get(via)
        if connection is not None:
            connection.alive_at = self._loop.time()
        self.wake.set()
        outgoing = self._feed.receive(events, via)
        if outgoing:
            link.send(outgoing)
        if self._feed.queued_bytes > self._feed.window:
            link.transport.pause_reading()
