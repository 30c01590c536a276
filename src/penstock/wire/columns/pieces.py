"""Arrow arrays of what lies in received bytes: copied in one call, or laid out as views."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.codec import native

Column = npt.NDArray[Any]
Said = npt.NDArray[np.bool_] | bool
"""Which rows are not null; True or False where that goes for all."""


def room(shape: tuple[int, ...], kind: type[np.generic]) -> tuple[Column, pa.Buffer]:
    """Return an array to fill, and the buffer it lies in.

    Arrow's allocator keeps what it has; that of the C library gave every batch's memory back to the system and took it
    again, page by page, for a third of the time that columns take.
    """
    buffer = pa.allocate_buffer(math.prod(shape) * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, kind).reshape(shape), buffer


def bitmap(said: Said) -> pa.Buffer | None:
    """Return Arrow's validity of rows; None: all are valid."""
    if isinstance(said, bool) or said.all():
        return None
    return pa.py_buffer(np.packbits(said, bitorder="little"))


def window(buffer: bytearray | pa.Buffer, nbytes: int) -> Column:
    """Return a view of the buffer with an element of `nbytes` for every place at which one can begin."""
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, strides=(1,))


MADE_ONCE = 65536
"""Rows of what is made once and sliced for each batch; a slab seldom has more messages."""

_EVEN = pa.py_buffer(np.arange(0, 2 * MADE_ONCE, 2))


def repeated(text: str, count: int) -> pa.Array:
    """Return an array that has a text `count` times.

    pa.repeat and pa.array import pandas where it is installed, which takes half a second of each start of a command.
    """
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data * count)])


def row_numbers(numbers: npt.NDArray[np.int32]) -> pa.Array:
    """Return numbers of rows as Arrow takes them, without the pandas that pa.array would import while a node serves."""
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def copies(slab: pa.Buffer, starts: Column, ends: Column, said: Said) -> pa.Array:
    """Return what lies in the slab between each start and end, copied; null where it is not said."""
    count, validity = len(starts), bitmap(said)
    if native.extension is not None:
        ends = ends if validity is None else np.where(said, ends, starts)
        bounds, bounds_buffer = room((count + 1,), np.int32)
        data = pa.allocate_buffer(int(ends.sum() - starts.sum()))
        native.extension.copy(slab, starts, ends, bounds, data)
        return pa.Array.from_buffers(pa.binary(), count, [validity, bounds_buffer, data])
    bounds, bounds_buffer = room((count, 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, bounds_buffer, slab])
    even = _EVEN if count <= MADE_ONCE else pa.py_buffer(np.arange(0, 2 * count, 2))
    return pieces.take(pa.Array.from_buffers(pa.int64(), count, [validity, even]))


_INLINE = 12
"""Bytes that a binary_view holds itself; longer values are a prefix of 4 bytes and a place in the slab."""


def views_of(slab: pa.Buffer, starts: Column, ends: Column, said: Said) -> pa.Array:
    """Do what copies does without copying, but for values that fit into a view.

    Source: Arrow columnar format, "Variable-size Binary View Layout".
    """
    views, views_buffer = room((len(starts), 4), np.int32)
    views[:, 0] = ends - starts
    views[:, 1] = window(slab, 4)[starts].view(np.int32)
    views[:, 2] = 0
    views[:, 3] = starts
    short = np.flatnonzero(views[:, 0] <= _INLINE)
    if len(short):
        held = window(slab, _INLINE)[starts[short]].view(np.uint8).reshape(-1, _INLINE)
        held *= np.arange(_INLINE) < views[short, :1]
        views[short, 1:] = held.view(np.int32)
    return pa.Array.from_buffers(pa.binary_view(), len(starts), [bitmap(said), views_buffer, slab])
