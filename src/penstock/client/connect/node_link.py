"""One connection to a node: requests and their replies, and the messages that a producer sends without a request.

Replies wake their callers, all other messages go to the streams. This module decides nothing about them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import ssl
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Self

import msgspec

from penstock.client.connect.dropped_frames import DropCounter, DropReason
from penstock.client.connect.link_transport import LinkTransport
from penstock.client.connect.peer_forms import find_datatypes
from penstock.client.connect.pending_calls import PendingCall, PendingCalls
from penstock.client.connect.received_maps import MapFrameReader
from penstock.client.discovery.endpoint import format_endpoint
from penstock.client.discovery.first_bytes import EXPECTED_PORTS, describe_first_bytes
from penstock.errors import (
    ConnectionClosed,
    Error,
    NotCouchbase,
    OperationTimeout,
    RemoteProtocolError,
    StatusError,
    UntrustedNode,
    make_status_error,
)
from penstock.names import make_printable
from penstock.version import __version__
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import SERVER_MAGICS, Frame, name_opcode, name_status
from penstock.wire.codec.layout import Request
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.kv import Hello, Stat, pack_features, unpack_features
from penstock.wire.protocol.frame_receiver import BrokenInput, FrameReceiver, MalformedFrame, ReceiveEvent, Slab
from penstock.wire.values.peer_json import read_peer_json

_TLS_CUT_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""TLS errors of a connection that was cut off without a protocol error."""

_CLOSE_SECONDS = 5.0

ANY_STATUS: Container[int] = range(0x10000)
UNKNOWN_COMMAND_STATUSES = (Status.NOT_SUPPORTED, Status.UNKNOWN_COMMAND)
"""Statuses of a server that does not know the opcode of a request."""

UNSUPPORTED_STATUSES = (Status.EINVAL, *UNKNOWN_COMMAND_STATUSES)
"""Statuses of a server that is too old for a request."""
_NO_GROUP_STATUSES = (Status.KEY_ENOENT, Status.EACCESS, *UNSUPPORTED_STATUSES)

_FAULTS = (BrokenInput, MalformedFrame)

FrameEvents = Callable[["NodeLink", list[ReceiveEvent]], None]


