"""Runs of stream frames to Arrow, without Python for each message.

The fixed fields are gathered through one structured view that overlaps itself (a stride of one byte), keys and values
each through an Arrow array whose elements are in turn one of them and what lies between it and the next.
Below SMALL_RUN messages the set-up costs more than it saves, and a loop over structs makes the same batch.

Where what lies is in penstock.wire.shapes; what a form or a dialect does not say is null.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import lru_cache
from struct import pack
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import RemoteProtocolError
from penstock.wire import native
from penstock.wire.constants import Dialect, TapFlag
from penstock.wire.dcp import COLLECTION_SEPARATOR
from penstock.wire.frame import HEADER_BYTES, cut_frame
from penstock.wire.hop import Offsets
from penstock.wire.layout import Message, decode
from penstock.wire.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64, unsigned64
from penstock.wire.shapes import (
    BESIDE,
    ENGINE_LENGTH,
    EXTRAS_LENGTH_AT,
    NARROW,
    NMETA,
    NO_FORM,
    SHAPES,
    SLACK,
    WIDE,
    Shapes,
)

SMALL_RUN = 30
"""Messages: below, the loop is faster than the columns (measured: equal between 30 and 40)."""

Column = npt.NDArray[Any]
_Said = npt.NDArray[np.bool_] | bool

_KINDS: dict[str, pa.DataType] = {field.name: field.type for field in CHANGE_SCHEMA}
"""The columns of CHANGE_SCHEMA in their order; asking the schema itself costs more than making a column."""


class Run(NamedTuple):
    """Consecutive whole stream frames in a slab; valid until the slab is given out again.

    buffer: the slab; SLACK bytes behind `end` belong to it. offsets: where each frame begins, ascending, without gaps.
    """

    buffer: bytearray
    offsets: Offsets
    end: int
    dialect: Dialect = Dialect.DCP


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
            return self._table.take(one, axis=1)  # which is several times faster than [:, one]
        except IndexError:
            known = self._table.shape[1]
            beyond = int(vbuckets[vbuckets >= known][0])
            raise RemoteProtocolError(f"change of vbucket {beyond}, expected one below {known}") from None


class Heads(NamedTuple):
    """The numbers of a run's frames, and where their keys and values lie.

    form: which of `shapes` all frames have; None: each has its own of `forms`. numbers: by name, of the names of
    penstock.wire.shapes that any of these forms says; u64 and u32 as signed numbers with the same bits. keys_at,
    values_at, ends: a key lies before its value, a value before its end. missing: rows to which a number, or the value,
    is null although their form says it. collection: the column, where there is one.
    """

    shapes: Shapes
    form: int | None
    forms: npt.NDArray[np.uint8]
    numbers: dict[str, Column]
    keys_at: npt.NDArray[np.int64]
    values_at: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    missing: Mapping[str, npt.NDArray[np.bool_]] = MappingProxyType({})
    collection: pa.Array | None = None

    @property
    def vbucket(self) -> npt.NDArray[np.int32]:
        return self.numbers["vbucket"]

    @property
    def opaque(self) -> npt.NDArray[np.uint32]:
        return self.numbers["opaque"].view(np.uint32)

    @property
    def by_seqno(self) -> npt.NDArray[np.uint64] | None:
        """None where the dialect has none: TAP."""
        seqnos = self.numbers.get("seqno")
        return None if seqnos is None else seqnos.view(np.uint64)

    def said(self, name: str) -> _Said:
        """Return which rows say a number, or have a value; True or False where that goes for all."""
        said: _Said
        said, missing = self.of_form(self.shapes.said[name]), self.missing.get(name)
        return said if missing is None or said is False else said & ~missing

    def all_say(self, name: str) -> bool:
        """Is it clear, without a look at the rows, that all say a number which stands in `numbers`?"""
        return self.form is not None and name not in self.missing

    def of_form(self, by_form: Column) -> Any:
        """Return for each row what goes for its form, once if all have the same."""
        return by_form[self.forms] if self.form is None else by_form[self.form].item()


def heads_of(run: Run) -> Heads:
    """Gather the numbers of a run and check every frame against its layout.

    Raises RemoteProtocolError (fatal) for the first frame whose extras, key or value cannot be.
    """
    offsets = np.ascontiguousarray(run.offsets, np.int64)
    heads, good = (
        _gather(run, offsets) if native.extension is None else _gather_natively(run, offsets, native.extension)
    )
    lengths = heads.numbers.get("collection_length")
    if lengths is not None and lengths[:good].any():
        heads, good = _split_names(run, heads, good)
    if good < len(offsets):
        raise _why(run, int(offsets[good]))
    return _of_tap(heads) if run.dialect is Dialect.TAP else heads


def _gather_natively(run: Run, offsets: Column, extension: ModuleType) -> tuple[Heads, int]:
    """Do what _gather does in one pass."""
    shapes, table, count = SHAPES[run.dialect], native.TABLES[run.dialect], len(offsets)
    forms, parts = np.empty(count, np.uint8), np.empty((3, count), np.int64)
    wide, _ = _room((len(table.wide), count), np.int64)
    narrow, _ = _room((len(table.narrow), count), np.int32)
    good, present = extension.gather(
        run.buffer, offsets, run.end, table.table, table.number_of, forms, parts, wide, narrow
    )
    form = present.bit_length() - 1 if present.bit_count() == 1 else None
    said = _said(run.dialect, present)
    rows = zip((*table.wide, *table.narrow), (*wide, *narrow), strict=True)
    numbers = {name: row for name, row in rows if name in said}
    return Heads(shapes, form, forms, numbers, *parts), good


@lru_cache(maxsize=256)
def _said(dialect: Dialect, present: int) -> frozenset[str]:
    """Return the names that any form of the set `present` (bits) says."""
    forms = SHAPES[dialect].forms
    return frozenset(name for number, form in enumerate(forms) if present >> number & 1 for name in form.places)


def _gather(run: Run, offsets: Column) -> tuple[Heads, int]:
    """Return the heads of a run, and how many frames there are before the first that breaks its layout."""
    shapes = SHAPES[run.dialect]
    raw = _window(run.buffer, SLACK)[offsets]
    octets = raw.view(np.uint8).reshape(-1, SLACK)
    codes, lengths = octets[:, shapes.code_at], octets[:, EXTRAS_LENGTH_AT]
    form: int | None = None
    if (codes == codes[0]).all() and (lengths == lengths[0]).all():
        form, forms = int(shapes.number_of[codes[0], lengths[0]]), _EMPTY
        present = 1 << form
    else:
        forms = shapes.number_of[codes, lengths]
        present = sum(1 << number for number in np.flatnonzero(np.bincount(forms, minlength=1)).tolist())
    numbers = _numbers(raw, shapes, present, forms)
    keys_at = offsets + (HEADER_BYTES + lengths.astype(np.int64))
    if ENGINE_LENGTH in numbers:
        keys_at += numbers[ENGINE_LENGTH]
    key_bytes = raw.view(shapes.forms[0].dtype)["key_length"]
    values_at = keys_at + key_bytes
    ends = np.empty_like(offsets)
    ends[:-1], ends[-1] = offsets[1:], run.end
    if NMETA in numbers:
        ends -= numbers[NMETA]
    bad = (key_bytes == 0) | (values_at > ends)
    if "seqno" in numbers:
        bad |= numbers["seqno"] == 0
    heads = Heads(shapes, form, forms, numbers, keys_at, values_at, ends)
    if present >> NO_FORM:
        bad |= forms == NO_FORM if form is None else True
    elif any(each.bare for each in shapes.forms):
        bad |= (values_at < ends) & heads.of_form(shapes.bare)
    return heads, int(np.argmax(bad)) if bad.any() else len(offsets)


_EMPTY = np.empty(0, np.uint8)


def _numbers(raw: Column, shapes: Shapes, present: int, forms: Column) -> dict[str, Column]:
    """Return the numbers of gathered frames, of those names that any form of the set `present` (bits) says."""
    count, plan = len(raw), _plan(shapes.dialect, present)
    widths = [name in WIDE for name, _ in plan]
    wide, _ = _room((sum(widths), count), np.int64)
    narrow, _ = _room((len(plan) - sum(widths), count), np.int32)
    rows = {True: iter(wide), False: iter(narrow)}
    numbers = {}
    for (name, sources), is_wide in zip(plan, widths, strict=True):
        numbers[name] = row = next(rows[is_wide])
        if len(sources) == 1 and sources[0][0] is None:
            row[:] = raw.view(sources[0][1])[name]
            continue
        row[:] = 0
        for number, dtype in sources:
            of_form = forms == number
            row[of_form] = raw[of_form].view(dtype)[name]
    return numbers


_Plan = list[tuple[str, list[tuple[int | None, np.dtype[np.void]]]]]


@lru_cache(maxsize=256)
def _plan(dialect: Dialect, present: int) -> _Plan:
    """Return what can be read of runs with these forms: names, and of each of which forms (None: of all) and how.

    Columns of a form that does not say them are null, whatever is read; numbers beside the columns must be 0 then.
    """
    shapes, plan = SHAPES[dialect], _Plan()
    chosen = [(number, form) for number, form in enumerate(shapes.forms) if present >> number & 1]
    for name in (*WIDE, *NARROW, *BESIDE):
        saying = [(number, form) for number, form in chosen if name in form.places]
        if not saying:
            continue
        one_place = len({form.places[name] for _, form in saying}) == 1
        if one_place and (name not in BESIDE or len(saying) == len(chosen)):
            plan.append((name, [(None, saying[0][1].dtype)]))
        else:
            plan.append((name, [(number, form.dtype) for number, form in saying]))
    return plan


def _window(buffer: bytearray | pa.Buffer, nbytes: int) -> Column:
    """Return a view of the buffer with an element of `nbytes` for every place at which one can begin."""
    return np.ndarray((len(buffer) - nbytes + 1,), f"V{nbytes}", buffer, strides=(1,))


def _split_names(run: Run, heads: Heads, good: int) -> tuple[Heads, int]:
    """Take the collections' names off the first `good` keys; return as _gather does."""
    lengths = heads.numbers["collection_length"][:good]
    named, keys_at, values_at = lengths > 0, heads.keys_at[:good], heads.values_at[:good]
    names_end = keys_at + lengths
    split_at = np.where(named, names_end + len(COLLECTION_SEPARATOR), keys_at)
    octets = np.frombuffer(run.buffer, np.uint8)
    bad = split_at >= values_at
    for place, byte in enumerate(COLLECTION_SEPARATOR):
        bad |= named & (octets[np.where(bad, keys_at, names_end + place)] != byte)
    if bad.any():
        good = int(np.argmax(bad))
    if not good:
        return heads, good
    names = _copies(pa.py_buffer(run.buffer), keys_at[:good], names_end[:good], named[:good])
    try:
        collection = names.cast(pa.string())
    except pa.ArrowInvalid:
        return heads, next(row for row, name in enumerate(names.to_pylist()) if name and not _is_text(name))
    return heads._replace(keys_at=split_at, collection=collection), good


