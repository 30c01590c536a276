"""Answers of request handlers: bytes, a reply in pieces, or an exception.

The exceptions delay the reply, or close the connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, final

from penstock.errors import RemoteProtocolError, StatusError
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.frame import Buffer


@final  # after `type(answer) is ReplyPieces`, a type checker knows that any other answer is bytes
class ReplyPieces:
    """A reply whose parts are sent one by one, so that a large value is never copied.

    Attributes:
        parts: the bytes of the reply, in order.
    """

    __slots__ = ("_nbytes", "parts")

    def __init__(self, *parts: Buffer) -> None:
        self.parts = parts
        self._nbytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._nbytes


Answer = bytes | ReplyPieces


class FinishedWork(NamedTuple):
    """Work that a thread has done for a request.

    Attributes:
        version: the version of the document that the work has read.
        attempts: number of times that a thread has worked for this request.
        outcome: the result, or the error that the work has raised.
    """

    version: Hashable
    attempts: int
    outcome: asyncio.Future[Any]


Resume = Callable[["Answer | StatusError | RemoteProtocolError | FinishedWork"], None]
"""Continues a parked request: takes its reply, its error, or the work with which the request is served again.

Call it once, from a turn of its own on the event loop.
"""

CancelWait = Callable[[], None]
"""Ends a wait without a reply, because the client has disconnected. It is never called after `Resume`."""


class CloseConnection(Exception):
    """Closes the connection after a last reply.

    Attributes:
        last_reply: bytes to send before the end, or empty.
    """

    def __init__(self, reason: str, last_reply: bytes = b"") -> None:
        """Create the exception.

        Args:
            reason: the reason, for the log.
            last_reply: bytes to send before the end, or empty.
        """
        super().__init__(reason)
        self.last_reply = last_reply


class WaitForParked(Exception):
    """Delays a request, and all requests behind it, until no request of the connection is parked.

    A parked request may be served again. The state that it is served with must not change before.
    """


EXCLUSIVE_BYTES = MAX_FRAME
"""As `nbytes` of a parked request: no other request overtakes it. One connection may hold no more bytes than this."""


class Parked(Exception):
    """Parks a request: its reply follows later. Until then no later request is served, unless replies may be unordered.

    Attributes:
        start_wait: starts the wait, which must end after a bounded time. It takes the function that continues the
            request, and returns the function that cancels the wait.
        nbytes: bytes that are held until then, beside the request.
    """

    def __init__(self, start_wait: Callable[[Resume], CancelWait], nbytes: int = 0) -> None:
        super().__init__("answered later")
        self.start_wait = start_wait
        self.nbytes = nbytes
