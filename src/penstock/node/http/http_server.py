"""The HTTP server of a node, on the node's event loop. All resources that a client can hold are limited.

It is our own because other servers have no such limits, or need an event loop and ports of their own: see
docs/design.md.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Final, Protocol

from penstock.node.http.http_app import make_app
from penstock.node.http.pages.http_state import HttpState, ManagedNode
from penstock.node.http.protocol.exchange import Exchange
from penstock.node.http.protocol.http_connection import HttpConnection
from penstock.node.session.listener import Listener
from penstock.node.transport.address_shares import AddressShares
from penstock.node.transport.log_limit import LogLimit
from penstock.node.transport.port_set import PortSet
from penstock.node.transport.tls_handshakes import TlsHandshakes

MAX_CONNECTIONS: Final = 512
REQUEST_SECONDS: Final = 20.0
_READ_BYTES = 16 * 1024
_GOODBYE_SECONDS = 1.0  # until requests are aborted that are served when the node stops

logger = logging.getLogger("penstock.node")


class HttpOwner(ManagedNode, Protocol):
    """The node, as its HTTP server uses it."""

    @property
    def handshakes(self) -> TlsHandshakes:
        """The TLS handshakes that run, which all ports of the node limit together."""


class HttpServer:
    """Serves all HTTP ports of a node. It must be made and used on the event loop's thread.

    Attributes:
        ports: the HTTP ports.
        state: the state that pages use.
        connections: the open connections.
        shares: number of connections of each client address.
        seconds: time within which a request must be complete.
        read_buffer: shared by all connections: each read is used up before the next.
    """

    def __init__(
        self, node: HttpOwner, *, seconds: float = REQUEST_SECONDS, max_connections: int = MAX_CONNECTIONS
    ) -> None:
        self.node = node
        self.loop = node.loop
        self.state = HttpState(node)
        self.seconds = seconds
        self.shares = AddressShares(max_connections)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.ports = PortSet(node.machine, node.handshakes)
        self._app = make_app(self.state)
        self.connections: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_requests = LogLimit(logger, node.loop.time)
        self._refused_connections = LogLimit(logger, node.loop.time)

    def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take a port and return its number. Connections are accepted once `ports` accepts them.

        Args:
            host: the address to listen on.
            port: 0: any free port.
            listener: users, mechanisms and TLS of the port.

        Returns:
            The port's number.

        Raises:
            Error: the port cannot be taken.
        """
        scheme = "http" if listener.tls is None else "https"
        self.state.accesses[scheme] = listener.access
        return self.ports.take_port(
            host,
            port,
            lambda: HttpConnection(self, scheme),
            listener.tls,
            purpose=" for management",
            advice=f"; another {scheme}_port can be chosen, 0 for any",
        )

    async def close(self) -> None:
        """Stop listening, end streams, and abort other requests after a second."""
        self.state.stopping = True
        await self.ports.stop_accepting()
        for connection in tuple(self.connections):
            connection.finish()
        self.state.wake_streams()
        await self._wait_for_tasks()
        for connection in tuple(self.connections):
            connection.transport.abort()
        await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_GOODBYE_SECONDS)

    # Called by connections

    @property
    def stopping(self) -> bool:
        """Whether the server stops."""
        return self.state.stopping

    def add_connection(self, connection: HttpConnection) -> bool:
        """Add a connection.

        Returns:
            False: the server stops, or too many connections are open.
        """
        if self.state.stopping:
            return False
        if not self.shares.take_place(connection.address):
            self._refused_connections.warning(
                f"HTTP: connection of {connection.address} refused: it has "
                f"{self.shares.count_places(connection.address)} of {self.shares.places} connections, "
                f"and only {self.shares.places - len(self.shares)} are free"
            )
            return False
        self.connections.add(connection)
        return True

    def remove_connection(self, connection: HttpConnection) -> None:
        """Remove a closed connection."""
        if connection in self.connections:
            self.connections.remove(connection)
            self.shares.free_place(connection.address)

    def run(self, exchange: Exchange) -> None:
        """Let the application serve a request."""
        task = self.loop.create_task(exchange.run(self._app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def report_refused(self, address: str, reason: str) -> None:
        """Log a refused request, at a limited rate: clients that send garbage cannot fill the log."""
        self._refused_requests.warning(f"HTTP: request of {address} refused: {reason}")
