"""A time by which something has to happen."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["DeadlineTimer"]


class DeadlineTimer:
    """Calls a function unless it is set again, or cancelled, in time.

    Args:
        loop: the event loop.
        miss: called once the time is over.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, miss: Callable[[], None]) -> None:
        self._loop = loop
        self._miss = miss
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Let the time be over in so many seconds, instead of any time before."""
        self.cancel()
        self._timer = self._loop.call_later(seconds, self._miss)

    def cancel(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
