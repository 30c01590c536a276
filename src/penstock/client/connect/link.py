"""One connection to a node: requests and their answers, and what a producer sends by itself.

This is the thin edge: bytes go in and out here, and whoever asked is woken; nothing is decided.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from collections.abc import Callable, Container, Sequence
from struct import Struct
from typing import Any, Final, Self

import msgspec

from penstock.client.connect.dropped import Dropped, DropReason
from penstock.errors import (
    ConnectionClosed,
    Error,
    OperationTimeout,
    RemoteProtocolError,
    StatusError,
    UntrustedNode,
    status_error,
)
from penstock.wire.connection import Broken, Connection, Malformed, ReceiveEvent, Slab
from penstock.wire.constants import Dialect, Magic, Status
from penstock.wire.frame import Frame, opcode_name, status_name
from penstock.wire.kv import Stat
from penstock.wire.layout import Request
from penstock.wire.peer_json import read_peer_json

_RECEIVE_BUFFER = 4 * 1024 * 1024
"""What the kernel may hold for us: room for a producer to go on while a slab is being decoded."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds of silence before the first probe and between probes, and how many are left unanswered."""

_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""What is no fault of what was said: the connection was cut off."""

_CLOSE_SECONDS = 5.0
_OPAQUES = 0x7FFF_FFFF
_OPAQUE, _OPAQUE_AT = Struct(">I"), 12

ANY_STATUS: Container[int] = range(0x10000)
UNKNOWN_COMMAND = (Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)
"""How a server answers a request whose opcode it does not know."""

UNKNOWN_THERE = (Status.EINVAL, *UNKNOWN_COMMAND)
"""How a server answers that is too old for what it was asked."""
_NO_GROUP = (Status.KEY_ENOENT, Status.EACCESS, *UNKNOWN_THERE)

MAX_STATS: Final = 1 << 20
"""Statistics of one answer: a bucket with 65,536 vbuckets has up to nine of each in the group `vbucket-seqno`."""

MAX_STAT_BYTES: Final = 128 * 1024 * 1024
"""Bytes of the names and texts in one answer."""

FrameEvents = Callable[["NodeLink", list[ReceiveEvent]], None]


class _Call:
    """Requests sent together, under opaques from `first` on, and the replies that have come.

    opcode: of the first request. collected: frames in front of the last one, where an answer has several; None where it
    has one. collected_bytes: of their keys and values.
    """

    __slots__ = ("collected", "collected_bytes", "done", "first", "missing", "opcode", "replies")

    def __init__(self, first: int, requests: Sequence[Request], done: asyncio.Future[None], *, collect: bool) -> None:
        self.first = first
        self.missing = len(requests)
        self.opcode = requests[0].opcode
        self.done = done
        self.replies: list[Frame] = [_NONE] * len(requests)
        self.collected: list[Frame] | None = [] if collect else None
        self.collected_bytes = 0

    def take(self, frame: Frame) -> bool:
        """Take a reply; return whether its request is answered with that.

        Raises RemoteProtocolError for an answer of several frames that is too large.
        """
        if self.collected is not None and frame.specific == Status.SUCCESS and frame.key:
            self.collected_bytes += len(frame.key) + len(frame.value)
            if len(self.collected) >= MAX_STATS or self.collected_bytes > MAX_STAT_BYTES:
                raise RemoteProtocolError(
                    f"the answer to {opcode_name(self.opcode)} is too large: {len(self.collected) + 1} entries of "
                    f"{self.collected_bytes} bytes without an end, limits {MAX_STATS} and {MAX_STAT_BYTES}"
                )
            self.collected.append(frame)
            return False
        self.replies[frame.opaque - self.first] = frame
        self.missing -= 1
        if not self.missing and not self.done.done():
            self.done.set_result(None)
        return True


_NONE = Frame(Magic.RESPONSE, 0)


class NodeLink(asyncio.BufferedProtocol):
    """A connection with requests under way, each known by its opaque.

    dialect: the one of its change streams. on_stream: called once for each read, with what in it is no answer to a
    request: runs, markers, stream ends, noops, or nothing. An Error that it raises ends the connection.
    """

    def __init__(self, on_stream: FrameEvents | None = None, dialect: Dialect = Dialect.DCP) -> None:
        self._on_stream = on_stream
        self._receiver = Connection(Slab(), runs=dialect)
        self._waiting: dict[int, _Call] = {}
        self._next_opaque = 1
        self._outgoing: list[bytes | bytearray] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._drained = asyncio.Event()
        self._drained.set()
        self._gone = asyncio.Event()
        self.closed: asyncio.Future[Exception] = self._loop.create_future()
        """Done, with the reason, once the connection has ended."""
        self.earlier_opaques = 0
        """Streams that used the connection before had opaques below it; messages of these may be under way."""
        self.ended_in_order = False
        """The node closed it, between two frames, and not for anything that went wrong."""
        self.dropped = Dropped()
        self.unknown_opcodes: set[int] = set()
        """Requests that the server was found not to know; another way was taken, and is taken next time."""

    @classmethod
    async def open(
        cls,
        host: str,
        port: int,
        timeout: float,
        on_stream: FrameEvents | None = None,
        dialect: Dialect = Dialect.DCP,
        *,
        tls: ssl.SSLContext | None = None,
    ) -> Self:
        """Connect. Raises OSError if nobody listens, OperationTimeout if nobody answers in time (seconds).

        tls: encrypt, and raise UntrustedNode for a certificate that is not believed, RemoteProtocolError for a peer
        with which there is no common way to encrypt.
        """
        loop = asyncio.get_running_loop()
        name = None if tls is None else host
        try:
            async with asyncio.timeout(timeout):
                _, link = await loop.create_connection(
                    lambda: cls(on_stream, dialect), host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError:
            raise OperationTimeout(f"no connection to {host}:{port} within {timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise UntrustedNode(
                f"{host}:{port} shows a certificate that is not believed: {error.verify_message}"
            ) from None
        except ssl.SSLError as error:
            if isinstance(error, _ENDED):
                raise
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise RemoteProtocolError(f"{host}:{port} does not speak TLS as this side does: {reason}") from None
        return link

    @property
    def is_local(self) -> bool:
        """Does it stay on this machine?"""
        peer = self._peer()
        return bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback

    @property
    def peer(self) -> str:
        """The address and port of the node, for messages."""
        host, port = self._peer()[:2] or ("the node", "")
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}".removesuffix(":")

    def _peer(self) -> tuple[Any, ...]:
        """Return the socket address of the node; empty where the transport does not know it."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return peer if isinstance(peer, tuple) else ()

    async def close(self) -> None:
        """End the connection; what still waits for an answer gets ConnectionClosed."""
        self.fail(ConnectionClosed("it was closed on this side"))
        if self._transport is not None:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self._gone.wait()

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
        failure: Error | None = None
        for event in self._receiver.receive_data(nbytes):
            if isinstance(event, Broken | Malformed):
                failure = event.error
                break
            if not (isinstance(event, Frame) and (self._answer(event) or self._drop(event))):
                rest.append(event)
        try:
            if self._on_stream is not None:
                self._on_stream(self, rest)
        except Error as error:
            failure = error
        if failure is not None:
            self.fail(failure)

    def pause_writing(self) -> None:
        self._drained.clear()

    def resume_writing(self) -> None:
        self._drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        half = self._receiver.half_frame
        self.ended_in_order = exc is None and not self.closed.done() and not half
        self.fail(exc or ConnectionClosed(f"the node closed it after {half}" if half else "the node closed it"))
        self._gone.set()
        self._drained.set()
        waiting, self._waiting = self._waiting, {}
        for call in set(waiting.values()):
            if not call.done.done():
                call.done.set_exception(self.ended(f" before {opcode_name(call.opcode)} was answered"))

    @property
    def half_frame(self) -> str:
        """What has come of a frame that is incomplete; empty between two frames."""
        return self._receiver.half_frame

    # what callers use

    def fail(self, reason: Exception) -> None:
        """End the connection at once, for this reason unless there is one already."""
        if not self.closed.done():
            self.closed.set_result(reason)
        if self._transport is not None:
            self._transport.abort()

    def ended(self, when: str = "") -> Error:
        """Return what to raise where something was expected of a connection that has ended. when: part of the text."""
        reason = self.closed.result()
        if isinstance(reason, Error) and not isinstance(reason, ConnectionClosed | OperationTimeout):
            return reason  # the peer broke a rule or refused: trying again may not mend it
        return ConnectionClosed(f"the connection ended{when}: {reason}")

    def listen(self, on_stream: FrameEvents | None) -> None:
        """Give what comes from now on, and is no answer, to somebody else."""
        self._on_stream = on_stream

    def keep_alive(self) -> None:
        """Let the kernel find out whether the peer is still there, for a dialect that has no signs of life."""
        assert self._transport is not None
        sock = self._transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def pause_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, data: bytes | bytearray) -> None:
        """Send bytes; those of one turn of the event loop go out together, on a connection that has ended nowhere."""
        if not data:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def take_opaque(self, count: int = 1, least: int = 0) -> int:
        """Return the first of `count` opaques in a row, not below `least`, that no other request under way has."""
        self._next_opaque = max(self._next_opaque, least)
        if self._next_opaque + count > _OPAQUES:
            self._next_opaque = 1
        first = self._next_opaque
        self._next_opaque += count
        return first

    async def request(self, request: Request, timeout: float, accept: Container[int] = ()) -> Frame:
        """Send a request and return its reply.

        timeout: seconds. It ends the connection as well: replies come in order, so none would follow.
        Raises the StatusError of a status that is neither SUCCESS nor in `accept`, OperationTimeout, ConnectionClosed,
        RemoteProtocolError for what is no reply, LocalProtocolError (nothing was sent).
        """
        return (await self.requests([request], timeout, accept))[0]

    async def requests(self, requests: Sequence[Request], timeout: float, accept: Container[int] = ()) -> list[Frame]:
        """Send many requests at once and return their replies in the same order. Raises as `request` does."""
        frames = (await self._call(requests, timeout)).replies if requests else []
        for request, frame in zip(requests, frames, strict=True):
            if frame.specific != Status.SUCCESS and frame.specific not in accept:
                raise refusal(request, frame)
        return frames

    async def collect(self, request: Request, timeout: float) -> list[Frame]:
        """Send a request that is answered by several frames, and return them but for the last, which has no key (STAT).

        Raises as `request` does, and RemoteProtocolError for more than MAX_STATS frames or MAX_STAT_BYTES bytes.
        """
        call = await self._call([request], timeout, collect=True)
        if call.replies[0].specific != Status.SUCCESS:
            raise refusal(request, call.replies[0])
        return call.collected or []

    async def stats(self, group: str, timeout: float, *, optional: bool = False) -> dict[str, str]:
        """Return a group of statistics, name to text.

        optional: nothing where the server does not have the group, or not for this user. Raises as `request` does.
        """
        try:
            frames = await self.collect(Stat(key=group.encode()), timeout)
        except StatusError as error:
            if optional and error.status in _NO_GROUP:
                return {}
            raise
        return {frame.key.decode("utf-8", "replace"): frame.value.decode("utf-8", "replace") for frame in frames}

    async def _call(self, requests: Sequence[Request], timeout: float, *, collect: bool = False) -> _Call:
        first = self.take_opaque(len(requests))
        data = _encode(requests, first)
        call = _Call(first, requests, self._loop.create_future(), collect=collect)
        try:
            async with asyncio.timeout(timeout):
                await self._drained.wait()
                if self.closed.done():
                    raise self.ended()
                self._waiting.update(dict.fromkeys(range(first, first + len(requests)), call))
                self.send(data)
                await call.done
        except TimeoutError:
            silent = OperationTimeout(f"{opcode_name(call.opcode)}: no answer within {timeout:g} s")
            self.fail(silent)
            raise silent from None
        return call

    def _answer(self, frame: Frame) -> bool:
        """Take a reply to a request of ours; False for any other frame."""
        call = self._waiting.get(frame.opaque) if frame.magic == Magic.RESPONSE else None
        if call is None:
            return False
        try:
            if call.take(frame):
                del self._waiting[frame.opaque]
        except RemoteProtocolError as error:
            self.fail(error)
        return True

    def _drop(self, frame: Frame) -> bool:
        """Leave out a frame that is nobody's; False for one that is for the streams."""
        if frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE):
            self.dropped.add(DropReason.PUSHED)
            return True
        if self._on_stream is None:
            is_reply = frame.magic == Magic.RESPONSE
            self.dropped.add(DropReason.UNEXPECTED_REPLY if is_reply else DropReason.NOBODY_LISTENS)
        return self._on_stream is None


