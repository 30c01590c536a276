"""Bringing a bucket's changes to disk: commits in groups, and the requests that wait for one.

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
from typing import NamedTuple

from penstock.errors import InternalError, InvalidArguments, StatusError, TemporaryFailure
from penstock.node.buckets.histogram import Histogram
from penstock.node.buckets.persistence_waits import PersistenceWaits
from penstock.store.bucket_store import BucketStore

__all__ = ["Flusher"]

logger = logging.getLogger("penstock.node")

_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 120.0
_STOPPED = "persistence is stopped"


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
        waits: requests that wait for the disk.
        paused: no commit begins until `resume`.
        after: called after each commit.
    """

    after: Callable[[], None]

    def __init__(self, store: BucketStore, *, patience: float) -> None:
        self.store = store
        self.waits = PersistenceWaits(store, patience=patience, commit_soon=self.changed)
        self.commits = self.persisted = self.failures = 0
        self.times = Histogram()
        self.last_seconds = 0.0
        self.last_at = 0.0
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-commit-{store.name}")
        self._commit: asyncio.Future[_Committed] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: list[asyncio.Future[None]] = []  # that wait for a commit to begin
        self._flushing: list[asyncio.Future[None]] = []  # and for the one that is under way
        self.paused = False
        self._faulty = self._broken = self._closed = False

    @property
    def committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commit is not None

    @property
    def seconds_behind(self) -> float:
        """How long it takes, about, until what has been stored up to now is on disk."""
        if not self.store.log.commits.uncommitted and self._commit is None:
            return 0.0
        return self.store.settings.commit_seconds + self.last_seconds

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
        if self.store.log.room.fault is not None:
            self._note_fault()
            return
        uncommitted = self.store.log.commits.uncommitted
        if uncommitted and (self.waits or uncommitted >= self.store.settings.commit_count):
            self._begin()
        elif uncommitted and self._timer is None:
            self._timer = self._loop.call_later(self.store.settings.commit_seconds, self._begin)
        elif not uncommitted and self.waits:  # what somebody waits for may have begun only now, with all on disk
            self._loop.call_soon(self.waits.answer)

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
        self.paused, self.waits.obstacle = True, _STOPPED
        self._cancel_timer()
        logger.warning("bucket %s: persistence is stopped; a crash loses all changes from now on", self.store.name)
        _end_flushes(self._flushes, TemporaryFailure(self._stopped()))
        return self.waits.until(None, lambda: self._commit is None, reply)

    def resume(self) -> None:
        """Commit again. Raises InvalidArguments if the flusher is not paused."""
        if not self.paused:
            raise InvalidArguments(f"bucket {self.store.name}: the flusher is {self.state}, expected paused")
        self.paused, self.waits.obstacle = False, ""
        logger.info("bucket %s: persistence is started", self.store.name)
        if self._commit is None and not self._broken:
            self._begin()

    def check_running(self) -> None:
        """Raise TemporaryFailure while the flusher is paused."""
        if self.paused:
            raise TemporaryFailure(self._stopped())

    def _stopped(self) -> str:
        return f"bucket {self.store.name}: {_STOPPED}, send START_PERSISTENCE first"

    def _committed(self, commit: asyncio.Future[_Committed]) -> None:
        self._commit = None
        if commit.cancelled():
            return
        if (defect := commit.exception()) is not None:
            # Whatever the disk does is a fault of the bucket's; this is a defect of ours, and must not be silent.
            logger.error("bucket %s: internal error in a commit", self.store.name, exc_info=defect)
            _end_flushes(self._flushing, InternalError(f"bucket {self.store.name}: internal error in a commit"))
            self._retry()
            return
        fault = self.store.log.room.fault
        self.failures += fault is not None
        _end_flushes(self._flushing, None if fault is None else TemporaryFailure(fault))
        if fault is None:
            taken, self.last_seconds = commit.result()
            self.times.record(self.last_seconds)
            self.last_at = time.time()
            self.commits += 1
            self.persisted += taken
        self._note_fault()
        self.waits.answer()
        if self._flushes and not self._closed:
            self._begin()
        else:
            self.changed()
        self.after()

    async def flush(self) -> None:
        """Return when all that was stored before is on disk. Raises TemporaryFailure if it could not be written."""
        self.check_running()
        flush = self._loop.create_future()
        self._flushes.append(flush)
        if self._commit is None:
            self._begin()
        await flush

    def _retry(self) -> None:
        if self._timer is None and not self._closed and not self.paused:
            self._timer = self._loop.call_later(_RETRY_SECONDS, self._begin)

    def _note_fault(self) -> None:
        """Say it when the disk begins to refuse, when that is over, and when it is for good; try again meanwhile."""
        name, fault = self.store.name, self.store.log.room.fault
        if self.store.log.commits.broken:
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

    # The end

    async def close(self) -> None:
        """Commit what is left and close the bucket. What cannot be written is said, and lost."""
        self._closed = True
        self._cancel_timer()
        self.waits.close()
        closing = self._loop.run_in_executor(self._thread, self.store.close)
        self._thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        name, left = self.store.name, self.store.log.commits.uncommitted
        if not closing.done():
            logger.error("bucket %s: not closed after %g s; %d changes are not on disk", name, _CLOSE_SECONDS, left)
        elif (error := closing.exception()) is not None:
            logger.error("bucket %s: not closed: %s", name, error, exc_info=error)
        elif left:
            logger.error("bucket %s: %d changes are not on disk, and lost: %s", name, left, self.store.log.room.fault)


def _commit(store: BucketStore) -> _Committed:
    """Commit, on a thread of its own."""
    began, taken = time.perf_counter(), store.log.commits.uncommitted
    store.log.commits.run()
    return _Committed(taken, time.perf_counter() - began)


def _end_flushes(flushes: list[asyncio.Future[None]], error: StatusError | None) -> None:
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
