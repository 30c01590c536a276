"""Runs of stream frames to Arrow, without Python for each message.

The fixed fields are gathered through one structured view that overlaps itself (a stride of one byte), keys and values
each through an Arrow array whose elements are in turn one of them and what lies between it and the next.
Below SMALL_RUN messages the set-up costs more than it saves, and a loop over structs makes the same batch.

Sources: the layouts of penstock.wire.dcp; what an opcode does not carry is null.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from struct import pack
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.wire.constants import Opcode
from penstock.wire.dcp import MUTATION_HEAD, Deletion, Mutation, head_fields
from penstock.wire.frame import HEADER_BYTES, cut_frame, opcode_name
from penstock.wire.layout import Layout, decode
from penstock.wire.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64, unsigned64

SMALL_RUN = 30
"""Messages: below, the loop is faster than the columns (measured: equal between 30 and 40)."""

SLACK = MUTATION_HEAD.size
"""Bytes that must be readable behind the last frame of a run: every frame is gathered as long as a mutation's head."""

Column = npt.NDArray[Any]
Offsets = list[int] | npt.NDArray[np.int64]

_DTYPES = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8"}
_MUTATION, _DELETION = Mutation.layouts[7], Deletion.layouts[3]
HEAD = np.dtype([(name, _DTYPES[code]) for name, code in head_fields(Mutation)])
"""Header and extras of a mutation. A deletion's extras begin with the same two fields; the rest is not its own."""

_KINDS: dict[str, pa.DataType] = {field.name: field.type for field in CHANGE_SCHEMA}
"""The columns of CHANGE_SCHEMA in their order; asking the schema itself costs more than making a column."""

EVENTS: dict[int, Event] = {Opcode.DCP_MUTATION: Event.MUTATION, Opcode.DCP_DELETION: Event.DELETION}
"""The opcodes that a run may hold, and what they are called."""

IN_RUN = np.isin(np.arange(256), list(EVENTS))
"""By opcode: may it stand in a run?"""

EVENT_NAMES = pa.array([str(event) for event in EVENTS.values()], pa.string())
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
        self._table = np.zeros((len(self.NAMES), vbuckets), np.int64)
        self.vbuuid, self.snapshot_start, self.snapshot_end, self.snapshot_flags, self.history = self._table

    def of(self, vbucket: int) -> list[int]:
        """Return what is said of one vbucket in the order of NAMES, unsigned. Raises as `rows` does."""
        said: list[int] = self.rows(np.array([vbucket])).view(np.uint64)[:, 0].tolist()
        return said

    def rows(self, vbuckets: Column) -> Column:
        """Return what is said of the vbuckets: for each of NAMES a row, of one element if they are all the same one.

        Raises RemoteProtocolError for a vbucket that no stream of this connection can have.
        """
        one = vbuckets[:1] if (vbuckets == vbuckets[0]).all() else vbuckets
        try:
            return self._table[:, one]
        except IndexError:
            known = self._table.shape[1]
            beyond = int(vbuckets[vbuckets >= known][0])
            raise RemoteProtocolError(f"change of vbucket {beyond}, expected one below {known}") from None


class Heads(NamedTuple):
    """The fixed fields of a run as a structured array, one element a frame, and where the parts of each frame lie.

    gone: which frames are no mutations; None if all are.
    """

    fields: Column
    keys_at: npt.NDArray[np.int64]
    values_at: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    gone: npt.NDArray[np.bool_] | None


def heads_of(run: Run) -> Heads:
    """Gather the fixed fields of a run and check every frame against its layout.

    Raises RemoteProtocolError (fatal) for the first frame whose extras, key or value cannot be.
    """
    offsets = np.asarray(run.offsets, np.int64)
    fields = _window(run.buffer, SLACK)[offsets].view(HEAD)
    ends = np.empty_like(offsets)
    ends[:-1], ends[-1] = offsets[1:], run.end
    keys_at = offsets + (HEADER_BYTES + fields["extras_length"].astype(np.int64))
    values_at = keys_at + fields["key_length"]
    is_mutation = fields["opcode"] == Opcode.DCP_MUTATION
    bad = (
        (fields["extras_length"] != _EXTRAS[fields["opcode"]])
        | (fields["key_length"] == 0)
        | (values_at > ends)
        | (fields["by_seqno"] == 0)
        | (is_mutation & (fields["nmeta"] != 0))
    )
    if bad.any():
        raise _why(run, int(offsets[int(np.argmax(bad))]))
    return Heads(fields, keys_at, values_at, ends, None if is_mutation.all() else ~is_mutation)


