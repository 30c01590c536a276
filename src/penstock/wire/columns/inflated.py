"""Runs whose values were sent compressed, made into runs of plain values.

No consumer here asks for compressed values. Couchbase 3.1.6 sends them all the same: its DCP producer passes values on
as they are stored, whatever HELLO agreed on. One look at the column of datatypes tells whether a run has any.
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
from penstock.wire.codec.layout import decode
from penstock.wire.columns.heads import Heads, Run, heads_of
from penstock.wire.columns.shapes import NMETA, SLACK
from penstock.wire.messages.dcp_values import split_extended_meta
from penstock.wire.values.snappy import inflate, most_inflated

__all__ = ["inflate_run", "inflate_value", "plain_heads"]

_SNAPPY = int(Datatype.SNAPPY)
_FEW = 16
"""Frames: below, a loop finds nothing sooner than the columns do."""


def plain_heads(run: Run, *, prefixed: bool = False) -> tuple[Run, Heads]:
    """Return a run without compressed values, and its heads. Raises as heads_of and inflate_run do."""
    heads = heads_of(run, prefixed=prefixed)
    datatypes = heads.numbers.get("datatype")
    if datatypes is None or not np.bitwise_or.reduce(datatypes) & _SNAPPY:
        return run, heads
    run = inflate_run(run)
    return run, heads_of(run, prefixed=prefixed)


def inflate_run(run: Run) -> Run:
    """Return the run without compressed values: itself where it has none, else one in a buffer of its own.

    Raises:
        RemoteProtocolError: a value is not what its datatype says, or would be larger than a bucket can hold.
    """
    if run.dialect is Dialect.UPR_DRAFT:  # it has the kind of message where others have the datatype
        return run
    rows = _compressed(run)
    if not len(rows):
        return run
    view = memoryview(run.buffer)
    bounds = [*map(int, run.offsets), run.end]
    lengths = np.diff(bounds)
    pieces: list[Buffer] = []
    start = bounds[0]
    for row in rows:
        begin, end = bounds[row], bounds[row + 1]
        changed = _inflated(view[begin:end], run.dialect)
        pieces += [view[start:begin], changed]
        lengths[row] = len(changed)
        start = end
    pieces += [view[start : run.end], bytes(SLACK)]
    return Run(bytearray().join(pieces), np.cumsum(lengths) - lengths, int(lengths.sum()), run.dialect)


def inflate_value(value: bytes, datatype: int, about: str) -> tuple[bytes, int]:
    """Return a value without compression, and its datatype.

    Args:
        about: names the document in errors.

    Raises:
        RemoteProtocolError: as inflate_run does.
    """
    if not datatype & _SNAPPY:
        return value, datatype
    # Without a value there is nothing to inflate: deletions and streams without values may keep the datatype.
    try:
        return (inflate(value, most_inflated(datatype)) if value else value), datatype & ~_SNAPPY
    except RemoteProtocolError as error:
        raise RemoteProtocolError(f"{about}: {error}", status=error.status) from None


def _compressed(run: Run) -> Sequence[int]:
    """Return the rows whose datatype says that their value is compressed."""
    offsets, buffer = run.offsets, run.buffer
    if len(offsets) < _FEW:
        return [row for row, offset in enumerate(offsets) if buffer[offset + DATATYPE_AT] & _SNAPPY]
    places: npt.NDArray[np.int64] = np.asarray(offsets, np.int64)
    found = np.frombuffer(buffer, np.uint8)[DATATYPE_AT:][places] & _SNAPPY
    return np.flatnonzero(found).tolist() if found.any() else ()


def _inflated(frame: memoryview, dialect: Dialect) -> Buffer:
    """Return a frame with its value inflated; a frame that breaks its layout as it is, for the decoder to report."""
    try:
        message = decode(cut_frame(frame, 0), dialect)
        value, meta = split_extended_meta(message.value, getattr(message, NMETA, 0))
    except RemoteProtocolError:
        return frame
    about = f"vbucket {getattr(message, 'vbucket', 0)}: {message.opcode.name} of key {message.key!r}"
    value, datatype = inflate_value(value, message.datatype, about)
    return replace(message, value=value + meta, datatype=datatype).encode()
