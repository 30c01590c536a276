"""Bringing a bucket's changes to disk: commits in groups, and whoever waits for one.

A commit is written and synced on a thread of its own while the event loop goes on serving; what is stored meanwhile
goes with the next one. So there is one commit at a time, and the longer the disk takes, the more goes with each.

STOP_PERSISTENCE pauses the flusher: changes stay in memory, and a crash loses them. START_PERSISTENCE commits them.
Closing the bucket commits them too, as kv_engine does.

Where the disk refuses, the bucket refuses changes, and the commit is tried again every second. Where a sync has failed,
nobody can say what is on disk: such a bucket takes nothing and acknowledges nothing any more.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from penstock.errors import InternalError, InvalidArguments, NotMyVbucket, StatusError, TemporaryFailure
from penstock.node.answers import GiveUp, Parked, Resume
from penstock.node.buckets.histogram import Histogram
from penstock.node.buckets.vbucket_events import VbucketEvent
from penstock.store.bucket_store import BucketStore
from penstock.store.documents.vbucket import Vbucket
from penstock.wire.codec.constants import VbucketState

__all__ = ["Flusher"]

logger = logging.getLogger("penstock.node")

"""Seconds that a request waits for the disk."""

_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 120.0


@dataclass(eq=False, slots=True)
class _Waiter:
    """A parked request. is_done: tells whether what it waits for is on disk. too_late: its answer where that fails.

    vbucket: None if the request is not about one.
    """

    vbucket: Vbucket | None
    is_done: Callable[[], bool]
    reply: bytes
    resume: Resume
    too_late: StatusError | None = None
    timer: asyncio.TimerHandle | None = None


class _Committed(NamedTuple):
    """A commit that is over. taken: changes, about: more may have come before it began to write."""

    taken: int
    seconds: float


class Flusher:
    """Commits a durable bucket. To be made, and used, on the event loop's thread.

    Attributes:
        commits: how many have succeeded.
        failures: how many have not.
        times: of those that have succeeded.
        persisted: changes that they took, about.
        last_seconds: what the newest one took.
        last_at: epoch seconds of its end, 0 while there was none.
        patience: seconds that a request may wait.
        paused: no commit begins until `resume`.
        after: called after each commit.
    """

    after: Callable[[], None]

    def __init__(self, store: BucketStore, *, patience: float) -> None:
        self.store = store
        self.patience = patience
        self._settings = store.settings
        self.commits = self.persisted = self.failures = 0
        self.times = Histogram()
        self.last_seconds = 0.0
        self.last_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-commit-{store.name}")
        self._commit: asyncio.Future[_Committed] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._waiters: set[_Waiter] = set()
        self._flushes: list[asyncio.Future[None]] = []  # that wait for a commit to begin
        self._flushing: list[asyncio.Future[None]] = []  # and for the one that is under way
        self.paused = False
        self._faulty = self._broken = self._closed = False

    @property
    def waiting(self) -> int:
        """How many requests wait for the disk."""
        return len(self._waiters)

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commit is not None

    @property
    def seconds_behind(self) -> float:
        """How long it takes, about, until what has been stored up to now is on disk."""
        if not self.store.uncommitted and self._commit is None:
            return 0.0
        return self._settings.commit_seconds + self.last_seconds

    @property
    def state(self) -> str:
        """The flusher's state, as ep-engine's STAT names it. `pausing` and `retrying` are extensions."""
        if self._broken:
            return "stopped"
        if self.paused:
            return "paused" if self._commit is None else "pausing"
        return "retrying" if self._faulty else "running"

    # Commits

    def changed(self) -> None:
        """See to it that there is a commit soon if something was stored since the last one began.

        At once where somebody waits, or as much has gathered as is to be committed together.
        """
        if self._commit is not None or self._closed or self.paused:
            return
        if self.store.fault is not None:
            self._note_fault()
            return
        uncommitted = self.store.uncommitted
        if uncommitted and (self._waiters or uncommitted >= self._settings.commit_count):
            self._begin()
        elif uncommitted and self._timer is None:
            self._timer = self._loop.call_later(self._settings.commit_seconds, self._begin)
        elif not uncommitted and self._waiters:  # what somebody waits for may have begun only now, with all on disk
            self._loop.call_soon(self._answer)

    def _begin(self) -> None:
        self._cancel_timer()
        self._flushing, self._flushes = self._flushes, []
        self._commit = self._loop.run_in_executor(self._thread, _commit, self.store)
        self._commit.add_done_callback(self._committed)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # STOP_PERSISTENCE and START_PERSISTENCE

    def pause(self, reply: bytes) -> bytes:
        """Begin no commit until `resume`, and return the reply to the request for that.

        Raises Parked while a commit is under way, InvalidArguments if the flusher is paused or has given up.
        """
        if self.paused or self._broken:
            raise InvalidArguments(f"bucket {self.store.name}: the flusher is {self.state}, expected running")
        self.paused = True
        self._cancel_timer()
        logger.warning("bucket %s: persistence is stopped; a crash loses all changes from now on", self.store.name)
        self._flushed(self._flushes, TemporaryFailure(self._stopped()))
        return self.until(None, lambda: self._commit is None, reply)

    def resume(self) -> None:
        """Commit again. Raises InvalidArguments if the flusher is not paused."""
        if not self.paused:
            raise InvalidArguments(f"bucket {self.store.name}: the flusher is {self.state}, expected paused")
        self.paused = False
        logger.info("bucket %s: persistence is started", self.store.name)
        if self._commit is None and not self._broken:
            self._begin()

    def check_running(self) -> None:
        """Raise TemporaryFailure while the flusher is paused."""
        if self.paused:
            raise TemporaryFailure(self._stopped())

    def _stopped(self) -> str:
        return f"bucket {self.store.name}: persistence is stopped, send START_PERSISTENCE first"

    def _committed(self, commit: asyncio.Future[_Committed]) -> None:
        self._commit = None
        if commit.cancelled():
            return
        if (defect := commit.exception()) is not None:
            # Whatever the disk does is a fault of the bucket's; this is a defect of ours, and must not be silent.
            logger.error("bucket %s: internal error in a commit", self.store.name, exc_info=defect)
            self._flushed(self._flushing, InternalError(f"bucket {self.store.name}: internal error in a commit"))
            self._retry()
            return
        fault = self.store.fault
        self.failures += fault is not None
        self._flushed(self._flushing, None if fault is None else TemporaryFailure(fault))
        if fault is None:
            taken, self.last_seconds = commit.result()
            self.times.record(self.last_seconds)
            self.last_at = time.time()
            self.commits += 1
            self.persisted += taken
        self._note_fault()
        self._answer()
        if self._flushes and not self._closed:
            self._begin()
        else:
            self.changed()
        self.after()

    def _answer(self) -> None:
        """Answer whoever has waited long enough."""
        for waiter in tuple(self._waiters):
            if self._broken:
                self._end(waiter, _no_more(self.store))
            elif waiter.is_done():
                self._end(waiter, waiter.reply)

    async def flush(self) -> None:
        """Return when all that was stored before is on disk. Raises TemporaryFailure if it could not be written."""
        self.check_running()
        flush = self._loop.create_future()
        self._flushes.append(flush)
        if self._commit is None:
            self._begin()
        await flush

    def _flushed(self, flushes: list[asyncio.Future[None]], error: StatusError | None) -> None:
        """End the wait of these flushes."""
        ended = flushes[:]
        flushes.clear()
        for flush in ended:
            if flush.cancelled():
                continue
            if error is None:
                flush.set_result(None)
            else:
                flush.set_exception(error)

    def _retry(self) -> None:
        if self._timer is None and not self._closed and not self.paused:
            self._timer = self._loop.call_later(_RETRY_SECONDS, self._begin)

    def _note_fault(self) -> None:
        """Say it when the disk begins to refuse, when that is over, and when it is for good; try again meanwhile."""
        name, fault = self.store.name, self.store.fault
        if self.store.broken:
            if not self._broken:
                logger.error(
                    "bucket %s: %s; it stores nothing and confirms nothing any more until the node is started again",
                    *(name, fault),
                )
            self._broken = True
            return
        if fault is not None:
            if not self._faulty:
                logger.warning("bucket %s: %s; changes are refused until the disk takes them again", name, fault)
            self._retry()
        elif self._faulty:
            logger.warning("bucket %s: all that was stored is on disk, changes are taken again", name)
        self._faulty = fault is not None

    # Waiting

    def until(
        self,
        vbucket: Vbucket | None,
        is_done: Callable[[], bool],
        reply: bytes,
        *,
        patience: float | None = None,
        too_late: StatusError | None = None,
    ) -> bytes:
        """Return the reply to a request if what it asks for is on disk, as is_done tells.

        patience: seconds to wait, None: as long as the flusher's. too_late: the answer after that, and whatever else
        ends the wait; None: TemporaryFailure, or NotMyVbucket where that is what has happened.
        Raises Parked where it is not on disk yet, TemporaryFailure (or too_late) if nothing is confirmed any more.
        """
        if self.store.broken:
            raise too_late or _no_more(self.store)
        if is_done():
            return reply
        waiter = partial(_Waiter, vbucket, is_done, reply, too_late=too_late)
        raise Parked(partial(self._enter, waiter, self.patience if patience is None else patience))

    def _enter(self, make: Callable[[Resume], _Waiter], patience: float, resume: Resume) -> GiveUp:
        waiter = make(resume)
        waiter.timer = self._loop.call_later(patience, self._give_up, waiter, patience)
        self._waiters.add(waiter)
        self.changed()
        return partial(self._forget, waiter)

    def _give_up(self, waiter: _Waiter, patience: float) -> None:
        number = 0 if waiter.vbucket is None else waiter.vbucket.id
        what = f"bucket {self.store.name}" if waiter.vbucket is None else f"vbucket {number}"
        why = ": persistence is stopped" if self.paused else ""
        self._end(waiter, TemporaryFailure(f"{what}: not on disk after {patience:g} s{why}", vbucket=number))

    def _forget(self, waiter: _Waiter) -> None:
        if waiter.timer is not None:
            waiter.timer.cancel()
        self._waiters.discard(waiter)

    def _end(self, waiter: _Waiter, answer: bytes | StatusError) -> None:
        if waiter in self._waiters:
            self._forget(waiter)
            waiter.resume(waiter.too_late or answer if isinstance(answer, StatusError) else answer)

    def vbucket_changed(self, vbucket: Vbucket, event: VbucketEvent) -> None:
        """End the waits for a vbucket: what they waited for may be gone, or others' concern."""
        for waiter in self._waiters:
            if waiter.vbucket is vbucket:
                error: StatusError = TemporaryFailure(f"vbucket {vbucket.id}: {event.value}", vbucket=vbucket.id)
                if vbucket.state is not VbucketState.ACTIVE:
                    error = NotMyVbucket(vbucket=vbucket.id)
                self._loop.call_soon(self._end, waiter, error)

    # The end

    async def close(self) -> None:
        """Commit what is left and close the bucket. What cannot be written is said, and lost."""
        self._closed = True
        self._cancel_timer()
        for waiter in tuple(self._waiters):
            self._forget(waiter)
        closing = self._loop.run_in_executor(self._thread, self.store.close)
        self._thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        name, left = self.store.name, self.store.uncommitted
        if not closing.done():
            logger.error("bucket %s: not closed after %g s; %d changes are not on disk", name, _CLOSE_SECONDS, left)
        elif (error := closing.exception()) is not None:
            logger.error("bucket %s: not closed: %s", name, error, exc_info=error)
        elif left:
            logger.error("bucket %s: %d changes are not on disk, and lost: %s", name, left, self.store.fault)


def _commit(store: BucketStore) -> _Committed:
    """Commit, on a thread of its own."""
    began, taken = time.perf_counter(), store.uncommitted
    store.commit()
    return _Committed(taken, time.perf_counter() - began)


def _no_more(store: BucketStore) -> TemporaryFailure:
    return TemporaryFailure(f"bucket {store.name}: {store.fault}; nothing is confirmed any more")
