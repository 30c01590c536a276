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

from penstock.store.segment import Segment

__all__ = ["RowIndex"]


class RowIndex:
    """The rows of one vbucket. As the tail it has the same columns as a Segment, buffer and dead bytes included.

    lowest_snapshot_end: the highest seqno that superseded a frame which was dropped. gaps: whether the tail leaves
    seqnos out, from tail_start on; to be set by whoever appends such a row.
    """

    __slots__ = (
        "buffer",
        "dead",
        "firsts",
        "gaps",
        "lengths_at",
        "lowest_snapshot_end",
        "offsets_at",
        "segments",
        "seqnos_at",
        "superseded_at",
        "tail_start",
        "vbucket",
    )

    def __init__(self, vbucket: int) -> None:
        self.vbucket = vbucket
        self.lowest_snapshot_end = 0
        self.segments: list[Segment] = []
        self.firsts = array("Q")  # the seqno of this vbucket's first row in each of them
        self.tail_start = 1  # no row of the tail is below
        self.dead = 0
        self._empty_tail()
        self.buffer = memoryview(b"")

    def begin_tail(self, buffer: memoryview) -> None:
        """Begin an empty tail in a new active segment; the rows of the old one are in a sealed segment."""
        if self.seqnos_at:
            self.tail_start = self.seqnos_at[-1] + 1
        self.buffer = buffer
        self.dead = 0
        self._empty_tail()

    def clear(self) -> None:
        """Forget all rows. Snapshots opened before are not affected; frames go when their segment is rewritten."""
        for segment in self.segments:
            segment.forget(self.vbucket)
        self.segments = []
        self.firsts = array("Q")
        self.lowest_snapshot_end = 0
        self.tail_start = 1
        rows = zip(self.lengths_at, self.superseded_at, strict=True)
        self.dead += sum(length for length, superseded in rows if not superseded)
        self._empty_tail()

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
        start, end = segment.starts[self.vbucket], segment.starts[self.vbucket + 1]
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
            end = segment.starts[self.vbucket + 1]
            row = bisect_left(segment.seqnos_at, seqno, segment.starts[self.vbucket], end)
            if row < end:
                return segment.seqnos_at[row]
        return self.firsts[place] if place < len(self.firsts) else self.seqnos_at[0]

    def rows_up_to(self, seqno: int) -> Iterator[tuple[Segment | RowIndex, int]]:
        """Yield the columns and the row of every seqno up to this one, in order."""
        for segment in self.segments:
            start, end = segment.starts[self.vbucket], segment.starts[self.vbucket + 1]
            for row in range(start, bisect_right(segment.seqnos_at, seqno, start, end)):
                yield segment, row
        for row in range(bisect_right(self.seqnos_at, seqno)):
            yield self, row

    def replace(self, sources: list[Segment], segment: Segment | None, passed: int) -> None:
        """Let `segment` (None: nothing) stand for `sources`: the tail if there are none, else sealed ones.

        passed: the highest seqno that superseded one of the rows that were dropped on the way, or 0.
        """
        self.lowest_snapshot_end = max(self.lowest_snapshot_end, passed)
        at = len(self.firsts)
        for source in reversed(sources):
            start, end = source.starts[self.vbucket : self.vbucket + 2]
            if start != end and self.vbucket not in source.forgotten:
                at = bisect_left(self.firsts, source.seqnos_at[start])
                del self.segments[at], self.firsts[at]
        if segment is not None:
            start, end = segment.starts[self.vbucket : self.vbucket + 2]
            if start != end:
                self.segments.insert(at, segment)
                self.firsts.insert(at, segment.seqnos_at[start])

    @property
    def index_bytes(self) -> int:
        """Bytes of the tail's columns and of the list of segments."""
        columns = (self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at, self.firsts)
        return sum(len(column) * column.itemsize for column in columns) + 8 * len(self.segments)
