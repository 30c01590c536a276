"""Compaction: segments of the log are rewritten without frames that nobody needs any more.

Each piece of it is made and finished on the thread that owns the bucket, in milliseconds; it is run in between on any
thread, while the bucket goes on.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np
import pyarrow as pa

from penstock.store.definition.bucket_settings import Settings
from penstock.store.log.log_segments import LogSegments
from penstock.store.log.quota import Quota
from penstock.store.log.rewrite import Choice, Limits, Purged, PurgeRequest, Rewritten, rewrite
from penstock.store.log.rewrite import name as name_of
from penstock.store.log.rewrite_choice import gain_of, next_in_pass, next_rewrite, next_unclustered
from penstock.store.log.segment import Column, Segment

__all__ = ["Compaction", "CompactionPlanner", "FrameRetention", "SegmentKeeper"]

_SHORT_PURGE_AGE = 60.0  # seconds. Source: kv_engine, ephemeral_metadata_purge_age
_NANOSECONDS = 10**9


class SegmentKeeper(Protocol):
    """Keeps rewritten segments where the log is.

    Attributes:
        keeps_empty: a segment without a frame stays, too: the numbers of segments must have no gaps.
        in_order: segments are rewritten oldest first, because dead frames in an older one hold back newer ones.
    """

    @property
    def keeps_empty(self) -> bool: ...
    @property
    def in_order(self) -> bool: ...

    def prepare(self) -> None:
        """Take note that a rewrite begins with the log as it is now."""

    def held(self, sources: Sequence[Segment]) -> Column | None:
        """Return what `choose` may not drop for the sake of older segments. Called from any thread."""

    def keep(self, rewritten: Rewritten) -> Rewritten:
        """Put the new segment where it is to stay. Called from any thread."""

    def discard(self, rewritten: Rewritten | None) -> None:
        """Forget what `keep` has kept."""

    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """Let the new segment stand for its sources from now on, also after a restart."""


class FrameRetention(Protocol):
    """Which superseded frames have to stay for the time being."""

    def unready(self) -> set[int]:
        """Return the numbers of sealed segments that cannot be rewritten yet."""

    def floors(self) -> Column:
        """Return for each vbucket the highest seqno whose superseded frame may be dropped."""

    def retained(self, choice: Choice) -> int:
        """Return how many bytes of dead frames a rewrite had to keep, and the next one has to."""


class CompactionPlanner:
    """Plans what is rewritten next, one piece at a time, and puts it in the place of its sources.

    Attributes:
        settings: the bucket's.
        is_running: a piece is under way.
        purged: tombstones that were dropped, whose keys nobody needs any more; for the caller to take out.
    """

    def __init__(
        self,
        segments: LogSegments,
        quota: Quota,
        settings: Settings,
        *,
        keeper: SegmentKeeper,
        retention: FrameRetention,
        clock: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.is_running = False
        self.purged: list[Purged] = []
        self._segments = segments
        self._quota = quota
        self._keeper = keeper
        self._retention = retention
        self._clock = clock
        self._passed = 0  # by a pass over everything: the number of the last segment
        self._front = 0  # by a pass over what holds others back: likewise

    # Which piece is next

    def next_piece(self, everything: bool, purge: PurgeRequest | None = None) -> Compaction | None:
        """Return the next piece of rewriting that is worth doing; None while there is none, or one is under way.

        everything: also where there is little to gain, each segment once, until None is returned. purge: tombstones
        to drop before their time.
        """
        sealed = self._segments.sealed
        if self.is_running or not sealed:
            return None
        chosen = next_unclustered(sealed, self._retention.unready())
        if chosen is None:
            if everything:
                chosen = next_in_pass(sealed, self._passed, self._quota.segment_bytes)
                self._passed = 0 if chosen is None else sealed[chosen.stop - 1].ids[1]
            else:
                chosen, self._front = self._next_rewrite()
        if chosen is None:
            return None
        self.is_running = True
        self._keeper.prepare()
        return Compaction(self, self._keeper, sealed[chosen], self.limits()._replace(purge=purge))

    def restart_pass(self) -> None:
        """Let the pass over everything begin again with the oldest segment."""
        self._passed = 0

    def frees(self) -> bool:
        """Tell whether compaction is about to free memory."""
        return self.is_running or self._segments.waiting_bytes > 0 or self._next_rewrite()[0] is not None

    def _next_rewrite(self) -> tuple[slice | None, int]:
        """Return the segments that are worth a rewrite, and the next `_front`."""
        sealed, now, purge_age = self._segments.sealed, self._clock(), self._purge_age
        return next_rewrite(
            sealed,
            [gain_of(segment, now, purge_age) for segment in sealed],
            self._quota.segment_bytes,
            front=self._front,
            pressed=self._quota.is_pressed,
            in_order=self._keeper.in_order,
        )

    # What it may drop

    @property
    def _purge_age(self) -> float:
        """Seconds that a tombstone stays. Those of documents that had to go for lack of memory must go themselves."""
        age = self.settings.purge_age
        return min(age, _SHORT_PURGE_AGE) if self.settings.auto_delete and self._quota.is_pressed else age

    def limits(self) -> Limits:
        """Return what a rewrite may drop: what is superseded, and tombstones whose time is over.

        Of tombstones the newest change of a vbucket stays, and of each collection.
        """
        return Limits(
            floors=self._retention.floors(),
            last_seqnos=np.array([index.last_seqno for index in self._segments.indexes], np.int64),
            purge_before=max(self._clock() // _NANOSECONDS - int(self._purge_age), 0),
            kept=self._newest_of_collections,
        )

    def _newest_of_collections(self) -> Column:
        """Return the names of the newest change of each collection in each vbucket. Called from any thread."""
        found = [np.zeros(0, np.int64)]
        for history in self._segments.histories:
            if highs := history.collection_highs():
                seqnos = np.array(highs, np.int64)
                found.append(name_of(np.full(len(seqnos), history.id, np.uint16), seqnos))
        return np.concatenate(found)

    # What becomes of it

    def install(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """Let the new segment stand for its sources."""
        segment, choice, indexes = rewritten.segment, rewritten.choice, self._segments.indexes
        segment.mark(np.concatenate([source.superseded for source in sources])[choice.rows])
        self._segments.replace(sources, segment, keeps_empty=self._keeper.keeps_empty)
        for index, passed in zip(indexes, choice.passed.tolist(), strict=True):
            index.raise_floors(passed)
        for purged in rewritten.purged:
            indexes[purged.vbucket].raise_floors(0, purged.seqno, purged.rev_seqno)
        self.purged += rewritten.purged
        self._note_rewrite(sources, rewritten)
        self.is_running = False
        self._quota.doubt()
        self._keeper.install(sources, rewritten)

    def discard(self, rewritten: Rewritten | None) -> None:
        """Give up a piece; the sources stay."""
        self.is_running = False
        self._keeper.discard(rewritten)

    def _note_rewrite(self, sources: Sequence[Segment], rewritten: Rewritten) -> None:
        """Note what a rewrite could not drop: trying again helps only later, or once one has dropped older frames."""
        segment, now = rewritten.segment, self._clock()
        dropped = sum(source.size for source in sources) - segment.size
        if not dropped:
            segment.rest(gain_of(segment, now, self._purge_age), now)
            return
        overdue = gain_of(segment, now, self._purge_age) - segment.dead
        segment.rest(self._retention.retained(rewritten.choice) + overdue, now)
        for newer in self._segments.sealed:
            if newer.ids[0] > segment.ids[1]:
                newer.rest(0, now)


class Compaction:
    """A piece of rewriting: some segments of a log, neighbours, become one.

    error: what the disk said, if it did not take it; ENOMEM, if there was no memory for the work.
    """

    def __init__(
        self, planner: CompactionPlanner, keeper: SegmentKeeper, sources: Sequence[Segment], limits: Limits
    ) -> None:
        self.sources = sources
        self.error: OSError | None = None
        self._planner = planner
        self._keeper = keeper
        self._limits = limits
        self._cuts = [source.cuts for source in sources]
        self._fates: list[Column] = [source.fate.copy() for source in sources]
        self._rewritten: Rewritten | None = None

    def run(self) -> None:
        """Do the work, all but to put it in place."""
        held = self._keeper.held(self.sources)
        try:
            self._rewritten = self._keeper.keep(rewrite(self.sources, self._fates, self._limits, held))
        except OSError as error:
            self.error = error
        except MemoryError:
            self.error = OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))
        pa.default_memory_pool().release_unused()  # Arrow would keep what the copying took, up to 30 MB

    def finish(self) -> bool:
        """Let the new segment stand for the old ones.

        False, and nothing has changed: it could not be written, or a rollback meanwhile wants frames back.
        """
        if self._rewritten is None or [source.cuts for source in self.sources] != self._cuts:
            self._planner.discard(self._rewritten)
            return False
        self._planner.install(self.sources, self._rewritten)
        self.sources, self._fates, self._rewritten = (), [], None  # the log decides where the old ones end
        return True
