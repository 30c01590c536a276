"""Connections with TLS, from when they are accepted: what each of them costs, and how many may be shaking hands.

asyncio sets 256 KiB aside for a connection with TLS, before a byte has come and for as long as it lasts, and has no
option for it: four thousand peers that connect and say nothing were 1.2 GiB. So the protocol that it makes for them is
made here, as loop.create_server would, with a size of its own; the server itself is one without TLS.
"""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import Callable
from typing import Final, cast

__all__ = ["MOST_HANDSHAKES", "TLS_BUFFER_BYTES", "Handshakes"]

TLS_BUFFER_BYTES: Final = 32 * 1024
"""Two TLS records of the longest kind. Measured, a pipeline of requests is as fast as with asyncio's 256 KiB."""

MOST_HANDSHAKES: Final = 1024
"""Peers that may be shaking hands. With one more, the oldest of them ends."""

_SECONDS = 10.0
"""In which a handshake must be done."""


class Handshakes:
    """Those under way on all ports of a node."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._transports: dict[_Encrypted, asyncio.Transport] = {}  # the oldest first
        self._closed = False

    def encrypted(
        self, make: Callable[[], asyncio.BaseProtocol], context: ssl.SSLContext
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return what makes the protocols of a server with TLS. make: makes those that get the bytes in clear."""
        return lambda: _Encrypted(self, make(), context)

    def close(self) -> None:
        """End all that are not done, and those that begin later: they had been accepted before."""
        self._closed = True
        for transport in tuple(self._transports.values()):
            transport.abort()

    # What connections call

    def begun(self, protocol: _Encrypted, transport: asyncio.Transport) -> None:
        if len(self._transports) >= MOST_HANDSHAKES:
            self._transports.pop(next(iter(self._transports))).abort()
        self._transports[protocol] = transport
        if self._closed:
            transport.abort()

    def ended(self, protocol: _Encrypted) -> None:
        self._transports.pop(protocol, None)


class _Encrypted(SSLProtocol):
    max_size = TLS_BUFFER_BYTES

    def __init__(self, handshakes: Handshakes, clear: asyncio.BaseProtocol, context: ssl.SSLContext) -> None:
        done: asyncio.Future[None] = handshakes.loop.create_future()
        done.add_done_callback(self._done)
        super().__init__(
            handshakes.loop,
            clear,
            context,
            done,
            server_side=True,
            ssl_handshake_timeout=_SECONDS,  # type: ignore[arg-type]  # no need for a whole number
        )
        self._handshakes = handshakes

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._handshakes.begun(self, cast(asyncio.Transport, transport))
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._handshakes.ended(self)
        super().connection_lost(exc)

    def _done(self, done: asyncio.Future[None]) -> None:
        """Shaken, or never to be: what went wrong is the peer's business."""
        if not done.cancelled():
            done.exception()
        self._handshakes.ended(self)
