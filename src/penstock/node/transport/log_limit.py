"""Limits repeated log lines, so that the log stays readable under attack."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

_SECONDS: Final = 60.0


class LogLimit:
    """Logs at most one line a minute. Each line has the number of lines that were left out before it."""

    def __init__(self, logger: logging.Logger, clock: Callable[[], float]) -> None:
        self._logger = logger
        self._clock = clock
        self._next = clock()
        self._omitted = 0

    def warning(self, text: str) -> None:
        """Log a warning, or only count it."""
        now = self._clock()
        if now < self._next:
            self._omitted += 1
            return
        more = f" ({self._omitted} more like this since the last line)" if self._omitted else ""
        self._logger.warning("%s%s", text, more)
        self._next, self._omitted = now + _SECONDS, 0
