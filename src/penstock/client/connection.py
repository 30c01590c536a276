"""One connection to a node: requests and their answers, and what a producer sends by itself.

This is the thin edge: bytes go in and out here, and whoever asked is woken; nothing is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Sequence
from typing import Self, TypeVar

from penstock.errors import ConnectionClosed, OperationTimeout, RemoteProtocolError, StatusError, status_error
from penstock.wire.connection import Broken, Connection, Malformed, ReceiveEvent, Slab
from penstock.wire.constants import Magic, Status
from penstock.wire.frame import Frame, opcode_name
from penstock.wire.layout import Request

_RECEIVE_BUFFER = 4 * 1024 * 1024
"""What the kernel may hold for us: room for a producer to go on while a slab is being decoded."""

T = TypeVar("T")
FrameEvents = Callable[["NodeLink", list[ReceiveEvent]], None]


class NodeLink(asyncio.BufferedProtocol):
    """A connection with requests under way, each known by its opaque.

    on_stream: called once for each read with what is no answer to a request: runs, markers, stream ends, noops.
    """

    def __init__(self, on_stream: FrameEvents | None = None) -> None:
        self.on_stream = on_stream
        self._receiver = Connection(Slab(), runs=True)
        self._waiting: dict[int, asyncio.Future[Frame]] = {}
        self._collecting: dict[int, list[Frame]] = {}
        self._next_opaque = 1
        self._outgoing: list[bytes] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        """Done, with the reason, once the connection has ended."""

    @classmethod
    async def open(cls, host: str, port: int, timeout: float, on_stream: FrameEvents | None = None) -> Self:
        """Connect. Raises OSError if nobody listens, OperationTimeout if nobody answers in time."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                _, link = await loop.create_connection(lambda: cls(on_stream), host, port)
        except TimeoutError:
            raise OperationTimeout(f"no connection to {host}:{port} within {timeout:g} s") from None
        return link

    async def close(self) -> None:
        """End the connection; what still waits for an answer gets ConnectionClosed."""
        if self._transport is not None and not self.closed.done():
            self._transport.abort()
            await asyncio.wait([self.closed], timeout=5)

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.get_buffer()

    def buffer_updated(self, nbytes: int) -> None:
        rest: list[ReceiveEvent] = []
        for event in self._receiver.receive_data(nbytes):
            if isinstance(event, Frame) and event.magic == Magic.RESPONSE and self._answer(event):
                continue
            if isinstance(event, Broken | Malformed):
                self.fail(event.error)
                break
            rest.append(event)
        if rest and self.on_stream is not None:
            try:
                self.on_stream(self, rest)
            except RemoteProtocolError as error:
                self.fail(error)

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = exc or ConnectionClosed("the node closed the connection")
        if not self.closed.done():
            self.closed.set_result(reason)
        self._drained.set()
        waiting, self._waiting = self._waiting, {}
        for future in waiting.values():
            if not future.done():
                future.set_exception(ConnectionClosed(f"the connection ended: {self.closed.result()}"))

    def fail(self, reason: Exception) -> None:
        """End the connection because the peer broke a rule or fell silent."""
        if not self.closed.done():
            self.closed.set_result(reason)
        if self._transport is not None:
            self._transport.abort()

    # what callers use

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, data: bytes) -> None:
        """Send bytes; those of one turn of the event loop go out together."""
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def take_opaque(self) -> int:
        """Return an opaque that no other request of this connection has."""
        opaque = self._next_opaque
        self._next_opaque = opaque % 0x7FFF_FFFF + 1
        return opaque

    def start(self, request: Request) -> tuple[int, asyncio.Future[Frame]]:
        """Send a request under an opaque of its own; the future gives the reply's frame, whatever its status."""
        if self.closed.done():
            raise ConnectionClosed(f"the connection ended: {self.closed.result()}")
        opaque = self.take_opaque()
        future: asyncio.Future[Frame] = self._loop.create_future()
        self._waiting[opaque] = future
        self.send(with_opaque(request, opaque))
        return opaque, future

    async def request(self, request: Request, timeout: float, accept: tuple[int, ...] = ()) -> Frame:
        """Send a request and return its reply.

        Raises the StatusError of a status that is neither SUCCESS nor in `accept`, OperationTimeout, ConnectionClosed.
        """
        return (await self.requests([request], timeout, accept))[0]

    async def requests(self, requests: Sequence[Request], timeout: float, accept: tuple[int, ...] = ()) -> list[Frame]:
        """Send many requests at once and return their replies in the same order. Raises as `request` does."""
        await self._drained.wait()
        futures = [self.start(request)[1] for request in requests]
        replies = await self._within(asyncio.gather(*futures, return_exceptions=True), timeout, requests[0])
        frames = []
        for request, reply in zip(requests, replies, strict=True):
            if isinstance(reply, BaseException):
                raise reply
            if reply.specific != Status.SUCCESS and reply.specific not in accept:
                raise _refused(request, reply)
            frames.append(reply)
        return frames

    async def collect(self, request: Request, timeout: float) -> list[Frame]:
        """Send a request that is answered by several frames, the last of them without key and value (STAT)."""
        opaque, future = self.start(request)
        frames = self._collecting[opaque] = []
        try:
            last = await self._within(future, timeout, request)
        finally:
            self._collecting.pop(opaque, None)
        if last.specific != Status.SUCCESS:
            raise _refused(request, last)
        return frames

    async def _within(self, waiting: asyncio.Future[T], timeout: float, request: Request) -> T:
        try:
            async with asyncio.timeout(timeout):
                return await waiting
        except TimeoutError:
            raise OperationTimeout(f"{opcode_name(request.opcode)}: no answer within {timeout:g} s") from None

    def _answer(self, frame: Frame) -> bool:
        collecting = self._collecting.get(frame.opaque)
        if collecting is not None and frame.specific == Status.SUCCESS and frame.key:
            collecting.append(frame)
            return True
        future = self._waiting.pop(frame.opaque, None)
        if future is None:
            return False
        if not future.done():
            future.set_result(frame)
        return True


def with_opaque(request: Request, opaque: int) -> bytes:
    """Return the request's bytes under this opaque."""
    data = bytearray(request.encode())
    data[12:16] = opaque.to_bytes(4, "big")
    return bytes(data)


def _refused(request: Request, reply: Frame) -> StatusError:
    text = reply.value.decode("utf-8", "replace") if len(reply.value) < 200 else ""
    name = Status(reply.specific).name if reply.specific in Status._value2member_map_ else f"0x{reply.specific:02x}"
    message = f"{opcode_name(request.opcode)} on vbucket {request.vbucket}: {name}" + (f" ({text})" if text else "")
    return status_error(reply.specific, message, opaque=reply.opaque, vbucket=request.vbucket, body=reply.value)
