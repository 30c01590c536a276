"""Frames of the log that were chosen and not yet copied. They are read in chunks, with the stream's opaque.

Three classes have the same interface. FewFrames reads one by one, for a stream that is up to date. ManyFrames reads
columns, for a backfill. AdjacentFrames is for a backfill of a vbucket from which no frame is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.store.log.segment import Column, Lengths, gather_ascending
from penstock.wire.codec.frame import OPAQUE_AT, U32

OFFSET_BITS = 32
_OFFSET = (1 << OFFSET_BITS) - 1

_LARGEST_CHUNK = 256 * 1024 * 1024  # Arrow's binary values are addressed with 31 bits
_MEAN_RUN = 8  # copying a run takes about as long as Arrow's take of so many frames


class Chunk(NamedTuple):
    """Whole frames, one after the other, in memory of their own.

    Attributes:
        data: the bytes of the frames.
        offsets: where each frame begins, ascending.
    """

    data: bytes | bytearray
    offsets: Sequence[int] | npt.NDArray[np.int64]

    @property
    def frame_count(self) -> int:
        """How many frames the chunk has."""
        return len(self.offsets)


NO_FRAMES = Chunk(b"", ())


def select_frames(chunk: Chunk, wanted: npt.NDArray[np.bool_]) -> Chunk:
    """Return some of the frames.

    Args:
        chunk: the frames.
        wanted: for each frame, whether to select it.
    """
    if wanted.all():
        return chunk
    edges = np.flatnonzero(np.diff(np.concatenate(([False], wanted, [False]))))
    if not len(edges):
        return NO_FRAMES
    begins = np.asarray(chunk.offsets, np.int64)
    bounds = np.append(begins, len(chunk.data))
    lengths = np.diff(bounds)[wanted]
    view = memoryview(chunk.data)
    if len(edges) // 2 * _MEAN_RUN <= len(lengths):
        runs = zip(bounds[edges[::2]].tolist(), bounds[edges[1::2]].tolist(), strict=True)
        data = bytearray().join([view[begin:end] for begin, end in runs])
    else:
        data = bytearray(gather_ascending(view, begins[wanted], lengths.astype(np.uint32)))
    return Chunk(data, np.cumsum(lengths) - lengths)


class FewFrames:
    """A few frames as (buffer, offset, length)."""

    __slots__ = ("_at", "_frames")

    def __init__(self, frames: Sequence[tuple[memoryview, int, int]]) -> None:
        self._frames = frames
        self._at = 0

    @property
    def remaining(self) -> int:
        """How many frames are left."""
        return len(self._frames) - self._at

    def read(self, opaque: int, max_bytes: int, window: int, max_frames: int) -> Chunk:
        """Return the next frames, as Snapshot.read does. The window and max_frames are at least 1."""
        data = bytearray()
        begins: list[int] = []
        for buffer, offset, length in self._frames[self._at : self._at + max_frames]:
            nbytes = len(data)
            if nbytes and (nbytes >= window or nbytes + length > max_bytes):
                break
            data += buffer[offset : offset + length]
            U32.pack_into(data, nbytes + OPAQUE_AT, opaque)
            begins.append(nbytes)
        self._at += len(begins)
        return Chunk(data, begins)


class _FrameColumns:
    """Frames whose lengths are in a column. Subclasses know where the bytes are."""

    __slots__ = ("_at", "_ends", "_lengths")

    def __init__(self, lengths: Lengths) -> None:
        self._lengths = lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._at = 0

    @property
    def remaining(self) -> int:
        """How many frames are left."""
        return len(self._ends) - self._at

    def read(self, opaque: int, max_bytes: int, window: int, max_frames: int) -> Chunk:
        """Return the next frames, as Snapshot.read does. The window and max_frames are at least 1."""
        start, count = self._at, len(self._ends)
        if start == count:
            return NO_FRAMES
        base = int(self._ends[start - 1]) if start else 0
        max_bytes = min(max_bytes, _LARGEST_CHUNK)
        stop = start + max_frames
        if stop >= count and int(self._ends[-1]) - base <= min(max_bytes, window):
            stop = count
        else:
            fitting = int(self._ends.searchsorted(base + max_bytes, "right"))
            allowed = int(self._ends.searchsorted(base + window, "left")) + 1
            stop = max(start + 1, min(fitting, allowed, stop))
        self._at = stop
        data = bytearray().join(self._pieces(start, stop))
        begins = self._ends[start:stop] - self._lengths[start:stop]
        if base:
            begins -= base
        opaques = np.ndarray((len(data) - OPAQUE_AT - 3,), ">u4", data, OPAQUE_AT, (1,))  # one a byte, overlapping
        opaques[begins] = opaque
        return Chunk(data, begins)

    def _pieces(self, start: int, stop: int) -> list[memoryview]:
        raise NotImplementedError


class AdjacentFrames(_FrameColumns):
    """Frames next to each other.

    Args:
        parts: buffers, each from the first of its frames to the last, in order.
        lengths: the lengths of all frames.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[memoryview], lengths: Lengths) -> None:
        super().__init__(lengths)
        self._parts = parts

    def _pieces(self, start: int, stop: int) -> list[memoryview]:
        begin, end = int(self._ends[start - 1]) if start else 0, int(self._ends[stop - 1])
        found = []
        for part in self._parts:
            if begin < len(part) and end > 0:
                found.append(part[max(begin, 0) : end])
            begin, end = begin - len(part), end - len(part)
        return found


class ManyFrames(_FrameColumns):
    """Frames as columns.

    Args:
        buffers: the buffers with the frames, in order.
        where: for each frame the number of its buffer in the bits from OFFSET_BITS on, and its offset below. Ascending.
        lengths: the length of each frame.
    """

    __slots__ = ("_buffers", "_where")

    def __init__(self, buffers: Sequence[memoryview], where: Column, lengths: Lengths) -> None:
        super().__init__(lengths)
        self._buffers = buffers
        self._where = where

    def _pieces(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes of the rows: slices of adjacent frames, or all frames picked at once."""
        where, lengths = self._where[start:stop], self._lengths[start:stop]
        after = where + lengths
        begins, ends = _find_runs(where, after, where[1:] != after[:-1])
        if len(begins) * _MEAN_RUN <= stop - start:
            return self._slices(begins, ends)
        begins, ends = _find_runs(where, after, np.diff(where >> OFFSET_BITS) != 0)
        if len(begins) == 1:
            return [gather_ascending(self._buffers[int(where[0]) >> OFFSET_BITS], where & _OFFSET, lengths)]
        # From each segment all that lies between the vbucket's first and last frame here, most of which is wanted.
        spans = ends - begins
        bases = np.cumsum(spans) - spans - begins
        offsets = where + bases[np.searchsorted(begins, where, "right") - 1]
        return [gather_ascending(memoryview(b"".join(self._slices(begins, ends))), offsets, lengths)]

    def _slices(self, begins: Column, ends: Column) -> list[memoryview]:
        numbers, begins, ends = begins >> OFFSET_BITS, begins & _OFFSET, ends & _OFFSET
        places = zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [self._buffers[number][begin:end] for number, begin, end in places]


def _find_runs(where: Column, after: Column, breaks: npt.NDArray[np.bool_]) -> tuple[Column, Column]:
    """Return where each run of rows begins and ends. breaks: whether a run ends behind each row except the last."""
    return where[np.append(True, breaks)], after[np.append(breaks, True)]
