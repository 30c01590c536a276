"""Compaction: segments of the log are rewritten without frames that are no longer needed.

The thread that owns the bucket begins and finishes each piece, which takes milliseconds. Between the two, the piece
runs on any thread, while the bucket serves requests.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.errors import TemporaryFailure
from penstock.store.definition.bucket_settings import BucketSettings
from penstock.store.log.log_segments import LogSegments
from penstock.store.log.quota import Quota
from penstock.store.log.rewrite import (
    PurgedTombstone,
    PurgeRequest,
    RewriteLimits,
    RewrittenSegment,
    RowChoice,
    rewrite_segments,
)
from penstock.store.log.rewrite import make_change_ids as name_of
from penstock.store.log.rewrite_choice import choose_next_in_pass, choose_next_rewrite, estimate_gain, find_unclustered
from penstock.store.log.row_index import RowIndex
from penstock.store.log.segment import Column, Segment

_SHORT_PURGE_AGE = 60.0  # seconds. Source: kv_engine, ephemeral_metadata_purge_age
_NANOSECONDS = 10**9
_HELD_DELAY = 60 * _NANOSECONDS
"""Time until bytes are tried again that older segments or the retention hold."""
_UNWRITTEN_DELAY = _NANOSECONDS
"""The same for bytes that stay only until the changes that supersede them are on disk."""


class SegmentStorage(Protocol):
    """Stores rewritten segments, in memory or in files.

    Attributes:
        keeps_empty_segments: a segment without frames stays, because the numbers of segments must have no gaps.
        rewrites_in_order: segments are rewritten oldest first, because dead frames of an older segment protect frames
            of newer ones.
    """

    @property
    def keeps_empty_segments(self) -> bool:
        """Whether a segment without frames stays in the log."""

    @property
    def rewrites_in_order(self) -> bool:
        """Whether segments are rewritten oldest first."""

    def begin_rewrite(self) -> None:
        """Remember where the log ends, when a rewrite begins."""

    def find_protected_changes(self, sources: Sequence[Segment]) -> Column | None:
        """Return the ids of the changes whose frames must stay because of older segments.

        Such a change supersedes a frame that is still in an older segment. Any thread may call this.
        """

    def store(self, rewritten: RewrittenSegment) -> RewrittenSegment:
        """Store the new segment in its final form. Any thread may call this."""

    def discard(self, rewritten: RewrittenSegment | None) -> None:
        """Delete a stored segment that will not be used."""

    def install(self, sources: Sequence[Segment], rewritten: RewrittenSegment) -> None:
        """Replace the sources by the new segment, also for the time after a restart."""


class UnwrittenSegments(Protocol):
    """Knows which segments are not completely on disk."""

    def list_numbers(self) -> set[int]:
        """Return the numbers of the segments."""

    def find_persisted_seqno(self, index: RowIndex) -> int:
        """Return the seqno up to which a vbucket's changes are written. Frames that later changes supersede stay."""


class RetentionWindow:
    """The newest segments, up to the limits of the bucket's settings. Frames that their changes superseded stay.

    Whole segments leave the window, so it is never smaller than the settings.

    Attributes:
        settings: the bucket's settings, with the retention in seconds and in bytes.
    """

    def __init__(
        self, settings: BucketSettings, segments: LogSegments, pending: UnwrittenSegments, clock: Callable[[], int]
    ) -> None:
        self.settings = settings
        self._segments = segments
        self._pending = pending
        self._clock = clock

    def find_unready_segments(self) -> set[int]:
        """Return the numbers of sealed segments that cannot be rewritten yet: they are not completely on disk."""
        return self._pending.list_numbers()

    def find_floors(self) -> Column:
        """Return for each vbucket the highest seqno whose superseded frame may be dropped.

        The change with that seqno is written and older than the retention.

        Returns:
            An array of seqnos, one for each vbucket.
        """
        first, persisted = self.find_first_segment(), self._pending.find_persisted_seqno
        floors = [min(persisted(index), self._find_last_seqno_before(index, first)) for index in self._segments.indexes]
        return np.array(floors, np.int64)

    def count_retained_bytes(self, choice: RowChoice) -> int:
        """Return how many bytes of dead frames a rewrite had to keep. The next rewrite has to keep them, too."""
        return choice.held_bytes + (choice.recent_bytes if self.settings.keeps_history else 0)

    def find_first_segment(self) -> int:
        """Return the number of the first segment in the window, above all numbers if no history is kept."""
        active, now = self._segments.active, self._clock()
        if not self.settings.keeps_history:
            return active.number + 1
        seconds, nbytes = self.settings.retention_seconds or None, self.settings.retention_bytes or None
        first, size = active.number, active.end
        for segment in reversed(self._segments.sealed):
            if nbytes is not None and size > nbytes:
                break
            if seconds is not None and segment.sealed_at < now - seconds * _NANOSECONDS:
                break
            size += segment.size
            first = segment.ids[0]
        return first

    def _find_last_seqno_before(self, index: RowIndex, number: int) -> int:
        """Return the last seqno of a vbucket before the segment with this number."""
        if number > self._segments.active.number:
            return index.last_seqno
        for segment, first in zip(index.segments, index.first_seqnos, strict=True):
            if segment.ids[0] >= number:
                return first - 1
        if index.seqnos_at and self._segments.active.number >= number:
            return index.seqnos_at[0] - 1
        return index.last_seqno


