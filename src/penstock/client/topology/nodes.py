"""The connections over which a bucket is asked for something: one to each of its nodes, made when it is needed."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, TypeVar

from penstock.client.connect.address import Address
from penstock.client.connect.client_session import ClientSession, open_session
from penstock.client.connect.cluster_map import NOBODY, ClusterMap, Place
from penstock.client.connect.dropped import DropReason
from penstock.client.connect.handshake import DOCUMENTS, Purpose
from penstock.client.connect.link import ANY_STATUS, NodeLink
from penstock.client.connect.map_request import request_map
from penstock.client.connect.retry import retrying
from penstock.client.topology.missing import not_served
from penstock.errors import Error, NoBucket, RemoteProtocolError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Request

__all__ = ["Nodes", "RequestPart"]

T = TypeVar("T")


class RequestPart(NamedTuple):
    """Those of some requests that go to one node, by their places among them."""

    link: NodeLink
    places: Sequence[int]


class Nodes:
    """The nodes of a bucket. map: what is known of them, empty before the first connection. collections: they have any.
    purpose: what their connections are for; the bucket's documents.

    Every connection that is made raises as `open_session` does, and RemoteProtocolError where the bucket is not what it
    was: it has other vbuckets, or collections and had none.
    """

    def __init__(self, address: Address, purpose: Purpose = DOCUMENTS) -> None:
        self.map = ClusterMap((), ())
        self.collections = False
        self._address = address
        self._purpose = purpose
        self._first: ClientSession | None = None
        self._links: dict[Place, NodeLink] = {}
        self._is_old = False
        self._connecting = asyncio.Lock()

    @property
    def dropped(self) -> Counter[DropReason]:
        """How many frames of the connections that there are were nobody's, by reason."""
        return sum((link.dropped.frames for link in self._links.values()), Counter())

    async def close(self) -> None:
        links, self._links, self._first = [*self._links.values()], {}, None
        for link in links:
            await link.close()

    def map_is_old(self) -> None:
        """Ask for the map again before the next request: a node is away, or does not have what it should."""
        self._is_old = True

    def has_served(self) -> bool:
        """Tell whether there was a connection to the bucket: if it is not there now, it may come back."""
        return bool(self.map.vbuckets)

    async def retrying(
        self, attempt: Callable[[], Awaitable[T]], only: tuple[type[Exception], ...] = (OSError, Error)
    ) -> T:
        """Return what `attempt` returns; arguments and errors as of penstock.client.connect.retry.retrying."""

        async def attempt_anew() -> T:
            try:
                return await attempt()
            except NoBucket:
                await self.close()  # no connection gets its bucket back
                raise

        return await retrying(attempt_anew, self._address, self.has_served, only)

    async def ready(self) -> NodeLink:
        """Return the connection to the node that was reached first, made new if there is none."""
        async with self._connecting:
            return (await self._ready()).link

    async def every(self) -> list[tuple[int, NodeLink]]:
        """Return the connections to all nodes that have vbuckets, each with the node's number in the map."""
        async with self._connecting:
            first = await self._ready()
            owners = sorted({*self.map.owners} - {NOBODY})
            return [(owner, await self._link_of(owner, first)) for owner in owners]

    async def parts(self, requests: Sequence[Request]) -> list[RequestPart]:
        """Return which requests go to which node. Raises VbucketsNotServed for vbuckets that no node has for now."""
        async with self._connecting:
            first = await self._ready()
            if len(self.map.places) == 1:
                return [RequestPart(first.link, range(len(requests)))]
            by_owner: dict[int, list[int]] = {}
            for place, request in enumerate(requests):
                by_owner.setdefault(self.map.owners[request.vbucket], []).append(place)
            if NOBODY in by_owner:
                self._is_old = True
                nowhere = {requests[place].vbucket for place in by_owner[NOBODY]}
                raise not_served(nowhere, self.map.vbuckets, self._address)
            return [RequestPart(await self._link_of(owner, first), places) for owner, places in by_owner.items()]

    async def links(self, vbuckets: Iterable[int]) -> dict[int, NodeLink]:
        """Return the connection to the node that has each of these vbuckets. Raises as `parts` does."""
        async with self._connecting:
            first = await self._ready()
            wanted = set(vbuckets)
            if len(self.map.places) == 1:
                return dict.fromkeys(wanted, first.link)
            if nowhere := {vbucket for vbucket in wanted if self.map.owners[vbucket] == NOBODY}:
                self._is_old = True
                raise not_served(nowhere, self.map.vbuckets, self._address)
            found: dict[int, NodeLink] = {}
            for vbucket in sorted(wanted):
                found[vbucket] = await self._link_of(self.map.owners[vbucket], first)
            return found

    async def exchange(self, parts: Sequence[RequestPart], requests: Sequence[Request]) -> list[Frame]:
        """Send requests and return their replies in the same order, whatever their status.

        Raises as NodeLink.requests does otherwise.
        """
        timeout = self._address.options.operation_timeout
        if len(parts) == 1:
            return await parts[0].link.requests(requests, timeout, ANY_STATUS)
        answers = await asyncio.gather(
            *(part.link.requests([requests[place] for place in part.places], timeout, ANY_STATUS) for part in parts),
            return_exceptions=True,
        )
        replies: dict[int, Frame] = {}
        for part, answer in zip(parts, answers, strict=True):
            if isinstance(answer, BaseException):
                self._is_old = True
                raise answer
            replies.update(zip(part.places, answer, strict=True))
        return [replies[place] for place in range(len(requests))]

    async def _ready(self) -> ClientSession:
        first = self._first
        if first is None or first.link.closed.done():
            # Of a cluster that has changed, those that were named may all be gone.
            places = dict.fromkeys((*self._address.hosts, *self.map.places))
            first = await self._take(await open_session(self._address, self._purpose, places))
            self._first = first
            self._learn(first.map)
        elif self._is_old:
            self._learn(await request_map(first.link, first.place, self._address))
        return first

    async def _link_of(self, owner: int, first: ClientSession) -> NodeLink:
        place = self.map.places[owner]
        if place == first.place:
            return first.link
        link = self._links.get(place)
        if link is None or link.closed.done():
            self._is_old = True  # unless this succeeds
            link = (await self._take(await open_session(self._address, self._purpose, [place]))).link
            self._is_old = False
        return link

    async def _take(self, session: ClientSession) -> ClientSession:
        """Keep a new connection, unless the bucket has become another one."""
        known, found = self.map.vbuckets, session.map.vbuckets
        if known not in (0, found):
            await session.link.close()
            raise RemoteProtocolError(f"{self._address} has {found} vbuckets now, it had {known}")
        if known and session.collections != self.collections:
            # Requests may have been made already, and a prefix is a part of the key where there are none.
            await session.link.close()
            text = "has collections now, it had none" if session.collections else "has no collections now, it had some"
            raise RemoteProtocolError(f"{self._address} {text}, or does so on another node")
        self.collections = session.collections
        self._links[session.place] = session.link
        return session

    def _learn(self, found: ClusterMap) -> None:
        if self.map.vbuckets not in (0, found.vbuckets):
            raise RemoteProtocolError(f"{self._address} has {found.vbuckets} vbuckets now, it had {self.map.vbuckets}")
        self.map, self._is_old = found, False
