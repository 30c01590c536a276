"""The commits of a consumer: when they are due, and their content.

A commit runs to its end in a task of its own, even if its caller is cancelled. Otherwise it would stay open whether the
store has the new positions.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.client.connect.address import Address
from penstock.client.connect.retry import run_with_retry
from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.progress import CommitMark, ConsumerProgress
from penstock.client.feeds.stream_position import Position
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.tracing.span_types import COMMIT, describe_messaging
from penstock.client.tracing.tracer import trace_work
from penstock.errors import Error

logger = logging.getLogger("penstock.client")

_SETTLE_SECONDS = 3.0
"""The longest wait for the commit of a cancelled caller when the consumer closes."""


class Committer:
    """Saves the positions of a consumer on request, and when they are due.

    Args:
        address: the bucket; its option retry_seconds limits the attempts of a write.
        policy: decides when a commit is due.
        write: saves positions.
        find_uuid: returns the uuid of the bucket that the stream reads now, empty if it is not known.

    Attributes:
        progress: the changes that the caller has processed since `begin`.
        saved: the positions of the last commit.
    """

    def __init__(
        self,
        address: Address,
        policy: CommitPolicy,
        write: Callable[[SavedPositions], Awaitable[None]],
        find_uuid: Callable[[], str],
    ) -> None:
        self.progress = ConsumerProgress({}, 0.0)
        self.saved = SavedPositions(bucket="", uuid="", vbuckets=0)
        self._address = address
        self._policy = policy
        self._write = write
        self._find_uuid = find_uuid
        self._writing: asyncio.Task[None] | None = None
        self._failure: Exception | None = None
        """The error of a commit whose caller was cancelled."""

    def begin(self, saved: SavedPositions, positions: Mapping[int, Position]) -> None:
        """Begin at positions.

        Args:
            saved: the positions of the last commit.
            positions: vbucket -> position at which the stream starts.
        """
        self.saved = saved
        self.progress = ConsumerProgress(positions, asyncio.get_running_loop().time())

    @property
    def has_uncommitted(self) -> bool:
        """Whether a commit by the policy would save anything new."""
        return self._policy.is_automatic and bool(self.progress.processed or self.progress.has_moved)

    def begin_share(self, positions: Mapping[int, Position]) -> None:
        """Begin at the saved positions of a new share of the vbuckets."""
        self.begin(replace(self.saved, by_vbucket=dict(positions)), positions)

    async def commit_before_change(self) -> None:
        """Commit before the share changes, unless the caller commits by hand: then its last commit counts."""
        if self._policy.is_automatic:
            await self.commit()

    async def commit(self, *, include_current: bool = True) -> None:
        """Save the positions after the processed changes. Concurrent commits wait.

        A refusal is tried again. If the caller is cancelled, the commit goes on.

        Args:
            include_current: whether the changes that the caller has now count as processed.
        """
        await self._wait_for_writing()
        self._failure = None
        mark = self.progress.make_mark(include_current=include_current)
        writing = self._writing = asyncio.create_task(self._save(self.progress, mark))
        try:
            await asyncio.shield(writing)
        except asyncio.CancelledError:
            writing.add_done_callback(self._keep_failure)
            raise

    async def commit_if_due(self) -> None:
        """Save the positions, also after the changes that the caller has now, if the policy demands it.

        It raises the error of an earlier commit whose caller was cancelled.
        """
        if self._is_due():
            await self._wait_for_writing()
            failure, self._failure = self._failure, None
            if failure is not None:
                raise failure
            if self._is_due():
                await self.commit()

    async def settle(self) -> None:
        """Wait for the commit of a cancelled caller: the consumer closes."""
        if self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing], timeout=_SETTLE_SECONDS)
            self._writing.cancel()
            await asyncio.wait([self._writing])
        if self._failure is not None:
            logger.warning("%s: positions were not committed: %s", self._address, self._failure)

    def _is_due(self) -> bool:
        progress = self.progress
        elapsed = asyncio.get_running_loop().time() - progress.committed_at
        has_moved = not progress.processed and progress.has_moved  # compared only while no change arrives
        return self._policy.is_due(progress.processed, has_moved=has_moved, elapsed=elapsed)

    async def _wait_for_writing(self) -> None:
        while self._writing is not None and not self._writing.done():
            await asyncio.wait([self._writing])

    def _keep_failure(self, writing: asyncio.Task[None]) -> None:
        if not writing.cancelled() and isinstance(failure := writing.exception(), Exception):
            self._failure = failure

    async def _save(self, progress: ConsumerProgress, mark: CommitMark) -> None:
        saved = SavedPositions(
            bucket=self.saved.bucket,
            # A running stream reads a recreated bucket after a rollback to 0; its positions are that bucket's.
            uuid=self._find_uuid() or self.saved.uuid,
            vbuckets=self.saved.vbuckets,
            by_vbucket={**self.saved.by_vbucket, **mark.positions},
            notes=self.saved.notes,
        )
        attributes = {
            "messaging.operation.type": "settle",
            "messaging.batch.message_count": mark.processed,
            "penstock.vbuckets": len(mark.positions),
        }
        with trace_work(COMMIT, saved.bucket, describe_messaging(COMMIT, saved.bucket) | attributes):
            await run_with_retry(lambda: self._write(saved), self._address, lambda: True, only=(Error,))
        if progress is self.progress:  # else a new share has begun meanwhile, at positions that are saved
            self.saved = saved
        progress.record_commit(mark, asyncio.get_running_loop().time())

    async def wait(self, tasks: Collection[asyncio.Future[Any]], note_positions: Callable[[], None]) -> None:
        """Wait until a task or future ends, or a commit is due. Commit if none has ended.

        Args:
            tasks: the tasks.
            note_positions: records positions that moved without a change; called if no task has ended.
        """
        ended, _ = await asyncio.wait(tasks, timeout=self._find_wait(), return_when=asyncio.FIRST_COMPLETED)
        if not ended:
            note_positions()
            await self.commit_if_due()

    def _find_wait(self) -> float | None:
        """Return the seconds to wait for a change before a commit may be due; None: any time."""
        progress, policy = self.progress, self._policy
        wait = policy.find_wait(progress.processed, has_moved=progress.has_moved)
        if wait is None:
            return policy.idle_seconds  # a position may move meanwhile
        return max(progress.committed_at + wait - asyncio.get_running_loop().time(), 0.0)
