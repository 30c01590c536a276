"""The socket of a connection to a node: bytes go in and out here, and nothing is decided."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterable
from typing import Any

from penstock.wire.protocol.frame_receiver import Connection, ReceiveEvent

__all__ = ["LinkTransport"]

_RECEIVE_BUFFER = 4 * 1024 * 1024
"""What the kernel may hold for us: room for a producer to go on while a slab is being decoded."""

_KEEP_ALIVE = {"TCP_KEEPIDLE": 60, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 6}
"""Seconds of silence before the first probe and between probes, and how many are left unanswered."""


class LinkTransport(asyncio.BufferedProtocol):
    """Reads frames for a link, and writes what it sends.

    Attributes:
        drained: set while the transport takes more bytes.
        lost: set once the socket is closed.
    """

    def __init__(
        self,
        receiver: Connection,
        on_events: Callable[[Iterable[ReceiveEvent]], None],
        on_lost: Callable[[Exception | None], None],
    ) -> None:
        self.drained, self.lost = asyncio.Event(), asyncio.Event()
        self.drained.set()
        self._receiver = receiver
        self._on_events = on_events
        self._on_lost = on_lost
        self._outgoing: list[bytes | bytearray] = []
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()

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
        self._on_events(self._receiver.receive_data(nbytes))

    def pause_writing(self) -> None:
        self.drained.clear()

    def resume_writing(self) -> None:
        self.drained.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._on_lost(exc)
        self.lost.set()
        self.drained.set()

    # what a link calls

    @property
    def is_connected(self) -> bool:
        """Was there ever a socket?"""
        return self._transport is not None

    @property
    def half_frame(self) -> str:
        """What has come of a frame that is incomplete; empty between two frames."""
        return self._receiver.half_frame

    @property
    def peer(self) -> tuple[Any, ...]:
        """The socket address of the node; empty where the transport does not know it."""
        assert self._transport is not None
        peer = self._transport.get_extra_info("peername")
        return peer if isinstance(peer, tuple) else ()

    @property
    def socket(self) -> socket.socket:
        assert self._transport is not None
        found: socket.socket = self._transport.get_extra_info("socket")
        return found

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def keep_alive(self) -> None:
        """Let the kernel find out whether the peer is still there, for a dialect that has no signs of life."""
        sock = self.socket
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
