"""Rewriting a bucket's log without what does not count any more, piece by piece, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock.errors import Busy, InternalError, StatusError, TemporaryFailure
from penstock.node.answers import GiveUp, Parked, Resume
from penstock.node.buckets.flusher import Flusher
from penstock.node.buckets.histogram import Histogram
from penstock.store.bucket_store import BucketStore
from penstock.store.log.compaction import Compaction
from penstock.store.log.rewrite import PurgeRequest

__all__ = ["Compactor"]

logger = logging.getLogger("penstock.node")

_PAUSE_SECONDS = 0.5
"""To find out whether something is worth rewriting costs a millisecond or so, and commits come 200 times a second."""

_AFTER_FAILURE_SECONDS = 60.0
"""A disk that is full is full for a while."""


class Compactor:
    """Compacts one bucket. To be made, and used, on the event loop's thread.

    pieces: how many were rewritten and put in place. times: of the rewriting. failures: how often the disk did not take
    a piece. running: whether one is being rewritten. flusher: of a bucket on disk, None in memory.
    """

    def __init__(self, store: BucketStore, flusher: Flusher | None) -> None:
        self.store = store
        self.pieces = self.failures = 0
        self.times = Histogram()
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-compact-{store.name}")
        self._wanted = asyncio.Event()
        self._not_before = self._retry_at = 0.0
        self._asker: tuple[Resume, bytes] | None = None
        self._purge: PurgeRequest | None = None
        self._piece: Compaction | None = None
        self._running: asyncio.Future[None] | None = None
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._ended)

    @property
    def running(self) -> bool:
        return self._piece is not None

    def look(self) -> None:
        """Rewrite what is worth it, unless nothing can be committed.

        Segments that wait are looked for each time, others only now and then.
        """
        now, log = self._loop.time(), self.store.log
        if now < self._retry_at or (self._flusher is not None and self._flusher.paused):
            return
        if now >= self._not_before or log.segments.waiting_bytes or log.quota.is_exceeded:
            self._not_before = now + _PAUSE_SECONDS
            self._wanted.set()

    def everything(self, reply: bytes, purge: PurgeRequest | None = None) -> Parked:
        """Return what parks a request until all there is now has been rewritten.

        purge: tombstones to drop before their time. Raises Busy while another request is parked so, TemporaryFailure
        while persistence is stopped.
        """
        if self._asker is not None:
            raise Busy(f"bucket {self.store.name} is being compacted")
        if self._task.done():
            raise InternalError(f"bucket {self.store.name}: compaction has ended")
        if self._flusher is not None:
            self._flusher.check_running()
        return Parked(partial(self._ask, reply, purge))

    def _ask(self, reply: bytes, purge: PurgeRequest | None, resume: Resume) -> GiveUp:
        asker = self._asker = (resume, reply)
        self._purge = purge
        self._wanted.set()

        def give_up() -> None:
            if self._asker is asker:
                self._asker = None

        return give_up

    def _answer(self, error: StatusError | None = None) -> None:
        if self._asker is not None:
            (resume, reply), self._asker = self._asker, None
            resume(reply if error is None else error)

    async def _run(self) -> None:
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            try:
                if self._asker is None:
                    while await self._rewrite_one():
                        pass
                else:
                    await self._rewrite_all()
                    self._answer()
            except TemporaryFailure as error:
                logger.warning("bucket %s: not compacted: %s", self.store.name, error)
                self._retry_at = self._loop.time() + _AFTER_FAILURE_SECONDS
                self._answer(error)

    async def _rewrite_all(self) -> None:
        """Raises TemporaryFailure."""
        self.store.log.room.seal()
        await self._flush()  # only what is on disk can be rewritten
        purge = self._purge
        while await self._rewrite_one(everything=True, purge=purge):
            pass
        await self._flush()  # only then do the new files stand for the old ones

    async def _flush(self) -> None:
        if self._flusher is not None:
            await self._flusher.flush()

    async def _rewrite_one(self, *, everything: bool = False, purge: PurgeRequest | None = None) -> bool:
        """Rewrite the next piece; False: there is none. Raises TemporaryFailure where the disk does not take it."""
        self._piece = piece = self.store.compactor.next_piece(everything, purge)
        if piece is None:
            return False
        began = self._loop.time()
        self._running = self._loop.run_in_executor(self._thread, piece.run)
        await asyncio.shield(self._running)
        self.times.record(self._loop.time() - began)
        self._finish(piece)
        if piece.error is not None:
            self.failures += 1
            raise TemporaryFailure(f"the disk does not take it: {piece.error.strerror or piece.error}")
        return True

    def _finish(self, piece: Compaction) -> None:
        self._piece = None
        self.pieces += piece.finish()
        if self._flusher is not None:
            self._flusher.changed()

    async def close(self) -> None:
        """Begin nothing more, and wait for what is under way."""
        self._task.remove_done_callback(self._ended)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._piece is not None:
            self._finish(self._piece)
        self._thread.shutdown(wait=False)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Report what nobody foresaw: the bucket goes on, and its log grows."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("bucket %s: internal error in a compaction", self.store.name, exc_info=error)
            self._answer(InternalError(f"bucket {self.store.name}: internal error in a compaction"))