def _is_text(name: bytes) -> bool:
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True


def _of_tap(heads: Heads) -> Heads:
    """Read the numbers of TAP as its flags say."""
    tap_flags, missing = heads.numbers["tap_flags"], {}
    reversed_ = (tap_flags & TapFlag.NETWORK_BYTE_ORDER) == 0
    if "flags" in heads.numbers and reversed_.any():
        flags = heads.numbers["flags"]
        np.copyto(flags, flags.astype(np.uint32).byteswap(), where=reversed_)
    for name, nulls in (
        ("rev_seqno", heads.numbers[ENGINE_LENGTH] < _REV_SEQNO_BYTES),
        ("value", (tap_flags & TapFlag.NO_VALUE) != 0),
    ):
        if nulls.any():
            missing[name] = nulls
    return heads._replace(missing=missing)


_REV_SEQNO_BYTES = 8
"""Engine-private data of fewer bytes says no rev_seqno."""


def _why(run: Run, offset: int) -> RemoteProtocolError:
    """Return the error of the one frame that a check found, with the words of the single decoder."""
    try:
        message = decode(cut_frame(memoryview(run.buffer), offset), run.dialect)
    except RemoteProtocolError as error:
        return RemoteProtocolError(str(error), status=error.status)
    return RemoteProtocolError(f"{message.opcode.name}: {_fault(message)}")


