"""What a request gets back, as bytes, and the exceptions that stand for an answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from penstock.wire.constants import Magic
from penstock.wire.frame import Frame, join_frame

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["Goodbye", "Handler", "reply"]

Handler = Callable[["NodeConnection", Frame], bytes]
"""Serves one request and returns its reply. Raises StatusError or RemoteProtocolError for what is refused, Goodbye."""


class Goodbye(Exception):
    """This connection ends after `last`, which may be empty. The message says why, for the log."""

    def __init__(self, why: str, last: bytes = b"") -> None:
        super().__init__(why)
        self.last = last


def reply(
    request: Frame, status: int = 0, *, extras: bytes = b"", key: bytes = b"", value: bytes = b"", cas: int = 0
) -> bytes:
    """Return the reply to a request, with its opcode and opaque."""
    return join_frame(Frame(Magic.RESPONSE, request.opcode, status, 0, request.opaque, cas, extras, key, value))
