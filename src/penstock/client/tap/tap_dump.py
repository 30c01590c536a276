"""The completeness of a TAP stream: whether it contains all existing documents, and which vbuckets to dump again.

A dump ends when the producer closes the connection. Item counts show whether the dump is complete. Vbuckets that lack
documents are rolled back to 0 and dumped again; the other vbuckets are not requested a second time.
"""

from __future__ import annotations

import sys
from collections.abc import Collection

from penstock.client.feeds.consumer_feed import DumpProgress, FeedState, StreamFailure
from penstock.client.tap.tap_vbuckets import TapVbuckets
from penstock.client.topology.item_counts import ItemCounts, Shortfall, describe_shortfalls, find_shortfalls
from penstock.client.topology.missing_vbuckets import format_ranges
from penstock.errors import ConnectionClosed, Unreachable

_MAX_FRUITLESS_DUMPS = 5
"""Consecutive dumps without progress before a read fails. ep-engine dumps from disk, which may lag behind memory."""


class TapDump(DumpProgress):
    """The progress of consecutive TAP streams. A lost connection, or an incomplete dump, needs another stream.

    Attributes:
        chosen: the vbuckets to read.
        due: the vbuckets of the next request: all, or those whose dump was incomplete.
        is_done: the read is complete.
        is_requested: the stream was requested on the current connection.
        has_begun: a message of the stream has arrived.
        has_closed: the producer announced the end of a backfill.
    """

    def __init__(
        self, state: FeedState, vbuckets: TapVbuckets, chosen: Collection[int], *, from_now: bool, until_now: bool
    ) -> None:
        """Create the progress before the first stream.

        Args:
            state: the state that the parts of the feed share.
            vbuckets: the vbuckets with their counts of changes.
            chosen: the vbuckets to read.
            from_now: whether the stream leaves out documents that exist already.
            until_now: whether the stream is a dump: it leaves out changes that come later.
        """
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
        self._read_from: dict[int, tuple[str, int]] = {}
        """Vbucket -> the branch whose changes were received since the last rollback, and the number of rollbacks."""
        self._fruitless_dumps, self._lacking = 0, sys.maxsize

    def forget_connection(self) -> None:
        """Prepare for a new connection: the stream must be requested again, after new counts."""
        self.is_requested = self._has_ended = self._is_checked = False
        self.needs_counts = not (self._from_now or self.is_done)

    def begin(self) -> None:
        """Record that the stream was requested."""
        self.is_requested, self._needs_verdict = True, self._until_now
        self.has_begun = self.has_closed = False

    def skip_vbucket(self, vbucket: int) -> None:
        """Leave a vbucket out, because no node serves it."""
        self.chosen -= {vbucket}
        self.due -= {vbucket}
        self.is_done = self.is_done or not self.due

    def record_connection_end(self) -> bool:
        """Return whether the end of the connection is the end of a dump, whose completeness the counts then show."""
        if not self._has_ended:
            self._has_ended = self.needs_counts = self._until_now and self.has_begun
        return self._has_ended

    @property
    def is_unsettled(self) -> bool:
        """Whether the backfill of a stream without end may be over, and no counts have confirmed it yet."""
        is_followed = self.is_requested and not (self._is_checked or self._from_now or self._until_now)
        return is_followed and not self._vbuckets.is_backfilling

    def record_silence(self) -> None:
        """Record that the producer is silent, or that its backfill is over. Both require a comparison of counts."""
        if self.is_unsettled:
            self._is_checked = self.needs_counts = True

    def set_counts(self, counts: ItemCounts | None) -> str:
        """Compare the node's counts with the received changes.

        Args:
            counts: the node's counts; None: it has no counts.

        Returns:
            A warning about missing documents; empty if there are none.

        Raises:
            Unreachable: consecutive dumps were incomplete, without progress.
        """
        self.needs_counts = False
        if self._has_ended:
            self._finish_dump(counts)
            return ""
        if self.is_requested:
            if self._vbuckets.is_backfilling:
                self._is_checked = False  # the producer restarted a vbucket meanwhile, so its changes were rolled back
                return ""
            return "; ".join(filter(None, (self._describe_lost(counts), self._describe_missing(counts))))
        if self._needs_verdict:
            self._dump_again(counts)
        self._before = counts
        for vbucket, count in (counts or {}).items():
            rollbacks = int(self._state.context.history[vbucket])
            _, earlier = self._read_from.get(vbucket, ("", -1))
            if vbucket not in self._vbuckets.with_rows or rollbacks != earlier:
                self._read_from[vbucket] = count.branch, rollbacks
        return ""

    def _describe_lost(self, counts: ItemCounts | None) -> str:
        """Return a warning about vbuckets whose changes were received in another branch, and not rolled back since.

        After a crash, ep-engine 3.1.6 sends no rollback: documents that the crash lost would stay without a word.
        """
        lost = []
        for vbucket in sorted(self.chosen & self._vbuckets.with_rows & (counts or {}).keys()):
            (branch, rollbacks), found = self._read_from.get(vbucket, ("", -1)), (counts or {})[vbucket].branch
            if "" not in (branch, found) and branch != found and rollbacks == self._state.context.history[vbucket]:
                lost.append(vbucket)
                self._read_from[vbucket] = found, rollbacks
        if not lost:
            return ""
        return (
            f"the producer has another history of the vbuckets {format_ranges(lost, ', ')} than when it sent their "
            "changes, as after a crash: it may have lost some of them; a dump (stop 'now') reads the existing documents"
        )

    def _describe_missing(self, counts: ItemCounts | None) -> str:
        """Return a warning about the documents that a stream without end lacks.

        Deletions count as received, because ep-engine sends expired documents as deletions.
        """
        if counts is None or self._before is None:
            return ""
        received = (self._vbuckets.stored + self._vbuckets.deleted).tolist()
        lacking = find_shortfalls(self.chosen, received, self._before, counts)
        if not lacking:
            return ""
        return (
            f"the TAP stream has {describe_shortfalls(lacking)}, and the producer does not send the others; "
            "a dump (stop 'now') reads the documents from disk"
        )

    def _finish_dump(self, counts: ItemCounts | None) -> None:
        """Decide whether a dump that ended in order is complete.

        Before an incomplete vbucket is dumped again, its documents are counted again. ep-engine sends expired
        documents as deletions, and counts them for a moment longer.
        """
        incomplete, reason = self._find_incomplete(counts)
        self.due = frozenset(incomplete)
        self.is_done = not incomplete
        if incomplete:
            self._state.failures.add(StreamFailure(None, self._state.output.connection_id, ConnectionClosed(reason)))

    def _dump_again(self, counts: ItemCounts | None) -> None:
        """Decide which vbuckets of an incomplete or interrupted dump are dumped again.

        Raises:
            Unreachable: consecutive dumps were incomplete, without progress.
        """
        self._needs_verdict = False
        incomplete, reason = self._find_incomplete(counts)
        self.due = frozenset(incomplete)
        self.is_done = not incomplete
        lacking = sum(max(each.counted - each.received, 0) for each in incomplete.values())
        self._fruitless_dumps = 0 if lacking < self._lacking else self._fruitless_dumps + self.has_begun
        self._lacking = lacking
        if incomplete and self._fruitless_dumps >= _MAX_FRUITLESS_DUMPS:
            raise Unreachable(f"{self._fruitless_dumps} consecutive TAP dumps made no progress: {reason}")
        self._vbuckets.roll_back(self.due & self._vbuckets.with_rows)
        self._state.output.flush()

    def _find_incomplete(self, counts: ItemCounts | None) -> tuple[dict[int, Shortfall], str]:
        """Return the vbuckets to dump again, with the reason as text. Without counts, a clean end means complete."""
        stored = self._vbuckets.stored
        if counts is not None and self._before is not None:
            lacking = find_shortfalls(self.due, stored.tolist(), self._before, counts)
            return lacking, f"the dump has {describe_shortfalls(lacking)}"
        is_whole = self._has_ended and not (self.has_closed and self._vbuckets.is_backfilling)
        found = {} if is_whole else {vb: Shortfall(int(stored[vb]), 0) for vb in self.due}
        return found, "the producer closed the connection during a backfill"
