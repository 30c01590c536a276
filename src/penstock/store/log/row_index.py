"""A vbucket's row index: where the frame of each of its changes lies, and which change superseded it.

The rows of sealed segments stay in the columns of their segment: the index only lists, oldest first, the segments
that hold some. So a seal or a rewrite costs what the segment holds, however long the vbucket's history is. The *tail*
is the rows of frames in the active segment.

Seqnos ascend. A vbucket that gives them out itself leaves no gaps, one that takes them from another does; so where a
row lies is guessed as if there were none, and looked up if that was wrong.
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

__all__ = ["RowIndex", "RowReader"]


class RowReader(Protocol):
    """A reader that has yet to choose among rows of segments: a snapshot."""

    def hold(self) -> None:
        """Copy what the reader still needs of `superseded`: the index is about to change it."""


class RowIndex:
    """The rows of one vbucket. As the tail it has the same columns as a Segment, buffer and dead bytes included.

    Attributes:
        lowest_snapshot_end: the highest seqno that superseded a frame which was dropped.
        purge_seqno: the highest seqno of a tombstone that was dropped.
        purged_rev_seqno: the highest rev_seqno of a tombstone that was dropped.
        cuts: where the history was cut, oldest first; (n, s) is a cut at seqno s in log file n, of which earlier files
            do not know.
        tail_start: no row of the tail is below this seqno.
        gaps: the tail leaves seqnos out, from tail_start on; set by the caller that appends such a row.
        loaded_seqno: the highest seqno that was there when the log was opened, 0 for a log in memory.
        readers: snapshots that have yet to choose among rows of segments.
    """

    __slots__ = (
        "buffer",
        "cuts",
        "dead",
        "firsts",
        "gaps",
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
        self.loaded_seqno = 0
        self.purge_seqno = 0
        self.purged_rev_seqno = 0
        self.cuts: list[tuple[int, int]] = []
        self.readers: WeakSet[RowReader] = WeakSet()
        self.segments: list[Segment] = []
        self.firsts = array("Q")  # the seqno of this vbucket's first row in each of them
        self.tail_start = 1  # no row of the tail is below
        self.dead = 0
        self._empty_tail()
        self.buffer = memoryview(b"")

    def fill_tail(self, active: Segment, rows: slice, dead: int) -> None:
        """Take rows of the active segment as the tail, which is empty. dead: their bytes that are superseded."""
        self.seqnos_at.frombytes(active.seqnos[rows].tobytes())
        self.offsets_at.frombytes(active.offsets[rows].tobytes())
        self.lengths_at.frombytes(active.lengths[rows].tobytes())
        self.superseded_at.frombytes(active.superseded[rows].tobytes())
        self.dead = dead
        self.tail_start = 1
        if self.segments:
            segment = self.segments[-1]
            self.tail_start = segment.seqnos_at[segment.ends[self.vbucket] - 1] + 1
        count = len(self.seqnos_at)
        self.gaps = count > 0 and self.seqnos_at[-1] - self.tail_start != count - 1

    def begin_tail(self, buffer: memoryview) -> None:
        """Begin an empty tail in a new active segment; the rows of the old one are in a sealed segment."""
        if self.seqnos_at:
            self.tail_start = self.seqnos_at[-1] + 1
        self.buffer = buffer
        self.dead = 0
        self._empty_tail()

    def cut(self, seqno: int) -> None:
        """Forget the rows above `seqno`, and that they superseded anything; 0: all, as if there had never been one.

        Snapshots opened before are not affected; frames go when their segment is rewritten.
        """
        for reader in tuple(self.readers):
            reader.hold()
        for segment in self.segments:
            segment.cut(self.vbucket, seqno)
        kept = bisect_right(self.firsts, seqno)
        del self.segments[kept:], self.firsts[kept:]
        rows = bisect_right(self.seqnos_at, seqno)
        lengths, superseded = np.array(self.lengths_at, np.int64), np.array(self.superseded_at, np.int64)
        back = np.flatnonzero(superseded[:rows] > seqno)
        self.dead += int(lengths[rows:][superseded[rows:] == 0].sum()) - int(lengths[back].sum())
        for column in (self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at):
            del column[rows:]
        for row in back.tolist():
            self.superseded_at[row] = 0
        if not rows:
            self.tail_start = self.last_seqno + 1
            self.gaps = False
        self.purge_seqno = min(self.purge_seqno, seqno)
        self.loaded_seqno = min(self.loaded_seqno, seqno)
        if not seqno:
            self.lowest_snapshot_end = self.purged_rev_seqno = 0

    def floor(self, seqno: int) -> int:
        """Return the highest seqno of a row that is not above `seqno`, 0 if there is none."""
        row = bisect_right(self.seqnos_at, seqno)
        if row:
            return self.seqnos_at[row - 1]
        place = bisect_right(self.firsts, seqno)
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
        self.gaps = False
        self.seqnos_at = array("Q")
        self.offsets_at = array("I")
        self.lengths_at = array("I")
        self.superseded_at = array("Q")

    def find(self, seqno: int) -> tuple[Segment | RowIndex, int] | None:
        """Return the columns and the row of a seqno up to the highest there is; None if it has none, or no more."""
        row = seqno - self.tail_start
        if row >= 0:
            if not self.gaps:
                return self, row
            return self._search(self, seqno, 0, min(row + 1, len(self.seqnos_at)))
        place = bisect_right(self.firsts, seqno) - 1
        if place < 0:
            return None
        segment = self.segments[place]
        start, end = segment.starts[self.vbucket], segment.ends[self.vbucket]
        row = start + seqno - self.firsts[place]
        if row < end and segment.seqnos_at[row] == seqno:
            return segment, row
        return self._search(segment, seqno, start, min(row, end))

    def _search(
        self, rows: Segment | RowIndex, seqno: int, start: int, end: int
    ) -> tuple[Segment | RowIndex, int] | None:
        """As find, among some rows: with gaps, a row can only be further in front than guessed."""
        row = bisect_left(rows.seqnos_at, seqno, start, end)
        return (rows, row) if row < end and rows.seqnos_at[row] == seqno else None

    def ceiling(self, seqno: int) -> int:
        """Return the lowest seqno of a row that is not below `seqno`. There must be one."""
        row = bisect_left(self.seqnos_at, seqno)
        if row:
            return self.seqnos_at[row]
        place = bisect_right(self.firsts, seqno)
        if place:
            segment = self.segments[place - 1]
            end = segment.ends[self.vbucket]
            row = bisect_left(segment.seqnos_at, seqno, segment.starts[self.vbucket], end)
            if row < end:
                return segment.seqnos_at[row]
        return self.firsts[place] if place < len(self.firsts) else self.seqnos_at[0]

    def live(self) -> Iterator[tuple[memoryview, Column, Column]]:
        """Yield, oldest first, a buffer, the offsets of the live frames in it, and their seqnos.

        Of the segments and the tail that there are now, wherever their frames go meanwhile.
        """
        tail = []
        if self.seqnos_at:
            live = np.array(self.superseded_at, np.int64) == 0
            offsets, seqnos = np.array(self.offsets_at, np.int64), np.array(self.seqnos_at, np.int64)
            tail.append((self.buffer, offsets[live], seqnos[live]))
        return chain(map(self._live_of, tuple(self.segments)), tail)

    def _live_of(self, segment: Segment) -> tuple[memoryview, Column, Column]:
        rows = slice(segment.starts[self.vbucket], segment.ends[self.vbucket])
        live = segment.superseded[rows] == 0
        return segment.buffer, segment.offsets[rows][live].astype(np.int64), segment.seqnos[rows][live]

    def raise_floors(self, passed: int, purged: int = 0, rev_seqno: int = 0) -> None:
        """Take note of what was dropped: a frame superseded at `passed`, a tombstone at `purged`, of this rev_seqno."""
        self.lowest_snapshot_end = max(self.lowest_snapshot_end, passed)
        self.purge_seqno = max(self.purge_seqno, purged)
        self.purged_rev_seqno = max(self.purged_rev_seqno, rev_seqno)

    def replace(self, sources: list[Segment], segment: Segment | None) -> None:
        """Let `segment` (None: nothing) stand for `sources`: the tail if there are none, else sealed ones."""
        vbucket = self.vbucket
        at = len(self.firsts)
        for source in reversed(sources):
            if source.starts[vbucket] != source.ends[vbucket]:
                at = bisect_left(self.firsts, source.seqnos_at[source.starts[vbucket]])
                del self.segments[at], self.firsts[at]
        if segment is not None and segment.starts[vbucket] != segment.ends[vbucket]:
            self.segments.insert(at, segment)
            self.firsts.insert(at, segment.seqnos_at[segment.starts[vbucket]])

    @property
    def index_bytes(self) -> int:
        """Bytes of the tail's columns and of the list of segments."""
        columns = (self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at, self.firsts)
        return sum(len(column) * column.itemsize for column in columns) + 8 * len(self.segments)
