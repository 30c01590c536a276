"""A time limit that can be set again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable


class DeadlineTimer:
    """Calls a function after a time limit, unless the limit is set again or cancelled before.

    Args:
        loop: the event loop.
        on_timeout: called after the time limit.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, on_timeout: Callable[[], None]) -> None:
        self._loop = loop
        self._on_timeout = on_timeout
        self._timer: asyncio.TimerHandle | None = None

    def set(self, seconds: float) -> None:
        """Set the time limit to some seconds from now. It replaces the previous limit."""
        self.cancel()
        self._timer = self._loop.call_later(seconds, self._on_timeout)

    def cancel(self) -> None:
        """Remove the time limit."""
        if self._timer is not None:
            self._timer.cancel()
