"""Encodes changes as stream frames: the way back from Arrow columns to the wire.

All heads are written as one structured array. Arrow then joins head, key and value of every row. The data buffer of the
joined column is sent to the peer. With fewer than SMALL_BATCH rows, one message after the other is faster.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, repeat
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.errors import LocalProtocolError
from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.arrow_arrays import Column, repeat_text
from penstock.wire.columns.data_forms import make_head_dtype
from penstock.wire.columns.run_decoder import list_changes
from penstock.wire.columns.schema import Change, Event
from penstock.wire.messages.dcp import DELETION_HEAD, MUTATION_HEAD, Deletion, Mutation

SMALL_BATCH = 25
"""Rows: with fewer of them, the loop is faster than the columns (measured: equal between 23 and 32)."""

Opaque = int | npt.NDArray[np.uint32]


class Frames(NamedTuple):
    """Frames, one after the other.

    Attributes:
        buffer: the frames.
        offsets: where each frame begins, and at the end where the last one ends.
    """

    buffer: pa.Buffer
    offsets: npt.NDArray[np.int32]


def encode_columns(batch: pa.RecordBatch, opaque: Opaque = 0) -> Frames:
    """Return the mutations and deletions of a batch as frames; deletions have form V1.

    Args:
        batch: the columns of CHANGE_SCHEMA, at most 2 GiB of frames. A null is sent as 0 or as no bytes. Columns that
            these frames do not have (collections, xattrs, times of deletions) are left out.
        opaque: one for all rows, or one for each.

    Raises:
        LocalProtocolError: a row is no mutation or deletion, or a number or key does not fit.
    """
    if batch.num_rows < SMALL_BATCH:
        opaques = repeat(opaque) if isinstance(opaque, int) else opaque.tolist()
        return encode_changes(list_changes(batch), opaques)
    return join_columns(batch, opaque)


def encode_changes(changes: Sequence[Change], opaques: Iterable[int]) -> Frames:
    """Return the same frames as encode_columns, one message at a time.

    Args:
        changes: mutations and deletions.
        opaques: one for each change, or more.
    """
    frames = [_message_of(change, opaque).encode() for change, opaque in zip(changes, opaques, strict=False)]
    offsets = np.fromiter(accumulate(map(len, frames), initial=0), np.int32, len(frames) + 1)
    return Frames(pa.py_buffer(b"".join(frames)), offsets)


def _message_of(change: Change, opaque: int) -> Mutation | Deletion:
    if change.event not in (Event.MUTATION, Event.DELETION):
        raise LocalProtocolError(f"vbucket {change.vbucket}: a row {change.event} is no mutation or deletion")
    if not change.key or not change.seqno:
        raise LocalProtocolError(
            f"vbucket {change.vbucket}: a {change.event} needs a key and a seqno, found {change.key!r}, {change.seqno}"
        )
    fields: dict[str, Any] = {
        **{"vbucket": change.vbucket, "opaque": opaque, "cas": change.cas or 0, "datatype": change.datatype or 0},
        **{"key": change.key, "value": change.value or b""},
        **{"by_seqno": change.seqno, "rev_seqno": change.rev_seqno or 0},
    }
    if change.event == Event.DELETION:
        return Deletion(**fields)
    return Mutation(**fields, flags=change.flags or 0, expiry=change.expiry or 0, lock_time=change.lock_time or 0)


_HEAD = make_head_dtype(Mutation)
"""Header and extras of a mutation. A deletion's extras begin with the same two fields; the rest is not its own."""

_FIELDS = {
    "vbucket": "vbucket",
    "datatype": "datatype",
    "cas": "cas",
    "seqno": "by_seqno",
    "rev_seqno": "rev_seqno",
    "flags": "flags",
    "expiry": "expiry",
    "lock_time": "lock_time",
}
"""Column -> the name of its field in a frame."""

_MUTATIONS_ONLY = ("flags", "expiry", "lock_time")


