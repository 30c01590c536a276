"""The commits of a consumer: when they are due, and their content."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from penstock.client.consumers.commit_policy import CommitPolicy
from penstock.client.consumers.progress import ConsumerProgress
from penstock.client.feeds.stream_position import Position
from penstock.client.positions.saved_positions import SavedPositions
from penstock.client.tracing.span_types import COMMIT, describe_messaging
from penstock.client.tracing.tracer import trace_work

__all__ = ["PositionCommitter"]


class PositionCommitter:
    """Saves the positions of a consumer on request, and when they are due.

    Args:
        policy: decides when a commit is due.
        write: saves positions.
        find_uuid: returns the uuid of the bucket that the stream reads now, empty if it is not known.

    Attributes:
        progress: the changes that the caller has processed since `begin`.
        saved: the positions of the last commit.
    """

    def __init__(
        self, policy: CommitPolicy, write: Callable[[SavedPositions], Awaitable[None]], find_uuid: Callable[[], str]
    ) -> None:
        self.progress = ConsumerProgress({}, 0.0)
        self.saved = SavedPositions(bucket="", uuid="", vbuckets=0)
        self._policy = policy
        self._write = write
        self._find_uuid = find_uuid
        self._lock = asyncio.Lock()

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

        Args:
            include_current: whether the changes that the caller has now count as processed.
        """
        async with self._lock:
            progress = self.progress
            mark = progress.make_mark(include_current=include_current)
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
                await self._write(saved)
            if progress is self.progress:  # else a new share has begun meanwhile, at positions that are saved
                self.saved = saved
            progress.record_commit(mark, asyncio.get_running_loop().time())

    async def commit_if_due(self) -> None:
        """Save the positions, also after the changes that the caller has now, if the policy demands it."""
        progress = self.progress
        elapsed = asyncio.get_running_loop().time() - progress.committed_at
        has_moved = not progress.processed and progress.has_moved  # compared only while no change arrives
        if self._policy.is_due(progress.processed, has_moved=has_moved, elapsed=elapsed):
            await self.commit()

    async def wait(self, tasks: Collection[asyncio.Task[Any]], note_positions: Callable[[], None]) -> None:
        """Wait until a task ends, or a commit is due. Commit if no task has ended.

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