class NodeLink:
    """A connection to a node, which matches replies to requests by opaque.

    Attributes:
        transport: the socket.
        closed: a future that is done when the connection has ended; its result is the reason.
        stale_opaque_limit: messages with opaques below it may belong to streams that used the connection before.
        has_received: the peer has sent a frame.
        closed_cleanly: the node closed the connection between two frames, and there was no error.
        dropped: counts the frames that belong to no request and no stream.
        unknown_opcodes: opcodes that the server does not know; callers use an alternative request instead.
        features: the features that HELLO granted last.
    """

    def __init__(self, on_stream: FrameEvents | None = None, dialect: Dialect = Dialect.DCP) -> None:
        """Create a link without a socket.

        Args:
            on_stream: called once for each read, with the events that are no replies: runs, markers, stream ends,
                noops, or none. An Error that it raises ends the connection.
            dialect: the dialect of its change streams.
        """
        self.transport = LinkTransport(FrameReceiver(Slab(), run_dialect=dialect), self._receive, self._handle_loss)
        self.closed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.stale_opaque_limit = 0
        self.has_received = self.closed_cleanly = False
        self.dropped = DropCounter()
        self.unknown_opcodes: set[int] = set()
        self.features: frozenset[int] = frozenset()
        self._on_stream = on_stream
        self._maps: MapFrameReader | None = None
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
        """Connect to a node.

        Args:
            host: name or IP address.
            port: its port.
            timeout: seconds for TCP and TLS.
            on_stream: as in the constructor.
            dialect: as in the constructor.
            tls: TLS settings; None: no encryption.

        Returns:
            The connected link.

        Raises:
            OSError: the host refuses the connection.
            OperationTimeout: the host does not answer in time.
            ConnectionClosed: the host ends the connection during the TLS handshake.
            UntrustedNode: the node's certificate is not trusted.
            RemoteProtocolError: both sides have no common TLS version or cipher.
        """
        link, name = cls(on_stream, dialect), None if tls is None else host
        peer = format_endpoint(host, port)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_connection(
                    lambda: link.transport, host, port, ssl=tls, server_hostname=name
                )
        except TimeoutError:
            raise OperationTimeout(f"no connection to {peer} within {timeout:g} s") from None
        except ssl.SSLCertVerificationError as error:
            raise UntrustedNode(
                f"the certificate of {peer} is not trusted: {error.verify_message}; option ca names its authority"
            ) from None
        except ssl.SSLError as error:
            if isinstance(error, _TLS_CUT_OFF):
                raise ConnectionClosed(f"{peer} ended the TLS handshake; {EXPECTED_PORTS}") from None
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise RemoteProtocolError(f"TLS handshake with {peer} failed: {reason}; {EXPECTED_PORTS}") from None
        except ConnectionResetError:
            if tls is None:
                raise
            raise ConnectionClosed(f"{peer} ended the TLS handshake; {EXPECTED_PORTS}") from None
        return link

    @property
    def is_local(self) -> bool:
        """Whether the peer is this machine."""
        peer = self.transport.peer
        return bool(peer) and ipaddress.ip_address(peer[0].partition("%")[0]).is_loopback

    @property
    def peer(self) -> str:
        """The node's address and port, for messages."""
        host, port = self.transport.peer[:2] or ("the node", "")
        return format_endpoint(host, port).removesuffix(":")

    @property
    def pending_requests(self) -> int:
        """The number of requests that wait for replies."""
        return self._calls.count

    async def close(self) -> None:
        """Close the connection. Pending requests fail with ConnectionClosed."""
        self.fail(ConnectionClosed("it was closed on this side"))
        if self.transport.is_connected:
            async with asyncio.timeout(_CLOSE_SECONDS):
                await self.transport.lost.wait()

    # called by the transport

    def _receive(self, events: Iterable[ReceiveEvent]) -> None:
        rest: list[ReceiveEvent] = []
        failure: Error | None = None
        try:
            for event in events:
                if isinstance(event, _FAULTS):
                    failure = self._make_input_error(event)
                    break
                self.has_received = True
                if not isinstance(event, Frame) or self._is_for_stream(event):
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

    def _make_input_error(self, event: BrokenInput | MalformedFrame) -> RemoteProtocolError:
        if isinstance(event, BrokenInput) and event.head and not self.has_received:
            return NotCouchbase(describe_first_bytes(self.peer, event.head))
        return event.error

    def _is_for_stream(self, frame: Frame) -> bool:
        """Return whether a frame belongs to a stream. A reply goes to its caller, and other frames are dropped."""
        if frame.specific == Status.NOT_MY_VBUCKET and frame.magic == Magic.RESPONSE and self._maps is not None:
            self._maps.read_refusal(frame)  # before the request's caller asks for the map
        if self._calls.dispatch_reply(frame):
            return False
        if frame.magic in SERVER_MAGICS:
            if self._maps is None or not self._maps.read_push(frame):
                self.dropped.add(DropReason.PUSHED)
            return False
        if self._on_stream is None:
            is_reply = frame.magic == Magic.RESPONSE
            self.dropped.add(DropReason.UNEXPECTED_REPLY if is_reply else DropReason.NO_STREAM)
        return self._on_stream is not None

    def _handle_loss(self, exc: Exception | None) -> None:
        half = self.transport.incomplete_frame
        self.closed_cleanly = exc is None and not self.closed.done() and not half
        self.fail(exc or ConnectionClosed(f"the node closed it after {half}" if half else "the node closed it"))
        for call in self._calls.remove_unanswered():
            call.done.set_exception(self.make_end_error(f" before {name_opcode(call.opcode)} was answered"))

    # called by users of the link

    def fail(self, reason: Exception) -> None:
        """Abort the connection. The first reason is kept."""
        if not self.closed.done():
            self.closed.set_result(reason)
        self.transport.abort()

    def make_end_error(self, when: str = "") -> Error:
        """Return the error for a caller of an ended connection.

        Args:
            when: part of the message, after "the connection ended".
        """
        reason = self.closed.result()
        if isinstance(reason, Error) and not isinstance(reason, ConnectionClosed | OperationTimeout):
            return reason  # the peer violated the protocol or refused: a retry may not help
        return ConnectionClosed(f"the connection ended{when}: {reason}")

    def set_listener(self, on_stream: FrameEvents | None, maps: MapFrameReader | None = None) -> None:
        """Pass events that are no replies to `on_stream` from now on, and frames with cluster maps to `maps`."""
        self._on_stream, self._maps = on_stream, maps

    def send(self, data: bytes | bytearray) -> None:
        """Send bytes. Bytes of one iteration of the event loop are sent together; an ended connection drops them."""
        self.transport.send(data)

    def allocate_opaque(self, count: int = 1, least: int = 0) -> int:
        """Return the first of `count` consecutive unused opaques, at least `least`."""
        return self._calls.allocate_opaque(count, least)

    async def request(self, request: Request, timeout: float, accept: Container[int] = ()) -> Frame:
        """Send a request and return its reply.

        Args:
            request: the request.
            timeout: seconds. A timeout closes the connection: replies come in order, so no later reply would arrive.
            accept: statuses other than SUCCESS that raise no error.

        Raises StatusError for any other status, OperationTimeout, ConnectionClosed, RemoteProtocolError for a malformed
        reply, and LocalProtocolError for an invalid request, which is not sent.
        """
        return (await self.request_many([request], timeout, accept))[0]

    async def request_features(self, wanted: Sequence[int], timeout: float) -> frozenset[int]:
        """Negotiate features by HELLO. Returns those that the server grants; none if it does not know HELLO."""
        hello = Hello(key=f"penstock/{__version__}".encode(), value=pack_features(wanted))
        reply = await self.request(hello, timeout, accept=UNSUPPORTED_STATUSES)
        granted = () if reply.specific else unpack_features(reply.value)
        self.features = frozenset(wanted).intersection(granted)
        return self.features

    async def request_many(
        self, requests: Sequence[Request], timeout: float, accept: Container[int] = ()
    ) -> list[Frame]:
        """Return the replies to many requests, in their order. Raises the errors of `request`."""
        frames = (await self._send_call(requests, timeout)).replies if requests else []
        for request, frame in zip(requests, frames, strict=True):
            if frame.specific != Status.SUCCESS and frame.specific not in accept:
                raise make_refusal_error(request, frame)
        return frames

    async def collect_replies(self, request: Request, timeout: float) -> list[Frame]:
        """Return the replies to a request with several replies (STAT), without the last reply, which has no key.

        Raises the errors of `request`, and RemoteProtocolError for more than MAX_STATS frames or MAX_STAT_BYTES bytes.
        """
        call = await self._send_call([request], timeout, collect=True)
        if call.replies[0].specific != Status.SUCCESS:
            raise make_refusal_error(request, call.replies[0])
        return call.collected or []

    async def request_stats(self, group: str, timeout: float, *, optional: bool = False) -> dict[str, str]:
        """Return a group of statistics: name -> text. Raises the errors of `request`.

        Args:
            group: the group with its arguments.
            timeout: seconds.
            optional: return an empty dict if the server does not have the group, or denies it to the user.
        """
        try:
            frames = await self.collect_replies(Stat(key=group.encode()), timeout)
        except StatusError as error:
            if optional and error.status in _NO_GROUP_STATUSES:
                return {}
            raise
        return {frame.key.decode("utf-8", "replace"): frame.value.decode("utf-8", "replace") for frame in frames}

    async def _send_call(self, requests: Sequence[Request], timeout: float, *, collect: bool = False) -> PendingCall:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        call = PendingCall(self.allocate_opaque(len(requests)), requests, done, collect=collect)
        data = call.encode(requests, find_datatypes(self.features))
        try:
            async with asyncio.timeout(timeout):
                await self.transport.drained.wait()
                if self.closed.done():
                    raise self.make_end_error()
                self._calls.register(call)
                self.transport.send(data)
                await call.done
        except TimeoutError:
            silent = OperationTimeout(f"{name_opcode(call.opcode)}: no answer within {timeout:g} s")
            self.fail(silent)
            raise silent from None
        return call


