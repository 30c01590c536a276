"""Bounds the TLS handshakes of a node, and ends connections whose certificates no longer count."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from penstock.node.transport.encryption import READ_BYTES, Encrypted
from penstock.node.transport.newcomers import Newcomers

__all__ = ["MOST_HANDSHAKES", "MOST_SILENT", "Handshakes"]

MOST_SILENT: Final = 8192
MOST_HANDSHAKES: Final = 1024
"""Peers that have connected but not sent a whole ClientHello (4 KiB each, with theirs), and those for which OpenSSL
has a handshake under way (40 KiB each). See Newcomers for each address's share."""

_SECONDS: Final = 10.0
"""In which a handshake must be done."""

_LOOK_SECONDS: Final = 1.0


class Handshakes:
    """The TLS connections of all ports of a node.

    Attributes:
        loop: the node's event loop.
        read_buffer: shared by all connections: each read is used up before the next.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self._silent: Newcomers[Encrypted] = Newcomers(MOST_SILENT)
        self._begun: Newcomers[Encrypted] = Newcomers(MOST_HANDSHAKES)
        self._certified: set[Encrypted] = set()
        self._looker: asyncio.TimerHandle | None = None
        self._closed = False

    def encrypted(
        self, make: Callable[[], asyncio.BaseProtocol], new_context: Callable[[], ssl.SSLContext]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory for the protocols of a port with TLS.

        Args:
            make: makes the protocols that get the bytes in clear.
            new_context: returns the context of the next handshake.
        """
        return lambda: Encrypted(self, make, new_context)

    def end_certified(self) -> None:
        """End all connections whose client has shown a certificate."""
        for connection in tuple(self._certified):
            connection.abort()

    def close(self) -> None:
        """End all handshakes, and those that begin later: their connections had been accepted before."""
        self._closed = True
        if self._looker is not None:
            self._looker.cancel()
        for connection in (*self._silent.all(), *self._begun.all()):
            connection.abort()

    # What connections call

    def connected(self, connection: Encrypted) -> None:
        self._add(self._silent, connection)
        if self._closed:
            connection.abort()
        elif self._looker is None:
            self._looker = self.loop.call_later(_LOOK_SECONDS, self._look)

    def begun(self, connection: Encrypted) -> None:
        self._silent.remove(connection, connection.host)
        self._add(self._begun, connection)

    def done(self, connection: Encrypted, *, certified: bool) -> None:
        self._begun.remove(connection, connection.host)
        if certified:
            self._certified.add(connection)

    def lost(self, connection: Encrypted) -> None:
        self._silent.remove(connection, connection.host)
        self._begun.remove(connection, connection.host)
        self._certified.discard(connection)

    def _add(self, newcomers: Newcomers[Encrypted], connection: Encrypted) -> None:
        oldest = newcomers.add(connection, connection.host, self.loop.time())
        if oldest is not None:
            oldest.abort()

    def _look(self) -> None:
        """Check once a second for all together: a timer for each would cost more than the peers that it watches."""
        late = self.loop.time() - _SECONDS
        for connection in (*self._silent.older_than(late), *self._begun.older_than(late)):
            connection.abort()
        waiting = len(self._silent) or len(self._begun)
        self._looker = self.loop.call_later(_LOOK_SECONDS, self._look) if waiting else None
