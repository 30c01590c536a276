"""Runs of stream frames to Arrow, without Python for each message.

The numbers come from `heads`, keys and values through Arrow arrays over the slab (penstock.wire.columns.pieces).
Below SMALL_RUN messages the set-up costs more than it saves, and a loop over structs makes the same batch.
What a form or a dialect does not say is null.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from struct import pack
from typing import Any

import numpy as np
import pyarrow as pa

from penstock.wire.codec import native
from penstock.wire.codec.flags import Datatype
from penstock.wire.columns.change_rules import xattrs_at
from penstock.wire.columns.heads import Heads, Run, StreamContext, heads_of
from penstock.wire.columns.message_decoder import decode_messages
from penstock.wire.columns.pieces import MADE_ONCE, Column, bitmap, copies, repeated, room, views_of
from penstock.wire.columns.schema import CHANGE_SCHEMA, UNSIGNED64, Change, Event, signed64, unsigned64
from penstock.wire.columns.shapes import COLLECTION_ID, SHAPES

SMALL_RUN = 30 if native.extension is None else 15
"""Messages: below, the loop is faster than the columns. Measured in a consumer, where the rows of small runs that come
with one read become one batch: equal between 28 and 40 in Python; with the extension module at 5 for a run alone, at 15
where there are many."""

_KINDS: dict[str, pa.DataType] = {field.name: field.type for field in CHANGE_SCHEMA}
"""The columns of CHANGE_SCHEMA in their order; asking the schema itself costs more than making a column."""


def decode_run(run: Run, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return the changes of a run as one batch of CHANGE_SCHEMA, keys and values copied.

    Compressed values stay so; `penstock.wire.columns.inflated.inflate_run` goes before it.
    views: values are binary_view into the run's slab, which must then never be written again.
    Raises RemoteProtocolError for a frame that breaks its layout.
    """
    if len(run.offsets) < SMALL_RUN and not views:
        return batch_of(decode_messages(run, context))
    return columns_of(run, heads_of(run, prefixed=context.collections is not None), context, views=views)


_VIEW_SCHEMA = CHANGE_SCHEMA.set(CHANGE_SCHEMA.get_field_index("value"), pa.field("value", pa.binary_view()))


def columns_of(run: Run, heads: Heads, context: StreamContext, *, views: bool = False) -> pa.RecordBatch:
    """Return what decode_run does, for any number of messages whose heads have been gathered.

    The heads must have been told whether keys are prefixed as the context has it.
    """
    count, slab = len(heads.ends), pa.py_buffer(run.buffer)
    columns = {
        name: _integers(name, numbers, None if heads.all_say(name) else bitmap(heads.said(name)))
        for name, numbers in heads.numbers.items()
        if name in _KINDS
    }
    about = context.rows(heads.vbucket)
    wide, _ = room((len(StreamContext.NAMES) - 1, count), np.int64)
    wide[:] = about[:-1]
    narrow, _ = room((count,), np.int32)
    narrow[:] = about[-1]
    for name, numbers in zip(StreamContext.NAMES, (*wide, narrow), strict=True):
        if name in heads.shapes.about_streams:
            columns[name] = _integers(name, numbers, None)
    columns["event"] = _event_column(heads)
    columns["key"] = copies(slab, heads.keys_at, heads.values_at, True)
    values_at = heads.values_at
    if context.xattrs:
        values_at = _take_xattrs(run, heads, columns)
    has_value = context.values and heads.said("value")
    if not context.values:
        columns.pop("datatype", None)
    if has_value is not False:
        columns["value"] = (views_of if views else copies)(slab, values_at, heads.ends, has_value)
    elif views:
        columns["value"] = pa.nulls(count, pa.binary_view())
    if heads.collection is not None:
        columns["collection"] = heads.collection
    if context.collections is not None:
        columns["scope"], columns["collection"] = context.collections.columns(heads.numbers[COLLECTION_ID])
    schema = _VIEW_SCHEMA if views else CHANGE_SCHEMA
    arrays = [columns[name] if name in columns else _nulls(name, count) for name in _KINDS]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _take_xattrs(run: Run, heads: Heads, columns: dict[str, pa.Array]) -> Column:
    """Make the column of extended attributes, clear their bit in that of datatypes, and return where values begin.

    Raises RemoteProtocolError for a value that does not begin with attributes though its datatype says so.
    """
    datatypes = heads.numbers["datatype"]
    rows = np.flatnonzero(datatypes & Datatype.XATTR)
    if not len(rows):
        return heads.values_at
    view, values_at = memoryview(run.buffer), heads.values_at.copy()
    found: list[list[tuple[str, bytes]] | None] = [None] * len(datatypes)
    for row in rows.tolist():
        xattrs, values_at[row] = xattrs_at(view, int(values_at[row]), int(heads.ends[row]))
        found[row] = [*xattrs.items()]
    columns["xattrs"] = pa.array(found, _KINDS["xattrs"])
    columns["datatype"] = _integers("datatype", datatypes & ~int(Datatype.XATTR), None)
    return values_at


def _integers(name: str, numbers: Column, validity: pa.Buffer | None) -> pa.Array:
    return pa.Array.from_buffers(_KINDS[name], len(numbers), [validity, pa.py_buffer(numbers)])


_EVENTS = {event: repeated(str(event), MADE_ONCE) for event in (Event.MUTATION, Event.DELETION, Event.EXPIRATION)}
_EVENT_NAMES = pa.concat_arrays([names.slice(0, 1) for names in _EVENTS.values()])
_EVENT_NUMBERS = {
    dialect: np.array([[*_EVENTS].index(form.event) for form in shapes.forms], np.int8)
    for dialect, shapes in SHAPES.items()
}
_NULLS_OF_KIND = {kind: pa.nulls(MADE_ONCE, kind) for kind in _KINDS.values()}
_NULLS = {name: _NULLS_OF_KIND[kind] for name, kind in _KINDS.items()}


@lru_cache(maxsize=1024)  # live batches are small, and of few sizes
def _nulls(name: str, count: int) -> pa.Array:
    return _NULLS[name].slice(0, count) if count <= MADE_ONCE else pa.nulls(count, _KINDS[name])


def _event_column(heads: Heads) -> pa.Array:
    count = len(heads.ends)
    if heads.form is None:
        return _EVENT_NAMES.take(pa.array(_EVENT_NUMBERS[heads.shapes.dialect][heads.forms]))
    event = heads.shapes.forms[heads.form].event
    return _EVENTS[event].slice(0, count) if count <= MADE_ONCE else pa.repeat(str(event), count)


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