def join_columns(batch: pa.RecordBatch, opaque: Opaque = 0) -> Frames:
    """Return the same frames as encode_columns, for any number of rows."""
    kinds = pc.index_in(batch.column("event"), _EVENT_NAMES)
    gone = _numbers(kinds) == _DELETION
    keys, values = _bytes_of(batch, "key"), _bytes_of(batch, "value")
    key_bytes = _numbers(pc.binary_length(keys))
    numbers = {name: _numbers(batch.column(name)) for name in _FIELDS}
    if gone.any():
        numbers |= {name: np.where(gone, 0, numbers[name]) for name in _MUTATIONS_ONLY}
    _check(batch, kinds, key_bytes, numbers)
    head_bytes = np.where(gone, DELETION_HEAD.size, MUTATION_HEAD.size)
    heads = np.zeros(batch.num_rows, _HEAD)
    heads["magic"] = Magic.REQUEST
    heads["opcode"] = np.where(gone, Opcode.DCP_DELETION, Opcode.DCP_MUTATION)
    heads["key_length"] = key_bytes
    heads["extras_length"] = head_bytes - HEADER_BYTES
    heads["body"] = head_bytes - HEADER_BYTES + key_bytes + _numbers(pc.binary_length(values))
    heads["opaque"] = opaque
    for name, field in _FIELDS.items():
        heads[field] = numbers[name]
    return _join(heads, head_bytes, keys, values)


_EVENT_NAMES = pa.concat_arrays([repeat_text(str(event), 1) for event in (Event.MUTATION, Event.DELETION)])
_DELETION = 1


def _numbers(column: pa.Array) -> Column:
    numbers: Column = (column.fill_null(0) if column.null_count else column).to_numpy()
    return numbers


def _bytes_of(batch: pa.RecordBatch, name: str) -> pa.Array:
    column = batch.column(name)
    column = column if column.type == pa.binary() else column.cast(pa.binary())
    return column.fill_null(b"") if column.null_count else column


def _check(batch: pa.RecordBatch, kinds: pa.Array, key_bytes: Column, numbers: dict[str, Column]) -> None:
    """Raise the error of the first row that cannot be encoded, with the words of the single encoder."""
    bad = (key_bytes == 0) | (key_bytes > 0xFFFF) | (numbers["seqno"] == 0)
    bad |= (numbers["vbucket"] >> 16 != 0) | (numbers["datatype"] >> 8 != 0)
    bad |= (numbers["flags"] | numbers["expiry"] | numbers["lock_time"]) >> 32 != 0
    if kinds.null_count:
        bad |= kinds.is_null().to_numpy(zero_copy_only=False)
    if bad.any():
        encode_changes(list_changes(batch.slice(int(np.argmax(bad)), 1)), [0])


def _join(heads: Column, head_bytes: Column, keys: pa.Array, values: pa.Array) -> Frames:
    """Join heads, of which only the first `head_bytes` count, keys and values.

    Returns:
        The frames.

    Raises:
        LocalProtocolError: the frames together are too long for one Arrow column.
    """
    count, size = len(heads), int(heads["body"].sum(dtype=np.int64)) + HEADER_BYTES * len(heads)
    if size > _LONGEST:
        raise LocalProtocolError(f"{count} changes make {size} bytes of frames, limit {_LONGEST}: split the batch")
    # The unused end of a short head is an element of its own, so only every second element is taken.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[::2] = np.arange(count + 1) * _HEAD.itemsize
    bounds[1::2] = bounds[:-1:2] + head_bytes
    parts = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), pa.py_buffer(heads)])
    joined = pc.binary_join_element_wise(parts.take(pa.array(np.arange(0, 2 * count, 2))), keys, values, b"")
    _, offsets, data = joined.buffers()
    return Frames(data.slice(0, size), np.frombuffer(offsets, np.int32, count + 1))


_LONGEST = 2**31 - 1
"""Bytes that the offsets of one Arrow column can reach."""
