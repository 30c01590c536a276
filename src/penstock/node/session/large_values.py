"""Work on large values, done by threads while the event loop serves other requests.

A handler calls `run_in_worker`. The first call parks the request, and a thread does the work. Then the request is
served again from its beginning, now with the result. All checks run again, and the result is used only if the
document still has the version that the work has read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Hashable
from typing import Any, Final, NoReturn, TypeVar

from penstock.errors import RemoteProtocolError, StatusError, TemporaryFailure, make_status_error
from penstock.node.answers import Answer, CancelWait, FinishedWork, Parked, Resume
from penstock.node.session.session import Session
from penstock.wire.codec.native import extension
from penstock.wire.codec.statuses import Status

LARGE_VALUE_BYTES: Final = 16 * 1024 if extension is None else 256 * 1024
"""Bytes of a value above which a thread works on it. 16 changes of 256 KiB take the event loop at most 5 ms."""

_MAX_ATTEMPTS: Final = 100
"""Attempts at a request whose document changes meanwhile. Source: kv_engine subdocument.cc."""

T = TypeVar("T")

logger = logging.getLogger("penstock.node")


def run_in_worker(session: Session, version: Hashable, nbytes: int, work: Callable[[], T]) -> T:
    """Return the result of work on a large value, or raise its error.

    Args:
        session: the session whose request is parked at the first call, and served again with the result.
        version: the version of the document. A result of any other version is dropped, and the work is done again.
        nbytes: bytes of the value; the result has about as many.
        work: runs in a thread. It must not use anything that the event loop changes.

    Raises:
        Parked: a thread does the work.
        TemporaryFailure: too much work waits, or the document has changed during each of 100 attempts.
    """
    finished = session.finished_work
    if finished is not None and finished.version == version:
        result: T = finished.outcome.result()
        return result
    attempts = 1 if finished is None else finished.attempts + 1
    if attempts > _MAX_ATTEMPTS:
        raise TemporaryFailure(f"the document changed during each of {_MAX_ATTEMPTS} attempts")
    _park_request(session, nbytes, work, lambda done: FinishedWork(version, attempts, done))


def reply_in_worker(session: Session, nbytes: int, make: Callable[[], Answer]) -> NoReturn:
    """Have a thread make the reply to a request from a large value.

    Args:
        session: the session whose request is parked until the reply exists.
        nbytes: bytes of the value.
        make: runs in a thread. It must not use anything that the event loop changes.

    Raises:
        Parked: always.
        TemporaryFailure: too much work waits.
    """
    _park_request(session, nbytes, make, _get_answer)


def _get_answer(done: asyncio.Future[Any]) -> Any:
    """Return the reply that a thread has made, or the error to reply with."""
    error = done.exception()
    if error is None:
        return done.result()
    if isinstance(error, StatusError | RemoteProtocolError):
        return error
    logger.error("internal error with a large value", exc_info=error)
    return make_status_error(Status.EINTERNAL, "internal error")


def _park_request(
    session: Session,
    nbytes: int,
    work: Callable[[], Any],
    convert: Callable[[asyncio.Future[Any]], Any],
) -> NoReturn:
    """Park a request until a thread has done some work.

    Args:
        session: the session of the request.
        nbytes: bytes that the work holds.
        work: runs in a thread.
        convert: turns the finished work into the value for `Resume`.

    Raises:
        Parked: always.
    """
    outcome = session.node.workers.start(work)

    def begin(resume: Resume) -> CancelWait:
        is_wanted = True

        def end(done: asyncio.Future[Any]) -> None:
            if done.cancelled():
                return
            done.exception()  # asyncio logs an exception that is never retrieved
            if is_wanted:
                resume(convert(done))

        def give_up() -> None:
            nonlocal is_wanted
            is_wanted = False
            outcome.cancel()  # work in a thread runs to its end; only waiting work is dropped

        outcome.add_done_callback(end)
        return give_up

    raise Parked(begin, nbytes)
