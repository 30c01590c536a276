"""Watches that a peer reads what is sent to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["UnreadWatch"]


class UnreadWatch:
    """Ends a connection whose peer takes nothing of what is to be sent for a whole idle timeout.

    Attributes:
        written: bytes that were given to the transport so far.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        idle_timeout: float,
        count_unsent: Callable[[], int],
        abort: Callable[[str], None],
    ) -> None:
        self.written = 0
        self._loop = loop
        self._idle_timeout = idle_timeout
        self._count_unsent = count_unsent
        self._abort = abort
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch until nothing is unsent. Does nothing while it watches already."""
        if self._timer is None and self._count_unsent():
            taken = self.written - self._count_unsent()
            self._timer = self._loop.call_later(self._idle_timeout, self._check, taken)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self, taken: int) -> None:
        self._timer = None
        unsent = self._count_unsent()
        if unsent and self.written - unsent == taken:
            self._abort(f"the peer took nothing of {unsent} bytes for {self._idle_timeout:g} s")
        else:
            self.start()
