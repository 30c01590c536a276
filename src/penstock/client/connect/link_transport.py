"""The socket of a connection to a node. It receives and sends bytes, and decides nothing about them."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import Any

from penstock.wire.protocol.frame_receiver import FrameReceiver, ReceiveEvent

_RECEIVE_BUFFER = 4 * 1024 * 1024
"""Bytes of the kernel's receive buffer: a producer can continue to send while the client decodes a slab."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds before the first TCP keep-alive probe and between probes, and the number of unanswered probes."""


class LinkTransport(asyncio.BufferedProtocol):
    """Receives frames for a link, and sends its bytes.

    Attributes:
        drained: set while the transport takes more bytes.
        lost: set once the socket is closed.
        on_bytes: called with the bytes of each read before their frames are handled. They are valid during the call.
        source: a transport whose bytes are sent here. It is read only while this transport takes more bytes.
    """

    def __init__(
        self,
        receiver: FrameReceiver,
        on_events: Callable[[Iterable[ReceiveEvent]], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self.drained, self.lost = asyncio.Event(), asyncio.Event()
        self.drained.set()
        self.on_bytes: Callable[[memoryview], None] | None = None
        self.source: LinkTransport | None = None
        self._receiver = receiver
        self._room = memoryview(b"")
        self._on_events = on_events
        self._on_lost = on_lost
        self._outgoing: list[bytes | bytearray] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

    # called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport, and enlarge the receive buffer of its socket."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        sock = transport.get_extra_info("socket")
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Return the free part of the receiver's slab."""
        self._room = self._receiver.get_buffer()
        return self._room

    def buffer_updated(self, nbytes: int) -> None:
        """Decode the received bytes, and pass the events to the link."""
        if self.on_bytes is not None:
            self.on_bytes(self._room[:nbytes])
        self._on_events(self._receiver.receive_data(nbytes))

    def pause_writing(self) -> None:
        """Hold back requests and the source while the write buffer is full."""
        self.drained.clear()
        if self.source is not None:
            self.source.pause_reading()

    def resume_writing(self) -> None:
        """Let requests through again, and read the source."""
        self.drained.set()
        if self.source is not None:
            self.source.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """Report the end of the connection to the link."""
        self._on_lost(exc)
        self.lost.set()
        self.drained.set()

    # called by the link

    @property
    def is_connected(self) -> bool:
        """Whether there has been a socket."""
        return self._transport is not None

    @property
    def incomplete_frame(self) -> str:
        """A description of the incomplete last frame; empty between two frames."""
        return self._receiver.incomplete_frame

    @property
    def peer(self) -> tuple[Any, ...]:
        """The socket address of the node; empty if the transport does not know it."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return peer if isinstance(peer, tuple) else ()

    @property
    def socket(self) -> socket.socket:
        """The socket."""
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def abort(self) -> None:
        """Close the socket at once, if there is one."""
        if self._transport is not None:
            self._transport.abort()

    def enable_keepalive(self) -> None:
        """Enable TCP keep-alive, for a dialect without liveness checks."""
        sock = self.socket
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for name, value in _KEEP_ALIVE.items():
                if hasattr(socket, name):
                    sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def pause_reading(self) -> None:
        """Stop receiving, if the connection is open."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again, if the connection is open."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def send(self, data: bytes | bytearray) -> None:
        """Send bytes. Bytes of one iteration of the event loop are sent together; an ended connection drops them."""
        if not data:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)

    def _flush(self) -> None:
        data, self._outgoing = b"".join(self._outgoing), []
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
