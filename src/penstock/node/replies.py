"""What a request gets back, as bytes, and the exceptions that stand for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.errors import StatusError
from penstock.wire.constants import Magic
from penstock.wire.frame import Frame, join_frame

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["GiveUp", "Goodbye", "Handler", "Parked", "Resume", "reply"]

Handler = Callable[["NodeConnection", Frame], bytes]
"""Serves one request and returns its reply.

Raises StatusError or RemoteProtocolError for what is refused, Goodbye, and Parked for what is answered later.
"""

Resume = Callable[[bytes | StatusError], None]
"""Takes the reply to a parked request, or why it is refused. To be called once, by a turn of the event loop's own."""

GiveUp = Callable[[], None]
"""Ends a wait without a reply: whoever asked is gone. Not called once the reply was given."""


class Goodbye(Exception):
    """This connection ends after `last`, which may be empty. The message says why, for the log."""

    def __init__(self, why: str, last: bytes = b"") -> None:
        super().__init__(why)
        self.last = last


class Parked(Exception):
    """This request is answered later, and until then none that its connection sends.

    begin: called with what takes the reply; returns what ends the wait. Whatever is waited for, it takes a time that
    has a bound.
    """

    def __init__(self, begin: Callable[[Resume], GiveUp]) -> None:
        super().__init__("answered later")
        self.begin = begin


def reply(
    request: Frame, status: int = 0, *, extras: bytes = b"", key: bytes = b"", value: bytes = b"", cas: int = 0
) -> bytes:
    """Return the reply to a request, with its opcode and opaque."""
    return join_frame(Frame(Magic.RESPONSE, request.opcode, status, 0, request.opaque, cas, extras, key, value))
