"""The key-value ports of a node, and their connections."""

from __future__ import annotations

import asyncio
from typing import Protocol

from penstock.node.server.node_connection import NodeConnection
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.transport.port_set import PortSet
from penstock.node.transport.tls_handshakes import TlsHandshakes
from penstock.wire.protocol.frame_receiver import Slab

_LAST_REPLY_SECONDS = 1.0  # for peers to take the last replies


class KvOwner(NodeServices, Protocol):
    """The node, as far as its key-value server needs it."""

    @property
    def handshakes(self) -> TlsHandshakes:
        """The TLS handshakes of all ports."""


class KvServer:
    """Serves all key-value ports of a node. Create and use it on the event loop's thread.

    Attributes:
        node: the node.
        ports: the key-value ports.
        slab: read buffer of all connections. Each read is processed before the next one.
    """

    def __init__(self, node: KvOwner) -> None:
        self.node = node
        self.ports = PortSet(node.machine, node.handshakes)
        self.slab = Slab()
        self._stopping = False
        self._empty = asyncio.Event()

    def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take a port. It is served once `ports` accepts connections.

        Args:
            host: the address to listen on.
            port: the port, 0 for any free one.
            listener: the settings of the port.

        Returns:
            The number of the port.

        Raises:
            Error: the address is taken, or is not of this machine.
        """
        return self.ports.take_port(host, port, lambda: NodeConnection(self, listener), listener.tls)

    async def stop_accepting(self) -> None:
        """Stop listening. Connections that were accepted before, but are only set up now, are ended at once."""
        self._stopping = True
        await self.ports.stop_accepting()

    async def end_connections(self) -> None:
        """End all connections. Their replies are sent if the peers take them within a second."""
        present = self.node.connections.open_connections
        if not present:
            self._empty.set()
        for connection in tuple(present):
            connection.close()
        try:
            await asyncio.wait_for(self._empty.wait(), _LAST_REPLY_SECONDS)
        except TimeoutError:
            for connection in tuple(present):
                connection.abort("the node stops")
            await asyncio.wait_for(self._empty.wait(), _LAST_REPLY_SECONDS)

    # Called by connections

    def add_connection(self, connection: NodeConnection) -> None:
        """Register a connection."""
        self.node.connections.add_connection(connection)
        if self._stopping:
            connection.abort("the node stops")

    def remove_connection(self, connection: NodeConnection) -> None:
        """Forget a connection that was lost."""
        self.node.connections.remove_connection(connection)
        if self._stopping and not self.node.connections.open_connections:
            self._empty.set()
