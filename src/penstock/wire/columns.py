"""Runs of stream frames to Arrow, without Python for each message.

The fixed fields are gathered through one structured view that overlaps itself (a stride of one byte), keys and values
through one Arrow array whose elements are all the pieces of the slab in turn: header, key, value, header, ...
Below SMALL_RUN messages the set-up costs more than it saves, and a loop over structs makes the same batch.

Sources: the layouts of penstock.wire.dcp; what an opcode does not carry is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.wire.constants import Opcode
from penstock.wire.dcp import MUTATION_HEAD, Deletion, Mutation
from penstock.wire.frame import HEADER_BYTES, cut_frame, opcode_name
from penstock.wire.layout import Layout, decode
from penstock.wire.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64

SMALL_RUN = 30
"""Messages: below, the loop is faster than the columns (measured: equal between 25 and 40)."""

SLACK = MUTATION_HEAD.size
"""Bytes that must be readable behind the last frame of a run: every frame is gathered as long as a mutation's head."""

Column = npt.NDArray[Any]
Offsets = Sequence[int] | npt.NDArray[np.int64]

_DTYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8"}
_MUTATION, _DELETION = Mutation.layouts[7], Deletion.layouts[3]
_HEADER_NAMES = ("magic", "opcode", "key_length", "extras_length", "datatype", "vbucket", "body", "opaque", "cas")
_HEAD = np.dtype(
    [
        (name, _DTYPES[code])
        for name, code in zip((*_HEADER_NAMES, *_MUTATION.names), MUTATION_HEAD.format[1:], strict=True)
    ]
)
"""Header and extras of a mutation. A deletion's extras begin with the same two fields; the rest is not its own."""

EVENTS: dict[int, Event] = {Opcode.DCP_MUTATION: Event.MUTATION, Opcode.DCP_DELETION: Event.DELETION}
"""The opcodes that a run may hold, and what they are called."""

IN_RUN = np.isin(np.arange(256), list(EVENTS))
"""By opcode: may it stand in a run?"""

_EVENT_NAMES = pa.array([str(event) for event in EVENTS.values()], pa.string())
_EVENT_NUMBER = np.zeros(256, np.int8)
_EXTRAS = np.zeros(256, np.uint8)
_RUN_LAYOUTS: dict[int, Layout] = {Opcode.DCP_MUTATION: _MUTATION, Opcode.DCP_DELETION: _DELETION}
for _number, (_opcode, _layout) in enumerate(_RUN_LAYOUTS.items()):
    _EVENT_NUMBER[_opcode] = _number
    _EXTRAS[_opcode] = _layout.extras.size


class Run(NamedTuple):
    """Consecutive whole stream frames in a slab; valid until the slab is given out again.

    buffer: the slab; SLACK bytes behind `end` belong to it. offsets: where each frame begins, ascending, without gaps.
    """

    buffer: bytearray
    offsets: Offsets
    end: int


class StreamContext:
    """What the streams of a connection say of all their rows, by vbucket: branch, snapshot, history.

    Each attribute is an int64 array of `vbuckets` elements; u64 values stand as int64 with the same bits.
    """

    NAMES = ("vbuuid", "snapshot_start", "snapshot_end", "snapshot_flags", "history")

    def __init__(self, vbuckets: int) -> None:
        self.vbuuid = np.zeros(vbuckets, np.int64)
        self.snapshot_start = np.zeros(vbuckets, np.int64)
        self.snapshot_end = np.zeros(vbuckets, np.int64)
        self.snapshot_flags = np.zeros(vbuckets, np.int64)
        self.history = np.zeros(vbuckets, np.int64)

    def of(self, vbucket: int) -> tuple[int, ...]:
        """Return what is said of one vbucket in the order of NAMES, u64 fields unsigned."""
        return tuple(int(getattr(self, name)[vbucket]) & _U64 for name in self.NAMES)


class Heads(NamedTuple):
    """The fixed fields of a run: a structured array, one element a frame, and where each frame ends."""

    fields: Column
    offsets: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]