def _encode(requests: Sequence[Request], first: int) -> bytearray:
    """Return the requests' bytes, under the opaques from `first` on."""
    frames = [request.encode() for request in requests]
    data, offset = bytearray().join(frames), _OPAQUE_AT
    for opaque, frame in enumerate(frames, first):
        _OPAQUE.pack_into(data, offset, opaque)
        offset += len(frame)
    return data


def refusal(request: Request, reply: Frame, prefix_bytes: int = 0) -> StatusError:
    """Return the error of a reply with a status other than SUCCESS. prefix_bytes: what is no part of the key itself."""
    about = repr(request.key[prefix_bytes:]) if request.key else f"on vbucket {request.vbucket}"
    text = text_of(reply)
    message = f"{opcode_name(request.opcode)} {about}: {status_name(reply.specific)}" + (f" ({text})" if text else "")
    return status_error(reply.specific, message, opaque=reply.opaque, vbucket=request.vbucket, body=reply.value)


class _ErrorText(msgspec.Struct):
    context: str


class _ErrorAnswer(msgspec.Struct):
    """The JSON of a refusal. Source: kv_engine docs/BinaryProtocol.md, "Response Body"."""

    error: _ErrorText


_MOST_TEXT = 400


def text_of(reply: Frame) -> str:
    """Return what a refusal says in words: its value, or the context of the error where that is JSON.

    What cannot be printed is escaped: the text goes into messages, logs and terminals.
    """
    if len(reply.value) > _MOST_TEXT or reply.specific == Status.NOT_MY_VBUCKET:
        return ""
    try:
        text = read_peer_json(reply.value, _ErrorAnswer, "error").error.context
    except RemoteProtocolError:
        text = reply.value.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