def make_refusal_error(request: Request, reply: Frame, prefix_bytes: int = 0) -> StatusError:
    """Return the error for a reply with a status other than SUCCESS.

    Args:
        request: the request.
        reply: its reply.
        prefix_bytes: length of the collection id before the key, which the message omits.
    """
    about = repr(request.key[prefix_bytes:]) if request.key else f"on vbucket {request.vbucket}"
    text = read_error_text(reply)
    message = f"{name_opcode(request.opcode)} {about}: {name_status(reply.specific)}" + (f" ({text})" if text else "")
    if reply.specific == Status.EACCESS:
        message += "; the user's roles do not permit it"
    return make_status_error(reply.specific, message, opaque=reply.opaque, vbucket=request.vbucket, body=reply.value)


class _ErrorText(msgspec.Struct):
    context: str


class _ErrorReply(msgspec.Struct):
    """The JSON of an error reply. Source: kv_engine docs/BinaryProtocol.md, "Response Body"."""

    error: _ErrorText


_MAX_TEXT_BYTES = 400


def read_error_text(reply: Frame) -> str:
    """Return the text of an error reply: its value, or the error context if the value is JSON.

    Unprintable characters are escaped, because the text is printed in messages, logs and terminals.
    """
    if len(reply.value) > _MAX_TEXT_BYTES or reply.specific == Status.NOT_MY_VBUCKET:
        return ""
    try:
        text = read_peer_json(reply.value, _ErrorReply, "error").error.context
    except RemoteProtocolError:
        text = reply.value.decode("utf-8", "replace")
    return make_printable(text)
