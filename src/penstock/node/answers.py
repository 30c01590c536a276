"""Answers of handlers: bytes, pieces, or an exception that asks for a later answer or ends the connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from penstock.errors import RemoteProtocolError, StatusError
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.frame import Buffer

__all__ = ["ALONE", "Answer", "Barrier", "Finished", "GiveUp", "Goodbye", "Parked", "Pieces", "Resume"]


class Pieces:
    """A reply that is not put together: a large value is sent from where it lies.

    Attributes:
        parts: what lies behind each other.
    """

    __slots__ = ("_nbytes", "parts")

    def __init__(self, *parts: Buffer) -> None:
        self.parts = parts
        self._nbytes = sum(map(len, parts))

    def __len__(self) -> int:
        return self._nbytes


Answer = bytes | Pieces


class Finished(NamedTuple):
    """Work that a thread has done for a request.

    Attributes:
        version: what the work was made of.
        attempts: how often a thread worked for this request.
        outcome: the result, or the error that the work raised.
    """

    version: Hashable
    attempts: int
    outcome: asyncio.Future[Any]


Resume = Callable[["Answer | StatusError | RemoteProtocolError | Finished"], None]
"""Takes the reply to a parked request, or why it is refused; or the work with which the request is served again.

To be called once, by a turn of the event loop's own.
"""

GiveUp = Callable[[], None]
"""Ends a wait without a reply: whoever asked is gone. Not called once the reply was given."""


class Goodbye(Exception):
    """This connection ends after `last`, which may be empty. The message says why, for the log."""

    def __init__(self, why: str, last: bytes = b"") -> None:
        super().__init__(why)
        self.last = last


class Barrier(Exception):
    """This request is served once no request of its connection is parked, and none behind it before that.

    A parked request may be served again: what it is served with must not change before.
    """


ALONE = MAX_FRAME
"""As `nbytes` of a parked request: nothing overtakes it. It is as much as a connection may hold."""


class Parked(Exception):
    """This request is answered later, and until then none that its connection sends.

    begin: called with what takes the reply; returns what ends the wait. Whatever is waited for, it takes a time that
    has a bound. nbytes: held until then, beside the request.
    """

    def __init__(self, begin: Callable[[Resume], GiveUp], nbytes: int = 0) -> None:
        super().__init__("answered later")
        self.begin = begin
        self.nbytes = nbytes
