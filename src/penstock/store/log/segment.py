"""A sealed piece of the log: frames, and one row of columns for each of them.

A segment never changes, except for which of its frames were superseded or cut off since. A reader keeps a segment alive
by its reference to it, or to its buffer. To drop frames, a rewrite makes another segment; the old one is freed with its
last reader.
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

from penstock.errors import TemporaryFailure
from penstock.wire.columns.arrow_arrays import make_row_numbers

Column = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.uint32]

CUT = -1
"""In the place of a superseding seqno: the row was cut off, by a rollback or with its vbucket."""

_PIECE = 1024 * 1024
_MAPPED_FROM = 1024 * 1024


class Rows(NamedTuple):
    """The columns of a segment.

    Attributes:
        seqnos: the seqno of each change.
        offsets: where each frame begins in the buffer.
        lengths: the length of each frame in bytes.
        superseded: the seqno of the change that replaced this one, 0 if none has.
        supersedes: the seqno of the change that this one replaced, 0 if there was none or it was dropped. None if no
            code needs it, or the record in front of the frame has it.
    """

    seqnos: Column
    offsets: Lengths
    lengths: Lengths
    superseded: Column
    supersedes: Column | None = None


class Segment:
    """Frames in a buffer, and the columns of their rows in the order of (vbucket, seqno).

    Each column exists twice over the same memory: as an array for whole columns, and as a view (`..._at`) that is
    faster for one value.

    Attributes:
        starts: for each vbucket the number of its first row, then the number of rows.
        ends: for each vbucket the end of its rows that count; a rollback cut off those behind.
        dead_bytes: bytes of frames that are superseded or cut off.
        is_clustered: the frames lie in the order of the rows, otherwise in that of commits.
        ids: the numbers of the first and the last log file that its frames were written to.
        cut_count: how often `cut` has changed the segment.
        tombstone_bytes: bytes of tombstones that were not superseded when the segment was made.
        purge_at: when the newest of these tombstones was deleted, epoch seconds; 0: there are none.
        held_bytes: bytes of superseded frames that had to stay when the segment was made, because an older segment has
            an older frame of the same document.
        stuck_bytes: bytes that a rewrite cannot drop before `stuck_until`, ns.
        sealed_at: when the newest of its frames were sealed in an active segment, ns; 0: unknown.
        is_mapped: the buffer and the columns, except `superseded`, are parts of a mapped file.
    """

    __slots__ = (
        "buffer",
        "cut_count",
        "dead_bytes",
        "ends",
        "held_bytes",
        "ids",
        "is_clustered",
        "is_mapped",
        "lengths",
        "lengths_at",
        "offsets",
        "offsets_at",
        "purge_at",
        "sealed_at",
        "seqnos",
        "seqnos_at",
        "size",
        "starts",
        "stuck_bytes",
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
        self.is_clustered = clustered
        self.ids = ids
        self.dead_bytes = 0
        self.cut_count = 0
        self.tombstone_bytes = self.purge_at = 0
        self.held_bytes = self.stuck_bytes = self.stuck_until = 0
        self.sealed_at = 0
        self.is_mapped = False

    def defer_rewrite(self, stuck: int, until: int) -> None:
        """Record that a rewrite cannot drop these bytes before a time, ns."""
        self.stuck_bytes, self.stuck_until = stuck, until

    def cut(self, vbucket: int, seqno: int) -> None:
        """Cut off the rows of a vbucket above `seqno`. Rows that they superseded are live again.

        Open snapshots have taken copies before; `RowIndex.cut` ensures that.
        """
        start, end = self.starts[vbucket], self.ends[vbucket]
        kept = bisect_right(self.seqnos_at, seqno, start, end)
        if kept < end:
            self.cut_count += 1
            self.dead_bytes += int(self.lengths[kept:end][self.superseded[kept:end] == 0].sum(dtype=np.int64))
            self.ends[vbucket] = kept
        back = start + np.flatnonzero(self.superseded[start:kept] > seqno)
        if len(back):
            self.cut_count += 1
            self.dead_bytes -= int(self.lengths[back].sum(dtype=np.int64))
            self.superseded[back] = 0

    def set_superseded(self, superseded: Column) -> None:
        """Replace the whole column of superseding seqnos."""
        self.superseded, self.superseded_at = superseded, superseded.data
        self.dead_bytes = int(self.lengths[self.fates != 0].sum(dtype=np.int64))

    @property
    def vbuckets(self) -> npt.NDArray[np.uint16]:
        """The vbucket of each row."""
        starts = np.asarray(self.starts)
        return np.repeat(np.arange(len(starts) - 1, dtype=np.uint16), np.diff(starts))

    @property
    def fates(self) -> Column:
        """For each row 0 if it is live, otherwise the superseding seqno or CUT. Read-only."""
        ends = np.asarray(self.ends)
        cut = np.flatnonzero(ends != np.asarray(self.starts)[1:])
        if not len(cut):
            return self.superseded
        fate = self.superseded.copy()
        for vbucket in cut.tolist():
            fate[ends[vbucket] : self.starts[vbucket + 1]] = CUT
        return fate

    @property
    def live_bytes(self) -> int:
        """Bytes of frames that count."""
        return self.size - self.dead_bytes

    @property
    def index_bytes(self) -> int:
        """Bytes of the columns in memory."""
        if self.is_mapped:
            return self.superseded_at.nbytes
        columns = (self.starts, self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at)
        return sum(column.nbytes for column in columns)


def gather_frames(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """Return the frames at `offsets`, in that order, next to each other. Frames must not overlap."""
    target = new_buffer(int(lengths.sum(dtype=np.int64)))
    written = 0
    for _, piece in gather_pieces(buffer, offsets, lengths):
        target[written : written + len(piece)] = piece
        written += len(piece)
    return target


def gather_pieces(buffer: memoryview, offsets: Column, lengths: Lengths) -> Iterator[tuple[slice, memoryview]]:
    """Yield the frames at `offsets`, in that order, in pieces of about a MiB.

    A piece is still in the processor's cache when it is copied, and fresh memory is written only once.

    Yields:
        Which frames are in the piece, and their bytes.
    """
    if not len(offsets):
        return
    # A frame has at least 43 bytes, so no two begin in the same 32: that puts them in order without a sort.
    at = np.full((len(buffer) >> 5) + 1, -1, np.int32)
    at[offsets >> 5] = np.arange(len(offsets), dtype=np.int32)
    order = at[at >= 0]
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    values = make_arrow_values(buffer, offsets[order], lengths[order])
    ends = np.cumsum(lengths, dtype=np.int64)
    row = taken = 0
    while row < len(places):
        end = max(row + 1, int(np.searchsorted(ends, taken + _PIECE)))
        yield slice(row, end), _take_values(values, places[row:end])
        row, taken = end, int(ends[end - 1])


def gather_ascending(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """Return a chunk of frames whose offsets ascend, next to each other."""
    return _take_values(make_arrow_values(buffer, offsets, lengths), np.arange(len(offsets), dtype=np.int32))


def make_arrow_values(buffer: memoryview, offsets: Column, lengths: Lengths) -> pa.Array:
    """Return frames at ascending offsets as every second value of an Arrow binary array.

    Arrow needs values without gaps, so the gaps between frames are the values between.
    """
    bounds = np.empty(2 * len(offsets), np.int32)
    bounds[::2] = offsets
    bounds[1::2] = offsets + lengths
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])


def _take_values(values: pa.Array, rows: npt.NDArray[np.int32]) -> memoryview:
    """Return the bytes of these frames. This is several times faster than copying frame by frame in Python.

    Returns:
        The frames, next to each other.
    """
    _, ends, data = values.take(make_row_numbers(2 * rows)).buffers()
    return memoryview(data).cast("B")[: int(np.frombuffer(ends, np.int32)[len(rows)])]


def new_buffer(nbytes: int) -> memoryview:
    """Return memory for frames, in huge pages if the system has some: filling it is several times faster then.

    A large buffer is a mapping of its own, which the system gets back at once. The C library would keep it: glibc maps
    nothing up to the size of the last freed block. The memory that it keeps becomes fragmented.

    Raises:
        MemoryError: the system has no memory.
    """
    if nbytes < _MAPPED_FROM:
        return np.empty(nbytes, np.uint8).data
    try:
        mapping = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:  # as of a file that cannot be mapped
        raise MemoryError(f"no memory for {nbytes} bytes of frames") from error
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages
            mapping.madvise(mmap.MADV_HUGEPAGE)
    return memoryview(mapping)


def new_active_buffer(nbytes: int) -> memoryview:
    """Return memory for the segment that is written next.

    Raises:
        TemporaryFailure: the system has no memory.
    """
    try:
        return new_buffer(nbytes)
    except MemoryError as error:
        raise TemporaryFailure("the system has no memory for the next changes, try again soon") from error