class CompactionPlanner:
    """Plans which segments are rewritten next, one piece at a time, and installs the results.

    Attributes:
        settings: the bucket's settings.
        is_running: a piece has begun and not finished.
        purged: tombstones that were dropped. The caller removes them, and their keys from the vbuckets.
    """

    def __init__(
        self,
        segments: LogSegments,
        quota: Quota,
        settings: BucketSettings,
        *,
        storage: SegmentStorage,
        retention: RetentionWindow,
        clock: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.is_running = False
        self.purged: list[PurgedTombstone] = []
        self._segments = segments
        self._quota = quota
        self._storage = storage
        self._retention = retention
        self._clock = clock
        self._passed = 0  # by a pass over everything: the number of the last segment
        self._front = 0  # the same for the pass over segments that protect frames of newer ones

    # Which piece is next

    def next_piece(self, everything: bool, purge: PurgeRequest | None = None) -> Compaction | None:
        """Begin the next piece that is worth rewriting, if none is running.

        Args:
            everything: rewrite also segments with little to gain, each once, until None is returned.
            purge: tombstones to drop before their purge age.

        Returns:
            The piece; None if there is none, or one is running.

        Raises:
            TemporaryFailure: there is no memory to begin a piece; no piece is running then.
        """
        if self.is_running or not self._segments.sealed:
            return None
        try:
            chosen = self._choose_next(everything)
            if chosen is None:
                return None
            self.is_running = True
            self._storage.begin_rewrite()
            sources = self._segments.sealed[chosen]
            return Compaction(self, self._storage, sources, self.make_limits()._replace(purge=purge))
        except MemoryError as error:
            self.discard(None)
            raise TemporaryFailure("the system has no memory for a compaction, try again soon") from error

    def _choose_next(self, everything: bool) -> slice | None:
        sealed = self._segments.sealed
        chosen = find_unclustered(sealed, self._retention.find_unready_segments())
        if chosen is None and everything:
            left = [segment.size - gain for segment, gain in zip(sealed, self._estimate_gains(), strict=True)]
            chosen = choose_next_in_pass(sealed, left, self._passed, self._quota.segment_bytes)
            self._passed = 0 if chosen is None else sealed[chosen.stop - 1].ids[1]
        elif chosen is None:
            chosen, self._front = self._choose_next_rewrite()
        return chosen

    def restart_pass(self) -> None:
        """Restart the pass over all segments at the oldest one."""
        self._passed = 0

    def can_free_memory(self) -> bool:
        """Return whether compaction is about to free memory."""
        return self.is_running or self._segments.unclustered_bytes > 0 or self._choose_next_rewrite()[0] is not None

    def _choose_next_rewrite(self) -> tuple[slice | None, int]:
        """Return the segments that are worth a rewrite, and the next `_front`."""
        return choose_next_rewrite(
            self._segments.sealed,
            self._estimate_gains(),
            self._quota.segment_bytes,
            front=self._front,
            pressed=self._quota.is_pressed,
            in_order=self._storage.rewrites_in_order,
        )

    def _estimate_gains(self) -> list[int]:
        """Return for each sealed segment how many bytes a rewrite drops; 0 within the retention."""
        now, purge_age = self._clock(), self._purge_age
        first = self._retention.find_first_segment()
        return [
            estimate_gain(segment, now, purge_age) if segment.ids[0] < first else 0 for segment in self._segments.sealed
        ]

    # Limits

    @property
    def _purge_age(self) -> float:
        """Seconds that a tombstone stays.

        Documents that were deleted to free memory leave tombstones, which must not fill the memory in turn.
        """
        age = self.settings.purge_age
        return min(age, _SHORT_PURGE_AGE) if self.settings.auto_delete and self._quota.is_pressed else age

    def make_limits(self) -> RewriteLimits:
        """Return the limits of a rewrite: it may drop superseded frames, and tombstones older than the purge age.

        The newest change of each vbucket and of each collection stays, also if it is a tombstone.
        """
        return RewriteLimits(
            floors=self._retention.find_floors(),
            last_seqnos=np.array([index.last_seqno for index in self._segments.indexes], np.int64),
            purge_before=max(self._clock() // _NANOSECONDS - int(self._purge_age), 0),
            find_kept=self._list_newest_of_collections,
        )

    def _list_newest_of_collections(self) -> Column:
        """Return the ids of the newest change of each collection in each vbucket. Any thread may call this."""
        found = [np.zeros(0, np.int64)]
        for history in self._segments.histories:
            if highs := history.changes.list_collection_highs():
                seqnos = np.array(highs, np.int64)
                found.append(name_of(np.full(len(seqnos), history.id, np.uint16), seqnos))
        return np.concatenate(found)

    # Results

    def install(self, sources: Sequence[Segment], rewritten: RewrittenSegment) -> None:
        """Replace the sources by the new segment, which has the current superseding seqnos."""
        indexes = self._segments.indexes
        self._segments.replace(sources, rewritten.segment, keeps_empty=self._storage.keeps_empty_segments)
        for index, passed in zip(indexes, rewritten.choice.passed.tolist(), strict=True):
            index.raise_floors(passed)
        for purged in rewritten.purged:
            indexes[purged.vbucket].raise_floors(0, purged.seqno, purged.rev_seqno)
        self.purged += rewritten.purged
        self._defer_useless_rewrites(sources, rewritten)
        self.is_running = False
        self._quota.invalidate()
        self._storage.install(sources, rewritten)

    def discard(self, rewritten: RewrittenSegment | None) -> None:
        """Give up a piece; the sources stay."""
        self.is_running = False
        self._storage.discard(rewritten)

    def _defer_useless_rewrites(self, sources: Sequence[Segment], rewritten: RewrittenSegment) -> None:
        """Record which bytes a rewrite could not drop.

        Another rewrite helps only later, or after older frames were dropped.
        """
        segment, now = rewritten.segment, self._clock()
        dropped = sum(source.size for source in sources) - segment.size
        is_unwritten = rewritten.choice.recent_bytes and not self.settings.keeps_history
        until = now + (_UNWRITTEN_DELAY if is_unwritten else _HELD_DELAY)
        if not dropped:
            segment.defer_rewrite(estimate_gain(segment, now, self._purge_age), until)
            return
        overdue = estimate_gain(segment, now, self._purge_age) - segment.dead_bytes
        segment.defer_rewrite(self._retention.count_retained_bytes(rewritten.choice) + overdue, until)
        for newer in self._segments.sealed:
            if newer.ids[0] > segment.ids[1]:
                newer.defer_rewrite(0, now)


class Compaction:
    """A piece of compaction: it rewrites neighbouring segments of a log into one.

    Attributes:
        sources: the segments to rewrite, oldest first.
        error: the error of the disk; ENOMEM if there was no memory for the work; None if neither failed.
    """

    def __init__(
        self, planner: CompactionPlanner, storage: SegmentStorage, sources: Sequence[Segment], limits: RewriteLimits
    ) -> None:
        self.sources = sources
        self.error: OSError | None = None
        self._planner = planner
        self._storage = storage
        self._limits = limits
        self._cuts = [source.cut_count for source in sources]
        self._fates: list[Column] = [source.fates.copy() for source in sources]
        self._rewritten: RewrittenSegment | None = None

    def run(self) -> None:
        """Write the new segment, without installing it. Any thread may call this."""
        try:
            held = self._storage.find_protected_changes(self.sources)
            self._rewritten = self._storage.store(rewrite_segments(self.sources, self._fates, self._limits, held))
        except OSError as error:
            self.error = error
        except MemoryError:
            self.error = _make_memory_error()
        pa.default_memory_pool().release_unused()  # Arrow would keep the memory of the copies, up to 30 MB

    @property
    def problem(self) -> str:
        """A sentence about the error; empty without one."""
        if self.error is None:
            return ""
        if self.error.errno == errno.ENOMEM:
            return "there is no memory for a new segment"
        return f"the disk does not accept writes: {self.error.strerror or self.error}"

    def finish(self) -> bool:
        """Replace the old segments by the new one.

        Returns:
            False if nothing has changed: the segment could not be written, there is no memory, or a rollback needs
            dropped frames.
        """
        if self._rewritten is None or [source.cut_count for source in self.sources] != self._cuts:
            self._planner.discard(self._rewritten)
            return False
        try:
            superseded = np.concatenate([source.superseded for source in self.sources])
            self._rewritten.segment.set_superseded(superseded[self._rewritten.choice.rows])
        except MemoryError:
            self.error = _make_memory_error()
            self._planner.discard(self._rewritten)
            return False
        self._planner.install(self.sources, self._rewritten)
        self.sources, self._fates, self._rewritten = (), [], None  # the log decides where the old ones end
        return True


def _make_memory_error() -> OSError:
    return OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
