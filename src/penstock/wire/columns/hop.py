"""Find where the frames of a slab begin: every frame says how long it is, so they are found one behind the other.

This loop is the one piece of Python that runs for each message of a stream. Everything else works on whole runs.
Looking for headers with vector comparisons instead was measured on 100-byte and 1 KB values: no faster at the one,
three times slower at the other, and chance matches inside values have to be sorted out again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import BODY_AT, BODY_LENGTH, HEADER_BYTES, Buffer
from penstock.wire.columns.native_tables import TABLES
from penstock.wire.columns.shapes import SHAPES

Offsets = list[int] | npt.NDArray[np.int64]

FEW_BYTES = 8192
"""Below, a list of offsets is made faster than an array."""


def hop(buffer: Buffer, start: int, end: int) -> tuple[list[int], int]:
    """Return the offsets of the whole frames in buffer[start:end], and where the first incomplete one begins.

    Only lengths are read: whether an offset holds a known magic is the caller's to check.
    """
    offsets: list[int] = []
    append, body_at, last = offsets.append, BODY_LENGTH.unpack_from, end - HEADER_BYTES
    position = following = start
    while following <= last:
        append(following)
        position = following
        (body,) = body_at(buffer, following)
        following += body + HEADER_BYTES
    if following > end:
        offsets.pop()
        return offsets, position
    return offsets, following


def hop_runs(buffer: Buffer, end: int, dialect: Dialect) -> tuple[Offsets, list[int], int]:
    """Do what `hop` does from 0 on, and find the frames that may stand in no run of a dialect.

    Returns offsets, the indices of those frames, and where the first incomplete frame begins.
    """
    shapes = SHAPES[dialect]
    if native.extension is not None and end > FEW_BYTES:
        found = np.empty((2, end // HEADER_BYTES), np.int64)
        places = (HEADER_BYTES, BODY_AT, TABLES[dialect].marks)
        frames, alone, position = native.extension.hop(buffer, 0, end, *places, *found)
        return found[0, :frames], found[1, :alone].tolist(), position
    offsets, position = hop(buffer, 0, end)
    if end <= FEW_BYTES:
        return offsets, [index for index, offset in enumerate(offsets) if not shapes.may_run(buffer, offset)], position
    starts = np.array(offsets, np.int64)
    in_run = shapes.may_run_each(np.frombuffer(buffer, np.uint8), starts)
    return starts, np.flatnonzero(~in_run).tolist(), position
