"""Converts values in frames of the log for a consumer: with extended attributes or without, compressed or not.

The log has values as they were stored. Most consumers do not support every datatype, and most values are plain. Only
frames whose datatype has such a bit are written again, one by one. A chunk without them costs one pass over a column.

Source: kv_engine docs/dcp, commands/open-connection.md; engines/ep/src/item.cc, removeBodyAndOrXattrs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import DATATYPE_AT, OPCODE_AT, Buffer, Frame, cut_frame, join_frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp_values import pack_xattrs, unpack_xattrs
from penstock.wire.values.snappy import deflate, inflate

_MUTATION = int(Opcode.DCP_MUTATION)
_JSON, _SNAPPY, _XATTR = int(Datatype.JSON), int(Datatype.SNAPPY), int(Datatype.XATTR)
_FEW = 16  # frames: with fewer of them, a loop that finds nothing is faster than a column
_WORTH = 0.85
"""A value that is compressed only for sending must shrink to this ratio. Source: dcp_min_compression_ratio."""

_SYSTEM = "_"
"""Names of system attributes begin with this; other attributes are the user's."""

Begins = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class ValueOptions:
    """The parts and encodings of values that a consumer asked for.

    Attributes:
        body: documents have their bodies, not only their keys.
        xattrs: values have extended attributes.
        deleted_user_xattrs: tombstones also have attributes that are not the system's.
        snappy: the consumer accepts compressed values.
        compress: the consumer asked for compressed values.
        underlying: the datatype stays that of the stored document, also for parts that are left out.
    """

    body: bool = True
    xattrs: bool = False
    deleted_user_xattrs: bool = False
    snappy: bool = False
    compress: bool = False
    underlying: bool = False

    @cached_property
    def changed_datatypes(self) -> int:
        """Datatype bits of values that are not sent as stored; without bodies, of values that keep attributes."""
        if not self.body:
            return int(Datatype.XATTR) if self.xattrs else 0
        whole = self.xattrs and self.deleted_user_xattrs
        return (0 if whole else int(Datatype.XATTR)) | (0 if self.snappy else int(Datatype.SNAPPY))


class Revalued(NamedTuple):
    """Frames after the conversion of their values.

    Attributes:
        data: the frames, one after the other.
        begins: where each frame begins.
        bodies_removed: the conversion has removed the bodies; `reframe` need not.
    """

    data: bytes | bytearray
    begins: Begins
    bodies_removed: bool = False


def revalue(data: bytes | bytearray, begins: Begins, options: ValueOptions) -> Revalued:
    """Return the frames with values that match the options; the same frames if no value has to change.

    `reframe` removes the bodies if no frame has extended attributes. A value that contradicts its datatype is sent
    unchanged.
    """
    rows = _find_rows_to_change(data, begins, options)
    if not len(rows):
        return Revalued(data, begins)
    view = memoryview(data)
    bounds = [*map(int, begins), len(data)]
    lengths = np.diff(bounds)
    pieces: list[Buffer] = []
    start = 0
    for row in map(int, rows):
        begin, end = bounds[row], bounds[row + 1]
        changed = _convert_frame(view[begin:end], options)
        pieces += [view[start:begin], changed]
        lengths[row] = len(changed)
        start = end
    pieces.append(view[start:])
    return Revalued(bytearray().join(pieces), np.cumsum(lengths) - lengths, bodies_removed=not options.body)


def _find_rows_to_change(data: Buffer, begins: Begins, options: ValueOptions) -> Sequence[int] | npt.NDArray[np.int64]:
    """Return the rows of frames that have to be written again, ascending."""
    if options.body and options.compress:
        return range(len(begins))
    if not options.changed_datatypes:
        return ()
    special = options.changed_datatypes
    if len(begins) < _FEW and not any(data[begin + DATATYPE_AT] & special for begin in begins):
        return ()
    found = _read_bytes_at(data, begins, DATATYPE_AT) & special
    if not found.any():
        return ()
    if not options.body:
        return range(len(begins))
    if options.xattrs:  # only tombstones have too many
        mutations = _read_bytes_at(data, begins, OPCODE_AT) == _MUTATION
        found[mutations] &= np.uint8(Datatype.SNAPPY)
    return np.flatnonzero(found)


def _read_bytes_at(data: Buffer, begins: Begins, at: int) -> npt.NDArray[np.uint8]:
    """Return the byte at an offset of each frame."""
    octets: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)[at:][np.asarray(begins, np.int64)]
    return octets


def _convert_frame(frame: memoryview, options: ValueOptions) -> Buffer:
    """Return a frame of the log with a value that matches the options."""
    source = cut_frame(frame, 0)
    try:
        value, datatype = _convert_value(source, options)
    except RemoteProtocolError:
        return frame
    return join_frame(source._replace(value=value, datatype=datatype))


def _convert_value(source: Frame, options: ValueOptions) -> tuple[bytes, int]:
    """Return the wanted part of a value, and its datatype."""
    stored, value, deleted = source.datatype, source.value, source.opcode != _MUTATION
    was_compressed = bool(stored & _SNAPPY)
    if was_compressed:
        value = inflate(value)
    section, document = _split_value(value, stored, options, deleted=deleted)
    has_body = options.body and not deleted
    wanted = section + document if has_body else section
    if wanted == value and was_compressed and options.snappy:
        return source.value, stored
    datatype = (_XATTR if section else 0) | (stored & _JSON if has_body else 0)
    if options.underlying and not options.body:
        datatype = stored
    if wanted and options.snappy and (was_compressed or options.compress):
        compressed = deflate(wanted)
        if datatype & _SNAPPY or len(compressed) <= len(wanted) * _WORTH:
            return compressed, datatype | _SNAPPY
    return wanted, datatype


def _split_value(value: bytes, datatype: int, options: ValueOptions, *, deleted: bool) -> tuple[bytes, bytes]:
    """Return the section of the wanted extended attributes, empty for none, and the document after it."""
    if not datatype & _XATTR:
        return b"", value
    xattrs, document = unpack_xattrs(value)
    if not options.xattrs:
        return b"", document
    if deleted and not options.deleted_user_xattrs:
        kept = {name: attribute for name, attribute in xattrs.items() if name.startswith(_SYSTEM)}
        return pack_xattrs(kept) if kept else b"", document
    return value[: len(value) - len(document)], document
