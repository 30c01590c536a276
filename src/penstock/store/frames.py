"""Frames of the log, chosen but not yet copied: handed out in chunks, with the opaque of the stream they go to.

Two forms do the same: FewFrames one by one, for a stream that is up to date; ManyFrames in columns, for a backfill.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from struct import Struct
from typing import NamedTuple

import numpy as np

from penstock.store.segment import Column, Lengths, gather_ascending

__all__ = ["OFFSET_BITS", "Chunk", "FewFrames", "ManyFrames"]

OFFSET_BITS = 32
_OFFSET = (1 << OFFSET_BITS) - 1

_OPAQUE = Struct(">I")
_OPAQUE_AT = 12

_MEAN_RUN = 8  # copying a run takes about as long as Arrow's take of so many frames


class Chunk(NamedTuple):
    """Whole frames, one after the other, in memory of their own."""

    data: bytearray
    frames: int


class FewFrames:
    """Frames as (buffer, offset, length)."""

    __slots__ = ("_at", "_frames")

    def __init__(self, frames: Sequence[tuple[memoryview, int, int]]) -> None:
        self._frames = frames
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._frames) - self._at

    def read(self, opaque: int, max_bytes: int, window: int) -> Chunk:
        """As Snapshot.read, with a window of at least 1."""
        data = bytearray()
        start = self._at
        for buffer, offset, length in self._frames[start:]:
            nbytes = len(data)
            if nbytes and (nbytes >= window or nbytes + length > max_bytes):
                break
            data += buffer[offset : offset + length]
            _OPAQUE.pack_into(data, nbytes + _OPAQUE_AT, opaque)
            self._at += 1
        return Chunk(data, self._at - start)


class ManyFrames:
    """Frames as columns. where: the number of the buffer above OFFSET_BITS, the offset in it below; buffers in order,
    and ascending in each."""

    __slots__ = ("_at", "_buffers", "_ends", "_lengths", "_where")

    def __init__(self, buffers: Sequence[memoryview], where: Column, lengths: Lengths) -> None:
        self._buffers = buffers
        self._where = where
        self._lengths = lengths
        self._ends = np.cumsum(lengths, dtype=np.int64)
        self._at = 0

    @property
    def remaining(self) -> int:
        return len(self._where) - self._at

    def read(self, opaque: int, max_bytes: int, window: int) -> Chunk:
        """As Snapshot.read, with a window of at least 1."""
        start = self._at
        if start == len(self._where):
            return Chunk(bytearray(), 0)
        base = int(self._ends[start - 1]) if start else 0
        fitting = int(np.searchsorted(self._ends, base + max_bytes, "right"))
        allowed = int(np.searchsorted(self._ends, base + window, "left")) + 1
        self._at = stop = max(start + 1, min(fitting, allowed))
        data = bytearray().join(self._pieces(start, stop))
        begins = self._ends[start:stop] - self._lengths[start:stop] - base
        opaques = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))  # one at each byte, overlapping
        opaques[begins + _OPAQUE_AT] = opaque
        return Chunk(data, stop - start)

    def _pieces(self, start: int, stop: int) -> Iterator[memoryview]:
        """Yield the bytes of the rows: runs of frames that lie next to each other, or frames picked all at once."""
        where, lengths = self._where[start:stop], self._lengths[start:stop]
        after = where + lengths
        breaks = np.flatnonzero(where[1:] != after[:-1]) + 1
        if len(breaks) * _MEAN_RUN <= stop - start:
            runs = zip(where[np.r_[0, breaks]].tolist(), after[np.r_[breaks - 1, -1]].tolist(), strict=True)
            for first, last in runs:
                offset = first & _OFFSET
                yield self._buffers[first >> OFFSET_BITS][offset : offset + last - first]
            return
        numbers = where >> OFFSET_BITS
        bounds = np.r_[0, np.flatnonzero(np.diff(numbers)) + 1, stop - start].tolist()
        for first, last in pairwise(bounds):
            offsets = where[first:last] & _OFFSET
            yield gather_ascending(self._buffers[numbers[first]], offsets, lengths[first:last])
