"""Inflates compressed values of a run, so that all its values are plain.

No consumer here asks for compressed values. Couchbase 3.1.6 sends them all the same: its DCP producer passes values on
as they are stored, even if HELLO did not agree on SNAPPY. The column of datatypes shows whether a run has any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import DATATYPE_AT, Buffer, cut_frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.columns.data_forms import NMETA, SLACK
from penstock.wire.columns.heads import Heads, Run, gather_heads
from penstock.wire.messages.dcp_values import split_extended_meta
from penstock.wire.values.snappy import get_inflated_limit, inflate

__all__ = ["gather_plain_heads", "inflate_run", "inflate_value"]

_SNAPPY = int(Datatype.SNAPPY)
_FEW = 16
"""Frames: with fewer of them, a loop over datatypes is as fast as the column."""


def gather_plain_heads(run: Run, *, prefixed: bool = False) -> tuple[Run, Heads]:
    """Return a run without compressed values, and its heads. Raises as gather_heads and inflate_run do."""
    heads = gather_heads(run, prefixed=prefixed)
    datatypes = heads.numbers.get("datatype")
    if datatypes is None or not np.bitwise_or.reduce(datatypes) & _SNAPPY:
        return run, heads
    run = inflate_run(run)
    return run, gather_heads(run, prefixed=prefixed)


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
