"""A sealed piece of the log: frames clustered by vbucket, and one row of columns for each of them.

Nothing in a segment changes once it is made, but which of its frames have been superseded or forgotten since. A reader
pins it by holding it (or its buffer); to drop frames, `rewrite` makes another segment, and the old one goes with its
last reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

__all__ = ["Column", "Lengths", "Rewritten", "Rows", "Segment", "gather", "gather_ascending", "new_buffer", "rewrite"]

Column = npt.NDArray[np.int64]
Lengths = npt.NDArray[np.uint32]

_PIECE = 1024 * 1024
_FORGOTTEN = -1  # in the place of a superseding seqno, while a segment is rewritten


class Rows(NamedTuple):
    """The columns of a segment. superseded: the seqno of the change that replaced this one, 0 if none has."""

    seqnos: Column
    offsets: Lengths
    lengths: Lengths
    superseded: Column


class Segment:
    """Frames in a buffer, and the columns of their rows in the order of (vbucket, seqno).

    starts: for each vbucket the number of its first row, then the number of rows. forgotten: vbuckets that were reset
    since, whose rows here count no more. dead: bytes of frames that are superseded or forgotten.
    Each column is there twice over the same memory: as an array for whole columns, as a view (`..._at`) that is
    quicker for one value.
    """

    __slots__ = (
        "buffer",
        "dead",
        "forgotten",
        "lengths",
        "lengths_at",
        "offsets",
        "offsets_at",
        "seqnos",
        "seqnos_at",
        "size",
        "starts",
        "superseded",
        "superseded_at",
    )

    def __init__(self, buffer: memoryview, starts: npt.NDArray[np.int32], rows: Rows) -> None:
        self.buffer = buffer
        self.starts = starts.data
        self.seqnos, self.offsets, self.lengths, self.superseded = rows
        self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at = (column.data for column in rows)
        self.size = int(self.lengths.sum(dtype=np.int64))
        self.dead = 0
        self.forgotten: set[int] = set()

    def forget(self, vbucket: int) -> None:
        """Let the rows of a vbucket count no more. What is superseded stays as it is, for snapshots opened before."""
        rows = slice(self.starts[vbucket], self.starts[vbucket + 1])
        self.dead += int(self.lengths[rows][self.superseded[rows] == 0].sum(dtype=np.int64))
        self.forgotten.add(vbucket)

    @property
    def fate(self) -> Column:
        """Of each row 0 if it is live, otherwise the superseding seqno or _FORGOTTEN. Not to be written to."""
        if not self.forgotten:
            return self.superseded
        fate = self.superseded.copy()
        for vbucket in self.forgotten:
            fate[self.starts[vbucket] : self.starts[vbucket + 1]] = _FORGOTTEN
        return fate

    @property
    def live(self) -> int:
        """Bytes of frames that still count."""
        return self.size - self.dead

    @property
    def index_bytes(self) -> int:
        columns = (self.starts, self.seqnos_at, self.offsets_at, self.lengths_at, self.superseded_at)
        return sum(column.nbytes for column in columns)


class Rewritten(NamedTuple):
    """What became of some segments. segment: None if no frame was live.

    passed: for each vbucket the highest seqno that superseded a dropped frame, 0 if there was none.
    """

    segment: Segment | None
    passed: Column


def rewrite(sources: Sequence[Segment]) -> Rewritten:
    """Return one segment with the live frames of `sources`, which lie next to each other in the log, oldest first."""
    counts = [np.diff(np.asarray(source.starts)) for source in sources]
    vbuckets = len(counts[0])
    vbucket = np.concatenate([np.repeat(np.arange(vbuckets, dtype=np.uint16), count) for count in counts])
    seqnos = np.concatenate([source.seqnos for source in sources])
    lengths = np.concatenate([source.lengths for source in sources])
    fate = np.concatenate([source.fate for source in sources])
    passed = np.zeros(vbuckets, np.int64)
    np.maximum.at(passed, vbucket, fate)
    kept = np.flatnonzero(fate == 0)
    if not len(kept):
        return Rewritten(None, passed)
    if len(sources) > 1:
        kept = kept[np.argsort(vbucket[kept], kind="stable")]
    starts = np.zeros(vbuckets + 1, np.int32)
    np.cumsum(np.bincount(vbucket[kept], minlength=vbuckets), out=starts[1:])
    seqnos, lengths = seqnos[kept], lengths[kept]
    buffer, offsets = _one_buffer(sources)
    packed = np.cumsum(lengths, dtype=np.int64) - lengths
    rows = Rows(seqnos, packed.astype(np.uint32), lengths, np.zeros(len(kept), np.int64))
    return Rewritten(Segment(gather(buffer, offsets[kept], lengths), starts, rows), passed)


def _one_buffer(sources: Sequence[Segment]) -> tuple[memoryview, Column]:
    """Return a buffer with all the sources' frames, and their offsets in it."""
    if len(sources) == 1:
        return sources[0].buffer, sources[0].offsets.astype(np.int64)
    buffers = [source.buffer if source.live else b"" for source in sources]  # after a flush most have nothing to copy
    bases = np.cumsum([0, *map(len, buffers[:-1])])
    offsets = np.concatenate([source.offsets + base for source, base in zip(sources, bases, strict=True)])
    return memoryview(b"".join(buffers)), offsets


def gather(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """Return the frames at `offsets`, in that order, next to each other. Frames do not overlap."""
    # A frame has at least 43 bytes, so no two begin in the same 32: that puts them in order without a sort.
    at = np.full((len(buffer) >> 5) + 1, -1, np.int32)
    at[offsets >> 5] = np.arange(len(offsets), dtype=np.int32)
    order = at[at >= 0]
    places = np.empty(len(order), np.int32)
    places[order] = np.arange(len(order), dtype=np.int32)
    values = _values(buffer, offsets[order], lengths[order])
    ends = np.cumsum(lengths, dtype=np.int64)
    target = new_buffer(int(ends[-1]))
    # Piece by piece: a piece is still in the cache when it goes to its place, and fresh memory is written once only.
    row = written = 0
    while row < len(places):
        end = max(row + 1, int(np.searchsorted(ends, written + _PIECE)))
        piece = _take(values, places[row:end])
        target[written : written + len(piece)] = piece
        row, written = end, written + len(piece)
    return target


def gather_ascending(buffer: memoryview, offsets: Column, lengths: Lengths) -> memoryview:
    """As gather, for a chunk of frames whose offsets ascend."""
    return _take(_values(buffer, offsets, lengths), np.arange(len(offsets), dtype=np.int32))


def _values(buffer: memoryview, offsets: Column, lengths: Lengths) -> pa.Array:
    """Return frames that lie at ascending offsets as every second of Arrow's binary values.

    Arrow wants values without gaps, so the gaps between frames are the values between.
    """
    bounds = np.empty(2 * len(offsets), np.int32)
    bounds[::2] = offsets
    bounds[1::2] = offsets + lengths
    return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, pa.py_buffer(bounds), pa.py_buffer(buffer)])


def _take(values: pa.Array, rows: npt.NDArray[np.int32]) -> memoryview:
    """Return these frames' bytes. Several times quicker than copying frame by frame in Python."""
    _, ends, data = values.take(pa.array(2 * rows)).buffers()
    return memoryview(data).cast("B")[: int(np.frombuffer(ends, np.int32)[len(rows)])]


def new_buffer(nbytes: int) -> memoryview:
    """Return memory for frames. numpy asks for huge pages, with which filling it fresh is several times quicker."""
    return np.empty(nbytes, np.uint8).data
