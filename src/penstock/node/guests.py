"""Who is connected, and who must get on: strangers that do not log in, frames that never end.

Looked at once a second for all connections together: a timer for each would cost more than what it watches.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection
    from penstock.node.login import Users
    from penstock.node.options import Options

__all__ = ["MOST_STRANGERS", "Guests"]

logger = logging.getLogger("penstock.node")

MOST_STRANGERS: Final = 4096
"""Connections that have yet to log in. With one more, the oldest of them ends."""

_LOOK_SECONDS = 1.0


class Guests:
    """The connections of a node. present: all of them; total: how many there have been.

    users: looked at once a second, for connections whose user may do something else by then; None: nobody logs in.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, options: Options, users: Users | None) -> None:
        self.present: set[NodeConnection] = set()
        self.total = 0
        self._loop = loop
        self._options = options
        self._users = users
        self._version = 0 if users is None else users.version
        self._strangers: dict[NodeConnection, float] = {}  # and when they came, the oldest first
        self._refused = False
        self._looker: asyncio.TimerHandle | None = None

    def enter(self, connection: NodeConnection) -> None:
        """Take in a connection, or end it where there is no room."""
        self.total += 1
        self.present.add(connection)
        if len(self.present) > self._options.most_connections:
            if not self._refused:
                self._refused = True
                logger.warning("more than %d connections: new ones are ended", self._options.most_connections)
            connection.abort("there are too many")
        if self._looker is None:
            self._looker = self._loop.call_later(_LOOK_SECONDS, self._look)

    def leave(self, connection: NodeConnection) -> None:
        self.present.discard(connection)
        self._strangers.pop(connection, None)
        if len(self.present) < self._options.most_connections:
            self._refused = False

    def wait_for_login(self, connection: NodeConnection) -> None:
        """Let a connection log in within the time that there is for that."""
        if len(self._strangers) >= MOST_STRANGERS:
            oldest = next(iter(self._strangers))
            del self._strangers[oldest]  # not when it is gone, or the next would end it once more
            oldest.abort(f"{MOST_STRANGERS} others came after it, and it had not logged in")
        self._strangers[connection] = self._loop.time()

    def logged_in(self, connection: NodeConnection) -> None:
        self._strangers.pop(connection, None)

    def close(self) -> None:
        if self._looker is not None:
            self._looker.cancel()

    def _look(self) -> None:
        self._looker = self._loop.call_later(_LOOK_SECONDS, self._look) if self.present else None
        now = self._loop.time()
        late = now - self._options.login_timeout
        for connection in [one for one, came in self._strangers.items() if came <= late]:
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
                connection.renew()
