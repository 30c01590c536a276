"""A vbucket's row index: where the frame of each of its changes lies, and which change superseded it.

The rows of sealed segments stay in the columns of their segment. The index only lists the segments that hold some,
oldest first. So the cost of a seal or a rewrite depends on the segment, not on the length of the vbucket's history. The
*tail* is the rows of frames in the active segment.

Seqnos ascend. An active vbucket assigns them without gaps, a replica receives them with gaps. So a row's place is
guessed as if there were no gaps, and searched for if the guess was wrong.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import Protocol
from weakref import WeakSet

import numpy as np

from penstock.store.log.segment import Column, Segment


class RowReader(Protocol):
    """A reader that has yet to choose among rows of segments: a snapshot."""

    def copy_superseded(self) -> None:
        """Copy the part of `superseded` that the reader still needs, because the index is about to change it."""


class RowIndex:
    """The rows of one vbucket. The tail has the columns of a Segment, its buffer and dead bytes included.

    Attributes:
        lowest_snapshot_end: the highest seqno that superseded a dropped frame.
        history_floor: all versions above this seqno are there, except those that `has_all_versions` leaves out. An
            older version may have been dropped, or never received.
        has_all_versions: the vbucket receives a history. Only collections without history leave seqnos out, so that
            gaps do not raise the history floor.
        purge_seqno: the highest seqno of a dropped tombstone.
        purged_rev_seqno: the highest rev_seqno of a dropped tombstone.
        cuts: the rollbacks of the history, oldest first: (n, s) is a rollback to seqno s in log file n, which earlier
            files do not have.
        tail_start: no row of the tail is below this seqno.
        has_gaps: the tail leaves seqnos out, from tail_start on. The caller that appends such a row sets it.
        loaded_seqno: the highest seqno at the time when the log was opened, 0 for a log in memory.
        readers: snapshots that have yet to choose among rows of segments.
    """

    __slots__ = (
        "buffer",
        "cuts",
        "dead_bytes",
        "first_seqnos",
        "has_all_versions",
        "has_gaps",
        "history_floor",
        "lengths_at",
        "loaded_seqno",
        "lowest_snapshot_end",
        "offsets_at",
        "purge_seqno",
        "purged_rev_seqno",
        "readers",
        "segments",
        "seqnos_at",
        "superseded_at",
        "tail_start",
        "vbucket",
    )

    seqnos_at: array[int]
    offsets_at: array[int]
    lengths_at: array[int]
    superseded_at: array[int]

    def __init__(self, vbucket: int) -> None:
        self.vbucket = vbucket
        self.lowest_snapshot_end = 0
        self.history_floor = 0
        self.has_all_versions = False
        self.loaded_seqno = 0
        self.purge_seqno = 0
        self.purged_rev_seqno = 0
        self.cuts: list[tuple[int, int]] = []
        self.readers: WeakSet[RowReader] = WeakSet()
        self.segments: list[Segment] = []
        self.first_seqnos = array("Q")  # the seqno of this vbucket's first row in each of them
        self.tail_start = 1  # no row of the tail is below
        self.dead_bytes = 0
        self._empty_tail()
        self.buffer = memoryview(b"")

    def append_rows(self, seqnos: Column, offsets: Column, lengths: Column, superseded: Column) -> None:
        """Append rows of frames in the active segment to the tail."""
        self.seqnos_at.frombytes(seqnos.astype(np.uint64).tobytes())
        self.offsets_at.frombytes(offsets.astype(np.uint32).tobytes())
        self.lengths_at.frombytes(lengths.astype(np.uint32).tobytes())
        self.superseded_at.frombytes(superseded.astype(np.uint64).tobytes())

    def fill_tail(self, active: Segment, rows: slice, dead: int) -> None:
        """Fill the empty tail with rows of the active segment. dead: bytes of those that are superseded."""
        self.seqnos_at.frombytes(active.seqnos[rows].tobytes())
        self.offsets_at.frombytes(active.offsets[rows].tobytes())
        self.lengths_at.frombytes(active.lengths[rows].tobytes())
        self.superseded_at.frombytes(active.superseded[rows].tobytes())
        self.dead_bytes = dead
        self.tail_start = 1
        if self.segments:
            segment = self.segments[-1]
            self.tail_start = segment.seqnos_at[segment.ends[self.vbucket] - 1] + 1
        count = len(self.seqnos_at)
        self.has_gaps = count > 0 and self.seqnos_at[-1] - self.tail_start != count - 1

    def begin_tail(self, buffer: memoryview) -> None:
        """Begin an empty tail in a new active segment. The rows of the old segment are in a sealed one."""
        if self.seqnos_at:
            self.tail_start = self.seqnos_at[-1] + 1
        self.buffer = buffer
        self.dead_bytes = 0
        self._empty_tail()

    def cut(self, seqno: int) -> None:
        """Remove the rows above `seqno`, and rows that they superseded are live again. 0 removes all rows and floors.

        Open snapshots are not affected. The frames are dropped when their segment is rewritten.
        """
        for reader in tuple(self.readers):
            reader.copy_superseded()
        for segment in self.segments:
            segment.cut(self.vbucket, seqno)
        kept = bisect_right(self.first_seqnos, seqno)
        del self.segments[kept:], self.first_seqnos[kept:]
        rows = bisect_right(self.seqnos_at, seqno)
        lengths, superseded = np.array(self.lengths_at, np.int64), np.array(self.superseded_at, np.int64)
        back = np.flatnonzero(superseded[:rows] > seqno)
        self.dead_bytes += int(lengths[rows:][superseded[rows:] == 0].sum()) - int(lengths[back].sum())
        for column in (self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at):
            del column[rows:]
        for row in back.tolist():
            self.superseded_at[row] = 0
        if not rows:
            self.tail_start = self.last_seqno + 1
            self.has_gaps = False
        self.purge_seqno = min(self.purge_seqno, seqno)
        self.history_floor = min(self.history_floor, seqno)
        self.loaded_seqno = min(self.loaded_seqno, seqno)
        if not seqno:
            self.lowest_snapshot_end = self.purged_rev_seqno = 0

    def find_floor(self, seqno: int) -> int:
        """Return the highest seqno of a row that is not above `seqno`, 0 if there is none."""
        row = bisect_right(self.seqnos_at, seqno)
        if row:
            return self.seqnos_at[row - 1]
        place = bisect_right(self.first_seqnos, seqno)
        if not place:
            return 0
        segment = self.segments[place - 1]
        start, end = segment.starts[self.vbucket], segment.ends[self.vbucket]
        return segment.seqnos_at[bisect_right(segment.seqnos_at, seqno, start, end) - 1]

    @property
    def row_count(self) -> int:
        """How many rows there are, superseded ones included."""
        vbucket = self.vbucket
        return len(self.seqnos_at) + sum(segment.ends[vbucket] - segment.starts[vbucket] for segment in self.segments)

    @property
    def last_seqno(self) -> int:
        """The highest seqno of a row, 0 if there is none."""
        if self.seqnos_at:
            return self.seqnos_at[-1]
        if not self.segments:
            return 0
        segment = self.segments[-1]
        return segment.seqnos_at[segment.ends[self.vbucket] - 1]

    @property
    def backfill_end(self) -> int:
        """The highest seqno that a stream reads in a backfill: from a sealed segment, or loaded from a file."""
        if not self.segments:
            return self.loaded_seqno
        segment = self.segments[-1]
        return max(self.loaded_seqno, segment.seqnos_at[segment.ends[self.vbucket] - 1])

    def _empty_tail(self) -> None:
        self.has_gaps = False
        self.seqnos_at = array("Q")
        self.offsets_at = array("I")
        self.lengths_at = array("I")
        self.superseded_at = array("Q")

    def find(self, seqno: int) -> tuple[Segment | RowIndex, int] | None:
        """Find the row of a seqno, which must not be above the highest one.

        Returns:
            The columns and the row; None if there is none, or it was dropped.
        """
        row = seqno - self.tail_start
        if row >= 0:
            if not self.has_gaps:
                return self, row
            return self._search(self, seqno, 0, min(row + 1, len(self.seqnos_at)))
        place = bisect_right(self.first_seqnos, seqno) - 1
        if place < 0:
            return None
        segment = self.segments[place]
        start, end = segment.starts[self.vbucket], segment.ends[self.vbucket]
        row = start + seqno - self.first_seqnos[place]
        if row < end and segment.seqnos_at[row] == seqno:
            return segment, row
        return self._search(segment, seqno, start, min(row, end))

    def _search(
        self, rows: Segment | RowIndex, seqno: int, start: int, end: int
    ) -> tuple[Segment | RowIndex, int] | None:
        """Return the columns and the row of a seqno, None if there is none.

        With gaps, a row lies in front of the guessed place.
        """
        row = bisect_left(rows.seqnos_at, seqno, start, end)
        return (rows, row) if row < end and rows.seqnos_at[row] == seqno else None

    def find_ceiling(self, seqno: int) -> int:
        """Return the lowest seqno of a row that is not below `seqno`. There must be one."""
        row = bisect_left(self.seqnos_at, seqno)
        if row:
            return self.seqnos_at[row]
        place = bisect_right(self.first_seqnos, seqno)
        if place:
            segment = self.segments[place - 1]
            end = segment.ends[self.vbucket]
            row = bisect_left(segment.seqnos_at, seqno, segment.starts[self.vbucket], end)
            if row < end:
                return segment.seqnos_at[row]
        return self.first_seqnos[place] if place < len(self.first_seqnos) else self.seqnos_at[0]

    def iterate_live_frames(self) -> Iterator[tuple[memoryview, Column, Column]]:
        """Yield, oldest first, each buffer with the offsets of its live frames and their seqnos.

        It covers the segments and the tail at the time of the call, also if their frames move meanwhile.

        Returns:
            An iterator over buffers, offsets and seqnos.
        """
        tail = []
        if self.seqnos_at:
            live = np.array(self.superseded_at, np.int64) == 0
            offsets, seqnos = np.array(self.offsets_at, np.int64), np.array(self.seqnos_at, np.int64)
            tail.append((self.buffer, offsets[live], seqnos[live]))
        return chain(map(self._find_live_frames, tuple(self.segments)), tail)

    def _find_live_frames(self, segment: Segment) -> tuple[memoryview, Column, Column]:
        rows = slice(segment.starts[self.vbucket], segment.ends[self.vbucket])
        live = segment.superseded[rows] == 0
        return segment.buffer, segment.offsets[rows][live].astype(np.int64), segment.seqnos[rows][live]

    def begin_gap(self, seqno: int) -> None:
        """Record that the next row has this seqno, which is not the next one after the last row."""
        self.has_gaps = True
        if not self.has_all_versions:
            self.history_floor = seqno - 1

    def raise_floors(self, passed: int, purged: int = 0, rev_seqno: int = 0, history: int = 0) -> None:
        """Record dropped frames: one superseded at `passed`, and a tombstone at `purged` with this rev_seqno.

        Args:
            passed: no snapshot may end below this seqno.
            purged: the seqno of a dropped tombstone.
            rev_seqno: its rev_seqno.
            history: the new history floor; 0: the higher one of `passed` and `purged`.
        """
        self.history_floor = max(self.history_floor, history or max(passed, purged))
        self.lowest_snapshot_end = max(self.lowest_snapshot_end, passed)
        self.purge_seqno = max(self.purge_seqno, purged)
        self.purged_rev_seqno = max(self.purged_rev_seqno, rev_seqno)

    def replace(self, sources: list[Segment], segment: Segment | None) -> None:
        """Replace `sources` by `segment` (None: by nothing). Without sources, the segment replaces the tail."""
        vbucket = self.vbucket
        at = len(self.first_seqnos)
        for source in reversed(sources):
            if source.starts[vbucket] != source.ends[vbucket]:
                at = bisect_left(self.first_seqnos, source.seqnos_at[source.starts[vbucket]])
                del self.segments[at], self.first_seqnos[at]
        if segment is not None and segment.starts[vbucket] != segment.ends[vbucket]:
            self.segments.insert(at, segment)
            self.first_seqnos.insert(at, segment.seqnos_at[segment.starts[vbucket]])

    @property
    def index_bytes(self) -> int:
        """Bytes of the tail's columns and of the list of segments."""
        columns = (self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at, self.first_seqnos)
        return sum(len(column) * column.itemsize for column in columns) + 8 * len(self.segments)
