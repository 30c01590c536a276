"""The progress of a consumer: the deliveries that it has not processed, and the positions before. Without I/O."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa

from penstock.client.consumers.delivery_part import find_positions_within
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.store.history.failover_log import FailoverLog
from penstock.wire.columns.schema import Change


class CommitMark(NamedTuple):
    """The content of a commit.

    Attributes:
        positions: vbucket -> position.
        processed: the changes that were processed since the last commit, when the mark was made.
    """

    positions: dict[int, Position]
    processed: int


class TakenDelivery:
    """A delivery that was taken from the stream.

    Attributes:
        delivery: the delivery.
        positions: vbucket -> position of the stream after it.
    """

    def __init__(self, delivery: Delivery, positions: Mapping[int, Position]) -> None:
        self.delivery = delivery
        self.positions = dict(positions)

    @cached_property
    def changes(self) -> list[Change]:
        """Its changes as objects."""
        return self.delivery.changes


class ConsumerProgress:
    """Keeps the deliveries of a consumer that are not processed, and finds the positions after the processed changes.

    Args:
        positions: vbucket -> position at the start.
        now: the time at the start, in seconds of any clock.

    Attributes:
        processed: changes that the caller has processed since the last commit.
        committed_at: the time of the last commit.
        unprocessed: the deliveries that are not processed as a whole; the oldest is first.
    """

    def __init__(self, positions: Mapping[int, Position], now: float) -> None:
        self.processed = 0
        self.committed_at = now
        self.unprocessed: deque[TakenDelivery] = deque()
        self._complete = dict(positions)
        self._committed = dict(positions)
        self._changes: Sequence[Change] = ()
        """The changes of the oldest delivery, once `next_change` needs them."""
        self._handed_out = 0
        """Changes of the oldest delivery that the caller has got."""
        self._done = 0
        """Changes of the oldest delivery that the caller has processed."""
        self._current = 0
        """Changes that the caller has now, without hidden ones."""
        self._logs: dict[int, FailoverLog] = {}

    @property
    def has_moved(self) -> bool:
        """Whether a position after complete deliveries differs from the last commit."""
        return self._complete != self._committed

    @property
    def oldest(self) -> TakenDelivery | None:
        """The oldest delivery that is not processed as a whole."""
        return self.unprocessed[0] if self.unprocessed else None

    @property
    def left(self) -> int:
        """The number of changes of the oldest delivery that the caller has not got."""
        return len(self.unprocessed[0].delivery.content) - self._handed_out if self.unprocessed else 0

    @property
    def has_rest(self) -> bool:
        """Whether the caller has not got all changes of the oldest delivery."""
        return self.left > 0

    def add_delivery(self, delivery: Delivery, positions: Mapping[int, Position]) -> None:
        """Add a delivery of which the caller has nothing yet.

        Args:
            delivery: the delivery.
            positions: vbucket -> position of the stream after it.
        """
        self.unprocessed.append(TakenDelivery(delivery, positions))

    def note_positions(self, positions: Mapping[int, Position]) -> None:
        """Record positions of the stream, unless the caller still processes changes before them."""
        if not self.unprocessed:
            self._complete = dict(positions)

    def next_change(self) -> Change | None:
        """Hand out the next change of the oldest delivery, and return it; None if the caller has got all of them.

        It is not counted before `begin_current`. The caller has processed all changes before it.
        """
        at = self._done = self._handed_out
        if at >= len(self._changes):
            if not self.has_rest:
                return None
            self._changes = self.unprocessed[0].changes
        self._handed_out = at + 1
        return self._changes[at]

    def rest_batch(self) -> pa.RecordBatch:
        """Hand out the changes of the oldest delivery that the caller has not got, and return them."""
        oldest = self.unprocessed[0]
        at = self._done = self._handed_out
        self._handed_out = len(oldest.delivery.content)
        return oldest.delivery.batch.slice(at) if at else oldest.delivery.batch

    def begin_current(self, changes: int) -> None:
        """Record the number of changes that the caller gets now, without hidden ones."""
        self._current = changes

    def count_current(self) -> None:
        """Record that the caller has processed the changes that it got."""
        self.processed += self._current
        self._current = 0
        self._done = self._handed_out

    def count_finished(self, changes: int) -> None:
        """Record that the next changes of the oldest delivery were handed out and processed."""
        self.processed += changes
        self._handed_out += changes
        self._done = self._handed_out

    def finish_oldest(self) -> Delivery:
        """Record that all changes of the oldest delivery were processed, and return it."""
        taken = self.unprocessed.popleft()
        self.count_current()
        self._changes, self._handed_out, self._done = (), 0, 0
        self._logs.update(taken.delivery.logs)
        self._complete = taken.positions
        return taken.delivery

    def drop_unprocessed(self) -> dict[int, Position]:
        """Forget all changes that the caller has not got, and return the positions before them."""
        self._complete = self.find_positions()
        self.unprocessed.clear()
        self._changes, self._handed_out, self._done = (), 0, 0
        return dict(self._complete)

    def find_positions(self, *, include_current: bool = True) -> dict[int, Position]:
        """Return the positions after the processed changes.

        Args:
            include_current: whether the changes that the caller has now count as processed.
        """
        oldest, taken = self.oldest, self._handed_out if include_current else self._done
        if oldest is None or not taken:
            return dict(self._complete)
        if taken == len(oldest.delivery.content):
            return {**self._complete, **oldest.positions}
        within = find_positions_within(self._complete, oldest.changes, taken, self._logs, oldest.delivery.logs)
        return {**self._complete, **within}

    def make_mark(self, *, include_current: bool) -> CommitMark:
        """Return the content of a commit at this moment. Changes that it includes count as processed from now on."""
        if include_current:
            self._done = self._handed_out
        return CommitMark(self.find_positions(include_current=include_current), self.processed)

    def record_commit(self, mark: CommitMark, now: float) -> None:
        """Record a commit.

        Args:
            mark: its content.
            now: the time.
        """
        self.processed -= mark.processed
        self._committed = mark.positions
        self.committed_at = now
