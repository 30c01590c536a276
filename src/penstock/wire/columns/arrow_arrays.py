"""Arrow arrays over received bytes: values copied in one call, or laid out as views."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.wire.codec import native

Column = npt.NDArray[Any]
Presence = npt.NDArray[np.bool_] | bool
"""Rows that are not null: a column of booleans, or True or False if all rows are alike."""


def allocate_array(shape: tuple[int, ...], kind: type[np.generic]) -> tuple[Column, pa.Buffer]:
    """Return an array to fill, and the Arrow buffer that holds it.

    Arrow's allocator keeps freed memory. The C library's allocator returned the memory of every batch to the system and
    took it again page by page. That cost a third of the time of decoding.
    """
    buffer = pa.allocate_buffer(math.prod(shape) * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, kind).reshape(shape), buffer


def make_validity(present: Presence) -> pa.Buffer | None:
    """Return the rows' validity as Arrow's bitmap; None if all are valid."""
    if isinstance(present, bool) or present.all():
        return None
    return pa.py_buffer(np.packbits(present, bitorder="little"))


def view_every_offset(buffer: bytearray | pa.Buffer, nbytes: int) -> Column:
    """Return a view of the buffer with an element of `nbytes` for each offset at which one fits. They overlap."""
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, strides=(1,))


CACHED_ROWS = 65536
"""Rows of arrays that are made once and sliced for each batch; a slab seldom has more messages."""

_EVEN = pa.py_buffer(np.arange(0, 2 * CACHED_ROWS, 2))


def repeat_text(text: str, count: int) -> pa.Array:
    """Return an array that has a text `count` times.

    pa.repeat and pa.array import pandas where it is installed, which takes half a second of each start of a command.
    """
    data = text.encode()
    bounds = np.arange(count + 1, dtype=np.int32) * np.int32(len(data))
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(bounds), pa.py_buffer(data * count)])


def make_texts(texts: Sequence[str | None]) -> pa.Array:
    """Return texts as an array of strings; see `make_binaries`."""
    encoded = make_binaries([None if text is None else text.encode() for text in texts])
    return pa.Array.from_buffers(pa.string(), len(texts), encoded.buffers())


def make_binaries(values: Sequence[bytes | None]) -> pa.Array:
    """Return values as an array of binary. pa.array would import pandas, as for `repeat_text`."""
    present: Presence = True
    if None in values:
        present = np.array([value is not None for value in values], np.bool_)
    parts = [value or b"" for value in values]
    bounds = np.zeros(len(parts) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, parts), np.int32, len(parts)), out=bounds[1:])
    buffers = [make_validity(present), pa.py_buffer(bounds), pa.py_buffer(b"".join(parts))]
    return pa.Array.from_buffers(pa.binary(), len(parts), buffers)


def make_row_numbers(numbers: npt.NDArray[np.int32]) -> pa.Array:
    """Return numbers of rows as an Arrow array. pa.array would import pandas while a node serves."""
    return pa.Array.from_buffers(pa.int32(), len(numbers), [None, pa.py_buffer(numbers)])


def copy_slices(slab: pa.Buffer, starts: Column, ends: Column, present: Presence) -> pa.Array:
    """Return the bytes between each start and end in the slab, copied; null where `present` is false."""
    count, validity = len(starts), make_validity(present)
    if native.extension is not None:
        ends = ends if validity is None else np.where(present, ends, starts)
        bounds, bounds_buffer = allocate_array((count + 1,), np.int32)
        data = pa.allocate_buffer(int(ends.sum() - starts.sum()))
        native.extension.copy(slab, starts, ends, bounds, data)
        return pa.Array.from_buffers(pa.binary(), count, [validity, bounds_buffer, data])
    bounds, bounds_buffer = allocate_array((count, 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, bounds_buffer, slab])
    even = _EVEN if count <= CACHED_ROWS else pa.py_buffer(np.arange(0, 2 * count, 2))
    return pieces.take(pa.Array.from_buffers(pa.int64(), count, [validity, even]))


_INLINE = 12
"""Bytes that a binary_view holds itself; longer values are a prefix of 4 bytes and a place in the slab."""


def view_slices(slab: pa.Buffer, starts: Column, ends: Column, present: Presence) -> pa.Array:
    """Return the bytes between each start and end as views into the slab; values of up to 12 bytes are copied.

    Source: Arrow columnar format, "Variable-size Binary View Layout".
    """
    views, views_buffer = allocate_array((len(starts), 4), np.int32)
    views[:, 0] = ends - starts
    views[:, 1] = view_every_offset(slab, 4)[starts].view(np.int32)
    views[:, 2] = 0
    views[:, 3] = starts
    short = np.flatnonzero(views[:, 0] <= _INLINE)
    if len(short):
        held = view_every_offset(slab, _INLINE)[starts[short]].view(np.uint8).reshape(-1, _INLINE)
        held *= np.arange(_INLINE) < views[short, :1]
        views[short, 1:] = held.view(np.int32)
    return pa.Array.from_buffers(pa.binary_view(), len(starts), [make_validity(present), views_buffer, slab])
