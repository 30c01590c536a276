"""Decodes runs of stream frames to Arrow, without Python for each message.

The numbers come from `heads`, keys and values through Arrow arrays over the slab (`arrow_arrays`). With fewer than
SMALL_RUN messages the set-up costs more than it saves, and a loop over structs makes the same batch. Columns that a
form or a dialect does not have are null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.wire.codec import native
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.arrow_arrays import (
    CACHED_ROWS,
    Column,
    allocate_array,
    copy_slices,
    make_binaries,
    make_row_numbers,
    make_texts,
    make_validity,
    repeat_text,
    view_slices,
)
from penstock.wire.columns.change_rules import read_xattrs
from penstock.wire.columns.data_forms import COLLECTION_ID, SHAPES
from penstock.wire.columns.heads import Heads, Run, StreamContext, gather_heads
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, unsigned64

SMALL_RUN = 30 if native.extension is None else 15
"""Messages: with fewer of them, the loop is faster than the columns.

Measured in a consumer, where the rows of small runs that come with one read become one batch. In Python both are equal
between 28 and 40 messages. With the extension module they are equal at 5 for a single run, at 15 for many.
"""

_KINDS: dict[str, pa.DataType] = {field.name: field.type for field in CHANGE_SCHEMA}
"""The columns of CHANGE_SCHEMA in their order; asking the schema itself costs more than making a column."""


def decode_run(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return the changes of a run as one batch of CHANGE_SCHEMA, with keys and values copied.

    Compressed values stay compressed: call `inflation.inflate_run` first.

    Args:
        run: the frames.
        context: facts of the connection's streams.
        views: values are binary_view into the run's slab, which must then never be written again.

    Raises RemoteProtocolError for a frame that breaks its layout.
    """
    if len(run.offsets) < SMALL_RUN and not views:
        return make_batch(decode_messages(run, context))
    return decode_columns(run, gather_heads(run, prefixed=context.collections is not None), context, views=views)


_VIEW_SCHEMA = CHANGE_SCHEMA.set(CHANGE_SCHEMA.get_field_index("value"), pa.field("value", pa.binary_view()))


