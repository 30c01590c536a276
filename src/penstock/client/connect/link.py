"""One connection to a node: requests and their answers, and what a producer sends by itself.

This is the thin edge: replies wake the callers, everything else goes to the streams; nothing is decided.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Self

import msgspec

from penstock.client.connect.dropped import Dropped, DropReason
from penstock.client.connect.link_transport import LinkTransport
from penstock.client.connect.pending_calls import PendingCall, PendingCalls
from penstock.errors import (
    ConnectionClosed,
    Error,
    OperationTimeout,
    RemoteProtocolError,
    StatusError,
    UntrustedNode,
    status_error,
)
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame, opcode_name, status_name
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Stat
from penstock.wire.protocol.frame_receiver import Broken, Connection, Malformed, ReceiveEvent, Slab
from penstock.wire.values.peer_json import read_peer_json

_ENDED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""TLS errors of a connection that was cut off, where no side broke a rule."""

_CLOSE_SECONDS = 5.0

ANY_STATUS: Container[int] = range(0x10000)
UNKNOWN_COMMAND = (Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)
"""How a server answers a request whose opcode it does not know."""

UNKNOWN_THERE = (Status.EINVAL, *UNKNOWN_COMMAND)
"""How a server answers that is too old for what it was asked."""
_NO_GROUP = (Status.KEY_ENOENT, Status.EACCESS, *UNKNOWN_THERE)

FrameEvents = Callable[["NodeLink", list[ReceiveEvent]], None]


class NodeLink:
    """A connection with requests under way, each known by its opaque.

    Attributes:
        transport: the socket.
        closed: done, with the reason, once the connection has ended.
        earlier_opaques: streams that used the connection before had opaques below it; messages of these may be under
            way.
        ended_in_order: the node closed the connection, between two frames, and not for anything that went wrong.
        dropped: frames that are nobody's.
        unknown_opcodes: requests that the server was found not to know; another way was taken, and is taken next time.
    """

    def __init__(self, on_stream: FrameEvents | None = None, dialect: Dialect = Dialect.DCP) -> None:
        """Begin without a socket.

        Args:
            on_stream: called once for each read, with what in it is no answer to a request: runs, markers, stream ends,
                noops, or nothing. An Error that it raises ends the connection.
            dialect: the one of its change streams.
        """
        self.transport = LinkTransport(Connection(Slab(), runs=dialect), self._receive, self._lose)
        self.closed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.earlier_opaques = 0
        self.ended_in_order = False
        self.dropped = Dropped()
        self.unknown_opcodes: set[int] = set()
        self._on_stream = on_stream
        self._calls = PendingCalls()

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
        link, name = cls(on_stream, dialect), None if tls is None else host
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: link.transport, host, port, ssl=tls, server_hostname=name
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
        peer = self.transport.peer
        return bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback

    @property
    def peer(self) -> str:
        """The address and port of the node, for messages."""
        host, port = self.transport.peer[:2] or ("the node", "")
        return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}".removesuffix(":")

    async def close(self) -> None:
        """End the connection; what still waits for an answer gets ConnectionClosed."""
        self.fail(ConnectionClosed("it was closed on this side"))
        if self.transport.is_connected:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.transport.lost.wait()

    # what the transport calls

    def _receive(self, events: Iterable[ReceiveEvent]) -> None:
        rest: list[ReceiveEvent] = []
        failure: Error | None = None
        answer = self._calls.answer
        try:
            for event in events:
                if isinstance(event, Broken | Malformed):
                    failure = event.error
                    break
                if not (isinstance(event, Frame) and (answer(event) or self._drop(event))):
                    rest.append(event)
        except RemoteProtocolError as error:
            failure = error
        try:
            if self._on_stream is not None:
                self._on_stream(self, rest)
        except Error as error:
            failure = error
        if failure is not None:
            self.fail(failure)

    def _drop(self, frame: Frame) -> bool:
        """Leave out a frame that is nobody's; False for one that is for the streams."""
        if frame.magic in (Magic.SERVER_REQUEST, Magic.SERVER_RESPONSE):
            self.dropped.add(DropReason.PUSHED)
            return True
        if self._on_stream is None:
            is_reply = frame.magic == Magic.RESPONSE
            self.dropped.add(DropReason.UNEXPECTED_REPLY if is_reply else DropReason.NOBODY_LISTENS)
        return self._on_stream is None

    def _lose(self, exc: Exception | None) -> None:
        half = self.transport.half_frame
        self.ended_in_order = exc is None and not self.closed.done() and not half
        self.fail(exc or ConnectionClosed(f"the node closed it after {half}" if half else "the node closed it"))
        for call in self._calls.take_unanswered():
            call.done.set_exception(self.ended(f" before {opcode_name(call.opcode)} was answered"))

    # what callers use

    def fail(self, reason: Exception) -> None:
        """End the connection at once, for this reason unless there is one already."""
        if not self.closed.done():
            self.closed.set_result(reason)
        self.transport.abort()

    def ended(self, when: str = "") -> Error:
        """Return what to raise where something was expected of a connection that has ended. when: part of the text."""
        reason = self.closed.result()
        if isinstance(reason, Error) and not isinstance(reason, ConnectionClosed | OperationTimeout):
            return reason  # the peer broke a rule or refused: trying again may not mend it
        return ConnectionClosed(f"the connection ended{when}: {reason}")

    def listen(self, on_stream: FrameEvents | None) -> None:
        """Call `on_stream` from now on with what is no answer."""
        self._on_stream = on_stream

    def send(self, data: bytes | bytearray) -> None:
        """Send bytes; those of one turn of the event loop go out together, on a connection that has ended nowhere."""
        self.transport.send(data)

    def take_opaque(self, count: int = 1, least: int = 0) -> int:
        """Return the first of `count` opaques in a row, not below `least`, that no other request under way has."""
        return self._calls.take_opaque(count, least)

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

    async def _call(self, requests: Sequence[Request], timeout: float, *, collect: bool = False) -> PendingCall:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = PendingCall(self.take_opaque(len(requests)), requests, done, collect=collect)
        data = call.encode(requests)
        try:
            async with asyncio.timeout(timeout):
                await self.transport.drained.wait()
                if self.closed.done():
                    raise self.ended()
                self._calls.expect(call)
                self.transport.send(data)
                await call.done
        except TimeoutError:
            silent = OperationTimeout(f"{opcode_name(call.opcode)}: no answer within {timeout:g} s")
            self.fail(silent)
            raise silent from None
        return call


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
    """Return the text of a refusal: its value, or the context of the error where that is JSON.

    What cannot be printed is escaped: the text goes into messages, logs and terminals.
    """
    if len(reply.value) > _MOST_TEXT or reply.specific == Status.NOT_MY_VBUCKET:
        return ""
    try:
        text = read_peer_json(reply.value, _ErrorAnswer, "error").error.context
    except RemoteProtocolError:
        text = reply.value.decode("utf-8", "replace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
