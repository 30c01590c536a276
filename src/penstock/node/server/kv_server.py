"""The key-value ports of a node, and the connections that came in by them."""

from __future__ import annotations

import asyncio
import os
from typing import Protocol

from penstock.errors import Error
from penstock.node.server.node_connection import NodeConnection
from penstock.node.session.listener import Listener
from penstock.node.session.node_services import NodeServices
from penstock.node.transport.acceptor import Acceptor
from penstock.node.transport.tls_handshakes import Handshakes
from penstock.wire.protocol.frame_receiver import Slab

__all__ = ["KvServer"]

_GOODBYE_SECONDS = 1.0  # for peers to take the last replies


class KvOwner(NodeServices, Protocol):
    """The node, as far as its key-value server needs it."""

    @property
    def handshakes(self) -> Handshakes: ...


class KvServer:
    """Serves all key-value ports of a node. It must be made, and used, on the event loop's thread.

    Attributes:
        node: the node.
        acceptors: one for each port.
        slab: shared by all connections: a read fills it and is dealt with before the next.
    """

    def __init__(self, node: KvOwner) -> None:
        self.node = node
        self.acceptors: list[Acceptor] = []
        self.slab = Slab()
        self._stopping = False
        self._empty = asyncio.Event()

    def listen(self, host: str, port: int, listener: Listener) -> int:
        """Take a port, 0 for any, to serve it once the acceptor is started, and return its number. Raises Error."""
        tls = listener.tls

        def make() -> NodeConnection:
            return NodeConnection(self, listener)

        factory = make if tls is None else self.node.handshakes.encrypted(make, lambda: tls.context)
        try:
            acceptor = Acceptor(self.node.loop, host, port, factory)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else error
            raise Error(f"cannot listen on {host} port {port}: {why}") from error
        self.acceptors.append(acceptor)
        return acceptor.port

    async def stop_accepting(self) -> None:
        """Stop listening. Connections that were accepted before, and come in only now, are ended at once."""
        self._stopping = True
        for acceptor in self.acceptors:
            await acceptor.close()

    async def end_connections(self) -> None:
        """End all connections. What was answered is sent if the peers take it within a second."""
        present = self.node.guests.present
        if not present:
            self._empty.set()
        for connection in tuple(present):
            connection.close()
        try:
            await asyncio.wait_for(self._empty.wait(), _GOODBYE_SECONDS)
        except TimeoutError:
            for connection in tuple(present):
                connection.abort("the node stops")
            await asyncio.wait_for(self._empty.wait(), _GOODBYE_SECONDS)

    # What connections call

    def enter(self, connection: NodeConnection) -> None:
        """Register a connection."""
        self.node.guests.enter(connection)
        if self._stopping:
            connection.abort("the node stops")

    def leave(self, connection: NodeConnection) -> None:
        """Forget a connection that is lost."""
        self.node.guests.leave(connection)
        if self._stopping and not self.node.guests.present:
            self._empty.set()
