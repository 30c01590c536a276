"""Whether a TAP stream has sent everything that existed, and which vbuckets are dumped again if not.

A dump ends when the producer closes the connection. Item counts show whether the dump is complete. Vbuckets that lack
documents are cut off and dumped again; the others are not asked for a second time.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from penstock.client.feeds.consumer_feed import DumpProgress, FeedState, StreamFailure
from penstock.client.tap.tap_vbuckets import TapVbuckets
from penstock.client.topology.item_counts import ItemCounts, Shortfall, describe_shortfalls, find_shortfalls
from penstock.errors import ConnectionClosed, Unreachable

__all__ = ["TapDump"]

_MAX_FRUITLESS_DUMPS = 5
"""Dumps in a row that bring a bounded read no nearer to its end. ep-engine dumps what is on disk, which may lag."""


class TapDump(DumpProgress):
    """The progress of one TAP stream after another.

    Attributes:
        chosen: the vbuckets to follow.
        due: those of them that are to be asked for.
        is_done: everything has arrived that is to come.
        is_requested: the connection that there is was asked for the stream.
        has_begun: something of the stream has come.
        has_closed: the producer announced the end of a backfill.
    """

    def __init__(
        self, state: FeedState, vbuckets: TapVbuckets, chosen: Collection[int], *, from_now: bool, until_now: bool
    ) -> None:
        self.chosen = self.due = frozenset(chosen)
        self.is_done = not self.chosen or (from_now and until_now)
        self.is_requested = self.has_begun = self.has_closed = False
        self.needs_counts = False
        self._state = state
        self._vbuckets = vbuckets
        self._from_now = from_now
        self._until_now = until_now
        self._has_ended = self._is_checked = self._needs_verdict = False
        self._before: ItemCounts | None = None
        self._fruitless_dumps, self._lacking = 0, sys.maxsize

    def forget_connection(self) -> None:
        self.is_requested = self._has_ended = self._is_checked = False
        self.needs_counts = not (self._from_now or self.is_done)

    def begin(self) -> None:
        """Note that the stream is asked for."""
        self.is_requested, self._needs_verdict = True, self._until_now
        self.has_begun = self.has_closed = False

    def skip_vbucket(self, vbucket: int) -> None:
        self.chosen -= {vbucket}
        self.due -= {vbucket}
        self.is_done = self.is_done or not self.due

    def record_connection_end(self) -> bool:
        """A dump ends with its connection; the counts, asked for once, show whether it is complete."""
        if not self._has_ended:
            self._has_ended = self.needs_counts = self._until_now and self.has_begun
        return self._has_ended

    @property
    def is_unsettled(self) -> bool:
        is_followed = self.is_requested and not (self._is_checked or self._from_now or self._until_now)
        return is_followed and not self._vbuckets.is_backfilling

    def record_silence(self) -> None:
        if self.is_unsettled:
            self._is_checked = self.needs_counts = True

    def set_counts(self, counts: ItemCounts | None) -> str:
        self.needs_counts = False
        if self._has_ended:
            self._finish_dump(counts)
            return ""
        if self.is_requested:
            if self._vbuckets.is_backfilling:
                self._is_checked = False  # the producer began a vbucket again meanwhile: what it had is cut off
                return ""
            return self._describe_missing(counts)
        if self._needs_verdict:
            self._dump_again(counts)
        self._before = counts
        return ""

    def _describe_missing(self, counts: ItemCounts | None) -> str:
        """Return what a stream that follows lacks. Deletions count: ep-engine sends expired documents as such."""
        if counts is None or self._before is None:
            return ""
        received = (self._vbuckets.stored + self._vbuckets.deleted).tolist()
        lacking = find_shortfalls(self.chosen, received, self._before, counts)
        if not lacking:
            return ""
        return (
            f"the TAP stream has {describe_shortfalls(lacking)}, and the producer sends no more of them; "
            "a dump (stop 'now') reads what is on disk"
        )

    def _finish_dump(self, counts: ItemCounts | None) -> None:
        """Decide whether a dump that ended in order is complete.

        Vbuckets that lack documents are counted once more before they are dumped again: ep-engine sends expired
        documents as deletions, and counts them for a moment longer.
        """
        incomplete, reason = self._find_incomplete(counts)
        self.due = frozenset(incomplete)
        self.is_done = not incomplete
        if incomplete:
            self._state.failures.add(StreamFailure(None, self._state.output.connection_id, ConnectionClosed(reason)))

    def _dump_again(self, counts: ItemCounts | None) -> None:
        """Decide which vbuckets of a dump that fell short, or was lost, are dumped again. Raises Unreachable."""
        self._needs_verdict = False
        incomplete, reason = self._find_incomplete(counts)
        self.due = frozenset(incomplete)
        self.is_done = not incomplete
        lacking = sum(max(each.counted - each.received, 0) for each in incomplete.values())
        self._fruitless_dumps = 0 if lacking < self._lacking else self._fruitless_dumps + self.has_begun
        self._lacking = lacking
        if incomplete and self._fruitless_dumps >= _MAX_FRUITLESS_DUMPS:
            raise Unreachable(f"{self._fruitless_dumps} TAP dumps in a row brought no more: {reason}")
        self._vbuckets.roll_back(self.due & self._vbuckets.with_rows)
        self._state.output.flush()

    def _find_incomplete(self, counts: ItemCounts | None) -> tuple[dict[int, Shortfall], str]:
        """Return the vbuckets to be dumped again, and why. Without counts a clean end is the end."""
        stored = self._vbuckets.stored
        if counts is not None and self._before is not None:
            lacking = find_shortfalls(self.due, stored.tolist(), self._before, counts)
            return lacking, f"the dump has {describe_shortfalls(lacking)}"
        is_whole = self._has_ended and not (self.has_closed and self._vbuckets.is_backfilling)
        found = {} if is_whole else {vb: Shortfall(int(stored[vb]), 0) for vb in self.due}
        return found, "the producer closed the connection during a backfill"
