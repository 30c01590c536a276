"""Keeps a log readable when the same thing happens thousands of times, as it does under attack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

__all__ = ["LogLimit"]

_SECONDS: Final = 60.0


class LogLimit:
    """Logs one line a minute at most. Each line tells how many were left out since the line before."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._next = clock()
        self._omitted = 0

    def warning(self, text: str) -> None:
        """Log a warning, or count it."""
        now = self._clock()
        if now < self._next:
            self._omitted += 1
            return
        more = f" ({self._omitted} more like this since the last line)" if self._omitted else ""
        self._logger.warning("%s%s", text, more)
        self._next, self._omitted = now + _SECONDS, 0
