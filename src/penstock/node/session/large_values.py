"""Work on large values, done by threads while the event loop serves other requests.

A handler calls `work_apart`. The first time the request is parked and a thread does the work. Then the request is
served again from its beginning, with the result at hand: whatever was checked is checked again, and the result is used
only if it was made of the same version of the document.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, Final, NoReturn, TypeVar

from penstock.errors import RemoteProtocolError, StatusError, TemporaryFailure, status_error
from penstock.node.answers import Answer, Finished, GiveUp, Parked, Resume
from penstock.node.session.session import Session
from penstock.wire.codec.native import extension
from penstock.wire.codec.statuses import Status

__all__ = ["LARGE", "reply_apart", "work_apart"]

LARGE: Final = 16 * 1024 if extension is None else 256 * 1024
"""Bytes of a value above which a thread works on it. 16 changes in 256 KiB take the event loop 5 ms at most."""

_MOST_ATTEMPTS: Final = 100
"""Times that a request is served again because the document changed meanwhile. Source: kv_engine subdocument.cc."""

T = TypeVar("T")

logger = logging.getLogger("penstock.node")


def work_apart(session: Session, version: Hashable, nbytes: int, work: Callable[[], T]) -> T:
    """Return what work on a large value returns, or raise what it raises.

    Args:
        session: its request is parked at the first call, and served again with the result.
        version: what the work is made of; a result that was made of anything else is dropped, and the work done again.
        nbytes: of the value that it is done on, and about as many of the result.
        work: runs in a thread: it must use nothing that the event loop changes.

    Raises:
        Parked: a thread does the work.
        TemporaryFailure: too much work waits, or the document changed during each of 100 attempts.
    """
    finished = session.finished
    if finished is not None and finished.version == version:
        result: T = finished.outcome.result()
        return result
    attempts = 1 if finished is None else finished.attempts + 1
    if attempts > _MOST_ATTEMPTS:
        raise TemporaryFailure(f"the document changed during each of {_MOST_ATTEMPTS} attempts")
    _park(session, nbytes, work, lambda done: Finished(version, attempts, done))


def reply_apart(session: Session, nbytes: int, make: Callable[[], Answer]) -> NoReturn:
    """Let a thread make the reply to a request that was served, from a large value. Always raises Parked.

    Args:
        session: its request is parked until the reply is there.
        nbytes: of the value.
        make: runs in a thread; it must use nothing that the event loop changes.

    Raises:
        Parked: always.
        TemporaryFailure: too much work waits.
    """
    _park(session, nbytes, make, _answer_of)


def _answer_of(done: asyncio.Future[Any]) -> Any:
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, StatusError | RemoteProtocolError):
        return error
    logger.error("internal error with a large value", exc_info=error)
    return status_error(Status.EINTERNAL, "internal error")


def _park(
    session: Session,
    nbytes: int,
    work: Callable[[], Any],
    said: Callable[[asyncio.Future[Any]], Any],
) -> NoReturn:
    """Park a request until a thread has done some work. said: makes of the work what the request goes on with."""
    outcome = session.node.workers.start(work)

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
