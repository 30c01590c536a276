"""Frames of a source without the datatypes that a target did not grant. Pure.

Couchbase 3.x sends compressed values and JSON to consumers that asked for neither.
"""

from __future__ import annotations

import numpy as np

from penstock.client.connect.peer_forms import limit_datatypes
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import DATATYPE_AT, Frame
from penstock.wire.columns.heads import Run
from penstock.wire.columns.inflation import inflate_run, inflate_value

_CHANGED = int(Datatype.SNAPPY | Datatype.JSON)
"""Datatypes that values can do without. Extended attributes are part of the value."""


def limit_run(run: Run, granted: Datatype) -> bytes:
    """Return the bytes of a run, whose values are inflated if the target did not grant SNAPPY.

    Raises:
        RemoteProtocolError: a value contradicts its datatype.
    """
    begins = np.asarray(run.offsets, np.int64)
    surplus = int(np.bitwise_or.reduce(np.frombuffer(run.buffer, np.uint8)[begins + DATATYPE_AT])) & ~granted & _CHANGED
    if surplus & Datatype.SNAPPY:
        run = inflate_run(run)
    first = int(run.offsets[0])
    frames = memoryview(run.buffer)[first : run.end]
    return bytes(limit_datatypes(frames, np.asarray(run.offsets, np.int64) - first, granted))


def limit_frame(frame: Frame, granted: Datatype) -> Frame:
    """Return a frame as `limit_run` does, for messages that stand alone, such as prepares."""
    surplus = frame.datatype & ~granted & _CHANGED
    if not surplus:
        return frame
    value, datatype = frame.value, frame.datatype
    if surplus & Datatype.SNAPPY:
        value, datatype = inflate_value(bytes(value), datatype, f"opaque {frame.opaque}")
    return frame._replace(value=value, datatype=datatype & ~surplus)
