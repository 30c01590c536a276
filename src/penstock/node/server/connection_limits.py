"""What one connection may hold and be answered at once, before and after its login."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.codec.constants import MAX_FRAME

__all__ = [
    "BEFORE_LOGIN",
    "LOGGED_IN",
    "MAX_BEFORE_LOGIN",
    "MOST_BEHIND_LOGIN",
    "TURN_BYTES",
    "UNREAD_BEFORE_LOGIN",
    "WRITE_BUFFER_BYTES",
    "ConnectionLimits",
]

WRITE_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""What the transport holds before the connection counts as paused; it goes on at a quarter."""

TURN_BYTES: Final = 512 * 1024
"""Bytes of replies that end a turn."""

MAX_BEFORE_LOGIN: Final = 4 * 1024
"""Bytes of a frame, and of one read, where a login is required and missing. A step of a login has 1 KiB at most."""

UNREAD_BEFORE_LOGIN: Final = 16 * 1024
"""Bytes of replies that a connection without its login may leave unread. The system's own buffer takes more than a
client waits for (the error map is the longest, 9 KiB), so these fill up only when nobody reads."""

MOST_BEHIND_LOGIN: Final = 64
"""Requests that may wait behind a login. A client pipelines a handful; each costs a node far more than its 24 bytes."""


class ConnectionLimits(NamedTuple):
    """Limits of one connection, in bytes.

    Attributes:
        frame: of one frame.
        unread: of the replies that the peer leaves unread.
        turn: of the replies of one turn.
    """

    frame: int
    unread: int
    turn: int


BEFORE_LOGIN = ConnectionLimits(MAX_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN, UNREAD_BEFORE_LOGIN)
LOGGED_IN = ConnectionLimits(MAX_FRAME, WRITE_BUFFER_BYTES, TURN_BYTES)
