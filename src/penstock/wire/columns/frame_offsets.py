"""Finds where the frames of a slab begin. Headers hold their frames' lengths, so frames are found one after the other.

This loop is the one piece of Python that runs for each message of a stream. Everything else works on whole runs.
A search for headers with vector comparisons was measured too. With 100-byte values it was not faster, with 1 KB values
three times slower. It also finds bytes inside values that look like headers, which have to be sorted out again.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from penstock.wire.codec import native
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import BODY_AT, BODY_LENGTH, HEADER_BYTES, Buffer
from penstock.wire.columns.data_forms import SHAPES
from penstock.wire.columns.native_tables import TABLES

Offsets = list[int] | npt.NDArray[np.int64]

FEW_BYTES = 8192 if native.extension is None else 0
"""Fewer bytes than this: a list of offsets is made faster than an array. The extension module is never slower."""


def find_offsets(buffer: Buffer, start: int, end: int) -> tuple[list[int], int]:
    """Return the offsets of the whole frames in buffer[start:end], and where the first incomplete one begins.

    Only lengths are read: the caller checks whether an offset holds a known magic.
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


def find_run_offsets(buffer: Buffer, end: int, dialect: Dialect) -> tuple[Offsets, list[int], int]:
    """Find the frames of buffer[:end], and those among them that may not stand in a run of the dialect.

    Returns:
        The offsets of the whole frames, the indices of the frames outside runs, and where the first incomplete frame
        begins.
    """
    shapes = SHAPES[dialect]
    if native.extension is not None and end > FEW_BYTES:
        found = np.empty((2, end // HEADER_BYTES), np.int64)
        places = (HEADER_BYTES, BODY_AT, TABLES[dialect].run_conditions)
        frames, alone, position = native.extension.hop(buffer, 0, end, *places, *found)
        return found[0, :frames], found[1, :alone].tolist(), position
    offsets, position = find_offsets(buffer, 0, end)
    if end <= FEW_BYTES:
        return (
            offsets,
            [index for index, offset in enumerate(offsets) if not shapes.can_be_in_run(buffer, offset)],
            position,
        )
    starts = np.array(offsets, np.int64)
    in_run = shapes.find_run_members(np.frombuffer(buffer, np.uint8), starts)
    return starts, np.flatnonzero(~in_run).tolist(), position