def heads_of(run: Run) -> Heads:
    """Gather the fixed fields of a run and check every frame against its layout.

    Raises RemoteProtocolError (fatal) for the first frame whose extras, key or value cannot be.
    """
    offsets = np.asarray(run.offsets, np.int64)
    whole = np.ndarray((len(run.buffer) - SLACK + 1,), f"V{SLACK}", run.buffer, strides=(1,))
    fields = whole[offsets].view(_HEAD)
    ends = np.append(offsets[1:], run.end)
    room = ends - offsets - HEADER_BYTES - fields["extras_length"] - fields["key_length"]
    is_mutation = fields["opcode"] == Opcode.DCP_MUTATION
    bad = (
        (fields["extras_length"] != _EXTRAS[fields["opcode"]])
        | (fields["key_length"] == 0)
        | (room < 0)
        | (fields["by_seqno"] == 0)
        | (is_mutation & (fields["nmeta"] != 0))
    )
    if bad.any():
        raise _why(run, int(offsets[int(np.argmax(bad))]))
    return Heads(fields, offsets, ends)


def _why(run: Run, offset: int) -> RemoteProtocolError:
    """Return the error of the one frame that the vectorised check found, with the words of the single decoder."""
    try:
        message = decode(cut_frame(memoryview(run.buffer), offset))
    except RemoteProtocolError as error:
        return RemoteProtocolError(str(error), status=error.status)
    return RemoteProtocolError(
        f"{opcode_name(message.opcode)}: by_seqno {getattr(message, 'by_seqno', None)} "
        f"(expected above 0), nmeta {getattr(message, 'nmeta', None)} (expected 0)"
    )


