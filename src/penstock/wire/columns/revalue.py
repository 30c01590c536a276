"""Values in frames of the log, as a consumer gets them: with extended attributes or without, compressed or not.

The log has values as they were stored. Few consumers agree on everything that may be in one, and few values have any of
it: only frames whose datatype says so are made anew, one by one. A chunk without them costs one look at a column.

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

__all__ = ["Content", "Revalued", "revalue"]

_MUTATION = int(Opcode.DCP_MUTATION)
_FEW = 16  # frames: below, a loop finds nothing sooner than the columns do
_WORTH = 0.85
"""What a value that is compressed only for the way has to come down to. Source: dcp_min_compression_ratio."""

_SYSTEM = "_"
"""How the names of attributes begin that are not the user's."""

Begins = Sequence[int] | npt.NDArray[np.int64]


@dataclass(frozen=True)
class Content:
    """What a consumer wants of values.

    body: the documents, not only their keys. xattrs: extended attributes; deleted_user_xattrs: of tombstones also those
    that are not the system's. snappy: it takes compressed values. compress: it wants them. underlying: the datatype
    stays that of the stored document, whatever is left out.
    """

    body: bool = True
    xattrs: bool = False
    deleted_user_xattrs: bool = False
    snappy: bool = False
    compress: bool = False
    underlying: bool = False

    @cached_property
    def special(self) -> int:
        """The bits of a datatype with which a value may not go out as it is, or without its value."""
        if not self.body:
            return int(Datatype.XATTR) if self.xattrs else 0
        whole = self.xattrs and self.deleted_user_xattrs
        return (0 if whole else int(Datatype.XATTR)) | (0 if self.snappy else int(Datatype.SNAPPY))


class Revalued(NamedTuple):
    """Frames, and where each begins. bodies_gone: those without a body have lost it here."""

    data: bytes | bytearray
    begins: Begins
    bodies_gone: bool = False


def revalue(data: bytes | bytearray, begins: Begins, content: Content) -> Revalued:
    """Return the frames with values as they are wanted; the same frames if none is to be changed.

    Documents without a body and without extended attributes are left to `reframe`, unless there are others between.
    A value that is not what its datatype says goes out as it is.
    """
    rows = _to_change(data, begins, content)
    if not len(rows):
        return Revalued(data, begins)
    view = memoryview(data)
    bounds = [*map(int, begins), len(data)]
    lengths = np.diff(bounds)
    pieces: list[Buffer] = []
    start = 0
    for row in map(int, rows):
        begin, end = bounds[row], bounds[row + 1]
        changed = _changed(view[begin:end], content)
        pieces += [view[start:begin], changed]
        lengths[row] = len(changed)
        start = end
    pieces.append(view[start:])
    return Revalued(bytearray().join(pieces), np.cumsum(lengths) - lengths, bodies_gone=not content.body)


def _to_change(data: Buffer, begins: Begins, content: Content) -> Sequence[int] | npt.NDArray[np.int64]:
    """Return which of the frames are to be made anew, ascending."""
    if content.body and content.compress:
        return range(len(begins))
    if not content.special:
        return ()
    special = content.special
    if len(begins) < _FEW and not any(data[begin + DATATYPE_AT] & special for begin in begins):
        return ()
    found = _octets(data, begins, DATATYPE_AT) & special
    if not found.any():
        return ()
    if not content.body:
        return range(len(begins))
    if content.xattrs:  # only tombstones have too many
        mutations = _octets(data, begins, OPCODE_AT) == _MUTATION
        found[mutations] &= np.uint8(Datatype.SNAPPY)
    return np.flatnonzero(found)


def _octets(data: Buffer, begins: Begins, at: int) -> npt.NDArray[np.uint8]:
    """Return the byte at a place of each frame."""
    octets: npt.NDArray[np.uint8] = np.frombuffer(data, np.uint8)[at:][np.asarray(begins, np.int64)]
    return octets


def _changed(frame: memoryview, content: Content) -> Buffer:
    """Return a frame of the log with its value as it is wanted."""
    source = cut_frame(frame, 0)
    try:
        value, datatype = _wanted(source, content)
    except RemoteProtocolError:
        return frame
    return join_frame(source._replace(value=value, datatype=datatype))


def _wanted(source: Frame, content: Content) -> tuple[bytes, int]:
    """Return what is wanted of a value, and its datatype."""
    stored, value, gone = source.datatype, source.value, source.opcode != _MUTATION
    was_compressed = bool(stored & Datatype.SNAPPY)
    if was_compressed:
        value = inflate(value)
    section, document = _taken_apart(value, stored, content, gone=gone)
    has_body = content.body and not gone
    wanted = section + document if has_body else section
    if wanted == value and was_compressed and content.snappy:
        return source.value, stored
    datatype = (int(Datatype.XATTR) if section else 0) | (stored & Datatype.JSON if has_body else 0)
    if content.underlying and not content.body:
        datatype = stored
    if wanted and content.snappy and (was_compressed or content.compress):
        compressed = deflate(wanted)
        if datatype & Datatype.SNAPPY or len(compressed) <= len(wanted) * _WORTH:
            return compressed, datatype | Datatype.SNAPPY
    return wanted, datatype


def _taken_apart(value: bytes, datatype: int, content: Content, *, gone: bool) -> tuple[bytes, bytes]:
    """Return the section with the extended attributes that are wanted, empty for none, and the document behind it."""
    if not datatype & Datatype.XATTR:
        return b"", value
    xattrs, document = unpack_xattrs(value)
    if not content.xattrs:
        return b"", document
    if gone and not content.deleted_user_xattrs:
        kept = {name: attribute for name, attribute in xattrs.items() if name.startswith(_SYSTEM)}
        return pack_xattrs(kept) if kept else b"", document
    return value[: len(value) - len(document)], document
