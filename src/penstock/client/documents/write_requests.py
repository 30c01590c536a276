"""Requests that store and remove documents, encoded from Arrow columns.

All headers are written as one structured array, and Arrow joins header, key and value of every row. Encoding message by
message takes ten times as long.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import DATATYPE_AT, HEADER_BYTES, HEADER_NAMES
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import Magic
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import list_head_fields

OPAQUES = 0x8000_0000
"""The opaque of the first row. A connection's other requests have smaller opaques."""

Numbers = npt.NDArray[Any]


class Fault(NamedTuple):
    """The reason why a row was not stored.

    Attributes:
        status: a Status, or NO_ANSWER of penstock.client.documents.bulk.
        text: the error for users.
    """

    status: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteRows:
    """Documents to store or to remove, as columns. A single number applies to all rows.

    Attributes:
        message_type: the message whose extras the rows have.
        opcode: the command.
        keys: binary, without nulls.
        values: binary, without nulls.
        prefixes: encoded collection ids, with which keys begin on the wire.
        fields: name of an extras field -> its values. Optional fields that are missing here are omitted.
        extras_bytes: rows have only that many bytes of the extras; None: all.
        framing: framing extras.
        cas: the expected versions; 0: any.
        datatype: the datatype bits of the values.
        repeatable: rows that may be sent again although they might have been executed.
        faults: index of a row that is not sent -> the reason.
    """

    message_type: type[Message]
    opcode: int | Numbers
    keys: pa.Array
    values: pa.Array | bytes = b""
    prefixes: pa.Array | bytes = b""
    fields: Mapping[str, int | Numbers] = field(default_factory=dict)
    extras_bytes: int | Numbers | None = None
    framing: bytes = b""
    cas: int | Numbers = 0
    datatype: int | Numbers = 0
    repeatable: bool | npt.NDArray[np.bool_] = True
    faults: Mapping[int, Fault] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class WriteRequests:
    """Encoded requests.

    Attributes:
        frames: binary, one frame for each row; its opaque is OPAQUES plus the index of the row.
        documents: keys with their collection ids.
        vbuckets: the vbucket of each row, uint16.
        repeatable: rows that may be sent again although they might have been executed.
        faults: index of a row that is not sent -> the reason.
        has_prefixes: whether keys begin with collection ids.
    """

    frames: pa.Array
    documents: pa.Array
    vbuckets: npt.NDArray[np.uint16]
    repeatable: npt.NDArray[np.bool_]
    faults: dict[int, Fault]
    has_prefixes: bool = False

    def __len__(self) -> int:
        return len(self.vbuckets)

    def find_attributes(self, places: Numbers) -> npt.NDArray[np.bool_]:
        """Return which of these requests, at least one, have extended attributes."""
        data = np.frombuffer(self.frames.buffers()[2], np.uint8)
        found: npt.NDArray[np.bool_] = data[read_offsets(self.frames)[places] + DATATYPE_AT] & Datatype.XATTR != 0
        return found


def compute_vbuckets(keys: pa.Array, vbuckets: int) -> npt.NDArray[np.uint16]:
    """Return the vbucket of each key, as `compute_vbucket` does."""
    offsets = read_offsets(keys)
    data = memoryview(keys.buffers()[2] or b"")
    sums = np.fromiter((crc32(data[a:b]) for a, b in pairwise(offsets.tolist())), np.uint32, len(keys))
    return (((sums >> 16) & 0x7FFF) % vbuckets).astype(np.uint16)


