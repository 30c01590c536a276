"""A sealed piece of the log: frames, and one row of columns for each of them.

Nothing in a segment changes once it is made, but which of its frames have been superseded since, or cut off by a
rollback. A reader pins it by holding it (or its buffer); to drop frames, a rewrite makes another segment, and the old
one goes with its last reader.
"""

from __future__ import annotations

import mmap
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.columns.pieces import row_numbers

__all__ = [
    "CUT",
    "Column",
    "Lengths",
    "Rows",
    "Segment",
    "gather",
    "gather_ascending",
    "gather_pieces",
    "new_buffer",
    "values_of",
]

Column = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.uint32]

CUT = -1
"""In the place of a superseding seqno: the row was cut off, by a rollback or with its vbucket."""

_PIECE = 1024 * 1024
_MAPPED_FROM = 1024 * 1024
_REST = 60 * 10**9  # ns


class Rows(NamedTuple):
    """The columns of a segment.

    Attributes:
        superseded: the seqno of the change that replaced this one, 0 if none has.
        supersedes: the seqno of the change that this one replaced, 0 if there was none or it was dropped; None where
            nobody asks for it, or the record in front of the frame has it.
    """

    seqnos: Column
    offsets: Lengths
    lengths: Lengths
    superseded: Column
    supersedes: Column | None = None


class Segment:
    """Frames in a buffer, and the columns of their rows in the order of (vbucket, seqno).

    Each column is there twice over the same memory: as an array for whole columns, as a view (`..._at`) that is
    quicker for one value.

    Attributes:
        starts: for each vbucket the number of its first row, then the number of rows.
        ends: for each vbucket the end of its rows that count; those behind were cut off since.
        dead: bytes of frames that are superseded or cut off.
        clustered: the frames lie in the order of the rows, otherwise in that of commits.
        ids: the numbers of the first and the last log file that its frames were written to.
        cuts: how often `cut` has taken something off.
        tombstone_bytes: bytes of tombstones that nothing had superseded when the segment was made.
        purge_at: when the newest of these tombstones was deleted, epoch seconds; 0: there are none.
        held: bytes of superseded frames that had to stay when the segment was made, because an older segment has an
            older frame of the same document.
        stuck: bytes that a rewrite cannot drop before `stuck_until`, ns.
        sealed_at: when the newest of its frames were sealed in an active segment, ns; 0: nobody knows.
        mapped: the buffer and the columns are parts of a file, but for `superseded`.
    """

    __slots__ = (
        "buffer",
        "clustered",
        "cuts",
        "dead",
        "ends",
        "held",
        "ids",
        "lengths",
        "lengths_at",
        "mapped",
        "offsets",
        "offsets_at",
        "purge_at",
        "sealed_at",
        "seqnos",
        "seqnos_at",
        "size",
        "starts",
        "stuck",
        "stuck_until",
        "superseded",
        "superseded_at",
        "supersedes",
        "tombstone_bytes",
    )

    def __init__(
        self,
        buffer: memoryview,
        starts: npt.NDArray[np.int32],
        rows: Rows,
        *,
        clustered: bool = True,
        ids: tuple[int, int] = (0, 0),
    ) -> None:
        self.buffer = buffer
        self.starts = starts.data
        self.ends = starts[1:].copy().data
        self.seqnos, self.offsets, self.lengths, self.superseded, self.supersedes = rows
        self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at = (column.data for column in rows[:4])
        self.size = int(self.lengths.sum(dtype=np.int64))
        self.clustered = clustered
        self.ids = ids
        self.dead = 0
        self.cuts = 0
        self.tombstone_bytes = self.purge_at = 0
        self.held = self.stuck = self.stuck_until = 0
        self.sealed_at = 0
        self.mapped = False

    def rest(self, stuck: int, now: int) -> None:
        """Take note that a rewrite cannot drop these bytes for the time being."""
        self.stuck, self.stuck_until = stuck, now + _REST

    def cut(self, vbucket: int, seqno: int) -> None:
        """Let the rows of a vbucket above `seqno` count no more, and those count again that one of them superseded.

        Snapshots that are open have taken copies (`RowIndex.cut` sees to that).
        """
        start, end = self.starts[vbucket], self.ends[vbucket]
        kept = bisect_right(self.seqnos_at, seqno, start, end)
        if kept < end:
            self.cuts += 1
            self.dead += int(self.lengths[kept:end][self.superseded[kept:end] == 0].sum(dtype=np.int64))
            self.ends[vbucket] = kept
        back = start + np.flatnonzero(self.superseded[start:kept] > seqno)
        if len(back):
            self.cuts += 1
            self.dead -= int(self.lengths[back].sum(dtype=np.int64))
            self.superseded[back] = 0

    def mark(self, superseded: Column) -> None:
        """Take over a whole column of superseding seqnos."""
        self.superseded, self.superseded_at = superseded, superseded.data
        self.dead = int(self.lengths[self.fate != 0].sum(dtype=np.int64))

    @property
    def vbuckets(self) -> npt.NDArray[np.uint16]:
        """Of each row the vbucket."""
        starts = np.asarray(self.starts)
        return np.repeat(np.arange(len(starts) - 1, dtype=np.uint16), np.diff(starts))

    @property
    def fate(self) -> Column:
        """Of each row 0 if it is live, otherwise the superseding seqno or CUT. Not to be written to."""
        ends = np.asarray(self.ends)
        cut = np.flatnonzero(ends != np.asarray(self.starts)[1:])
        if not len(cut):
            return self.superseded
        fate = self.superseded.copy()
        for vbucket in cut.tolist():
            fate[ends[vbucket] : self.starts[vbucket + 1]] = CUT
        return fate

    @property
    def live(self) -> int:
        """Bytes of frames that still count."""
        return self.size - self.dead

    @property
    def index_bytes(self) -> int:
        """Bytes of the columns in memory."""
        if self.mapped:
            return self.superseded_at.nbytes
        columns = (self.starts, self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at)
        return sum(column.nbytes for column in columns)


