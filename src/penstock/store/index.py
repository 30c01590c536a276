"""A vbucket's row index: where the frame of each of its changes lies, and which change superseded it.

The rows of sealed segments stay in the columns of their segment: the index only lists, oldest first, the segments
that hold some. So a seal or a rewrite costs what the segment holds, however long the vbucket's history is. The *tail*
is the rows of frames in the active segment; their seqnos have no gaps, so none are stored.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from penstock.store.segment import Segment

__all__ = ["RowIndex"]


class RowIndex:
    """The rows of one vbucket. As the tail it has the same columns as a Segment, buffer and dead bytes included."""

    __slots__ = (
        "buffer",
        "dead",
        "firsts",
        "lengths_at",
        "lowest_snapshot_end",
        "offsets_at",
        "segments",
        "superseded_at",
        "tail_start",
        "vbucket",
    )

    def __init__(self, vbucket: int) -> None:
        self.vbucket = vbucket
        self.lowest_snapshot_end = 0
        self.segments: list[Segment] = []
        self.firsts = array("Q")  # the seqno of this vbucket's first row in each of them
        self.tail_start = 1
        self._empty_tail(memoryview(b""))

    def begin_tail(self, buffer: memoryview) -> None:
        """Begin an empty tail in a new active segment; the rows of the old one are in a sealed segment."""
        self.tail_start += len(self.offsets_at)
        self._empty_tail(buffer)

    def _empty_tail(self, buffer: memoryview) -> None:
        self.buffer = buffer
        self.dead = 0
        self.offsets_at = array("I")
        self.lengths_at = array("I")
        self.superseded_at = array("Q")

    def find(self, seqno: int) -> tuple[Segment | RowIndex, int] | None:
        """Return the columns and the row of a seqno, up to the highest there is; None if it was dropped."""
        row = seqno - self.tail_start
        if row >= 0:
            return self, row
        place = bisect_right(self.firsts, seqno) - 1
        if place < 0:
            return None
        segment = self.segments[place]
        start, end = segment.starts[self.vbucket], segment.starts[self.vbucket + 1]
        row = start + seqno - self.firsts[place]  # right unless rows were dropped in between
        if row >= end or segment.seqnos_at[row] != seqno:
            row = bisect_left(segment.seqnos_at, seqno, start, min(row, end))
            if row >= end or segment.seqnos_at[row] != seqno:
                return None
        return segment, row

    def replace(self, sources: list[Segment], segment: Segment | None, passed: int) -> None:
        """Let `segment` (None: nothing) stand for `sources`: the tail if there are none, else sealed ones.

        passed: the highest seqno that superseded one of the rows that were dropped on the way, or 0.
        """
        self.lowest_snapshot_end = max(self.lowest_snapshot_end, passed)
        at = len(self.firsts)
        for source in reversed(sources):
            start, end = source.starts[self.vbucket : self.vbucket + 2]
            if start != end:
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
        columns = (self.offsets_at, self.lengths_at, self.superseded_at, self.firsts)
        return sum(len(column) * column.itemsize for column in columns) + 8 * len(self.segments)
