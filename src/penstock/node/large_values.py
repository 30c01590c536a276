"""Work on large values, done by threads while the event loop serves other requests.

A handler calls `work_apart`. The first time the request is parked and a thread does the work. Then the request is
served again from its beginning, with the result at hand: whatever was checked is checked again, and the result is used
only if it was made of the same version of the document.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, TypeVar

from penstock.errors import RemoteProtocolError, StatusError, TemporaryFailure, status_error
from penstock.node.replies import Answer, GiveUp, Parked, Resume
from penstock.wire.constants import Status
from penstock.wire.native import extension

if TYPE_CHECKING:
    from penstock.node.connection import NodeConnection

__all__ = ["LARGE", "Finished", "Workers", "reply_apart", "work_apart"]

LARGE: Final = 16 * 1024 if extension is None else 256 * 1024
"""Bytes of a value above which a thread works on it. 16 changes in 256 KiB take the event loop 5 ms at most."""

_THREADS: Final = 2
_MOST_WAITING: Final = 4096
"""Values of all connections that wait for a thread: one of each connection, unless it takes replies in any order."""

_MOST_ATTEMPTS: Final = 100
"""Times that a request is served again because the document changed meanwhile. Source: kv_engine subdocument.cc."""

T = TypeVar("T")

logger = logging.getLogger("penstock.node")


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


def work_apart(connection: NodeConnection, version: Hashable, nbytes: int, work: Callable[[], T]) -> T:
    """Return what work on a large value returns, or raise what it raises.

    Args:
        connection: its request is parked at the first call, and served again with the result.
        version: what the work is made of; a result that was made of anything else is dropped, and the work done again.
        nbytes: of the value that it is done on, and about as many of the result.
        work: runs in a thread: it must use nothing that the event loop changes.

    Raises:
        Parked: a thread does the work.
        TemporaryFailure: too much work waits, or the document changed during each of 100 attempts.
    """
    finished = connection.finished
    if finished is not None and finished.version == version:
        result: T = finished.outcome.result()
        return result
    attempts = 1 if finished is None else finished.attempts + 1
    if attempts > _MOST_ATTEMPTS:
        raise TemporaryFailure(f"the document changed during each of {_MOST_ATTEMPTS} attempts")
    _park(connection, nbytes, work, lambda done: Finished(version, attempts, done))


def reply_apart(connection: NodeConnection, nbytes: int, make: Callable[[], Answer]) -> NoReturn:
    """Let a thread make the reply to a request that was served, from a large value. Always raises Parked.

    Args:
        connection: its request is parked until the reply is there.
        nbytes: of the value.
        make: runs in a thread; it must use nothing that the event loop changes.

    Raises:
        Parked: always.
        TemporaryFailure: too much work waits.
    """
    _park(connection, nbytes, make, _answer_of)


def _answer_of(done: asyncio.Future[Any]) -> Any:
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, StatusError | RemoteProtocolError):
        return error
    logger.error("internal error with a large value", exc_info=error)
    return status_error(Status.EINTERNAL, "internal error")


def _park(
    connection: NodeConnection,
    nbytes: int,
    work: Callable[[], Any],
    said: Callable[[asyncio.Future[Any]], Any],
) -> NoReturn:
    """Park a request until a thread has done some work. said: makes of the work what the request goes on with."""
    outcome = connection.node.workers.start(work)

    def begin(resume: Resume) -> GiveUp:
        is_wanted = True

        def end(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                return
            done.exception()  # taken, so that asyncio does not report an error that nobody waits for
            if is_wanted:
                resume(said(done))

        def give_up() -> None:
            nonlocal is_wanted
            is_wanted = False
            outcome.cancel()

        outcome.add_done_callback(end)
        return give_up

    raise Parked(begin, nbytes)