def gather(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """Return the frames at `offsets`, in that order, next to each other. Frames do not overlap."""
    target = new_buffer(int(lengths.sum(dtype=np.int64)))
    written = 0
    for _, piece in gather_pieces(buffer, offsets, lengths):
        target[written : written + len(piece)] = piece
        written += len(piece)
    return target


def gather_pieces(buffer: memoryview, offsets: Column, lengths: Lengths) -> Iterator[tuple[slice, memoryview]]:
    """Yield the frames at `offsets`, in that order, in pieces of about a MiB, and which of them are in a piece.

    A piece is still in the cache when it is copied to its place, and fresh memory is written once only.
    """
    if not len(offsets):
        return
    # A frame has at least 43 bytes, so no two begin in the same 32: that puts them in order without a sort.
    at = np.full((len(buffer) >> 5) + 1, -1, np.int32)
    at[offsets >> 5] = np.arange(len(offsets), dtype=np.int32)
    order = at[at >= 0]
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    values = values_of(buffer, offsets[order], lengths[order])
    ends = np.cumsum(lengths, dtype=np.int64)
    row = taken = 0
    while row < len(places):
        end = max(row + 1, int(np.searchsorted(ends, taken + _PIECE)))
        yield slice(row, end), _take(values, places[row:end])
        row, taken = end, int(ends[end - 1])


def gather_ascending(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """As gather, for a chunk of frames whose offsets ascend."""
    return _take(values_of(buffer, offsets, lengths), np.arange(len(offsets), dtype=np.int32))


def values_of(buffer: memoryview, offsets: Column, lengths: Lengths) -> pa.Array:
    """Return frames that lie at ascending offsets as every second of Arrow's binary values.

    Arrow wants values without gaps, so the gaps between frames are the values between.
    """
    bounds = np.empty(2 * len(offsets), np.int32)
    bounds[::2] = offsets
    bounds[1::2] = offsets + lengths
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])


def _take(values: pa.Array, rows: npt.NDArray[np.int32]) -> memoryview:
    """Return these frames' bytes. Several times quicker than copying frame by frame in Python."""
    _, ends, data = values.take(row_numbers(2 * rows)).buffers()
    return memoryview(data).cast("B")[: int(np.frombuffer(ends, np.int32)[len(rows)])]


def new_buffer(nbytes: int) -> memoryview:
    """Return memory for frames, in huge pages where the system has some: filling it is several times quicker then.

    A large one is a mapping of its own, which the system gets back at once. The C library would keep it: glibc maps
    nothing up to the size of what was freed last, and what it keeps instead falls into pieces.
    """
    if nbytes < _MAPPED_FROM:
        return np.empty(nbytes, np.uint8).data
    mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)
