"""The connections for requests: one to each node of the bucket, opened when it is needed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, generate_stream_name, open_session
from penstock.client.connect.cluster_map import NO_NODE, ClusterMap
from penstock.client.connect.dropped_frames import DropReason
from penstock.client.connect.handshake import DOCUMENTS, Purpose
from penstock.client.connect.map_request import request_cluster_map
from penstock.client.connect.node_link import ANY_STATUS, NodeLink
from penstock.client.connect.received_maps import ReceivedMap
from penstock.client.connect.retry import run_with_retry
from penstock.client.discovery.endpoint import Endpoint
from penstock.client.topology.further_sessions import FurtherSessions
from penstock.client.topology.missing_vbuckets import make_not_served_error
from penstock.errors import (
    AuthenticationStale,
    Error,
    NoBucket,
    NotInitialized,
    RemoteProtocolError,
    TemporaryFailure,
)
from penstock.wire.codec.frame import Frame, join_frame
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.protocol.frame_receiver import ReceiveEvent

T = TypeVar("T")


class RequestPart(NamedTuple):
    """The requests that go to one node.

    Attributes:
        link: the connection to the node.
        indexes: the positions of the requests in the list of all requests.
    """

    link: NodeLink
    indexes: Sequence[int]


def _answer_noops(link: NodeLink, events: list[ReceiveEvent]) -> None:
    """Answer the NOOPs of a producer. It closes a connection without answers."""
    for event in events:
        if isinstance(event, Frame) and event.magic == Magic.REQUEST and event.opcode == Opcode.DCP_NOOP:
            link.send(join_frame(Frame(Magic.RESPONSE, event.opcode, opaque=event.opaque)))


class CollectionsRenounced(Error):
    """The keys of requests begin with collection ids, but the connections have no collections any more."""


class Nodes:
    """The connections to the nodes of a bucket: one to each, or for documents as many as documentConnections allows.

    Methods that connect raise the errors of `open_session`. They raise RemoteProtocolError if the bucket has another
    number of vbuckets than before, or gained or lost collections.

    Attributes:
        map: the cluster map; empty before the first connection.
        has_collections: whether keys have collection ids.
        is_mixed: only some nodes have collections. Then no connection has them: there is the default collection alone.
        has_durable_writes: whether requests may carry a durability level.
    """

    def __init__(self, address: Address, purpose: Purpose = DOCUMENTS) -> None:
        self.map = ClusterMap((), ())
        self.has_collections = self.has_durable_writes = False
        self._address = address
        self._received = ReceivedMap()
        self._purpose = replace(purpose, on_map=self._received.put)
        self._first: ClientSession | None = None
        self._sessions: dict[Endpoint, ClientSession] = {}
        self._further = FurtherSessions(address.options.document_connections, self._open_session)
        self._is_map_outdated = self.is_mixed = False
        self._connecting = asyncio.Lock()
        self._producers: Nodes | None = None
        """The connections of `connect_producers`."""

    @property
    def dropped(self) -> Counter[DropReason]:
        """The number of dropped frames of the current connections, by reason."""
        return sum(
            (each.link.dropped.frames for each in [*self._sessions.values(), *self._further.list_all()]), Counter()
        )

    async def close(self) -> None:
        """Close all connections."""
        if self._producers is not None:
            await self._producers.close()
        sessions = [*self._sessions.values(), *self._further.list_all()]
        self._sessions, self._first = {}, None
        self._further.forget_all()
        for session in sessions:
            await session.link.close()

    def invalidate_map(self) -> None:
        """Request the map again before the next request: a node is down, or does not have a vbucket of the map."""
        self._is_map_outdated = True
        if self._producers is not None:
            self._producers.invalidate_map()

    @property
    def has_received_map(self) -> bool:
        """Whether a node has sent a map that the next request takes into account."""
        return self._received.is_waiting

    def has_served(self) -> bool:
        """Return whether there was a connection to the bucket: if it is missing now, it may return."""
        return bool(self.map.vbuckets)

    async def run_with_retry(
        self, attempt: Callable[[], Awaitable[T]], only: tuple[type[Exception], ...] = (OSError, Error)
    ) -> T:
        """Return the result of `attempt`. Arguments and errors are those of penstock.client.connect.retry."""

        async def attempt_again() -> T:
            try:
                return await attempt()
            except (NoBucket, NotInitialized, AuthenticationStale):
                await self.close()  # these connections have lost their bucket, or their login, for good
                raise

        return await run_with_retry(attempt_again, self._address, self.has_served, only)

    async def connect_first(self) -> NodeLink:
        """Return the connection to the first node, after opening it if there is none."""
        async with self._connecting:
            return (await self._ensure_first()).link

    async def connect_all(self) -> list[tuple[int, NodeLink]]:
        """Return the connections to all nodes with vbuckets, each with the node's index in the map."""
        async with self._connecting:
            first = await self._ensure_first()
            owners = sorted({*self.map.owners} - {NO_NODE})
            return [(owner, await self._connect_owner(owner, first)) for owner in owners]

    async def connect_reachable(self) -> list[NodeLink | None]:
        """Return the connections to all nodes of the map, by their index; None for a node that cannot be reached."""
        async with self._connecting:
            first = await self._ensure_first()
            found: list[NodeLink | None] = []
            for index in range(len(self.map.endpoints)):
                try:
                    found.append(await self._connect_owner(index, first))
                except (Error, OSError):
                    found.append(None)
            return found

    async def group_by_node(self, requests: Sequence[Request]) -> list[RequestPart]:
        """Return requests grouped by node. Raises VbucketsNotServed for vbuckets that currently have no node."""
        async with self._connecting:
            first = await self._ensure_first()
            if self.map.endpoints == (first.endpoint,):
                return [RequestPart(await self._further.choose_link(first.endpoint, first.link), range(len(requests)))]
            by_owner: dict[int, list[int]] = {}
            for place, request in enumerate(requests):
                by_owner.setdefault(self.map.owners[request.vbucket], []).append(place)
            if NO_NODE in by_owner:
                self._is_map_outdated = True
                nowhere = {requests[place].vbucket for place in by_owner[NO_NODE]}
                raise make_not_served_error(nowhere, self.map.vbuckets, self._address)
            parts: list[RequestPart] = []
            for owner, places in by_owner.items():
                endpoint, link = self.map.endpoints[owner], await self._connect_owner(owner, first)
                parts.append(RequestPart(await self._further.choose_link(endpoint, link), places))
            return parts

    async def connect_owners(self, vbuckets: Iterable[int]) -> dict[int, NodeLink]:
        """Return the connection to the node of each vbucket. Raises the errors of `group_by_node`."""
        async with self._connecting:
            first = await self._ensure_first()
            wanted = set(vbuckets)
            if self.map.endpoints == (first.endpoint,):
                return dict.fromkeys(wanted, first.link)
            if nowhere := {vbucket for vbucket in wanted if self.map.owners[vbucket] == NO_NODE}:
                self._is_map_outdated = True
                raise make_not_served_error(nowhere, self.map.vbuckets, self._address)
            found: dict[int, NodeLink] = {}
            for vbucket in sorted(wanted):
                found[vbucket] = await self._connect_owner(self.map.owners[vbucket], first)
            return found

    async def connect_producers(self, vbuckets: Iterable[int]) -> dict[int, NodeLink]:
        """Return a DCP connection without streams to the node of each vbucket. Raises the errors of `connect_owners`.

        Requests on it need only the privilege to stream.
        """
        if self._producers is None:
            purpose = Purpose(stream_name=generate_stream_name(), collections=True, on_stream=_answer_noops)
            self._producers = Nodes(self._address, purpose)
        return await self._producers.connect_owners(vbuckets)

    async def connect_copies(self, vbucket: int) -> list[NodeLink]:
        """Return the connections to the nodes of a vbucket: the active node's, and those of the map's replicas.

        Raises the errors of `group_by_node`.
        """
        async with self._connecting:
            first = await self._ensure_first()
            owner = self.map.owners[vbucket]
            if self.map.endpoints == (first.endpoint,):
                return [first.link]
            if owner == NO_NODE:
                self._is_map_outdated = True
                raise make_not_served_error({vbucket}, self.map.vbuckets, self._address)
            replicas = self.map.replicas[vbucket] if self.map.replicas else ()
            return [await self._connect_owner(index, first) for index in (owner, *replicas)]

    def check_keys(self, *, prefixed: bool) -> None:
        """Raise CollectionsRenounced if keys begin with collection ids that no node would understand."""
        if prefixed and self.is_mixed:
            raise CollectionsRenounced(f"only some nodes of {self._address} have collections")

    async def send_parts(self, parts: Sequence[RequestPart], requests: Sequence[Request]) -> list[Frame]:
        """Send requests and return their replies in the same order, with any status.

        Raises the other errors of NodeLink.request_many.
        """
        timeout = self._address.options.operation_timeout
        if len(parts) == 1:
            return await parts[0].link.request_many(requests, timeout, ANY_STATUS)
        answers = await asyncio.gather(
            *(
                part.link.request_many([requests[place] for place in part.indexes], timeout, ANY_STATUS)
                for part in parts
            ),
            return_exceptions=True,
        )
        replies: dict[int, Frame] = {}
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, BaseException):
                self._is_map_outdated = True
                raise answer
            replies.update(zip(part.indexes, answer, strict=True))
        return [replies[place] for place in range(len(requests))]

    async def _ensure_first(self) -> ClientSession:
        first = self._first
        if first is None or first.link.closed.done():
            # The hosts of the address may have left the cluster since, so the nodes of the map are tried too.
            places = dict.fromkeys((*self._address.hosts, *self.map.endpoints))
            first = await self._keep_session(await self._open_session(places))
            self._first = first
            self._set_map(first.map)
        self._use_received_map()
        if self._is_map_outdated:
            self._set_map(await request_cluster_map(first.link, first.endpoint, self._address))
        if first.endpoint not in self.map.endpoints:
            first = self._first = await self._join_member()
        return first

    def _use_received_map(self) -> None:
        """Use the map that a node pushed. If its version alone is known, the map is requested."""
        found = self._received.take(self.map)
        if found is not None and found.vbuckets:
            self._set_map(found)
        elif found is not None:
            self._is_map_outdated = True

    async def _join_member(self) -> ClientSession:
        """Return a connection to a node of the map: the first node has left it, and does not learn later maps."""
        session = await self._keep_session(await self._open_session(self.map.endpoints))
        self._set_map(session.map)
        return session

    async def _connect_owner(self, owner: int, first: ClientSession) -> NodeLink:
        place = self.map.endpoints[owner]
        if place == first.endpoint:
            return first.link
        session = self._sessions.get(place)
        if session is None or session.link.closed.done():
            self._is_map_outdated = True  # unless this succeeds
            session = await self._keep_session(await self._open_session([place]))
            self._is_map_outdated = False
        return session.link

    async def _keep_session(self, session: ClientSession) -> ClientSession:
        """Keep a new connection as the first one to its node, unless there is another."""
        self.has_collections = session.has_collections
        self.has_durable_writes = session.has_durable_writes
        present = self._sessions.get(session.endpoint)
        if present is not None and not present.link.closed.done():
            await session.link.close()  # requests may wait for replies on the other one
            session = present._replace(map=session.map)
        self._sessions[session.endpoint] = session
        return session

    async def _open_session(self, places: Iterable[Endpoint]) -> ClientSession:
        """Return a new connection to one of the nodes. Its bucket has the same vbuckets and collections as before."""
        session = await open_session(self._address, self._purpose, places)
        known, found = self.map.vbuckets, session.map.vbuckets
        if known not in (0, found):
            await session.link.close()
            raise RemoteProtocolError(f"{self._address} has {found} vbuckets now, it had {known}")
        if known and session.has_collections != self.has_collections:
            # Requests may exist already: without collections, a node takes the collection id for a part of the key.
            await session.link.close()
            if len(self.map.endpoints) > 1:
                await self._renounce_collections()
                raise TemporaryFailure(f"not all nodes of {self._address} have collections: none is used")
            text = (
                "has collections now, it had none" if session.has_collections else "has no collections now, it had some"
            )
            raise RemoteProtocolError(f"{self._address} {text}, or does so on another node")
        return session

    async def _renounce_collections(self) -> None:
        """Connect to all nodes without collections from now on, since one of them has none."""
        self.is_mixed, self.has_collections = True, False
        self._purpose = replace(self._purpose, collections=False)
        await self.close()

    def _set_map(self, found: ClusterMap) -> None:
        if self.map.vbuckets not in (0, found.vbuckets):
            raise RemoteProtocolError(f"{self._address} has {found.vbuckets} vbuckets now, it had {self.map.vbuckets}")
        self.map, self._is_map_outdated = self.map.choose_newer(found), False
