"""Follow changes over connections that may end: the feed decides, this waits."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Self

import pyarrow as pa

from penstock.client.address import Address
from penstock.client.connection import NodeLink
from penstock.client.follower import Delivery, Follower
from penstock.client.position import Position
from penstock.client.session import LONGEST_DELAY, RETRIED, Retry, open_session
from penstock.errors import ConnectionClosed, OperationTimeout, RemoteProtocolError, StatusError
from penstock.wire.connection import ReceiveEvent
from penstock.wire.schema import Change

HighSeqnos = Callable[[], Awaitable[dict[int, int]]]


class ChangeStream:
    """The changes of a bucket, as batches: `async for batch in stream`, then `stream.positions` to go on later.

    A batch is a pyarrow.RecordBatch of CHANGE_SCHEMA with the changes of one or more vbuckets, each vbucket's in order.
    The connection is there from the first batch asked for until the last one, or `close`, after which none follows.
    Raises Unreachable when the node stays away, RemoteProtocolError when it breaks the protocol, StatusError when it
    refuses a stream for good, ConnectionClosed when a connection is lost whose stream no other can go on with (TAP,
    from now on).
    """

    def __init__(self, address: Address, feed: Follower, high_seqnos: HighSeqnos) -> None:
        """high_seqnos: asks the node where streams end that end "now"."""
        self._address = address
        self._feed = feed
        self._high_seqnos = high_seqnos
        # Never that of another process: the node would end the one whenever the other connects.
        self._name = f"penstock:{secrets.token_hex(8)}"
        self._link: NodeLink | None = None
        self._is_closed = False
        self._wake = asyncio.Event()
        self._last: Delivery | None = None
        self._loop = asyncio.get_running_loop()
        self._waiting_since = self._connected_at = self._alive_at = self._loop.time()
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
        return self._link is not None

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
        self._waiting_since = self._loop.time()
        while not self._feed.deliveries or self._is_closed:
            self.positions.update(self._feed.take_positions())
            if self._is_closed or self._feed.is_done:
                await self.close()
                return None
            try:
                await self._progress()
            except RETRIED as error:
                if self._has_lasted():
                    self._retry.succeeded()
                if not self._feed.can_go_on and not isinstance(error, StatusError):
                    await self.close()
                    raise ConnectionClosed(f"{self._address}: {error}; TAP cannot resume") from error
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
        link = self._link or await self._connect()
        if self._feed.needs_end:
            await self._set_ends()
        self._wake.clear()
        if self._feed.failure is not None:
            raise self._feed.failure
        if requests := self._feed.requests(link.take_opaque):
            link.send(b"".join([request.encode() for request in requests]))
            self._waiting_since = self._loop.time()
        if self._feed.deliveries or self._feed.is_done:
            return
        if link.closed.done():
            if link.ended_in_order and self._feed.connection_ended():
                return
            raise link.ended()
        await self._wait(link)

    async def _connect(self) -> NodeLink:
        link, vbuckets = await open_session(self._address, self._name, self._on_stream, self._feed.dialect)
        self._link = link
        if vbuckets != self._feed.vbuckets:
            raise RemoteProtocolError(f"{self._address} has {vbuckets} vbuckets now, it had {self._feed.vbuckets}")
        if self._is_closed:
            await self._disconnect()
        link.closed.add_done_callback(lambda _: self._wake.set())
        self._connected_at = self._alive_at = self._loop.time()
        return link

    async def _set_ends(self) -> None:
        """Find out what "now" is: where the streams of a new connection, or of a new history, are to end."""
        high_seqnos = await self._high_seqnos()
        for vbucket in tuple(self._feed.needs_end):
            self._feed.set_end(vbucket, high_seqnos.get(vbucket, 0))

    async def _wait(self, link: NodeLink) -> None:
        """Wait for anything that arrives, or the connection's end. Raises OperationTimeout."""
        options = self._address.options
        until: float | None = None
        if self._feed.noop:
            silence = 2.0 * options.noop_interval
            until = self._loop.time() + silence
            what = f"nothing from the node for {silence:g} s, though it promised a sign of life"
        answer_by = self._waiting_since + options.operation_timeout
        if self._feed.awaits_replies and (until is None or answer_by < until):
            until, what = answer_by, f"a stream request without an answer for {options.operation_timeout:g} s"
        try:
            async with asyncio.timeout_at(until):
                await self._wake.wait()
        except TimeoutError:
            raise OperationTimeout(what) from None

    def _has_lasted(self) -> bool:
        """Was there a connection that did its work, though there may have been nothing to deliver?

        If so, the time without changes does not count against the node. One that ends at once is no success.
        """
        return self._link is not None and self._alive_at - self._connected_at > LONGEST_DELAY

    async def _disconnect(self) -> None:
        link, self._link = self._link, None
        if link is not None:
            self._feed.connection_lost()
            await link.close()

    def _on_stream(self, link: NodeLink, events: list[ReceiveEvent]) -> None:
        self._alive_at = self._loop.time()
        self._wake.set()
        outgoing = self._feed.receive(events)
        if outgoing:
            link.send(outgoing)
        if self._feed.queued_bytes > self._feed.window:
            link.pause_reading()
