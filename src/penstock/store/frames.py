"""Frames of the log, chosen but not yet copied: handed out in chunks, with the opaque of the stream they go to.

Two forms do the same: FewFrames one by one, for a stream that is up to date; ManyFrames in columns, for a backfill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
        if start == len(self._ends):
            return Chunk(bytearray(), 0)
        base = int(self._ends[start - 1]) if start else 0
        fitting = int(self._ends.searchsorted(base + max_bytes, "right"))
        allowed = int(self._ends.searchsorted(base + window, "left")) + 1
        self._at = stop = max(start + 1, min(fitting, allowed))
        data = bytearray().join(self._pieces(start, stop))
        begins = self._ends[start:stop] - self._lengths[start:stop]
        begins += _OPAQUE_AT - base
        opaques = np.ndarray((len(data) - 3,), ">u4", data, strides=(1,))  # one at each byte, overlapping
        opaques[begins] = opaque
        return Chunk(data, stop - start)

    def _pieces(self, start: int, stop: int) -> Iterable[memoryview]:
        """Return the bytes of the rows: runs of frames that lie next to each other, or frames picked all at once."""
        where, lengths = self._where[start:stop], self._lengths[start:stop]
        after = where + lengths
        last = np.append(where[1:] != after[:-1], True)  # in its run
        ends = after[last]
        if len(ends) * _MEAN_RUN > stop - start:
            return self._pick(where, lengths)
        begins = where[np.append(True, last[:-1])] & _OFFSET
        numbers = ends >> OFFSET_BITS
        ends &= _OFFSET
        runs = zip(numbers.tolist(), begins.tolist(), ends.tolist(), strict=True)
        return [self._buffers[number][begin:end] for number, begin, end in runs]

    def _pick(self, where: Column, lengths: Lengths) -> Iterator[memoryview]:
        numbers = where >> OFFSET_BITS
        bounds = [0, *(np.flatnonzero(numbers[1:] != numbers[:-1]) + 1).tolist(), len(where)]
        for begin, end in pairwise(bounds):
            rows = slice(begin, end)
            yield gather_ascending(self._buffers[numbers[begin]], where[rows] & _OFFSET, lengths[rows])
