"""Writes a bucket's changes to disk: commits in groups, and requests that wait for a commit.

A thread writes and syncs a commit while the event loop continues to serve. Changes that are stored meanwhile go with
the next commit. So there is one commit at a time, and a slower disk gets larger commits.

STOP_PERSISTENCE pauses the flusher: changes stay in memory, and a crash loses them. START_PERSISTENCE commits them.
Closing the bucket commits them too, as kv_engine does.

While the disk refuses writes, the bucket refuses changes, and the commit is repeated every second. After a failed sync
it is unknown which bytes are on disk. Such a bucket accepts and confirms nothing until the node restarts.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from penstock.errors import InternalError, InvalidArguments, StatusError, TemporaryFailure
from penstock.node.buckets.persistence_waits import PersistenceWaits
from penstock.node.timing.histogram import Histogram
from penstock.store.bucket_store import BucketStore

logger = logging.getLogger("penstock.node")

_RETRY_SECONDS = 1.0
_CLOSE_SECONDS = 120.0
_STOPPED = "persistence is stopped"


class _CommitResult(NamedTuple):
    """A finished commit.

    Attributes:
        changes: changes that it contained, about: more may have come before it began to write.
        seconds: its duration.
    """

    changes: int
    seconds: float


class Flusher:
    """Commits a bucket on disk. It must be made and used on the event loop's thread.

    Args:
        store: the bucket's store.
        timeout: seconds that a request waits for the disk.
        time: returns seconds since the epoch.

    Attributes:
        commits: number of commits that succeeded.
        failures: number of commits that failed.
        times: durations of those that succeeded.
        persisted_changes: changes that they contained, about.
        last_seconds: duration of the newest one.
        last_at: its end, seconds since the epoch; 0 before the first.
        waits: requests that wait for the disk.
        is_paused: no commit begins until `resume`.
        on_commit: called after each commit.
    """

    on_commit: Callable[[], None]

    def __init__(self, store: BucketStore, *, timeout: float, time: Callable[[], float]) -> None:
        self.store = store
        self.waits = PersistenceWaits(store, timeout=timeout, commit_soon=self.commit_soon)
        self.commits = self.persisted_changes = self.failures = 0
        self.times = Histogram()
        self.last_seconds = 0.0
        self.last_at = 0.0
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-commit-{store.name}")
        self._commit: asyncio.Future[_CommitResult] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._flushes: list[asyncio.Future[None]] = []  # that wait for a commit to begin
        self._flushing: list[asyncio.Future[None]] = []  # and for the one that is under way
        self.is_paused = False
        self._faulty = self._broken = self._closed = False

    @property
    def is_committing(self) -> bool:
        """Whether a commit is under way."""
        return self._commit is not None

    @property
    def seconds_behind(self) -> float:
        """The estimated time until all present changes are on disk."""
        if not self.store.log.commits.uncommitted_records and self._commit is None:
            return 0.0
        return self.store.settings.commit_seconds + self.last_seconds

    @property
    def state(self) -> str:
        """The flusher's state, as ep-engine's STAT names it. `pausing` and `retrying` are extensions."""
        if self._broken:
            return "stopped"
        if self.is_paused:
            return "paused" if self._commit is None else "pausing"
        return "retrying" if self._faulty else "running"

    # Commits

    def commit_soon(self) -> None:
        """Schedule a commit of the changes since the last one.

        It begins at once if requests wait for it, or if enough changes for one commit have gathered.
        """
        if self._commit is not None or self._closed or self.is_paused:
            return
        if self.store.log.room.fault is not None:
            self._report_fault()
            return
        uncommitted = self.store.log.commits.uncommitted_records
        if uncommitted and (self.waits or uncommitted >= self.store.settings.commit_count):
            self._start_commit()
        elif uncommitted and self._timer is None:
            self._timer = self._loop.call_later(self.store.settings.commit_seconds, self._start_commit)
        elif not uncommitted and self.waits:  # a wait may have begun after the last commit, with all changes on disk
            self._loop.call_soon(self.waits.answer_finished)

    def _start_commit(self) -> None:
        self._cancel_timer()
        self._flushing, self._flushes = self._flushes, []
        self._commit = self._loop.run_in_executor(self._thread, _run_commit, self.store, self._loop.time)
        self._commit.add_done_callback(self._finish_commit)

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    # STOP_PERSISTENCE and START_PERSISTENCE

    def pause(self, reply: bytes) -> bytes:
        """Begin no commit until `resume`, and return the reply to STOP_PERSISTENCE.

        Returns:
            The reply.

        Raises:
            Parked: a commit is under way.
            InvalidArguments: the flusher is already paused, or has stopped after a failed sync.
        """
        if self.is_paused or self._broken:
            raise InvalidArguments(f"bucket {self.store.name}: the flusher is {self.state}, expected running")
        self.is_paused, self.waits.obstacle = True, _STOPPED
        self._cancel_timer()
        logger.warning("bucket %s: persistence is stopped; a crash loses all changes from now on", self.store.name)
        _end_flushes(self._flushes, TemporaryFailure(self._describe_stop()))
        return self.waits.reply_when(None, lambda: self._commit is None, reply)

    def resume(self) -> None:
        """Commit again.

        Raises:
            InvalidArguments: the flusher is not paused.
        """
        if not self.is_paused:
            raise InvalidArguments(f"bucket {self.store.name}: the flusher is {self.state}, expected paused")
        self.is_paused, self.waits.obstacle = False, ""
        logger.info("bucket %s: persistence is started", self.store.name)
        if self._commit is None and not self._broken:
            self._start_commit()

    def check_running(self) -> None:
        """Raise TemporaryFailure while the flusher is paused."""
        if self.is_paused:
            raise TemporaryFailure(self._describe_stop())

    def _describe_stop(self) -> str:
        return f"bucket {self.store.name}: {_STOPPED}, send START_PERSISTENCE first"

    def _finish_commit(self, commit: asyncio.Future[_CommitResult]) -> None:
        self._commit = None
        if commit.cancelled():
            return
        if (defect := commit.exception()) is not None:
            # Errors of the disk are faults of the log. Any other exception is a defect of this program.
            logger.error("bucket %s: internal error in a commit", self.store.name, exc_info=defect)
            _end_flushes(self._flushing, InternalError(f"bucket {self.store.name}: internal error in a commit"))
            self._schedule_retry()
            return
        fault = self.store.log.room.fault
        self.failures += fault is not None
        _end_flushes(self._flushing, None if fault is None else TemporaryFailure(fault))
        if fault is None:
            taken, self.last_seconds = commit.result()
            self.times.record(self.last_seconds)
            self.last_at = self._time()
            self.commits += 1
            self.persisted_changes += taken
        self._report_fault()
        self.waits.answer_finished()
        if self._flushes and not self._closed:
            self._start_commit()
        else:
            self.commit_soon()
        self.on_commit()

    async def flush(self) -> None:
        """Return when all present changes are on disk.

        Raises:
            TemporaryFailure: they could not be written, or persistence is stopped.
        """
        self.check_running()
        flush = self._loop.create_future()
        self._flushes.append(flush)
        if self._commit is None:
            self._start_commit()
        await flush

    def _schedule_retry(self) -> None:
        if self._timer is None and not self._closed and not self.is_paused:
            self._timer = self._loop.call_later(_RETRY_SECONDS, self._start_commit)

    def _report_fault(self) -> None:
        """Log when the disk begins to refuse writes, accepts them again, or has failed for good. Schedule a retry."""
        name, fault = self.store.name, self.store.log.room.fault
        if self.store.log.commits.is_broken:
            if not self._broken:
                logger.error(
                    "bucket %s: %s; it accepts and confirms no changes until the node is restarted",
                    *(name, fault),
                )
            self._broken = True
            return
        if fault is not None:
            if not self._faulty:
                logger.warning("bucket %s: %s; changes are refused until the disk accepts writes", name, fault)
            self._schedule_retry()
        elif self._faulty:
            logger.warning("bucket %s: all changes are on disk; changes are accepted again", name)
        self._faulty = fault is not None

    # The end

    async def close(self) -> None:
        """Commit the remaining changes and close the bucket. Changes that cannot be written are logged and lost."""
        self._closed = True
        self._cancel_timer()
        self.waits.close()
        closing = self._loop.run_in_executor(self._thread, self.store.close)
        self._thread.shutdown(wait=False)
        await asyncio.wait([closing], timeout=_CLOSE_SECONDS)
        name, left = self.store.name, self.store.log.commits.uncommitted_records
        if not closing.done():
            logger.error("bucket %s: not closed after %g s; %d changes are not on disk", name, _CLOSE_SECONDS, left)
        elif (error := closing.exception()) is not None:
            logger.error("bucket %s: not closed: %s", name, error, exc_info=error)
        elif left:
            logger.error("bucket %s: %d changes are not on disk, and lost: %s", name, left, self.store.log.room.fault)


def _run_commit(store: BucketStore, clock: Callable[[], float]) -> _CommitResult:
    """Commit on the flusher's thread.

    Args:
        store: the bucket's store.
        clock: returns monotonic seconds.

    Returns:
        The number of changes and the duration.
    """
    began, taken = clock(), store.log.commits.uncommitted_records
    store.log.commits.run()
    return _CommitResult(taken, clock() - began)


def _end_flushes(flushes: list[asyncio.Future[None]], error: StatusError | None) -> None:
    """Finish these futures, with an error or without."""
    ended = flushes[:]
    flushes.clear()
    for flush in ended:
        if flush.cancelled():
            continue
        if error is None:
            flush.set_result(None)
        else:
            flush.set_exception(error)