def decode_columns(run: Run, heads: Heads, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return the same batch as decode_run, for any number of messages whose heads have been gathered.

    The heads must have been gathered with prefixed keys if the context has collections.
    """
    count, slab = len(heads.ends), pa.py_buffer(run.buffer)
    columns = {
        name: _make_integers(
            name, numbers, None if heads.is_always_present(name) else make_validity(heads.find_present(name))
        )
        for name, numbers in heads.numbers.items()
        if name in _KINDS
    }
    about = context.read_vbuckets(heads.vbucket)
    wide, _ = allocate_array((len(StreamContext.NAMES) - 1, count), np.int64)
    wide[:] = about[:-1]
    narrow, _ = allocate_array((count,), np.int32)
    narrow[:] = about[-1]
    for name, numbers in zip(StreamContext.NAMES, (*wide, narrow), strict=True):
        if name in heads.shapes.stream_columns:
            columns[name] = _make_integers(name, numbers, None)
    columns["event"] = _make_event_column(heads)
    columns["key"] = copy_slices(slab, heads.keys_at, heads.values_at, True)
    values_at = heads.values_at
    if context.xattrs:
        values_at = _split_xattrs(run, heads, columns)
    has_value = context.values and heads.find_present("value")
    if not context.values:
        columns.pop("datatype", None)
    if has_value is not False:
        columns["value"] = (view_slices if views else copy_slices)(slab, values_at, heads.ends, has_value)
    elif views:
        columns["value"] = pa.nulls(count, pa.binary_view())
    if heads.collection is not None:
        columns["collection"] = heads.collection
    if context.collections is not None:
        columns["scope"], columns["collection"] = context.collections.make_columns(heads.numbers[COLLECTION_ID])
    schema = _VIEW_SCHEMA if views else CHANGE_SCHEMA
    arrays = [columns[name] if name in columns else _make_nulls(name, count) for name in _KINDS]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _split_xattrs(run: Run, heads: Heads, columns: dict[str, pa.Array]) -> Column:
    """Add the column of extended attributes and clear their bit in the datatypes.

    Raises RemoteProtocolError for a value that does not begin with the attributes that its datatype promises.

    Returns:
        Where the values' bodies begin.
    """
    datatypes = heads.numbers["datatype"]
    rows = np.flatnonzero(datatypes & Datatype.XATTR)
    if not len(rows):
        return heads.values_at
    view, values_at = memoryview(run.buffer), heads.values_at.copy()
    found: list[list[tuple[str, bytes]] | None] = [None] * len(datatypes)
    for row in rows.tolist():
        xattrs, values_at[row] = read_xattrs(view, int(values_at[row]), int(heads.ends[row]))
        found[row] = [*xattrs.items()]
    columns["xattrs"] = pa.array(found, _KINDS["xattrs"])
    columns["datatype"] = _make_integers("datatype", datatypes & ~int(Datatype.XATTR), None)
    return values_at


def _make_integers(name: str, numbers: Column, validity: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(_KINDS[name], len(numbers), [validity, pa.py_buffer(numbers)])


_EVENTS = {event: repeat_text(str(event), CACHED_ROWS) for event in (Event.MUTATION, Event.DELETION, Event.EXPIRATION)}
_EVENT_NAMES = pa.concat_arrays([names.slice(0, 1) for names in _EVENTS.values()])
_EVENT_NUMBERS = {
    dialect: np.array([[*_EVENTS].index(form.event) for form in shapes.forms], np.int32)
    for dialect, shapes in SHAPES.items()
}
_NULLS_OF_KIND = {kind: pa.nulls(CACHED_ROWS, kind) for kind in _KINDS.values()}
_NULLS = {name: _NULLS_OF_KIND[kind] for name, kind in _KINDS.items()}


@lru_cache(maxsize=1024)  # live batches are small, and of few sizes
def _make_nulls(name: str, count: int) -> pa.Array:
    return _NULLS[name].slice(0, count) if count <= CACHED_ROWS else pa.nulls(count, _KINDS[name])


def _make_event_column(heads: Heads) -> pa.Array:
    count = len(heads.ends)
    if heads.form is None:
        return _EVENT_NAMES.take(make_row_numbers(_EVENT_NUMBERS[heads.shapes.dialect][heads.forms]))
    event = heads.shapes.forms[heads.form].event
    return _EVENTS[event].slice(0, count) if count <= CACHED_ROWS else repeat_text(str(event), count)


_PACKED = {"int32": "i", "int64": "q"}
_PACK_CODES = {name: "Q" if name in UNSIGNED64 else _PACKED.get(str(kind)) for name, kind in _KINDS.items()}
"""Column -> the struct code of its numbers; None for columns that are not numbers."""


_MAKERS: dict[pa.DataType, Callable[[Sequence[Any]], pa.Array]] = {
    pa.string(): make_texts,
    pa.binary(): make_binaries,
    _KINDS["xattrs"]: partial(pa.array, type=_KINDS["xattrs"]),
}
"""Type of a column that is not numbers -> the function that makes it."""


def make_batch(changes: Sequence[Change]) -> pa.RecordBatch:
    """Return changes as one batch of CHANGE_SCHEMA."""
    columns = zip(*changes, strict=True) if changes else ((),) * len(CHANGE_SCHEMA)
    arrays = [_make_array(name, values) for name, values in zip(_KINDS, columns, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=CHANGE_SCHEMA)


def _make_array(name: str, values: tuple[Any, ...]) -> pa.Array:
    count, missing, code = len(values), values.count(None), _PACK_CODES[name]
    if missing == count:
        return _make_nulls(name, count)
    if code is None:
        return _MAKERS[_KINDS[name]](values)
    validity = None
    if missing:
        validity = make_validity(np.fromiter((number is not None for number in values), np.bool_, count))
        values = tuple(number or 0 for number in values)
    return pa.Array.from_buffers(_KINDS[name], count, [validity, pa.py_buffer(pack(f"={count}{code}", *values))])


def list_changes(batch: pa.RecordBatch) -> list[Change]:
    """Return a batch of CHANGE_SCHEMA as objects, with u64 fields unsigned again."""
    columns = []
    for field, array in zip(CHANGE_SCHEMA, batch.columns, strict=True):
        values = array.to_pylist()
        if field.name in UNSIGNED64:
            values = [None if number is None else unsigned64(number) for number in values]
        elif pa.types.is_map(field.type):
            values = [None if pairs is None else dict(pairs) for pairs in values]
        columns.append(values)
    return [Change(*row) for row in zip(*columns, strict=True)]
