"""Inflates compressed values of a run, so that all its values are plain.

The column of datatypes shows whether a run has any. A producer may send them even if HELLO did not agree on SNAPPY:
Couchbase 3.1.6 passes values on as they are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import BODY_AT, DATATYPE_AT, HEADER_BYTES, Buffer, cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.data_forms import NMETA, SLACK
from penstock.wire.columns.heads import Heads, Run, gather_heads
from penstock.wire.messages.dcp_values import split_extended_meta
from penstock.wire.values.snappy import get_inflated_limit, inflate

_SNAPPY = int(Datatype.SNAPPY)
_LIMITS = get_inflated_limit(0), get_inflated_limit(Datatype.XATTR)
_FEW = 16
"""Frames: with fewer of them, a loop over datatypes is as fast as the column."""


def gather_plain_heads(run: Run, *, prefixed: bool = False) -> tuple[Run, Heads]:
    """Return a run without compressed values, and its heads. Raises as gather_heads and inflate_run do."""
    heads = gather_heads(run, prefixed=prefixed)
    datatypes = heads.numbers.get("datatype")
    if datatypes is None or not np.bitwise_or.reduce(datatypes) & _SNAPPY:
        return run, heads
    try:
        run = _inflate_columns(run, heads, np.flatnonzero(datatypes & _SNAPPY))
    except RemoteProtocolError:
        run = inflate_run(run)  # it raises the error with the name of the document
    return run, gather_heads(run, prefixed=prefixed)


def _inflate_columns(run: Run, heads: Heads, rows: npt.NDArray[np.intp]) -> Run:
    """Return the run in a buffer of its own, with the values of some rows inflated.

    The lengths in the headers and the datatypes are changed as columns; only the values are inflated one by one.
    Raises RemoteProtocolError as `inflate` does.
    """
    offsets: npt.NDArray[np.int64] = np.asarray(run.offsets, np.int64)
    limits = np.where(heads.numbers["datatype"][rows] & Datatype.XATTR, _LIMITS[1], _LIMITS[0])
    view, position = memoryview(run.buffer), int(offsets[0])
    pieces: list[Buffer] = []
    growth = np.zeros(len(offsets), np.int64)
    for row, start, end, limit in zip(
        rows.tolist(), heads.values_at[rows].tolist(), heads.ends[rows].tolist(), limits.tolist(), strict=True
    ):
        if start == end:
            continue
        value = inflate(view[start:end], limit)
        pieces += (view[position:start], value)
        growth[row], position = len(value) - (end - start), end
    pieces += (view[position : run.end], bytes(SLACK))
    lengths = np.diff(offsets, append=run.end) + growth
    new_offsets: npt.NDArray[np.int64] = np.cumsum(lengths) - lengths
    changed = bytearray().join(pieces)
    octets, begins = np.frombuffer(changed, np.uint8), new_offsets[rows]
    octets[begins + DATATYPE_AT] &= np.uint8(~_SNAPPY & 0xFF)
    bodies = (lengths[rows] - HEADER_BYTES).astype(">u4").view(np.uint8).reshape(-1, 4)
    octets[(begins + BODY_AT)[:, None] + np.arange(4)] = bodies
    return Run(changed, new_offsets, int(lengths.sum()), run.dialect)


def inflate_run(run: Run) -> Run:
    """Return the run without compressed values: the run itself if it has none, otherwise one in a buffer of its own.

    Raises RemoteProtocolError as inflate_value does.
    """
    if run.dialect is Dialect.UPR_DRAFT:  # it has the kind of message in the place of the datatype
        return run
    rows = _find_compressed(run)
    if not len(rows):
        return run
    view = memoryview(run.buffer)
    bounds = [*map(int, run.offsets), run.end]
    lengths = np.diff(bounds)
    pieces: list[Buffer] = []
    start = bounds[0]
    for row in rows:
        begin, end = bounds[row], bounds[row + 1]
        changed = _inflate_frame(view[begin:end], run.dialect)
        pieces += [view[start:begin], changed]
        lengths[row] = len(changed)
        start = end
    pieces += [view[start : run.end], bytes(SLACK)]
    return Run(bytearray().join(pieces), np.cumsum(lengths) - lengths, int(lengths.sum()), run.dialect)


def inflate_value(value: bytes, datatype: int, about: str) -> tuple[bytes, int]:
    """Return a value without compression, and its datatype.

    Args:
        value: the value as it was received.
        datatype: its datatype.
        about: names the document in errors.

    Raises:
        RemoteProtocolError: the value contradicts its datatype, or would be larger than a bucket can hold.
    """
    if not datatype & _SNAPPY:
        return value, datatype
    # Without a value there is nothing to inflate: deletions and streams without values may keep the datatype.
    try:
        return (inflate(value, get_inflated_limit(datatype)) if value else value), datatype & ~_SNAPPY
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{about}: {error}", status=error.status) from None


def _find_compressed(run: Run) -> Sequence[int]:
    """Return the rows whose datatype has the bit SNAPPY."""
    offsets, buffer = run.offsets, run.buffer
    if len(offsets) < _FEW:
        return [row for row, offset in enumerate(offsets) if buffer[offset + DATATYPE_AT] & _SNAPPY]
    places: npt.NDArray[np.int64] = np.asarray(offsets, np.int64)
    found = np.frombuffer(buffer, np.uint8)[DATATYPE_AT:][places] & _SNAPPY
    return np.flatnonzero(found).tolist() if found.any() else ()


def _inflate_frame(frame: memoryview, dialect: Dialect) -> Buffer:
    """Return a frame with its value inflated; a frame that breaks its layout as it is, for the decoder to report."""
    try:
        message = decode_frame(cut_frame(frame, 0), dialect)
        value, meta = split_extended_meta(message.value, getattr(message, NMETA, 0))
    except RemoteProtocolError:
        return frame
    about = f"vbucket {getattr(message, 'vbucket', 0)}: {message.opcode.name} of key {message.key!r}"
    value, datatype = inflate_value(value, message.datatype, about)
    return replace(message, value=value + meta, datatype=datatype).encode()
