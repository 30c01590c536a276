"""The connections of a change stream: opening, reading, stream requests, closing, and release to the pool."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from typing import Any

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import open_session
from penstock.client.connect.cluster_map import ClusterMap
from penstock.client.connect.dropped_frames import DropCounter, DropLog, DropReason
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.node_link import NodeLink
from penstock.client.connect.received_maps import ReceivedMap
from penstock.client.connect.retry import is_retriable
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.feeds.collection_selection import parse_manifest
from penstock.client.feeds.consumer_feed import ConsumerFeed
from penstock.client.filters.filter_control import encode_filter
from penstock.client.streams.session_pool import SessionPool
from penstock.client.streams.stream_connection import StreamConnection
from penstock.client.streams.stream_journal import StreamJournal
from penstock.errors import ConnectionClosed, Error, RemoteProtocolError
from penstock.wire.codec.constants import Dialect, Feature
from penstock.wire.codec.flags import StreamFlag
from penstock.wire.messages.collections import GetManifest
from penstock.wire.messages.dcp import StreamReq
from penstock.wire.protocol.frame_receiver import ReceiveEvent

NO_CONNECTION = -1
"""The connection id of a vbucket that is held: it waits for its node."""


class StreamConnections:
    """The connections of a change stream to the nodes. It is true while there are connections.

    The option streamConnections is their number for each node. Each has a slot, and vbuckets belong to slots.

    Attributes:
        by_id: connection id -> connection. No id is used twice.
        wake: set when bytes arrive, or a connection or a connection attempt ends.
        journal: counts and logs the events of the stream.
        has_ended: a connection or a connection attempt has ended, or a node has pushed a cluster map, and
            StreamRecovery has not handled it yet.
        received_map: the newest cluster map that a node has pushed.
    """

    def __init__(self, address: Address, feed: ConsumerFeed, pool: SessionPool | None, journal: StreamJournal) -> None:
        self.by_id: dict[int, StreamConnection] = {}
        self.wake = asyncio.Event()
        self.has_ended = self._had_collections = False
        self.received_map = ReceivedMap()
        self._address = address
        self._feed = feed
        self._pool = pool
        self.journal = journal
        self._loop = asyncio.get_running_loop()
        self._connection_ids = count()
        self._opaque = 0
        self._dropped_before = DropCounter()
        self._drops = DropLog(address, self._loop.time)
        self._slots = 1 if feed.dialect is Dialect.TAP else address.options.stream_connections
        self._distrusts_pool = False  # pooled connections may be as outdated as a connection that failed

    def __bool__(self) -> bool:
        return bool(self.by_id)

    @property
    def open_connections(self) -> list[StreamConnection]:
        """The connections that have not ended."""
        return [each for each in self.by_id.values() if not each.link.closed.done()]

    @property
    def has_pushes(self) -> bool:
        """Whether all nodes push a newer cluster map."""
        return all(Feature.CLUSTERMAP_CHANGE_NOTIFICATION in each.session.features for each in self.open_connections)

    @property
    def dropped(self) -> dict[DropReason, int]:
        """The number of frames and changes that were received and not delivered, by reason."""
        links = [each.link.dropped.frames for each in self.by_id.values()]
        return dict(sum(links, self._dropped_before.frames + self._feed.dropped.frames))

    def log_drops(self, *, at_once: bool = False) -> None:
        """Log frames and changes that were not delivered: at most once a minute, or now if `at_once` is set."""
        self._drops.log_changes(lambda: self.dropped, at_once=at_once)

    def list_vbuckets(self, connection: StreamConnection) -> set[int]:
        """Return the vbuckets whose streams a connection has."""
        return {vb for vb, number in self._feed.connection_ids.items() if number == connection.connection_id}

    def find_slot(self, vbucket: int) -> int:
        """Return the slot of a vbucket."""
        return vbucket % self._slots

    async def connect(
        self, endpoints: Sequence[Endpoint], slot: int = 0, *, must_have_data: bool = False
    ) -> StreamConnection:
        """Return a new connection to one of the endpoints, from the pool if possible.

        Args:
            endpoints: the nodes to try.
            slot: the slot of the connection.
            must_have_data: take a node of the cluster map instead of a node without vbuckets.

        Raises:
            RemoteProtocolError: only some nodes have collections.
            Error, OSError: as `open_session` raises them.
        """
        connection_id = next(self._connection_ids)
        purpose, session = self._purpose(connection_id, slot), None
        if self._pool is not None and not self._distrusts_pool:
            session = self._pool.acquire(self._address, purpose, endpoints)
        if session is None:
            session = await open_session(self._address, replace(purpose, must_have_data=must_have_data), endpoints)
        now = self._loop.time()
        connection = self.by_id[connection_id] = StreamConnection(connection_id, slot, session, now, now, now)
        self.journal.record_connection(session.endpoint, purpose.stream_name)
        self._feed.tolerate_opaques(session.link.stale_opaque_limit, connection_id)
        session.link.closed.add_done_callback(self.record_end)
        has_collections = {each.session.has_collections for each in self.by_id.values()}
        # The feed decodes keys of all connections alike, also those of a connection that has ended.
        self._had_collections = self._had_collections or session.has_collections
        if has_collections == {True, False} or (self._had_collections and not session.has_collections):
            raise RemoteProtocolError(f"only some nodes of {self._address} have collections")
        if self._feed.content.selection is not None:
            await self._use_collections(connection)
        return connection

    async def refresh_collections(self) -> None:
        """Request the collections of nodes whose streams wait for them. A connection that fails ends.

        Raises:
            UsageError: as ConsumerFeed.use_collections raises it.
            Error: the failure is permanent.
        """
        for connection in self.open_connections:
            if connection.connection_id not in self._feed.outdated_collections:
                continue
            try:
                await self._use_collections(connection)
            except Error as error:
                if not is_retriable(error, has_served=True):
                    raise
                connection.link.fail(error)

    def drop(self, connection: StreamConnection) -> Collection[int]:
        """Return the unfinished vbuckets of a connection, after ending it. They have no connection now."""
        link = connection.link
        if connection.is_opening:
            connection.end_opening(link.make_end_error() if link.closed.done() else None)
        self.by_id.pop(connection.connection_id, None)
        self._dropped_before.frames.update(link.dropped.frames)
        link.closed.remove_done_callback(self.record_end)
        link.fail(ConnectionClosed("it was closed on this side"))
        lost = self._feed.forget_connection(connection.connection_id)
        self._feed.connection_ids.update(dict.fromkeys(lost, NO_CONNECTION))
        self._distrusts_pool = True
        return lost

    def fail_all(self) -> list[StreamConnection]:
        """Return all connections, after ending them.

        All end before any is dropped. Otherwise the feed would take a late message for one of a new stream.
        """
        connections = [*self.by_id.values()]
        for each in connections:
            each.end_opening()
            each.link.fail(ConnectionClosed("it was closed on this side"))
        return connections

    def release_to_pool(self) -> None:
        """Release the connections to the pool, if there is a pool and the feed permits reuse."""
        if self._pool is None or not self._feed.is_reusable:
            return
        connections, self.by_id = self.by_id, {}
        for connection_id, each in connections.items():
            link = each.link
            each.end_opening()
            link.stale_opaque_limit = link.allocate_opaque(least=self._opaque + 1)
            link.closed.remove_done_callback(self.record_end)
            link.send(self._feed.take_last_acknowledgement(connection_id))
            self._dropped_before.frames.update(link.dropped.frames)
            self._pool.release(self._address, self._purpose(connection_id, each.slot), each.session)

    def record_end(self, closed: asyncio.Future[Any]) -> None:
        """Record the end of a connection or of a connection attempt. A callback of `closed`."""
        self.has_ended = True
        self.wake.set()

    def send_due_requests(self, held: Collection[int], *, is_clustered: bool) -> None:
        """Send the due requests, each to the node of its vbucket.

        Args:
            held: vbuckets to leave out.
            is_clustered: whether the bucket is or was on several nodes. The cluster map may be outdated, and a former
                owner may keep a replica, whose stream would lack later changes. So a node must refuse a vbucket that is
                not active there. A bucket on one node may have replicas alone, as the copy of another bucket.
        """
        if not self.by_id:
            return
        by_connection: dict[int, list[bytes]] = {}
        pending_ends = self._feed.pending_ends
        requests = self._feed.take_requests(self._take_opaque, {*held, *pending_ends} if pending_ends else held)
        self.journal.log_requests(requests)
        for request in requests:
            connection_id = self._feed.connection_ids.get(request.vbucket, NO_CONNECTION)
            if is_clustered and isinstance(request, StreamReq):
                request = replace(request, flags=request.flags | StreamFlag.ACTIVE_VB_ONLY)
            by_connection.setdefault(connection_id, []).append(request.encode())
        for connection_id, parts in by_connection.items():
            # A TAP request covers all vbuckets, and a TAP stream has one connection.
            connection = self.by_id.get(connection_id) or next(iter(self.by_id.values()))
            if not connection.is_opening:
                name = self.journal.make_name(connection.slot, self._slots)
                connection.opening = self.journal.start_opening(connection.session, name, len(parts))
            connection.link.send(b"".join(parts))
            connection.asked_at = self._loop.time()

    @property
    def is_full(self) -> bool:
        """Whether the caller must consume changes before more are read."""
        return self._feed.queued_bytes > self._feed.window * self._slots

    def resume_reading(self) -> None:
        """Read from all connections again, after the caller has consumed enough."""
        for each in self.by_id.values():
            each.link.transport.resume_reading()

    def _take_opaque(self) -> int:
        """Return an opaque that is unique among all connections, because the feed finds a message's stream by it."""
        links = [each.link for each in self.by_id.values()]
        self._opaque = max(link.allocate_opaque(least=self._opaque + 1) for link in links)
        for link in links:  # else a command of the same connection could get this opaque, and the stream's answer
            link.allocate_opaque(count=0, least=self._opaque + 1)
        return self._opaque

    def _purpose(self, connection_id: int, slot: int) -> Purpose:
        content = self._feed.content
        return Purpose(
            stream_name=self.journal.make_name(slot, self._slots),
            on_stream=partial(self._on_stream, connection_id=connection_id),
            # TAP has one connection to one node, with any map.
            on_map=None if self._feed.dialect is Dialect.TAP else self._receive_map,
            dialect=self._feed.dialect,
            collections=content.selection is not None,
            xattrs=content.xattrs,
            change_history=content.change_history,
            out_of_order=content.out_of_order,
            values=content.values,
            pushed_filter=encode_filter(content.change_filter),
        )

    def _receive_map(self, found: ClusterMap) -> None:
        self.received_map.put(found)
        self.has_ended = True
        self.wake.set()

    async def _use_collections(self, connection: StreamConnection) -> None:
        known = None
        if connection.session.has_collections:
            reply = await connection.link.request(GetManifest(), self._address.options.connect_timeout)
            known = parse_manifest(reply.value)
        missing = self._feed.use_collections(known, connection.connection_id)
        self.journal.record_missing_collections(missing)

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent], *, connection_id: int) -> None:
        connection = self.by_id.get(connection_id)
        if connection is not None:
            connection.alive_at = self._loop.time()
        self.wake.set()
        outgoing = self._feed.receive(events, connection_id)
        if connection is not None and connection.is_opening and not self._feed.count_unanswered(connection_id):
            connection.end_opening()
        if outgoing:
            link.send(outgoing)
        if self.is_full:
            link.transport.pause_reading()
