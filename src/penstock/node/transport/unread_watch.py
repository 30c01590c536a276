"""Watches that a peer reads what is sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

__all__ = ["SentBytes", "UnreadWatch"]


class SentBytes(Protocol):
    """Counts the bytes that a connection sends.

    Attributes:
        written: bytes that were sent so far.
    """

    written: int

    @property
    def unsent(self) -> int:
        """Return how many of them the peer's system has yet to take."""


class UnreadWatch:
    """Ends a connection whose peer takes nothing of what is to be sent for a whole idle timeout.

    Args:
        loop: the event loop.
        idle_timeout: in seconds.
        sent: counts the bytes of the connection.
        abort: ends the connection; it takes the reason.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, idle_timeout: float, sent: SentBytes, abort: Callable[[str], None]
    ) -> None:
        self._loop = loop
        self._idle_timeout = idle_timeout
        self._sent = sent
        self._abort = abort
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch until nothing is unsent. Does nothing while it watches already."""
        if self._timer is None and (unsent := self._sent.unsent):
            self._timer = self._loop.call_later(self._idle_timeout, self._check, self._sent.written - unsent)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _check(self, taken: int) -> None:
        self._timer = None
        unsent = self._sent.unsent
        if unsent and self._sent.written - unsent == taken:
            self._abort(f"the peer took nothing of {unsent} bytes for {self._idle_timeout:g} s")
        else:
            self.start()
