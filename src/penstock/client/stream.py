"""Follow changes over connections that may end: the feed decides, this waits."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any, Self

import pyarrow as pa

from penstock.client.address import Address
from penstock.client.connection import NodeLink
from penstock.client.feed import Delivery, Feed
from penstock.client.position import Position
from penstock.client.session import LONGEST_DELAY, RETRIED, Retry, open_session
from penstock.errors import ConnectionClosed, Error, OperationTimeout
from penstock.wire.connection import ReceiveEvent
from penstock.wire.schema import Change

EndNow = Callable[[], Awaitable[dict[int, int]]]


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`, then `stream.positions` to go on later.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, each vbucket's in order.
    Raises Unreachable when the node stays away, RemoteProtocolError when it breaks the protocol, StatusError when it
    refuses a stream for good.
    """

    def __init__(self, address: Address, feed: Feed, name: str, end_now: EndNow | None = None) -> None:
        self._address = address
        self._feed = feed
        self._name = name
        self._end_now = end_now
        self._link: NodeLink | None = None
        self._wake = asyncio.Event()
        self._failure: Exception | None = None
        self._last: Delivery | None = None
        self._loop = asyncio.get_running_loop()
        self._last_received = self._loop.time()
        self._connected_at: float | None = None
        self._retry = Retry(address.options.retry_seconds, self._loop.time)
        self.positions: dict[int, Position] = {vb: wanted.position for vb, wanted in feed.wanted.items()}
        """By vbucket, where the batches handed out so far end."""

    @property
    def given_up(self) -> list[int]:
        """Vbuckets left alone because the producer's history is not the expected one."""
        return self._feed.given_up

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def close(self) -> None:
        if self._link is not None:
            link, self._link = self._link, None
            await link.close()

    def __aiter__(self) -> AsyncGenerator[pa.RecordBatch, None]:
        return self.batches()

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Give the same changes as objects."""
        while (delivery := await self._next()) is not None:
            for change in delivery.changes:
                yield change

    async def batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Give the changes as record batches, as the stream itself does when it is iterated over."""
        while (delivery := await self._next()) is not None:
            yield delivery.batch

    async def _next(self) -> Delivery | None:
        """Return what arrived next, None once every stream has ended."""
        self._consumed()
        while not self._feed.deliveries:
            if self._failure is not None:
                raise self._failure
            if self._feed.is_done:
                await self.close()
                return None
            try:
                await self._progress()
            except RETRIED as error:
                if self._has_lasted(error):
                    self._retry.succeeded()
                await self._disconnected()
                await asyncio.sleep(self._retry.next_delay(error, self._address))
        self._retry.succeeded()
        delivery = self._last = self._feed.deliveries.popleft()
        self.positions.update(delivery.positions)
        return delivery

    def _consumed(self) -> None:
        """Acknowledge the delivery handed out before: its caller came back, so it is dealt with."""
        if self._last is None:
            return
        outgoing = self._feed.consumed(self._last)
        self._last = None
        if self._link is None:
            return
        if outgoing:
            self._link.send(outgoing)
        if self._feed.queued_bytes <= self._feed.window:
            self._link.resume_reading()

    async def _progress(self) -> None:
        """Connect if need be, ask for the streams that are due, and wait until something arrives or ends."""
        if self._link is None:
            session = await open_session(self._address, self._name, self._on_stream)
            self._link = session.link
            self._connected_at = self._last_received = self._loop.time()
        link = self._link
        if self._feed.needs_end and self._end_now is not None:
            await self._move_ends(self._end_now)
        for request in self._feed.requests(link.take_opaque):
            link.send(request.encode())
        refusal, self._feed.refusal = self._feed.refusal, None
        if refusal is not None:
            raise refusal
        self._wake.clear()
        if not self._feed.deliveries and not self._feed.is_done and self._failure is None:
            await self._wait(link)

    def _has_lasted(self, error: Exception) -> bool:
        """Was there a connection that did its work, though there may have been nothing to deliver?

        If so, the time without changes does not count against the node. One that ends at once is no success.
        """
        if self._connected_at is None:
            return False
        is_silent = isinstance(error, OperationTimeout)
        return (self._last_received if is_silent else self._loop.time()) - self._connected_at > LONGEST_DELAY

    async def _wait(self, link: NodeLink) -> None:
        silence = 2.0 * self._address.options.noop_interval
        woken = asyncio.ensure_future(self._wake.wait())
        try:
            first: set[asyncio.Future[Any]] = {woken, link.closed}
            await asyncio.wait(first, timeout=silence, return_when=asyncio.FIRST_COMPLETED)
            if woken.done():
                return
        finally:
            woken.cancel()
        if link.closed.done():
            raise ConnectionClosed(f"the connection ended: {link.closed.result()}")
        if self._loop.time() - self._last_received > silence:
            raise OperationTimeout(f"nothing from the node for {silence:g} s, though it promised a sign of life")

    async def _move_ends(self, end_now: EndNow) -> None:
        """After a rollback "now" is what the new history has: the old end may never come."""
        high_seqnos = await end_now()
        for vbucket in tuple(self._feed.needs_end):
            self._feed.set_end(vbucket, high_seqnos.get(vbucket, 0))

    async def _disconnected(self) -> None:
        link, self._link = self._link, None
        self._connected_at = None
        self._feed.connection_lost()
        if link is not None:
            with contextlib.suppress(OSError):
                await link.close()

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        self._last_received = self._loop.time()
        self._wake.set()
        try:
            outgoing = self._feed.receive(events)
        except Error as error:
            self._failure = error
            return
        if outgoing:
            link.send(outgoing)
        if self._feed.queued_bytes > self._feed.window:
            link.pause_reading()
