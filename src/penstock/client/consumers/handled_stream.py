"""The stream of a consumer whose changes go to handlers: deliveries in advance, and the progress of the oldest one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

from penstock.client.consumers.position_committer import PositionCommitter
from penstock.client.feeds.deliveries import Delivery
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.tracing.tracer import WorkSpan

__all__ = ["HandledStream"]


class HandledStream:
    """Takes deliveries before earlier ones are finished, and records which changes are finished.

    Args:
        stream: the stream.
        committer: commits positions. Its progress knows one delivery: here the oldest unfinished one.
        start_span: starts the span of a delivery.
    """

    def __init__(
        self,
        stream: ChangeStream | SharedStream,
        committer: PositionCommitter,
        start_span: Callable[[Delivery], WorkSpan],
    ) -> None:
        self._stream = stream
        self.start_span = start_span
        self._committer = committer
        self._is_idle = True

    async def take_ahead(self) -> Delivery | None:
        """Return the next delivery while earlier ones are unfinished; None after the end."""
        return await self._stream.next_delivery(is_ahead=True)

    async def wait_or_commit(self, tasks: Collection[asyncio.Task[Any]]) -> None:
        """Wait until a task ends or a commit is due, and commit if it is."""
        await self._committer.wait(tasks, self._note_positions)
        await self._committer.commit_if_due()

    def begin_delivery(self, delivery: Delivery) -> None:
        """Record that a delivery is now the oldest unfinished one."""
        self._committer.progress.begin_delivery(delivery)
        self._is_idle = False

    def count_finished(self, changes: int) -> None:
        """Count finished changes of the oldest delivery, from its first unfinished one on."""
        self._committer.progress.hand_out(changes)
        self._committer.progress.count_processed(changes)

    def finish_delivery(self, delivery: Delivery) -> None:
        """Record that all changes of the oldest delivery are finished."""
        self._committer.progress.finish_delivery(delivery.positions)
        self._stream.acknowledge(delivery)
        self._is_idle = True

    def _note_positions(self) -> None:
        if self._is_idle:  # else the stream's positions are after deliveries that are unfinished
            self._committer.progress.finish_delivery(self._stream.positions)
