"""Limits the TLS handshakes of a node, and ends connections whose certificates are no longer valid."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from typing import Final

from penstock.node.transport.pending_connections import PendingConnections
from penstock.node.transport.tls_connection import READ_BYTES, TlsConnection

MAX_SILENT: Final = 8192
"""Peers that have not sent a whole ClientHello, at 4 KiB each with its bytes.

`PendingConnections` limits the share of each address."""

MAX_HANDSHAKES: Final = 1024
"""Peers with a handshake in OpenSSL, at 40 KiB each."""

_HANDSHAKE_SECONDS: Final = 10.0
"""Time limit of a handshake."""

_CHECK_SECONDS: Final = 1.0


class TlsHandshakes:
    """The TLS connections of all ports of a node.

    Attributes:
        loop: the node's event loop.
        read_buffer: the read buffer of all connections. Each read is processed before the next one.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.read_buffer = memoryview(bytearray(READ_BYTES))
        self._silent: PendingConnections[TlsConnection] = PendingConnections(MAX_SILENT)
        self._handshaking: PendingConnections[TlsConnection] = PendingConnections(MAX_HANDSHAKES)
        self._certified: set[TlsConnection] = set()
        self._check_timer: asyncio.TimerHandle | None = None
        self._closed = False

    def make_tls_factory(
        self, make_protocol: Callable[[], asyncio.BaseProtocol], new_context: Callable[[], ssl.SSLContext]
    ) -> Callable[[], asyncio.BaseProtocol]:
        """Return a factory for the protocols of a port with TLS.

        Args:
            make_protocol: makes the inner protocols, which get the decrypted bytes.
            new_context: returns the context of the next handshake.
        """
        return lambda: TlsConnection(self, make_protocol, new_context)

    def end_certified(self) -> None:
        """End all connections whose client has shown a certificate."""
        for connection in tuple(self._certified):
            connection.abort()

    def close(self) -> None:
        """End all handshakes, also those of connections that were accepted before and start later."""
        self._closed = True
        if self._check_timer is not None:
            self._check_timer.cancel()
        for connection in (*self._silent.list_peers(), *self._handshaking.list_peers()):
            connection.abort()

    # Called by connections

    def add_connection(self, connection: TlsConnection) -> None:
        """Register a connection that has sent nothing yet."""
        self._add_pending(self._silent, connection)
        if self._closed:
            connection.abort()
        elif self._check_timer is None:
            self._check_timer = self.loop.call_later(_CHECK_SECONDS, self._check_timeouts)

    def start_handshake(self, connection: TlsConnection) -> None:
        """Note that a connection has sent its ClientHello."""
        self._silent.remove(connection, connection.host)
        self._add_pending(self._handshaking, connection)

    def finish_handshake(self, connection: TlsConnection, *, certified: bool) -> None:
        """Note that a handshake is finished.

        Args:
            connection: the connection.
            certified: whether the client has shown a certificate.
        """
        self._handshaking.remove(connection, connection.host)
        if certified:
            self._certified.add(connection)

    def remove_connection(self, connection: TlsConnection) -> None:
        """Forget a connection that was lost."""
        self._silent.remove(connection, connection.host)
        self._handshaking.remove(connection, connection.host)
        self._certified.discard(connection)

    def _add_pending(self, pending: PendingConnections[TlsConnection], connection: TlsConnection) -> None:
        oldest = pending.add(connection, connection.host, self.loop.time())
        if oldest is not None:
            oldest.abort()

    def _check_timeouts(self) -> None:
        """End late handshakes, once a second for all. A timer for each would cost more than the connection."""
        late = self.loop.time() - _HANDSHAKE_SECONDS
        for connection in (*self._silent.list_peers_since(late), *self._handshaking.list_peers_since(late)):
            connection.abort()
        # An idle node has no timer.
        waiting = len(self._silent) or len(self._handshaking)
        self._check_timer = self.loop.call_later(_CHECK_SECONDS, self._check_timeouts) if waiting else None