def encode_writes(rows: WriteRows, vbuckets: int) -> WriteRequests:
    """Return the requests for rows, for a bucket with `vbuckets` vbuckets. They have at most 2 GiB together.

    A key or value of an invalid size is a fault of its row.
    """
    count = len(rows.keys)
    key_bytes = np.diff(read_offsets(rows.keys))
    faults = dict(rows.faults)
    for place in np.flatnonzero((key_bytes == 0) | (key_bytes > MAX_KEY)).tolist():
        faults.setdefault(place, Fault(Status.EINVAL, f"key of {key_bytes[place]} bytes, expected 1 to {MAX_KEY}"))
    values = rows.values if isinstance(rows.values, pa.Array) else pa.scalar(rows.values, pa.binary())
    value_bytes: Any = len(rows.values)
    if isinstance(values, pa.Array):
        value_bytes = np.diff(read_offsets(values))
        for place in np.flatnonzero(value_bytes > MAX_VALUE).tolist():
            text = f"value of {value_bytes[place]} bytes, limit {MAX_VALUE}"
            faults.setdefault(place, Fault(Status.E2BIG, text))
    prefixes = rows.prefixes if isinstance(rows.prefixes, pa.Array) else pa.scalar(rows.prefixes, pa.binary())
    documents = pc.binary_join_element_wise(prefixes, rows.keys, b"") if rows.prefixes != b"" else rows.keys
    key_length = np.diff(read_offsets(documents))
    framing = len(rows.framing)
    heads = np.zeros(count, _make_head_dtype(rows.message_type, rows.fields, framing))
    extras_bytes = heads.itemsize - HEADER_BYTES - framing if rows.extras_bytes is None else rows.extras_bytes
    numbers = compute_vbuckets(rows.keys, vbuckets)
    heads["magic"] = Magic.ALT_REQUEST if framing else Magic.REQUEST
    heads["opcode"] = rows.opcode
    heads["key_length"] = framing << 8 | key_length
    heads["extras_length"] = extras_bytes
    heads["datatype"] = rows.datatype
    heads["vbucket"] = numbers
    heads["body"] = framing + extras_bytes + key_length + value_bytes
    heads["opaque"] = OPAQUES + np.arange(count, dtype=np.uint32)
    heads["cas"] = rows.cas
    if framing:
        heads["framing"] = rows.framing
    for name, numbers_of in rows.fields.items():
        heads[name] = numbers_of
    frames = pc.binary_join_element_wise(_slice_heads(heads, framing + extras_bytes), documents, values, b"")
    again = np.broadcast_to(np.asarray(rows.repeatable), count).copy()
    return WriteRequests(frames, documents, numbers, again, faults, bool((key_length > key_bytes).any()))


def _make_head_dtype(form: type[Message], fields: Mapping[str, Any], framing: int) -> np.dtype[np.void]:
    types = {"B": "u1", "H": ">u2", "I": ">u4", "Q": ">u8"}
    known = ("vbucket", *HEADER_NAMES, *fields)
    layout = [(name, types[code]) for name, code in list_head_fields(form) if name in known]
    return np.dtype(
        [*layout[: len(HEADER_NAMES)], *[("framing", f"S{framing}")] * bool(framing), *layout[len(HEADER_NAMES) :]]
    )


def _slice_heads(heads: npt.NDArray[np.void], body_bytes: Any) -> pa.Array:
    """Return the bytes of heads: the header, and `body_bytes` bytes after it."""
    count, size, data = len(heads), heads.itemsize, pa.py_buffer(heads)
    if not isinstance(body_bytes, np.ndarray) and size == HEADER_BYTES + body_bytes:
        bounds = np.arange(count + 1, dtype=np.int32) * size
        return pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(bounds), data])
    # The unused rest of each head is an element of its own, and only every second element is taken.
    bounds = np.empty(2 * count + 1, np.int32)
    bounds[::2] = np.arange(count + 1) * size
    bounds[1::2] = bounds[:-1:2] + HEADER_BYTES + body_bytes
    parts = pa.Array.from_buffers(pa.binary(), 2 * count, [None, pa.py_buffer(bounds), data])
    return parts.take(pa.array(np.arange(0, 2 * count, 2)))


def read_offsets(column: pa.Array) -> npt.NDArray[np.int32]:
    """Return the offset of each element of a binary column, and the end of the last element."""
    if not len(column):
        return np.zeros(1, np.int32)
    return np.frombuffer(column.buffers()[1], np.int32, len(column) + 1, offset=4 * column.offset)
