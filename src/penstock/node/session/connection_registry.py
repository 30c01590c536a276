"""Who is connected, and who must get on: strangers that do not log in, frames that never end.

Looked at once a second for all connections together: a timer for each would cost more than what it watches.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sized
from typing import Final, Protocol

from penstock.node.auth import Users
from penstock.node.buckets.served_bucket import ServedBucket
from penstock.node.session.node_options import NodeOptions
from penstock.node.transport.address_shares import AddressShares
from penstock.node.transport.log_limit import LogLimit
from penstock.node.transport.newcomers import Newcomers

__all__ = ["MOST_STRANGERS", "Guest", "Guests"]

logger = logging.getLogger("penstock.node")

MOST_STRANGERS: Final = 8192
"""Connections that have yet to log in, from all addresses; half of them may be from one. An address that wants more
than its share loses its own oldest one, so that it cannot end the connections of others."""

_LOOK_SECONDS = 1.0


class GuestSession(Protocol):
    """The session of a connection, as far as the registry needs it."""

    host: str
    bucket: ServedBucket | None

    def renew(self) -> None: ...


class Guest(Protocol):
    """A connection, as far as the registry needs it."""

    frame_began: float

    @property
    def session(self) -> GuestSession: ...
    @property
    def requests(self) -> Sized:
        """The requests that wait to be served."""

    @property
    def bytes_unsent(self) -> int: ...

    def close(self) -> None: ...
    def abort(self, why: str) -> None: ...


class Guests:
    """The connections of a node. present: all of them; total: how many there have been.

    refused_logins: logs those for which nobody has to wait.
    users: looked at once a second, for connections whose user may do something else by then; None: nobody logs in.
    most: connections at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: NodeOptions, users: Users | None, most: int) -> None:
        self.present: set[Guest] = set()
        self.total = 0
        self._loop = loop
        self._options = options
        self._users = users
        self._version = 0 if users is None else users.version
        self._shares = AddressShares(most)
        self._turned_away: set[Guest] = set()  # those that `leave` gives no place back for
        self._strangers: Newcomers[Guest] = Newcomers(MOST_STRANGERS)
        self._refused = LogLimit(logger, loop.time)
        self.refused_logins = LogLimit(logger, loop.time)
        self._looker: asyncio.TimerHandle | None = None

    def enter(self, connection: Guest) -> None:
        """Register a connection. Abort it if the share of its address is used up."""
        self.total += 1
        self.present.add(connection)
        if not self._shares.take(connection.session.host):
            self._turned_away.add(connection)
            held, places = self._shares.held(connection.session.host), self._shares.places
            self._refused.warning(
                f"{connection.session.host} has {held} of at most {places} connections: its new ones are ended"
            )
            connection.abort("its address has too many connections")
        if self._looker is None:
            self._looker = self._loop.call_later(_LOOK_SECONDS, self._look)

    def leave(self, connection: Guest) -> None:
        self.present.discard(connection)
        self.logged_in(connection)
        if connection in self._turned_away:
            self._turned_away.remove(connection)
        else:
            self._shares.give_back(connection.session.host)

    def wait_for_login(self, connection: Guest) -> None:
        """Let a connection log in within the time that there is for that."""
        oldest = self._strangers.add(connection, connection.session.host, self._loop.time())
        if oldest is not None:
            oldest.abort("others came after it, and it had not logged in")

    def logged_in(self, connection: Guest) -> None:
        self._strangers.remove(connection, connection.session.host)

    def close_users_of(self, bucket: ServedBucket) -> None:
        """Close the connections that have selected a bucket."""
        for connection in tuple(self.present):
            if connection.session.bucket is bucket:
                connection.close()

    def close(self) -> None:
        if self._looker is not None:
            self._looker.cancel()

    def _look(self) -> None:
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look) if self.present else None
        now = self._loop.time()
        late = now - self._options.login_timeout
        for connection in self._strangers.older_than(late):
            connection.abort(f"no login within {self._options.login_timeout:g} s")
        late = now - self._options.frame_timeout
        for connection in [one for one in self.present if one.frame_began and one.frame_began <= late]:
            connection.abort(f"a frame that did not end within {self._options.frame_timeout:g} s")
        self._renew()

    def _renew(self) -> None:
        if self._users is None:
            return
        self._users.refresh()
        if self._users.version != self._version:
            self._version = self._users.version
            for connection in tuple(self.present):
                connection.session.renew()
