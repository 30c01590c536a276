"""The registry of connections: limits their number, the time before their login, and the time of an incomplete frame.

One timer checks all connections once a second. A timer for each connection would cost more than the connection.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Sized
from typing import Final, Protocol

from penstock.node.auth import Users
from penstock.node.buckets.endpoint_reports import StreamRole
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.hello_features import ClientAgent
from penstock.node.session.node_options import NodeOptions
from penstock.node.transport.address_shares import AddressShares
from penstock.node.transport.log_limit import LogLimit
from penstock.node.transport.pending_connections import PendingConnections

logger = logging.getLogger("penstock.node")

MAX_UNAUTHENTICATED: Final = 8192
"""Unauthenticated connections from all addresses; at most half of them are from one address.

An address above its share loses its own oldest connection, so it cannot end the connections of other addresses.
"""

_CHECK_SECONDS = 1.0


class RegisteredSession(Protocol):
    """The session of a connection, as far as the registry needs it.

    Attributes:
        host: the client's address.
        peer: the client's address with its port.
        bucket: the selected bucket, or None.
        features: HELLO features that client and node agreed on.
        agent: the client program, from HELLO.
    """

    host: str
    peer: str
    bucket: ServedBucket | None
    features: frozenset[int]
    agent: ClientAgent

    @property
    def user(self) -> str | None:
        """The name of the user, None before a login."""

    @property
    def stream_role(self) -> StreamRole | None:
        """The side of the node in the change streams of the connection, None without any."""

    def renew_login(self) -> None:
        """Apply changed users and roles."""


class RegisteredConnection(Protocol):
    """A connection, as far as the registry needs it.

    Attributes:
        frame_started_at: event-loop time at which an incomplete frame has begun; 0 without one.
    """

    frame_started_at: float

    @property
    def session(self) -> RegisteredSession:
        """The session of the connection."""

    @property
    def requests(self) -> Sized:
        """The requests that wait to be served."""

    @property
    def bytes_unsent(self) -> int:
        """Bytes that the peer's system has not taken yet."""

    def close(self) -> None:
        """Close the connection once its output is sent."""

    def abort(self, reason: str) -> None:
        """Close the connection at once."""


class ConnectionRegistry:
    """The key-value connections of a node.

    Attributes:
        open_connections: the open connections by age, with their numbers, counted from 1.
        total: number of connections since the start of the node.
        refusals: status -> number of requests that were answered with it since the start of the node.
        refused_login_log: logs failed logins.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, options: NodeOptions, users: Users | None, max_connections: int
    ) -> None:
        """Create the registry of a node without connections.

        Args:
            loop: the node's event loop.
            options: the node's options.
            users: the users, read again once a second. Sessions renew their login when they change. None: no login.
            max_connections: most simultaneous connections.
        """
        self.open_connections: dict[RegisteredConnection, int] = {}
        self.total = 0
        self.refusals: Counter[int] = Counter()
        self._loop = loop
        self._options = options
        self._users = users
        self._version = 0 if users is None else users.version
        self._shares = AddressShares(max_connections)
        self._refused_connections: set[RegisteredConnection] = set()  # they hold no place of their address
        self._unauthenticated: PendingConnections[RegisteredConnection] = PendingConnections(MAX_UNAUTHENTICATED)
        self._refusals = LogLimit(logger, loop.time)
        self.refused_login_log = LogLimit(logger, loop.time)
        self._timer: asyncio.TimerHandle | None = None

    def add_connection(self, connection: RegisteredConnection) -> None:
        """Register a connection. Abort it if its address has used up its share."""
        self.total += 1
        self.open_connections[connection] = self.total
        if not self._shares.take_place(connection.session.host):
            self._refused_connections.add(connection)
            held, places = self._shares.count_places(connection.session.host), self._shares.places
            self._refusals.warning(
                f"{connection.session.host} has {held} of at most {places} connections, and only"
                f" {places - len(self._shares)} are free: its new ones are ended"
            )
            connection.abort("its address has too many connections")
        if self._timer is None:
            self._timer = self._loop.call_later(_CHECK_SECONDS, self._check_connections)

    def remove_connection(self, connection: RegisteredConnection) -> None:
        """Forget a connection that was lost."""
        self.open_connections.pop(connection, None)
        self.end_login_wait(connection)
        if connection in self._refused_connections:
            self._refused_connections.remove(connection)
        else:
            self._shares.free_place(connection.session.host)

    def start_login_wait(self, connection: RegisteredConnection) -> None:
        """Abort a connection unless it logs in within `login_timeout`."""
        oldest = self._unauthenticated.add(connection, connection.session.host, self._loop.time())
        if oldest is not None:
            oldest.abort("no login yet, and newer connections took its place")

    def end_login_wait(self, connection: RegisteredConnection) -> None:
        """Note that a connection has logged in."""
        self._unauthenticated.remove(connection, connection.session.host)

    def close_bucket_connections(self, bucket: ServedBucket) -> None:
        """Close the connections that have selected a bucket."""
        for connection in tuple(self.open_connections):
            if connection.session.bucket is bucket:
                connection.close()

    def stop_timer(self) -> None:
        """Stop checking the connections."""
        if self._timer is not None:
            self._timer.cancel()

    def _check_connections(self) -> None:
        self._timer = self._loop.call_later(_CHECK_SECONDS, self._check_connections) if self.open_connections else None
        now = self._loop.time()
        late = now - self._options.login_timeout
        # An abort removes the connection from these collections, so each loop needs a copy.
        for connection in self._unauthenticated.list_peers_since(late):
            connection.abort(f"no login within {self._options.login_timeout:g} s")
        late = now - self._options.frame_timeout
        for connection in [
            one for one in self.open_connections if one.frame_started_at and one.frame_started_at <= late
        ]:
            connection.abort(f"an incomplete frame for {self._options.frame_timeout:g} s")
        self._renew_sessions()

    def _renew_sessions(self) -> None:
        if self._users is None:
            return
        self._users.refresh()
        if self._users.version != self._version:
            self._version = self._users.version
            for connection in tuple(self.open_connections):
                connection.session.renew_login()
