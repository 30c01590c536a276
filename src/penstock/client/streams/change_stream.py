"""Follow changes over connections that may end: the feed decides, this waits.

There is one connection to each node that has any of the vbuckets, a lane. A lane that ends, or a stream that the
producer ends or refuses, holds its vbuckets: they wait while the others go on. An attempt asks for the newest cluster
map, connects where there is no lane, and lets the streams go on from their positions. `outages` plans the attempts.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Coroutine, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any, Self

import pyarrow as pa

from penstock.client.connect.address import Address, MissingVbuckets
from penstock.client.connect.client_session import Session, open_session, stream_name
from penstock.client.connect.cluster_map import NOBODY, ClusterMap, Place
from penstock.client.connect.dropped import DropLog, Dropped, DropReason
from penstock.client.connect.handshake import Purpose
from penstock.client.connect.link import NodeLink
from penstock.client.connect.map_request import request_map
from penstock.client.connect.retry import LONGEST_DELAY, may_mend
from penstock.client.feeds.consumer_feed import ConsumerFeed, Failure
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.selection import KnownCollections, read_manifest
from penstock.client.feeds.stream_position import Position
from penstock.client.streams.dialect_check import unsupported_error
from penstock.client.streams.lanes import Deadline, Lane, deadlines
from penstock.client.streams.outages import EVERY_NODE, Outages
from penstock.client.streams.session_pool import KeptSessions
from penstock.client.topology.item_counts import ItemCounts
from penstock.client.topology.missing import not_served
from penstock.errors import (
    ConnectionClosed,
    Error,
    NotMyVbucket,
    NotSupported,
    OperationTimeout,
    OrderViolation,
    RemoteProtocolError,
    StatusError,
    UnknownCommand,
    UsageError,
)
from penstock.wire.collections import GetManifest
from penstock.wire.connection import ReceiveEvent
from penstock.wire.constants import Dialect
from penstock.wire.schema import Change

logger = logging.getLogger("penstock.client")

EndSeqnos = Callable[[Sequence[int]], Awaitable[dict[int, int]]]
"""Tells where the streams of some vbuckets end that end "now"; without those that are to be left out."""
AskCounts = Callable[[], Awaitable[ItemCounts | None]]

_SETTLE_SECONDS = 2.0
"""A TAP producer that sends nothing for so long has no backfill to send, or sends none after a crash."""

_NOWHERE = -1
"""The connection of a vbucket that is held."""


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`, then `stream.positions` to go on later.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, each vbucket's in order.
    The connections are there from the first batch asked for until the last one, or `close`, after which none follows.
    While one of several nodes is away, its vbuckets are `missing`, and the changes of the others go on.
    A producer that breaks the order of its streams is left, with a warning, and each stream goes on from its position.
    Raises Unreachable when a node stays away, OrderViolation when it breaks the order three times in a row without a
    change in between, RemoteProtocolError when it sends what cannot be decoded, StatusError when it refuses a stream
    for good, ConnectionClosed when a connection is lost whose stream no other can go on with (TAP,
    from now on).
    """

    def __init__(
        self,
        address: Address,
        feed: ConsumerFeed,
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
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, Lane] = {}
        self._vias = count()
        self._opaque = 0
        self._places = address.hosts
        self._map = ClusterMap((), ())
        self._attempt: asyncio.Task[None] | None = None
        """Connects to the nodes of vbuckets that are held, and asks where streams end."""
        self._attempts = 0
        self._held = set(feed.unfinished())
        """Vbuckets without a connection to their node."""
        self._unproven: set[int] = set()
        """Vbuckets that failed, and have a connection again over which nothing has come yet."""
        feed.vias.update(dict.fromkeys(self._held, _NOWHERE))
        is_patient = feed.is_endless and address.options.missing_vbuckets is MissingVbuckets.SKIP
        self._outages = Outages(address, self._loop.time, limitless=is_patient)
        self._is_closed = self._has_ended = False
        self._failure: Exception | None = None
        """What is to be raised once all that came before it was handed out."""
        self._go_anew = False  # connections that waited may know as little as the one that failed
        self._wake = asyncio.Event()
        self._last: Delivery | None = None
        self._waiting_since = self._left_at = self._loop.time()
        self._silences = 0
        """Connections that ended because nothing came."""
        self._left_out = Dropped()
        self._drops = DropLog(address, self._loop.time)
        self.positions: dict[int, Position] = dict(feed.positions)
        """By vbucket, where the batches handed out so far end. Empty with TAP, which cannot go on from anywhere."""

    @property
    def given_up(self) -> list[int]:
        """Vbuckets left alone because the producer's history is not the expected one."""
        return self._feed.given_up

    @property
    def missing(self) -> tuple[int, ...]:
        """Vbuckets that wait: their node is away, or no node serves them. The changes of the others go on."""
        if self._feed.is_done:
            return ()
        ended = {via for via, lane in self._lanes.items() if lane.link.closed.done()}
        waiting = self._held | self._feed.troubled
        waiting.update(vb for vb, via in self._feed.vias.items() if via in ended)
        return tuple(sorted(waiting.intersection(self._feed.unfinished())))

    @property
    def dropped(self) -> dict[DropReason, int]:
        """How many frames and changes were received and not handed out, by reason."""
        links = [lane.link.dropped.frames for lane in self._lanes.values()]
        return dict(sum(links, self._left_out.frames + self._feed.dropped.frames))

    @property
    def queued_bytes(self) -> int:
        """Bytes of changes that have been received and not been dealt with."""
        return self._feed.queued_bytes

    @property
    def is_connected(self) -> bool:
        return bool(self._lanes)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        self._is_closed = True
        self._drops.note(lambda: self.dropped, at_once=True)
        self._wake.set()
        await self._cancel_attempt()
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
        self._waiting_since = self._loop.time()
        for lane in self._lanes.values():
            lane.asked_at += self._waiting_since - self._left_at  # an answer may lie unread since then
        try:
            await self._care()
            while not self._feed.deliveries or self._is_closed:
                self.positions.update(self._feed.take_positions())
                if self._is_closed or self._feed.is_done:
                    self._leave()
                    await self.close()
                    return None
                await self._progress()
        except (OSError, Error):
            await self._cancel_attempt()
            raise
        finally:
            self._left_at = self._loop.time()
        delivery = self._last = self._feed.deliveries.popleft()
        self._settle(delivery.via)
        self.positions.update(delivery.positions)
        return delivery

    def _consumed(self) -> None:
        """Acknowledge the delivery handed out before: its caller came back, so it is dealt with."""
        if self._last is None:
            return
        outgoing, lane = self._feed.consumed(self._last), self._lanes.get(self._last.via)
        self._last = None
        if outgoing and lane is not None:
            lane.link.send(outgoing)
        if self._feed.queued_bytes <= self._feed.window:
            for each in self._lanes.values():
                each.link.transport.resume_reading()

    def _settle(self, via: int) -> None:
        """Forget the failures of the vbuckets whose connection has brought something, unless it owes answers."""
        if self._outages and not self._feed.unanswered(via):
            vias = self._feed.vias
            self._unproven = {vb for vb in self._unproven if vias.get(vb) != via}
            self._outages.settle(self._feed.troubled | self._held | self._unproven)

    async def _care(self) -> None:
        """Deal with what has ended though there is always something to hand out: its vbuckets are to go on as well."""
        is_due = self._has_ended or self._held or self._feed.failures
        if not (is_due and self._feed.deliveries and self._lanes and self._failure is None):
            return
        if self._feed.dialect is Dialect.TAP:
            return  # there is nothing else to go on with
        try:
            await self._reap()
            self._start_attempt()
            self._send_due()
        except (OSError, Error) as error:
            self._failure = error  # what came before it holds

    async def _progress(self) -> None:
        """Connect if need be, ask for the streams that are due, and wait until something arrives or ends."""
        self._wake.clear()
        if self._failure is not None:
            raise self._failure
        await self._reap()
        self._start_attempt()
        if self._feed.dump.needs_counts and self._lanes:
            await self._set_counts()
        self._send_due()
        self._drops.note(lambda: self.dropped)
        if not (self._feed.deliveries or self._feed.is_done or self._feed.failures):
            await self._wait()

    # failures

    async def _reap(self) -> None:
        """Deal with what has ended since the last time: an attempt to connect, streams, connections."""
        self._has_ended = False
        if self._attempt is not None and self._attempt.done():
            attempt, self._attempt = self._attempt, None
            attempt.result()
        by_via: dict[int, list[Failure]] = {}
        for failure in self._feed.failures.take():
            by_via.setdefault(failure.via, []).append(failure)
        for via, failures in by_via.items():
            await self._stream_failed(via, failures)
        for lane in [*self._lanes.values()]:
            if lane.link.closed.done() and not (lane.link.ended_in_order and self._feed.dump.connection_ended()):
                await self._lose(lane, lane.link.ended())

    async def _stream_failed(self, via: int, failures: list[Failure]) -> None:
        error, lane = failures[-1].error, self._lanes.get(via)
        if lane is None:
            return  # its streams are asked for again on the next connection anyhow
        if failures[-1].vbucket is None:
            await self._lose(lane, error)
            return
        vbuckets = {failure.vbucket for failure in failures if failure.vbucket is not None}
        if isinstance(error, NotMyVbucket):
            error = not_served(vbuckets, self._feed.vbuckets, self._address)
        self._hold(vbuckets)
        has_lasted = self._loop.time() - lane.asked_at > LONGEST_DELAY
        lasted = has_lasted and all(failure.was_open for failure in failures)
        self._outages.failed(lane.place, vbuckets, error, lasted=lasted)

    async def _lose(self, lane: Lane, error: Exception) -> None:
        """Hold the vbuckets of a connection that has ended, until another attempt is due."""
        lane.count(self._feed.unanswered(lane.via), self._loop.time())
        if not may_mend(error, has_served=True):
            if isinstance(error, NotSupported | UnknownCommand) and self._feed.dialect is Dialect.TAP:
                raise await unsupported_error(self._address, Dialect.TAP) from error
            raise error
        if not self._feed.can_go_on and not isinstance(error, StatusError):
            await self.close()
            raise ConnectionClosed(f"{self._address}: {error}; TAP cannot resume") from error
        lost = await self._drop(lane)
        if isinstance(error, OrderViolation) and error.begins_again:
            await self._disconnect()  # the feed has begun all of its streams again
        if lost:
            self._charge(lane.place, lost, error, lasted=lane.has_lasted())

    def _charge(self, place: Place, vbuckets: Collection[int], error: Exception, *, lasted: bool = False) -> None:
        """Note that a node is away. Raises as Outages.failed does."""
        if len(self._map.places) <= 1:
            self._outages.failed(EVERY_NODE, vbuckets, error, lasted=lasted)
            return
        if self._lanes and not isinstance(error, OrderViolation):
            error = not_served(vbuckets, self._feed.vbuckets, self._address, f"{place[0]}:{place[1]}: {error}")
        self._outages.failed(place, vbuckets, error, lasted=lasted)

    def _hold(self, vbuckets: Collection[int]) -> None:
        self._held.update(vbuckets)
        self._feed.vias.update(dict.fromkeys(vbuckets, _NOWHERE))

    async def _drop(self, lane: Lane) -> Collection[int]:
        """End a connection; return its unfinished vbuckets, which are held now."""
        self._lanes.pop(lane.via, None)
        self._left_out.frames.update(lane.link.dropped.frames)
        lane.link.closed.remove_done_callback(self._on_closed)
        lane.link.fail(ConnectionClosed("it was closed on this side"))
        lost = self._feed.connection_lost(lane.via)
        self._hold(lost)
        self._go_anew = True
        await lane.link.close()
        return lost

    async def _disconnect(self) -> None:
        lanes = [*self._lanes.values()]
        for lane in lanes:  # all at once: what still came by one would be taken for the next connection's
            lane.link.fail(ConnectionClosed("it was closed on this side"))
        for lane in lanes:
            await self._drop(lane)

    # connections

    def _start_attempt(self) -> None:
        """Connect to the nodes of the vbuckets that are due, while the others go on."""
        if self._attempt is not None or self._is_closed:
            return
        waiting = self._held.intersection(self._feed.unfinished())
        due = self._outages.due(waiting)
        if due or self._feed.needs_end - waiting:
            self._attempt = self._loop.create_task(self._connect(due))
            self._attempt.add_done_callback(self._on_closed)

    async def _cancel_attempt(self) -> None:
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
                if self._lanes and may_mend(error, has_served=True):
                    error = not_served(due, self._feed.vbuckets, self._address, str(error))
                self._outages.failed(EVERY_NODE, due, error)
                return
            await self._reach(due)
        if self._feed.needs_end:
            await self._set_ends()

    async def _newest_map(self) -> ClusterMap:
        """Return the cluster map, of a connection that there is, or of the first one."""
        lanes = [lane for lane in self._lanes.values() if not lane.link.closed.done()]
        self._attempts += 1
        if lanes:
            lane = lanes[self._attempts % len(lanes)]  # each in turn: one may not know yet
            found = await request_map(lane.link, lane.place, self._address)
        else:
            found = (await self._open(self._places)).session.map
        if found.vbuckets != self._feed.vbuckets:
            raise RemoteProtocolError(
                f"{self._address} has {found.vbuckets} vbuckets now, it had {self._feed.vbuckets}"
            )
        if len(found.places) > 1 and self._feed.dialect is Dialect.TAP:
            raise UsageError(f"{self._address} is on {len(found.places)} nodes, and a TAP stream comes from one")
        self._places = (*dict.fromkeys((*self._address.hosts, *found.places)),)
        return found

    async def _open(self, places: Sequence[Place]) -> Lane:
        """Connect to one of the places, unless there is a connection that waits."""
        via = next(self._vias)
        purpose, session = self._purpose(via), None
        if self._kept is not None and not self._go_anew:
            session = self._kept.take(self._address, purpose, places)
        if session is None:
            session = await open_session(self._address, purpose, places)
        now = self._loop.time()
        lane = self._lanes[via] = Lane(via, session, now, now, now)
        self._feed.tolerate_opaques(session.link.earlier_opaques, via)
        session.link.closed.add_done_callback(self._on_closed)
        if {each.session.collections for each in self._lanes.values()} == {True, False}:
            raise RemoteProtocolError(f"only some nodes of {self._address} have collections")
        if self._feed.collections:
            self._feed.use_collections(await self._known(session))
        return lane

    def _on_closed(self, closed: asyncio.Future[Any]) -> None:
        """Note that a connection, or an attempt to make some, has ended."""
        self._has_ended = True
        self._wake.set()

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
        lanes = [each for each in self._lanes.values() if each.place == place and not each.link.closed.done()]
        try:
            lane = lanes[0] if lanes else await self._open([place])
        except (OSError, Error) as error:
            self._charge(place, vbuckets, error)
            return
        self._feed.vias.update(dict.fromkeys(vbuckets, lane.via))
        self._held -= vbuckets
        self._unproven |= vbuckets if self._outages else set()
        self._feed.ask_again(vbuckets)

    def _leave(self) -> None:
        """Let the connections wait for another stream, if they can."""
        if self._kept is None or not self._feed.is_tidy:
            return
        lanes, self._lanes = self._lanes, {}
        for via, lane in lanes.items():
            link = lane.link
            link.earlier_opaques = link.take_opaque(least=self._opaque + 1)
            link.closed.remove_done_callback(self._on_closed)
            link.send(self._feed.leave(via))
            self._left_out.frames.update(link.dropped.frames)
            self._kept.keep(self._address, self._purpose(via), lane.session)

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

    # what is asked for

    def _send_due(self) -> None:
        """Send the requests that are due, each to the node that has the vbucket."""
        if not self._lanes:
            return
        by_lane: dict[int, list[bytes]] = {}
        held = self._held | self._feed.needs_end if self._feed.needs_end else self._held
        for request in self._feed.requests(self._take_opaque, held):
            by_lane.setdefault(self._feed.vias.get(request.vbucket, _NOWHERE), []).append(request.encode())
        for via, parts in by_lane.items():
            lane = self._lanes.get(via) or next(iter(self._lanes.values()))  # TAP asks for all vbuckets at once
            lane.link.send(b"".join(parts))
            lane.asked_at = self._loop.time()

    def _take_opaque(self) -> int:
        """Return an opaque that no request of any connection has: what comes by any of them is known by it."""
        self._opaque = max(lane.link.take_opaque(least=self._opaque + 1) for lane in self._lanes.values())
        return self._opaque

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
        if warning := self._feed.dump.set_counts(counts):
            logger.warning("%s: %s", self._address, warning)

    # waiting

    async def _wait(self) -> None:
        """Wait for anything that arrives, or a connection's end; end the connections that are silent for too long."""
        feed, now = self._feed, self._loop.time()
        limits: list[Deadline] = []
        for lane in self._lanes.values():
            lane.count(feed.unanswered(lane.via), now)
            limits += deadlines(lane, feed, self._address.options, self._waiting_since, self._silences)
        times = [limit.time for limit in limits]
        settled_at = math.inf
        if feed.dump.unsettled and self._lanes:  # TAP, which promises neither signs of life nor answers
            settled_at = max(lane.alive_at for lane in self._lanes.values()) + _SETTLE_SECONDS
        if self._attempt is None:
            due_at = self._outages.next_due(self._held.intersection(feed.unfinished()))
            times += [] if due_at is None else [due_at]
        until = min((*times, settled_at))
        try:
            async with asyncio.timeout_at(None if until == math.inf else until):
                await self._wake.wait()
        except TimeoutError:
            self._time_out(limits, settled_at)

    def _time_out(self, limits: Sequence[Deadline], settled_at: float) -> None:
        now = self._loop.time()
        if now >= settled_at:
            self._feed.dump.settle()
        for limit in limits:
            if now >= limit.time and not limit.lane.link.closed.done():
                self._silences += limit.is_silence
                limit.lane.link.fail(OperationTimeout(limit.reason))

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent], *, via: int) -> None:
        lane = self._lanes.get(via)
        if lane is not None:
            lane.alive_at = self._loop.time()
        self._wake.set()
        outgoing = self._feed.receive(events, via)
        if outgoing:
            link.send(outgoing)
        if self._feed.queued_bytes > self._feed.window:
            link.transport.pause_reading()


async def _all_of(calls: Iterable[Coroutine[None, None, None]]) -> None:
    """Wait for all calls; raise the first of their errors when all have ended."""
    for found in await asyncio.gather(*calls, return_exceptions=True):
        if isinstance(found, BaseException):
            raise found