def _window(buffer: bytearray | pa.Buffer, nbytes: int) -> Column:
    """Return a view of the buffer with an element of `nbytes` for every place at which one can begin."""
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, strides=(1,))


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


_WIDE = ("seqno", "rev_seqno", "cas", "flags", "expiry", "lock_time", *StreamContext.NAMES[:-1])
_NARROW = ("vbucket", "datatype", StreamContext.NAMES[-1])
"""The int64 and the int32 columns, in the order in which columns_of lays them behind each other."""

_VIEW_SCHEMA = CHANGE_SCHEMA.set(CHANGE_SCHEMA.get_field_index("value"), pa.field("value", pa.binary_view()))


def columns_of(run: Run, heads: Heads, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return what decode_run does, for any number of messages whose heads have been gathered."""
    fields, keys_at, values_at, ends, gone = heads
    count = len(fields)
    said = context.rows(fields["vbucket"])
    wide, wide_buffer = _room((len(_WIDE), count), np.int64)
    narrow, narrow_buffer = _room((len(_NARROW), count), np.int32)
    wide[0], wide[1], wide[2] = fields["by_seqno"], fields["rev_seqno"], fields["cas"]
    wide[3], wide[4], wide[5] = fields["flags"], fields["expiry"], fields["lock_time"]
    wide[6:] = said[:-1]
    narrow[0], narrow[1], narrow[2] = fields["vbucket"], fields["datatype"], said[-1]

    slab = pa.py_buffer(run.buffer)
    validity = None if gone is None else pa.py_buffer(np.packbits(~gone, bitorder="little"))
    columns = {
        **_integers(_WIDE, wide_buffer, pa.int64(), count, validity),
        **_integers(_NARROW, narrow_buffer, pa.int32(), count, None),
        "event": _event_column(fields["opcode"], gone),
        "key": _copies(slab, keys_at, values_at, None),
        "value": (_views if views else _copies)(slab, values_at, ends, validity),
    }
    schema = _VIEW_SCHEMA if views else CHANGE_SCHEMA
    arrays = [columns[name] if name in columns else _nulls(name, count) for name in _KINDS]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


_MUTATIONS_ONLY = ("flags", "expiry", "lock_time")


def _room(shape: tuple[int, ...], kind: type[np.generic]) -> tuple[Column, pa.Buffer]:
    """Return an array to fill, and the buffer it lies in.

    Arrow's allocator keeps what it has; that of the C library gave every batch's memory back to the system and took it
    again, page by page, for a third of the time that columns take.
    """
    buffer = pa.allocate_buffer(math.prod(shape) * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, kind).reshape(shape), buffer


def _integers(
    names: Sequence[str], table: pa.Buffer, kind: pa.DataType, count: int, validity: pa.Buffer | None
) -> dict[str, pa.Array]:
    """Return the rows of a table as columns; validity: of those that only a mutation has."""
    nbytes = table.size // len(names)
    return {
        name: pa.Array.from_buffers(
            kind, count, [validity if name in _MUTATIONS_ONLY else None, table.slice(number * nbytes, nbytes)]
        )
        for number, name in enumerate(names)
    }


_MADE_ONCE = 65536
"""Rows of what is made once and sliced for each batch; a slab seldom has more messages."""

_EVEN = pa.py_buffer(np.arange(0, 2 * _MADE_ONCE, 2))
_MUTATIONS = pa.repeat(str(Event.MUTATION), _MADE_ONCE)
_NULLS_OF_KIND = {kind: pa.nulls(_MADE_ONCE, kind) for kind in _KINDS.values()}
_NULLS = {name: _NULLS_OF_KIND[kind] for name, kind in _KINDS.items()}


@lru_cache(maxsize=1024)  # live batches are small, and of few sizes
def _nulls(name: str, count: int) -> pa.Array:
    return _NULLS[name].slice(0, count) if count <= _MADE_ONCE else pa.nulls(count, _KINDS[name])


def _copies(slab: pa.Buffer, starts: Column, ends: Column, validity: pa.Buffer | None) -> pa.Array:
    """Return what lies in the slab between each start and end, copied; null where `validity` says so."""
    count = len(starts)
    bounds, bounds_buffer = _room((count, 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, bounds_buffer, slab])
    even = _EVEN if count <= _MADE_ONCE else pa.py_buffer(np.arange(0, 2 * count, 2))
    return pieces.take(pa.Array.from_buffers(pa.int64(), count, [validity, even]))


def _event_column(opcodes: Column, gone: Column | None) -> pa.Array:
    if gone is None and len(opcodes) <= _MADE_ONCE:
        return _MUTATIONS.slice(0, len(opcodes))
    return EVENT_NAMES.take(pa.array(_EVENT_NUMBER[opcodes]))


_INLINE = 12
"""Bytes that a binary_view holds itself; longer values are a prefix of 4 bytes and a place in the slab."""


def _views(slab: pa.Buffer, starts: Column, ends: Column, validity: pa.Buffer | None) -> pa.Array:
    """Do what _copies does without copying, but for values that fit into a view.

    Source: Arrow columnar format, "Variable-size Binary View Layout".
    """
    views, views_buffer = _room((len(starts), 4), np.int32)
    views[:, 0] = ends - starts
    views[:, 1] = _window(slab, 4)[starts].view(np.int32)
    views[:, 2] = 0
    views[:, 3] = starts
    short = np.flatnonzero(views[:, 0] <= _INLINE)
    if len(short):
        held = _window(slab, _INLINE)[starts[short]].view(np.uint8).reshape(-1, _INLINE)
        held *= np.arange(_INLINE) < views[short, :1]
        views[short, 1:] = held.view(np.int32)
    return pa.Array.from_buffers(pa.binary_view(), len(starts), [validity, views_buffer, slab])


def decode_messages(run: Run, context: StreamContext) -> list[Change]:
    """Return the changes of a run as objects, one struct at a time: what decode_run does for few messages.

    Raises RemoteProtocolError as heads_of does.
    """
    changes: list[Change] = []
    view = memoryview(run.buffer)
    unpack, known = MUTATION_HEAD.unpack_from, -1
    said: Sequence[int] = ()
    offsets = run.offsets if isinstance(run.offsets, list) else run.offsets.tolist()
    for offset, end in zip(offsets, (*offsets[1:], run.end), strict=True):
        (_, opcode, key_length, extras_length, datatype, vbucket, _, _, cas, seqno, rev_seqno, *extras) = unpack(
            view, offset
        )
        key_at = offset + HEADER_BYTES + extras_length
        value_at = key_at + key_length
        layout = _RUN_LAYOUTS.get(opcode)
        gone = layout is not _MUTATION
        if layout is None or extras_length != layout.extras.size or not key_length or value_at > end or not seqno:
            raise _why(run, offset)
        if gone:
            flags = expiry = lock_time = value = None
        else:
            flags, expiry, lock_time, nmeta, _ = extras
            value = view[value_at:end].tobytes()
            if nmeta:
                raise _why(run, offset)
        if vbucket != known:
            known, said = vbucket, context.of(vbucket)
        vbuuid, snapshot_start, snapshot_end, snapshot_flags, history = said
        row = (vbucket, vbuuid, seqno, rev_seqno, cas, EVENTS[opcode], view[key_at:value_at].tobytes(), value)
        about = (None, None, None, datatype, flags, expiry, lock_time, None, None)
        changes.append(_new_change(Change, row + about + (snapshot_start, snapshot_end, snapshot_flags, history, None)))
    return changes


_new_change = tuple.__new__

_PACKED = {"int32": "i", "int64": "q"}
_PACK_CODES = {name: "Q" if name in UNSIGNED64 else _PACKED.get(str(kind)) for name, kind in _KINDS.items()}
"""By column: how struct packs its numbers, for those that have any."""


def batch_of(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return changes as one batch of CHANGE_SCHEMA."""
    columns = zip(*changes, strict=True) if changes else ((),) * len(CHANGE_SCHEMA)
    arrays = [_array(name, values) for name, values in zip(_KINDS, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _array(name: str, values: tuple[Any, ...]) -> pa.Array:
    count, missing, code = len(values), values.count(None), _PACK_CODES[name]
    if missing == count:
        return _nulls(name, count)
    if code is not None and not missing:
        return pa.Array.from_buffers(_KINDS[name], count, [None, pa.py_buffer(pack(f"={count}{code}", *values))])
    if code == "Q":
        values = tuple(None if number is None else signed64(number) for number in values)
    return pa.array(values, _KINDS[name])


def changes_of(batch: pa.RecordBatch) -> list[Change]:
    """Return a batch of CHANGE_SCHEMA as objects, u64 fields unsigned again."""
    columns = []
    for field, array in zip(CHANGE_SCHEMA, batch.columns, strict=True):
        values = array.to_pylist()
        if field.name in UNSIGNED64:
            values = [None if number is None else unsigned64(number) for number in values]
        elif pa.types.is_map(field.type):
            values = [None if pairs is None else dict(pairs) for pairs in values]
        columns.append(values)
    return [Change(*row) for row in zip(*columns, strict=True)]