def _fault(message: Message) -> str:
    """Return what is wrong with a message that is as declared, and no change nevertheless."""
    if getattr(message, "by_seqno", None) == 0:
        return "by_seqno 0, expected above 0"
    nmeta = getattr(message, NMETA, 0)
    if nmeta > len(message.value):
        return f"extended meta data of {nmeta} bytes, found {len(message.value)} behind the key"
    return f"key {message.key!r}, expected a collection's name in UTF-8, {COLLECTION_SEPARATOR!r} and a key"


def decode_run(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return the changes of a run as one batch of CHANGE_SCHEMA, keys and values copied.

    views: values are binary_view into the run's slab, which must then never be written again.
    Raises RemoteProtocolError for a frame that breaks its layout.
    """
    if len(run.offsets) < SMALL_RUN and not views:
        return batch_of(decode_messages(run, context))
    return columns_of(run, heads_of(run), context, views=views)


_VIEW_SCHEMA = CHANGE_SCHEMA.set(CHANGE_SCHEMA.get_field_index("value"), pa.field("value", pa.binary_view()))


def columns_of(run: Run, heads: Heads, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return what decode_run does, for any number of messages whose heads have been gathered."""
    count, slab = len(heads.ends), pa.py_buffer(run.buffer)
    columns = {
        name: _integers(name, numbers, None if heads.all_say(name) else _bitmap(heads.said(name)))
        for name, numbers in heads.numbers.items()
        if name in _KINDS
    }
    about = context.rows(heads.vbucket)
    wide, _ = _room((len(StreamContext.NAMES) - 1, count), np.int64)
    wide[:] = about[:-1]
    narrow, _ = _room((count,), np.int32)
    narrow[:] = about[-1]
    for name, numbers in zip(StreamContext.NAMES, (*wide, narrow), strict=True):
        if name in heads.shapes.about_streams:
            columns[name] = _integers(name, numbers, None)
    columns["event"] = _event_column(heads)
    columns["key"] = _copies(slab, heads.keys_at, heads.values_at, True)
    has_value = heads.said("value")
    if has_value is not False:
        columns["value"] = (_views if views else _copies)(slab, heads.values_at, heads.ends, has_value)
    elif views:
        columns["value"] = pa.nulls(count, pa.binary_view())
    if heads.collection is not None:
        columns["collection"] = heads.collection
    schema = _VIEW_SCHEMA if views else CHANGE_SCHEMA
    arrays = [columns[name] if name in columns else _nulls(name, count) for name in _KINDS]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _bitmap(said: _Said) -> pa.Buffer | None:
    """Return Arrow's validity of rows; None: all are valid."""
    if isinstance(said, bool) or said.all():
        return None
    return pa.py_buffer(np.packbits(said, bitorder="little"))


def _integers(name: str, numbers: Column, validity: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(_KINDS[name], len(numbers), [validity, pa.py_buffer(numbers)])


def _room(shape: tuple[int, ...], kind: type[np.generic]) -> tuple[Column, pa.Buffer]:
    """Return an array to fill, and the buffer it lies in.

    Arrow's allocator keeps what it has; that of the C library gave every batch's memory back to the system and took it
    again, page by page, for a third of the time that columns take.
    """
    buffer = pa.allocate_buffer(math.prod(shape) * np.dtype(kind).itemsize)
    return np.frombuffer(buffer, kind).reshape(shape), buffer


_MADE_ONCE = 65536
"""Rows of what is made once and sliced for each batch; a slab seldom has more messages."""

_EVEN = pa.py_buffer(np.arange(0, 2 * _MADE_ONCE, 2))
_EVENTS = {event: pa.repeat(str(event), _MADE_ONCE) for event in (Event.MUTATION, Event.DELETION, Event.EXPIRATION)}
_EVENT_NAMES = pa.array([str(event) for event in _EVENTS], pa.string())
_EVENT_NUMBERS = {
    dialect: np.array([[*_EVENTS].index(form.event) for form in shapes.forms], np.int8)
    for dialect, shapes in SHAPES.items()
}
_NULLS_OF_KIND = {kind: pa.nulls(_MADE_ONCE, kind) for kind in _KINDS.values()}
_NULLS = {name: _NULLS_OF_KIND[kind] for name, kind in _KINDS.items()}


@lru_cache(maxsize=1024)  # live batches are small, and of few sizes
def _nulls(name: str, count: int) -> pa.Array:
    return _NULLS[name].slice(0, count) if count <= _MADE_ONCE else pa.nulls(count, _KINDS[name])


def _copies(slab: pa.Buffer, starts: Column, ends: Column, said: _Said) -> pa.Array:
    """Return what lies in the slab between each start and end, copied; null where it is not said."""
    count, validity = len(starts), _bitmap(said)
    if native.extension is not None:
        ends = ends if validity is None else np.where(said, ends, starts)
        bounds, bounds_buffer = _room((count + 1,), np.int32)
        data = pa.allocate_buffer(int(ends.sum() - starts.sum()))
        native.extension.copy(slab, starts, ends, bounds, data)
        return pa.Array.from_buffers(pa.binary(), count, [validity, bounds_buffer, data])
    bounds, bounds_buffer = _room((count, 2), np.int32)
    bounds[:, 0], bounds[:, 1] = starts, ends
    pieces = pa.Array.from_buffers(pa.binary(), 2 * count - 1, [None, bounds_buffer, slab])
    even = _EVEN if count <= _MADE_ONCE else pa.py_buffer(np.arange(0, 2 * count, 2))
    return pieces.take(pa.Array.from_buffers(pa.int64(), count, [validity, even]))


def _event_column(heads: Heads) -> pa.Array:
    count = len(heads.ends)
    if heads.form is None:
        return _EVENT_NAMES.take(pa.array(_EVENT_NUMBERS[heads.shapes.dialect][heads.forms]))
    event = heads.shapes.forms[heads.form].event
    return _EVENTS[event].slice(0, count) if count <= _MADE_ONCE else pa.repeat(str(event), count)


_INLINE = 12
"""Bytes that a binary_view holds itself; longer values are a prefix of 4 bytes and a place in the slab."""


def _views(slab: pa.Buffer, starts: Column, ends: Column, said: _Said) -> pa.Array:
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
    return pa.Array.from_buffers(pa.binary_view(), len(starts), [_bitmap(said), views_buffer, slab])


def decode_messages(run: Run, context: StreamContext) -> list[Change]:
    """Return the changes of a run as objects, one struct at a time: what decode_run does for few messages.

    Raises RemoteProtocolError as heads_of does.
    """
    changes: list[Change] = []
    shapes, view, known = SHAPES[run.dialect], memoryview(run.buffer), -1
    form_of, code_at = shapes.by_code.get, shapes.code_at
    about: Sequence[int | None] = ()
    offsets = run.offsets if isinstance(run.offsets, list) else run.offsets.tolist()
    for offset, end in zip(offsets, (*offsets[1:], run.end), strict=True):
        form = form_of(view[offset + code_at] << 8 | view[offset + EXTRAS_LENGTH_AT])
        if form is None:
            raise _why(run, offset)
        numbers = form.pick((*form.unpack(view, offset), None, 0))
        key_length, seqno, rev_seqno, cas, flags, expiry, lock_time, delete_time, vbucket, datatype = numbers[:10]
        _, engine_length, tap_flags, nmeta, name_length = numbers[10:]
        key_at = offset + form.head_bytes + engine_length
        value_at, end = key_at + key_length, end - nmeta
        if not key_length or value_at > end or seqno == 0 or (form.bare and value_at < end):
            raise _why(run, offset)
        key = view[key_at:value_at].tobytes()
        value = view[value_at:end].tobytes() if form.event is Event.MUTATION else None
        collection = None
        if name_length:
            collection, key = _split_name(run, offset, key, name_length)
        if tap_flags is not None:
            rev_seqno = None if engine_length < _REV_SEQNO_BYTES else rev_seqno
            value = None if tap_flags & TapFlag.NO_VALUE else value
            if flags is not None and not tap_flags & TapFlag.NETWORK_BYTE_ORDER:
                flags = int.from_bytes(flags.to_bytes(4, "big"), "little")
        if vbucket != known:
            known, said = vbucket, zip(StreamContext.NAMES, context.of(vbucket), strict=True)
            about = [number if name in shapes.about_streams else None for name, number in said]
        vbuuid, *snapshot, history = about
        row = (vbucket, vbuuid, seqno, rev_seqno, cas, form.event, key, value, None, None, collection, datatype)
        changes.append(
            _new_change(Change, (*row, flags, expiry, lock_time, delete_time, None, *snapshot, history, None))
        )
    return changes


def _split_name(run: Run, offset: int, key: bytes, length: int) -> tuple[str, bytes]:
    """Return the collection's name, which has `length` bytes, and the key behind it."""
    key_at = length + len(COLLECTION_SEPARATOR)
    name, separator, rest = key[:length], key[length:key_at], key[key_at:]
    if separator != COLLECTION_SEPARATOR or not rest or not _is_text(name):
        raise _why(run, offset)
    return name.decode(), rest


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
