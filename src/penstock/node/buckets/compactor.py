"""Rewrites a bucket's log without superseded records, piece by piece, on a thread of its own."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from penstock.errors import Busy, InternalError, StatusError, TemporaryFailure
from penstock.node.answers import CancelWait, Parked, Resume
from penstock.node.buckets.flusher import Flusher
from penstock.node.timing.histogram import Histogram
from penstock.store.bucket_store import BucketStore
from penstock.store.log.compaction import Compaction
from penstock.store.log.rewrite import PurgeRequest

logger = logging.getLogger("penstock.node")

_PAUSE_SECONDS = 0.5
"""Time between two searches for segments worth rewriting. A search takes about a millisecond, and there may be 200
commits a second."""

_AFTER_FAILURE_SECONDS = 60.0
"""Time until the next try after a failure: a full disk stays full for a while."""


class Compactor:
    """Compacts one bucket. It must be made and used on the event loop's thread.

    Args:
        store: the bucket's store.
        flusher: of a bucket on disk; None in memory.

    Attributes:
        pieces: pieces that were rewritten and put in place.
        times: durations of the rewriting.
        failures: pieces that the disk refused.
    """

    def __init__(self, store: BucketStore, flusher: Flusher | None) -> None:
        self.store = store
        self.pieces = self.failures = 0
        self.times = Histogram()
        self._flusher = flusher
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"penstock-compact-{store.name}")
        self._requested = asyncio.Event()
        self._not_before = self._retry_at = 0.0
        self._parked_request: tuple[Resume, bytes] | None = None
        self._purge: PurgeRequest | None = None
        self._piece: Compaction | None = None
        self._running: asyncio.Future[None] | None = None
        self._task = self._loop.create_task(self._run())
        self._task.add_done_callback(self._report_end)

    @property
    def is_running(self) -> bool:
        """Whether a piece is being rewritten."""
        return self._piece is not None

    def compact_soon(self) -> None:
        """Rewrite segments that are worth it, unless commits are paused.

        Segments that already wait for their rewriting are checked on each call, others only every half second.
        """
        now, log = self._loop.time(), self.store.log
        if now < self._retry_at or (self._flusher is not None and self._flusher.is_paused):
            return
        if now >= self._not_before or log.segments.unclustered_bytes or log.quota.is_exceeded:
            self._not_before = now + _PAUSE_SECONDS
            self._requested.set()

    def compact_all(self, reply: bytes, purge: PurgeRequest | None = None) -> Parked:
        """Return a Parked that answers a request once the whole present log has been rewritten.

        Args:
            reply: the reply to the request.
            purge: tombstones to drop before their purge age.

        Raises:
            Busy: another request waits for a compaction.
            TemporaryFailure: persistence is stopped.
            InternalError: the compaction task has failed.
        """
        if self._parked_request is not None:
            raise Busy(f"bucket {self.store.name} is being compacted")
        if self._task.done():
            raise InternalError(f"bucket {self.store.name}: compaction has ended")
        if self._flusher is not None:
            self._flusher.check_running()
        return Parked(partial(self._park, reply, purge))

    def _park(self, reply: bytes, purge: PurgeRequest | None, resume: Resume) -> CancelWait:
        asker = self._parked_request = (resume, reply)
        self._purge = purge
        self._requested.set()

        def give_up() -> None:
            if self._parked_request is asker:
                self._parked_request = None

        return give_up

    def _answer_request(self, error: StatusError | None = None) -> None:
        if self._parked_request is not None:
            (resume, reply), self._parked_request = self._parked_request, None
            resume(reply if error is None else error)

    async def _run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            try:
                if self._parked_request is None:
                    await self._rewrite_pieces()
                else:
                    await self._rewrite_all()
                    self._answer_request()
            except TemporaryFailure as error:
                logger.warning("bucket %s: not compacted: %s", self.store.name, error)
                self._retry_at = self._loop.time() + _AFTER_FAILURE_SECONDS
                self._answer_request(error)

    async def _rewrite_all(self) -> None:
        """Rewrite the whole log. Raises TemporaryFailure."""
        self.store.log.room.seal_active()
        await self._flush()  # only records on disk can be rewritten
        await self._rewrite_pieces(everything=True, purge=self._purge)
        await self._flush()  # only then do the new files stand for the old ones

    async def _flush(self) -> None:
        if self._flusher is not None:
            await self._flusher.flush()

    async def _rewrite_pieces(self, *, everything: bool = False, purge: PurgeRequest | None = None) -> None:
        """Rewrite one piece after the other. Raises TemporaryFailure if the disk refuses a piece."""
        while (piece := self.store.compactor.next_piece(everything, purge)) is not None:
            self._piece = piece
            began = self._loop.time()
            self._running = self._loop.run_in_executor(self._thread, piece.run)
            await asyncio.shield(self._running)
            self.times.record(self._loop.time() - began)
            self._finish_piece(piece)
            if piece.problem:
                self.failures += 1
                raise TemporaryFailure(piece.problem)

    def _finish_piece(self, piece: Compaction) -> None:
        self._piece = None
        self.pieces += piece.finish()
        if self._flusher is not None:
            self._flusher.commit_soon()

    async def close(self) -> None:
        """Start no further piece, and wait for the one that is being rewritten."""
        self._task.remove_done_callback(self._report_end)
        self._task.cancel()
        await asyncio.wait([self._task])
        if self._running is not None:
            await asyncio.wait([self._running])
        if self._piece is not None:
            self._finish_piece(self._piece)
        self._thread.shutdown(wait=False)

    def _report_end(self, task: asyncio.Task[None]) -> None:
        """Log an unexpected error: the bucket continues to serve, and its log grows."""
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("bucket %s: internal error in a compaction", self.store.name, exc_info=error)
            self._answer_request(InternalError(f"bucket {self.store.name}: internal error in a compaction"))
