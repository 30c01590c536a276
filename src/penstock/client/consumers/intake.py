"""The intake of a consumer: takes deliveries from the stream, and keeps the changes that are not processed yet.

At any time a delivery is in one place: the future of the stream, or the progress until all its changes are processed.
It moves between them without an `await`. So a caller that is cancelled loses nothing, and nothing counts as processed
that it did not get.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pyarrow as pa

from penstock.client.consumers.committer import Committer
from penstock.client.consumers.hidden_changes import HiddenChanges
from penstock.client.consumers.progress import ConsumerProgress, TakenDelivery
from penstock.client.feeds.deliveries import Delivery
from penstock.client.groups.shared_stream import SharedStream
from penstock.client.streams.change_stream import ChangeStream
from penstock.client.tracing.tracer import WorkSpan, end_with_block
from penstock.wire.columns.schema import Change


class Intake:
    """Takes deliveries from a stream.

    Args:
        stream: the stream.
        committer: commits the positions.
        hidden: the changes that the caller does not get.
        start_span: starts the span of a delivery.
    """

    def __init__(
        self,
        stream: ChangeStream | SharedStream,
        committer: Committer,
        hidden: HiddenChanges,
        start_span: Callable[[Delivery], WorkSpan],
    ) -> None:
        self.hidden = hidden
        self.start_span = start_span
        self._stream = stream
        self._committer = committer

    @property
    def progress(self) -> ConsumerProgress:
        """The progress of the caller. A group's new share has a new one."""
        return self._committer.progress

    async def resume(self) -> None:
        """Begin a call of the consumer. Its caller has processed all changes that it got in an earlier call."""
        self.progress.count_current()
        stream = self._stream
        if isinstance(stream, SharedStream) and self.progress.oldest is not None and await stream.find_lost_share():
            await stream.rewind(self.progress.drop_unprocessed())

    async def hand_out_changes(self) -> AsyncGenerator[Change, None]:
        """Yield changes as objects, from the first one that the caller has not got."""
        await self.resume()
        while (taken := await self.next_delivery()) is not None:
            progress = self.progress
            with end_with_block(self.start_span(taken.delivery)):
                while (change := progress.next_change()) is not None:
                    if not self.hidden.includes(change):
                        progress.begin_current(1)
                        yield change
                        progress.count_current()
                        await self._committer.commit_if_due()

    async def hand_out_batches(self) -> AsyncGenerator[pa.RecordBatch, None]:
        """Yield changes as batches, from the first change that the caller has not got."""
        await self.resume()
        while (taken := await self.next_delivery()) is not None:
            progress = self.progress
            batch = self.hidden.remove_from(progress.rest_batch())
            if batch.num_rows:
                progress.begin_current(batch.num_rows)
                with end_with_block(self.start_span(taken.delivery)):
                    yield batch
            progress.count_current()

    async def next_delivery(self) -> TakenDelivery | None:
        """Return the oldest delivery that has changes for the caller; None after the end. Commits while it waits."""
        while True:
            while (oldest := self.progress.oldest) is not None:
                if self.progress.has_rest:
                    return oldest
                self.finish_oldest()
            await self._committer.commit_if_due()
            coming = self._stream.expect_delivery()
            await self._committer.wait([coming], self.note_positions)
            # Another call may have taken it, or the share may have changed.
            if coming.done() and coming is self._stream.expect_delivery() and self.take() is None:
                return None

    def expect_delivery(self) -> asyncio.Future[Any]:
        """Return the future of the next delivery, the same one until `take`."""
        return self._stream.expect_delivery()

    def take(self) -> Delivery | None:
        """Take the delivery of `expect_delivery`, which is done; None after the end. Raises errors of the stream."""
        delivery = self._stream.hand_out()
        if delivery is None:
            self.note_positions()
        else:
            self.progress.add_delivery(delivery, self._stream.positions)
        return delivery

    def finish_oldest(self) -> None:
        """Record that all changes of the oldest delivery are processed."""
        self._stream.acknowledge(self.progress.finish_oldest())

    def note_positions(self) -> None:
        """Record the positions of the stream, which may have moved without a change."""
        self.progress.note_positions(self._stream.positions)