def decode_run(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return the changes of a run as one batch of CHANGE_SCHEMA, keys and values copied.

    views: values are binary_view into the run's slab, which must then never be written again.
    Raises RemoteProtocolError for a frame that breaks its layout.
    """
    if len(run.offsets) < SMALL_RUN and not views:
        return batch_of(decode_messages(run, context))
    return columns_of(run, heads_of(run), context, views=views)


def columns_of(run: Run, heads: Heads, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    fields, offsets, ends = heads
    count = len(offsets)
    is_mutation = fields["opcode"] == Opcode.DCP_MUTATION
    gone = None if is_mutation.all() else ~is_mutation
    keys_at = offsets + (HEADER_BYTES + fields["extras_length"])
    values_at = keys_at + fields["key_length"]
    pieces = np.empty(3 * count + 1, np.int32)
    pieces[0:-1:3], pieces[1::3], pieces[2::3], pieces[-1] = offsets, keys_at, values_at, run.end
    slab = pa.py_buffer(run.buffer)
    whole = pa.Array.from_buffers(pa.binary(), 3 * count, [None, pa.py_buffer(pieces), slab])
    key = whole.take(_every_third(1, count))
    value_type: pa.DataType = pa.binary()
    if views:
        value, value_type = _views(run.buffer, slab, values_at, ends, gone), pa.binary_view()
    elif gone is None:
        value = whole.take(_every_third(2, count))
    else:
        value = whole.take(pa.array(np.arange(2, 3 * count, 3), mask=gone))
    vbucket = fields["vbucket"].astype(np.int32)
    columns: dict[str, pa.Array] = {
        "vbucket": _array(vbucket),
        "seqno": _array(fields["by_seqno"].astype(np.uint64).view(np.int64)),
        "rev_seqno": _array(fields["rev_seqno"].astype(np.uint64).view(np.int64)),
        "cas": _array(fields["cas"].astype(np.uint64).view(np.int64)),
        "event": _event_column(fields["opcode"], gone),
        "key": key,
        "value": value,
        "datatype": _array(fields["datatype"].astype(np.int32)),
        "flags": _array(fields["flags"].astype(np.int64), gone),
        "expiry": _array(fields["expiry"].astype(np.int64), gone),
        "lock_time": _array(fields["lock_time"].astype(np.int64), gone),
    }
    one = vbucket[0] if (vbucket == vbucket[0]).all() else None
    for name in StreamContext.NAMES:
        known = getattr(context, name)
        column = np.full(count, known[one]) if one is not None else known[vbucket]
        columns[name] = _array(column.astype(np.int32) if name == "history" else column)
    schema = CHANGE_SCHEMA
    if views:
        schema = schema.set(schema.get_field_index("value"), pa.field("value", value_type))
    return pa.RecordBatch.from_arrays([columns.get(f.name) or _nulls(f.type, count) for f in schema], schema=schema)


def _array(values: Column, mask: Column | None = None) -> pa.Array:
    return pa.array(values, mask=mask)


def _nulls(kind: pa.DataType, count: int) -> pa.Array:
    """Return `count` nulls: a slice of a column made once for each type."""
    column = _NULLS.get(kind)
    if column is None or len(column) < count:
        column = _NULLS[kind] = pa.nulls(max(count, 65536), kind)
    return column[:count]


_NULLS: dict[pa.DataType, pa.Array] = {}


def _every_third(first: int, count: int) -> pa.Array:
    return pa.array(np.arange(first, 3 * count, 3))


def _event_column(opcodes: Column, gone: Column | None) -> pa.Array:
    if gone is None:
        return pa.repeat(_EVENT_NAMES[0], len(opcodes))
    return _EVENT_NAMES.take(pa.array(_EVENT_NUMBER[opcodes]))


_INLINE = 12
"""Bytes that a binary_view holds itself; longer values are a prefix and a place in the slab."""


def _views(buffer: bytearray, slab: pa.Buffer, starts: Column, ends: Column, gone: Column | None) -> pa.Array:
    """Return the values as binary_view. Source: Arrow columnar format, "Variable-size Binary View Layout"."""
    count, lengths = len(starts), ends - starts
    if gone is not None:
        lengths = np.where(gone, 0, lengths)
    views = np.zeros((count, 4), np.int32)
    views[:, 0] = lengths
    window = np.ndarray((len(buffer) - _INLINE + 1,), f"V{_INLINE}", buffer, strides=(1,))
    views[:, 1:] = window[starts].view(np.int32).reshape(-1, 3)
    short = lengths <= _INLINE
    views[~short, 2] = 0
    views[~short, 3] = starts[~short]
    if short.any():
        held = views[:, 1:].view(np.uint8).reshape(-1, _INLINE)
        held[short] *= np.arange(_INLINE) < lengths[short, None]
    validity = None if gone is None else pa.py_buffer(np.packbits(~gone, bitorder="little"))
    return pa.Array.from_buffers(pa.binary_view(), count, [validity, pa.py_buffer(views), slab])


def decode_messages(run: Run, context: StreamContext) -> list[Change]:
    """Return the changes of a run as objects, one struct at a time: what decode_run does for few messages.

    Raises RemoteProtocolError as heads_of does.
    """
    changes: list[Change] = []
    view = memoryview(run.buffer)
    unpack, known = MUTATION_HEAD.unpack_from, -1
    said: tuple[int, ...] = ()
    for offset, end in zip(run.offsets, (*run.offsets[1:], run.end), strict=True):
        (_, opcode, key_length, extras_length, datatype, vbucket, _, _, cas, seqno, rev_seqno, *extras) = unpack(
            view, offset
        )
        key_at = offset + HEADER_BYTES + extras_length
        value_at = key_at + key_length
        layout = _RUN_LAYOUTS.get(opcode)
        gone = layout is not _MUTATION
        if layout is None or extras_length != layout.extras.size or not key_length or value_at > end or not seqno:
            raise _why(run, int(offset))
        if gone:
            flags = expiry = lock_time = value = None
        else:
            flags, expiry, lock_time, nmeta, _ = extras
            value = view[value_at:end].tobytes()
            if nmeta:
                raise _why(run, int(offset))
        if vbucket != known:
            known, said = vbucket, context.of(vbucket)
        vbuuid, snapshot_start, snapshot_end, snapshot_flags, history = said
        row = (vbucket, vbuuid, seqno, rev_seqno, cas, EVENTS[opcode], view[key_at:value_at].tobytes(), value)
        about = (None, None, None, datatype, flags, expiry, lock_time, None, None)
        changes.append(_new_change(Change, row + about + (snapshot_start, snapshot_end, snapshot_flags, history, None)))
    return changes


_new_change = tuple.__new__
_U64 = 0xFFFF_FFFF_FFFF_FFFF


def batch_of(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return changes as one batch of CHANGE_SCHEMA."""
    columns = zip(*changes, strict=True) if changes else ((),) * len(CHANGE_SCHEMA)
    arrays = []
    for field, column in zip(CHANGE_SCHEMA, columns, strict=True):
        values: Sequence[Any] = column
        if field.name in UNSIGNED64:
            values = [None if number is None else signed64(number) for number in column]
        arrays.append(pa.array(values, field.type))
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def changes_of(batch: pa.RecordBatch) -> list[Change]:
    """Return a batch of CHANGE_SCHEMA as objects, u64 fields unsigned again."""
    columns = []
    for field, array in zip(CHANGE_SCHEMA, batch.columns, strict=True):
        values = array.to_pylist()
        if field.name in UNSIGNED64:
            values = [None if number is None else number & _U64 for number in values]
        elif pa.types.is_map(field.type):
            values = [None if pairs is None else dict(pairs) for pairs in values]
        columns.append(values)
    return [Change(*row) for row in zip(*columns, strict=True)]
