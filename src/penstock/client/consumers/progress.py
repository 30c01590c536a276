"""The progress of a consumer: which changes its caller has processed, and the positions after them. Without I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from penstock.client.consumers.delivery_part import find_positions_within
from penstock.client.feeds.deliveries import Delivery
from penstock.client.feeds.stream_position import Position
from penstock.store.history.failover_log import FailoverLog

__all__ = ["CommitMark", "ConsumerProgress"]


class CommitMark(NamedTuple):
    """The content of a commit.

    Attributes:
        positions: vbucket -> position.
        processed: the changes that were processed since the last commit, when the mark was made.
    """

    positions: dict[int, Position]
    processed: int


class ConsumerProgress:
    """Counts the changes of a consumer's deliveries, and finds the positions after them.

    Args:
        positions: vbucket -> position at the start.
        now: the time at the start, in seconds of any clock.

    Attributes:
        processed: changes that the caller has processed since the last commit.
        committed_at: the time of the last commit.
    """

    def __init__(self, positions: Mapping[int, Position], now: float) -> None:
        self.processed = 0
        self.committed_at = now
        self._complete = dict(positions)
        self._committed = dict(positions)
        self._delivery: Delivery | None = None
        self._handed_out = 0
        self._done = 0
        self._logs: dict[int, FailoverLog] = {}

    @property
    def has_moved(self) -> bool:
        """Whether a position after complete deliveries differs from the last commit."""
        return self._complete != self._committed

    @property
    def is_within_delivery(self) -> bool:
        """Whether the caller has not got all changes of the last delivery."""
        return self._delivery is not None and self._handed_out < len(self._delivery.content)

    def drop_delivery(self) -> None:
        """Forget the changes that the caller has not got. It has processed those that it got."""
        self._complete, self._delivery = self.find_positions(), None

    def begin_delivery(self, delivery: Delivery) -> None:
        """Record a delivery of which the caller has nothing yet."""
        self._delivery, self._handed_out, self._done = delivery, 0, 0

    def hand_out(self, changes: int) -> None:
        """Record that the caller gets the next changes. It has processed all changes that it got before."""
        self._done = self._handed_out
        self._handed_out += changes

    def count_processed(self, changes: int) -> None:
        """Count changes that the caller has processed."""
        self.processed += changes
        self._done = self._handed_out

    def finish_delivery(self, positions: Mapping[int, Position]) -> None:
        """Record that all changes of the last delivery were processed.

        Args:
            positions: vbucket -> position of the stream now.
        """
        if self._delivery is not None:
            self._logs.update(self._delivery.logs)
            self._delivery = None
        self._complete.update(positions)

    def find_positions(self, *, include_current: bool = True) -> dict[int, Position]:
        """Return the positions after the processed changes.

        Args:
            include_current: whether the changes that the caller has now count as processed.
        """
        if self._delivery is None:
            return dict(self._complete)
        taken, delivery = self._handed_out if include_current else self._done, self._delivery
        if taken == len(delivery.content):
            return {**self._complete, **delivery.positions}
        within = find_positions_within(self._complete, delivery.changes, taken, self._logs, delivery.logs)
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
