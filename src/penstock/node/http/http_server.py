"""The HTTP server of a node, on the node's own event loop, with a bound to all that a client can hold.

It is our own because the servers of others have no such bounds, or run an event loop and ports of their own: see
docs/design.md.
"""

from __future__ import annotations

import asyncio
import logging
import os
from typing import Final, Protocol

from penstock.errors import Error
from penstock.node.http.pages.http_app import make_app
from penstock.node.http.pages.http_state import HttpState
from penstock.node.http.protocol.exchange import Exchange
from penstock.node.http.protocol.http_connection import HttpConnection
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.transport.acceptor import Acceptor
from penstock.node.transport.address_shares import AddressShares
from penstock.node.transport.log_limit import LogLimit
from penstock.node.transport.tls_handshakes import Handshakes

__all__ = ["MAX_CONNECTIONS", "REQUEST_SECONDS", "HttpServer"]

MAX_CONNECTIONS: Final = 512
REQUEST_SECONDS: Final = 20.0
_READ_BYTES = 16 * 1024
_GOODBYE_SECONDS = 1.0  # for requests that are being served when the node stops

logger = logging.getLogger("penstock.node")


class HttpOwner(NodeServices, Protocol):
    """The node, as far as its HTTP server needs it."""

    @property
    def handshakes(self) -> Handshakes: ...


class HttpServer:
    """Serves all HTTP ports of a node. It must be made, and used, on the event loop's thread.

    Attributes:
        acceptors: one for each port.
        state: what its pages use.
        connections: those that are open.
        shares: how many connections each client address has.
        seconds: within which a request must be complete.
        read_buffer: shared by all connections: each read is used up before the next.
    """

    def __init__(self, node: HttpOwner, *, seconds: float = REQUEST_SECONDS, most: int = MAX_CONNECTIONS) -> None:
        self.node = node
        self.loop = node.loop
        self.state = HttpState(node)
        self.seconds = seconds
        self.shares = AddressShares(most)
        self.read_buffer = memoryview(bytearray(_READ_BYTES))
        self.acceptors: list[Acceptor] = []
        self._app = make_app(self.state)
        self.connections: set[HttpConnection] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refused_requests = LogLimit(logger, node.loop.time)
        self._refused_connections = LogLimit(logger, node.loop.time)

    def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take a port, 0 for any, to serve it once the server is started, and return its number. Raises Error."""
        tls = listener.tls
        scheme = "http" if tls is None else "https"

        def make() -> HttpConnection:
            return HttpConnection(self, scheme)

        factory = make if tls is None else self.node.handshakes.encrypted(make, lambda: tls.context)
        try:
            acceptor = Acceptor(self.loop, host, port, factory)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise Error(
                f"cannot listen on {host} port {port} for management: {why}; another {scheme}_port can be chosen, "
                "0 for any"
            ) from error
        self.acceptors.append(acceptor)
        self.state.accesses[scheme] = listener.access
        return acceptor.port

    async def close(self) -> None:
        """Stop listening, end streams, and give other requests that are being served a second."""
        self.state.stopping = True
        for acceptor in self.acceptors:
            await acceptor.close()
        for connection in tuple(self.connections):
            connection.finish()
        self.state.wake()
        await self._wait_for_tasks()
        for connection in tuple(self.connections):
            connection.transport.abort()
        await self._wait_for_tasks()

    async def _wait_for_tasks(self) -> None:
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=_GOODBYE_SECONDS)

    # What connections call

    @property
    def stopping(self) -> bool:
        return self.state.stopping

    def enter(self, connection: HttpConnection) -> bool:
        """Add a connection; False if there is no room for it."""
        if self.state.stopping:
            return False
        if not self.shares.take(connection.address):
            self._refused_connections.warning(
                f"HTTP: connection of {connection.address} refused: it has {self.shares.held(connection.address)} of "
                f"{self.shares.places} connections, {len(self.shares)} are taken"
            )
            return False
        self.connections.add(connection)
        return True

    def leave(self, connection: HttpConnection) -> None:
        if connection in self.connections:
            self.connections.remove(connection)
            self.shares.give_back(connection.address)

    def run(self, exchange: Exchange) -> None:
        """Let the application serve a request."""
        task = self.loop.create_task(exchange.run(self._app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def report_refused(self, address: str, reason: str) -> None:
        """Log a request that was refused; clients that send garbage cannot fill the log."""
        self._refused_requests.warning(f"HTTP: request of {address} refused: {reason}")
