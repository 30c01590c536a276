"""Detects peers that do not read their replies."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class SentBytes(Protocol):
    """Counts the bytes that a connection sends.

    Attributes:
        written_bytes: all bytes of the connection so far.
    """

    written_bytes: int

    @property
    def unsent_bytes(self) -> int:
        """Bytes that the peer's system has not taken yet."""


class UnreadWatch:
    """Ends a connection whose peer reads nothing for the idle timeout, although bytes wait for it.

    Args:
        loop: the event loop.
        idle_timeout: in seconds.
        sent: counts the bytes of the connection.
        abort: ends the connection; takes the reason.
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
        """Watch until no byte is unsent. Does nothing while it is watching already."""
        if self._timer is None and (unsent := self._sent.unsent_bytes):
            self._timer = self._loop.call_later(self._idle_timeout, self._check, self._sent.written_bytes - unsent)

    def stop(self) -> None:
        """Stop watching."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # taken: bytes that the peer's system had taken at the start. Any progress starts a new timeout.
    def _check(self, taken: int) -> None:
        self._timer = None
        unsent = self._sent.unsent_bytes
        if unsent and self._sent.written_bytes - unsent == taken:
            self._abort(f"the peer took nothing of {unsent} bytes for {self._idle_timeout:g} s")
        else:
            self.start()
