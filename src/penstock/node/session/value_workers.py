"""Threads that work on large values, so that the event loop serves other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.errors import TemporaryFailure

__all__ = ["Workers"]

_THREADS: Final = 2
_MOST_WAITING: Final = 4096
"""Values of all connections that wait for a thread: one of each connection, unless it takes replies in any order."""


class Workers:
    """The threads that work on large values, for all connections of a node.

    Attributes:
        waiting: values that a thread works on, or that wait for a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-values")  # they begin with the first large value
        self.waiting = 0

    def start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return the outcome of work to come. Raises TemporaryFailure if too much waits already."""
        if self.waiting >= _MOST_WAITING:
            raise TemporaryFailure(f"{self.waiting} large values wait to be worked on, limit {_MOST_WAITING}")
        self.waiting += 1
        outcome = self._loop.run_in_executor(self._threads, work)
        outcome.add_done_callback(self._end)
        return outcome

    def close(self) -> None:
        """Wait for the work that has begun, and start no other."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _end(self, outcome: asyncio.Future[Any]) -> None:
        self.waiting -= 1
