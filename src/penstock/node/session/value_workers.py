"""Threads that work on large values, so that the event loop serves other requests meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from penstock.errors import TemporaryFailure

_THREADS: Final = 2
_MAX_PENDING: Final = 4096
"""Values of all connections that wait for a thread. Each connection has one, or several with unordered replies."""


class ValueWorkers:
    """The threads that work on large values, for all connections of a node.

    Attributes:
        pending_values: values that a thread works on, or that wait for a thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._threads = ThreadPoolExecutor(_THREADS, "penstock-values")  # threads start with the first large value
        self.pending_values = 0

    def start(self, work: Callable[[], Any]) -> asyncio.Future[Any]:
        """Return the future of some work. Raises TemporaryFailure if too much work waits."""
        if self.pending_values >= _MAX_PENDING:
            raise TemporaryFailure(f"{self.pending_values} large values wait to be worked on, limit {_MAX_PENDING}")
        self.pending_values += 1
        outcome = self._loop.run_in_executor(self._threads, work)
        outcome.add_done_callback(self._end)
        return outcome

    def close(self) -> None:
        """Wait for the work that has started, and drop the rest."""
        self._threads.shutdown(wait=True, cancel_futures=True)

    def _end(self, outcome: asyncio.Future[Any]) -> None:
        self.pending_values -= 1
