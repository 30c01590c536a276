"""Limits of one connection before and after its login."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.wire.codec.constants import MAX_FRAME

WRITE_BUFFER_BYTES: Final = 2 * 1024 * 1024
"""Size of the transport's write buffer at which the connection is paused. It continues at a quarter."""

TURN_BYTES: Final = 512 * 1024
"""Bytes of replies after which other connections are served."""

MAX_FRAME_BEFORE_LOGIN: Final = 4 * 1024
"""Longest frame, and longest read, of a connection that has to log in first. A SASL step has at most 1 KiB."""

# 8192 unauthenticated connections that read nothing hold at most 128 MiB with this limit.
MAX_UNREAD_BEFORE_LOGIN: Final = 16 * 1024
"""Bytes of replies that a connection may leave unread before its login.

The longest reply is the error map, 9 KiB. The socket buffer holds more than that, so only a client that never reads
reaches this limit.
"""

MAX_REQUESTS_BEHIND_LOGIN: Final = 64
"""Requests that may wait behind a login. Clients pipeline a few. Each request costs far more memory than its 24 bytes.
"""


class ConnectionLimits(NamedTuple):
    """Limits of one connection, in bytes.

    Attributes:
        frame_bytes: longest frame.
        unread_bytes: most bytes of replies that the peer has not read.
        turn_bytes: bytes of replies after which other connections are served.
    """

    frame_bytes: int
    unread_bytes: int
    turn_bytes: int


BEFORE_LOGIN = ConnectionLimits(MAX_FRAME_BEFORE_LOGIN, MAX_UNREAD_BEFORE_LOGIN, MAX_UNREAD_BEFORE_LOGIN)
LOGGED_IN = ConnectionLimits(MAX_FRAME, WRITE_BUFFER_BYTES, TURN_BYTES)
