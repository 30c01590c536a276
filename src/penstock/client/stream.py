"""Follow changes over connections that may end: the feed decides, this waits.

There is one connection to each node that has any of the vbuckets. They are made together and given up together:
whatever is wrong with one, the cluster map may be another one by then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from functools import partial
from typing import Self

import pyarrow as pa

from penstock.client.address import Address
from penstock.client.cluster_map import NOBODY, Place
from penstock.client.connection import NodeLink
from penstock.client.dialect_check import unsupported_error
from penstock.client.follower import Delivery, Follower
from penstock.client.handshake import Purpose
from penstock.client.item_counts import ItemCounts
from penstock.client.kept import KeptSessions
from penstock.client.missing import not_served
from penstock.client.position import Position
from penstock.client.retry import LONGEST_DELAY, Retry
from penstock.client.selection import KnownCollections, read_manifest
from penstock.client.session import Session, open_session, stream_name
from penstock.errors import (
    ConnectionClosed,
    Error,
    NotMyVbucket,
    NotSupported,
    OperationTimeout,
    RemoteProtocolError,
    StatusError,
    UnknownCommand,
    UsageError,
)
from penstock.wire.collections import GetManifest
from penstock.wire.connection import ReceiveEvent
from penstock.wire.constants import Dialect
from penstock.wire.layout import Request
from penstock.wire.schema import Change

logger = logging.getLogger("penstock.client")

EndSeqnos = Callable[[Sequence[int]], Awaitable[dict[int, int]]]
"""Tells where the streams of some vbuckets end that end "now"; without those that are to be left out."""
AskCounts = Callable[[], Awaitable[ItemCounts | None]]

_SETTLE_SECONDS = 2.0
"""A TAP producer that sends nothing for so long has no backfill to send, or sends none after a crash."""

_WIDEST_SILENCE = 24.0
"""Seconds to which silences are widened. Couchbase 3.1.6 looks every 6 s whether a NOOP is due, however short the
interval that it has agreed to."""


def tolerated_silence(noop_interval: int, timeouts: int) -> float:
    """Return the seconds of silence after which a producer counts as lost.

    Twice the interval, and twice as long after each timeout, up to _WIDEST_SILENCE: a producer that checks its NOOPs
    rarely then keeps its connection after a few attempts.

    Args:
        noop_interval: the interval that the producer has agreed to, in seconds.
        timeouts: how many connections of this stream have ended for silence.
    """
    shortest = 2.0 * noop_interval
    return max(shortest, min(shortest * (1 << min(timeouts, 10)), _WIDEST_SILENCE))


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`, then `stream.positions` to go on later.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, each vbucket's in order.
    The connection is there from the first batch asked for until the last one, or `close`, after which none follows.
    A producer that breaks the order of its streams is left, with a warning, and each stream goes on from its position.
    Raises Unreachable when the node stays away, OrderViolation when it breaks the order three times in a row without a
    change in between, RemoteProtocolError when it sends what cannot be decoded, StatusError when it refuses a stream
    for good, ConnectionClosed when a connection is lost whose stream no other can go on with (TAP,
    from now on).
    """

    def __init__(
        self,
        address: Address,
        feed: Follower,
        end_seqnos: EndSeqnos | None = None,
        *,
        item_counts: AskCounts | None = None,
        kept: KeptSessions | None = None,
    ) -> None:
        """end_seqnos: asks the node where streams end that end "now"; of no use without any such.

        item_counts: asks the node how many documents there are; without, a TAP stream is not checked to be complete.
        kept: where to take connections from, and to leave them once all streams have ended.
        """
        self._address = address
        self._feed = feed
        self._end_seqnos = end_seqnos
        self._item_counts = item_counts
        self._kept = kept
        self._name = stream_name()
        self._sessions: list[Session] = []
        self._via: list[int] = []
        """By vbucket, which of the connections goes to the node that has it."""
        self._places = address.hosts
        self._is_closed = False
        self._go_anew = False  # connections that waited may know as little as the one that failed
        self._wake = asyncio.Event()
        self._last: Delivery | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting_since = self._asked_since = self._connected_at = self._loop.time()
        self._alive_at: list[float] = []
        """By connection, when it was heard of last."""
        self._reconnect_at: float | None = None
        """When to give these connections up for new ones, because a stream failed that another attempt may mend."""
        self._silences = 0
        """Connections that ended because nothing came."""
        self._retry = Retry(address.options.retry_seconds, self._loop.time)
        self.positions: dict[int, Position] = dict(feed.positions)
        """By vbucket, where the batches handed out so far end. Empty with TAP, which cannot go on from anywhere."""

    @property
    def given_up(self) -> list[int]:
        """Vbuckets left alone because the producer's history is not the expected one."""
        return self._feed.given_up

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that have been received and not been dealt with."""
        return self._feed.queued_bytes

    @property
    def is_connected(self) -> bool:
        return bool(self._sessions)

    @property
    def _links(self) -> list[NodeLink]:
        return [session.link for session in self._sessions]

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_closed = True
        await self._disconnect()

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Give the same changes as objects."""
        while (delivery := await self.next_delivery()) is not None:
            for change in delivery.changes:
                yield change

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as record batches, as the stream itself does when it is iterated over."""
        while (delivery := await self.next_delivery()) is not None:
            yield delivery.batch

    async def next_delivery(self) -> Delivery | None:
        """Return what arrived next, None once every stream has ended."""
        self._consumed()
        self._waiting_since = self._asked_since = self._loop.time()
        while not self._feed.deliveries or self._is_closed:
            self.positions.update(self._feed.take_positions())
            if self._is_closed or self._feed.is_done:
                self._leave()
                await self.close()
                return None
            try:
                await self._progress()
            except (OSError, Error) as error:
                if not self._retry.may_mend(error):
                    if isinstance(error, NotSupported | UnknownCommand) and self._feed.dialect is Dialect.TAP:
                        raise await unsupported_error(self._address, Dialect.TAP) from error
                    raise
                if self._has_lasted():
                    self._retry.succeeded()
                if not self._feed.can_go_on and not isinstance(error, StatusError):
                    await self.close()
                    raise ConnectionClosed(f"{self._address}: {error}; TAP cannot resume") from error
                self._go_anew = True
                await self._disconnect()
                if not self._is_closed:
                    await asyncio.sleep(self._retry.next_delay(error, self._address))
        if not self._feed.troubled:
            self._retry.succeeded()
        delivery = self._last = self._feed.deliveries.popleft()
        self.positions.update(delivery.positions)
        return delivery

    def _consumed(self) -> None:
        """Acknowledge the delivery handed out before: its caller came back, so it is dealt with."""
        if self._last is None:
            return
        outgoing, via = self._feed.consumed(self._last), self._last.via
        self._last = None
        if outgoing and self._sessions:
            self._sessions[via].link.send(outgoing)
        if self._feed.queued_bytes <= self._feed.window:
            for link in self._links:
                link.resume_reading()

    async def _progress(self) -> None:
        """Connect if need be, ask for the streams that are due, and wait until something arrives or ends."""
        if not self._sessions:
            await self._connect()
        if self._feed.needs_end:
            await self._set_ends()
        if self._feed.needs_counts:
            await self._set_counts()
        self._wake.clear()
        links = self._links
        if not links:  # closed meanwhile
            return
        if self._feed.failure is not None and self._reconnect_at is None:
            self._plan_reconnect(self._feed.failure)
        if self._reconnect_at is not None and self._loop.time() >= self._reconnect_at:
            self._go_anew = True
            await self._disconnect()
            return
        if requests := self._feed.requests(links[0].take_opaque):
            self._send(requests)
            self._asked_since = self._loop.time()
        if self._feed.deliveries or self._feed.is_done:
            return
        for link in links:
            if link.closed.done():
                if not (link.ended_in_order and self._feed.connection_ended()):
                    raise link.ended()
                if self._reconnect_at is None:
                    return
        await self._wait()

    def _plan_reconnect(self, failure: Error) -> None:
        """Go on with the other streams of these connections until the failed one is due for another attempt."""
        if isinstance(failure, NotMyVbucket):
            failure = not_served(self._feed.troubled, self._feed.vbuckets, self._address)
        if self._has_lasted():
            self._retry.succeeded()
        self._reconnect_at = self._loop.time() + self._retry.next_delay(failure, self._address)

    def _send(self, requests: Sequence[Request]) -> None:
        """Send requests, each to the node that has the vbucket."""
        by_link: list[list[bytes]] = [[] for _ in self._sessions]
        for request in requests:
            by_link[self._via[request.vbucket]].append(request.encode())
        for link, parts in zip(self._links, by_link, strict=True):
            if parts:
                link.send(b"".join(parts))

    async def _connect(self) -> None:
        session = await self._open(self._places)
        self._places = (*dict.fromkeys((*self._address.hosts, *session.map.places)),)
        self._connected_at = self._loop.time()
        vbuckets = session.map.vbuckets
        if vbuckets != self._feed.vbuckets:
            raise RemoteProtocolError(f"{self._address} has {vbuckets} vbuckets now, it had {self._feed.vbuckets}")
        if self._feed.collections:
            self._feed.use_collections(await self._known(session))
        await self._reach(session)
        links = self._links
        if len(links) > 1:  # what comes by any of them is known by opaques of the first one, and may be of old streams
            links[0].take_opaque(least=max(link.take_opaque() for link in links))
        if self._is_closed:
            await self._disconnect()

    async def _open(self, places: Sequence[Place]) -> Session:
        """Connect to one of the places, unless there is a connection that waits."""
        purpose, session = self._purpose(len(self._sessions)), None
        if self._kept is not None and not self._go_anew:
            session = self._kept.take(self._address, purpose, places)
        if session is None:
            session = await open_session(self._address, purpose, places)
        self._feed.tolerate_opaques(session.link.earlier_opaques)
        session.link.closed.add_done_callback(self._on_closed)
        self._sessions.append(session)
        self._alive_at.append(self._loop.time())
        return session

    def _on_closed(self, closed: asyncio.Future[Exception]) -> None:
        self._wake.set()

    def _leave(self) -> None:
        """Let the connections wait for another stream, if they can."""
        if self._kept is None or not self._feed.is_tidy:
            return
        sessions, self._sessions, self._alive_at = self._sessions, [], []
        # What may still come of these streams is known by opaques of the first one, whoever uses the others next.
        behind = max((session.link.take_opaque() for session in sessions), default=0)
        for via, session in enumerate(sessions):
            session.link.earlier_opaques = session.link.take_opaque(least=behind)
            session.link.closed.remove_done_callback(self._on_closed)
            session.link.send(self._feed.leave(via))
            self._kept.keep(self._address, self._purpose(via), session)

    def _purpose(self, via: int) -> Purpose:
        return Purpose(
            stream_name=self._name,
            on_stream=partial(self._on_stream, via=via),
            dialect=self._feed.dialect,
            collections=self._feed.collections,
            xattrs=self._feed.xattrs,
            values=self._feed.values,
        )

    async def _known(self, session: Session) -> KnownCollections | None:
        if not session.collections:
            return None
        reply = await session.link.request(GetManifest(), self._address.options.connect_timeout)
        return read_manifest(reply.value)

    async def _reach(self, session: Session) -> None:
        """Connect to the other nodes that have any of the vbuckets."""
        owners, places = session.map.owners, session.map.places
        if len(places) > 1 and self._feed.dialect is Dialect.TAP:
            raise UsageError(f"{self._address} is on {len(places)} nodes, and a TAP stream comes from one")
        via_of = {NOBODY: 0} | {number: 0 for number, place in enumerate(places) if place == session.place}
        wanted = tuple(self._feed.unfinished())
        # Those whose end has to be asked for are waited for, or left out, with the answer.
        if nowhere := [vb for vb in wanted if owners[vb] == NOBODY and vb not in self._feed.needs_end]:
            raise not_served(nowhere, len(owners), self._address)
        for vbucket in wanted:
            owner = owners[vbucket]
            if owner not in via_of:
                via_of[owner] = len(self._sessions)
                other = await self._open([places[owner]])
                if other.collections != session.collections:
                    raise RemoteProtocolError(f"only some nodes of {self._address} have collections")
        self._via = [via_of.get(owner, 0) for owner in owners]

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

    async def _set_counts(self) -> None:
        """Let the feed compare what the node counts with what it was sent."""
        counts = None if self._item_counts is None else await self._item_counts()
        if warning := self._feed.set_counts(counts):
            logger.warning("%s: %s", self._address, warning)

    async def _wait(self) -> None:
        """Wait for anything that arrives, or a connection's end. Raises OperationTimeout."""
        options = self._address.options
        until: float | None = None
        if self._feed.noop:
            silence = tolerated_silence(options.noop_interval, self._silences)
            # What came while nobody asked may still lie unread.
            until = max(min(self._alive_at), self._waiting_since) + silence
            what = f"nothing from the node for {silence:g} s, though it promised a sign of life"
        answer_by = self._asked_since + options.operation_timeout
        is_unanswered = self._feed.awaits_replies and (until is None or answer_by < until)
        if is_unanswered:
            until, what = answer_by, f"a stream request without an answer for {options.operation_timeout:g} s"
        if self._feed.unsettled:  # TAP, which promises neither signs of life nor answers
            until, what = max(self._alive_at) + _SETTLE_SECONDS, ""
        is_reconnect = self._reconnect_at is not None and (until is None or self._reconnect_at < until)
        if is_reconnect:
            until = self._reconnect_at
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            if is_reconnect:
                return
            if not what:
                self._feed.settle()
                return
            self._silences += not is_unanswered
            raise OperationTimeout(what) from None

    def _has_lasted(self) -> bool:
        """Was there a connection that did its work, though there may have been nothing to deliver?

        If so, the time without changes does not count against the node. One that ends at once is no success.
        """
        return bool(self._sessions) and max(self._alive_at) - self._connected_at > LONGEST_DELAY

    async def _disconnect(self) -> None:
        links, self._sessions, self._alive_at, self._reconnect_at = self._links, [], [], None
        for link in links:  # all at once: what still came by one would be taken for the next connection's
            link.fail(ConnectionClosed("it was closed on this side"))
        if links:
            self._feed.connection_lost()
        for link in links:
            await link.close()

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent], *, via: int) -> None:
        if via < len(self._alive_at):
            self._alive_at[via] = self._loop.time()
        self._wake.set()
        outgoing = self._feed.receive(events, via)
        if outgoing:
            link.send(outgoing)
        if self._feed.queued_bytes > self._feed.window:
            link.pause_reading()
