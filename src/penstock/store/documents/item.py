"""Documents and tombstones, as they are read from their frames in the log."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.store.documents.conflict import Meta
from penstock.store.history.vbucket_changes import BODY, DATATYPE, EXTRAS_LENGTH, KEY_LENGTH, OPCODE, Newest
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DeletionV2, Mutation, make_head_struct
from penstock.wire.messages.dcp_values import pack_xattrs, split_xattrs, unpack_xattrs
from penstock.wire.values.snappy import inflate

_MUTATION = int(Opcode.DCP_MUTATION)
_SNAPPY = int(Datatype.SNAPPY)
_XATTR = int(Datatype.XATTR)


VIEWED_FROM: Final = 256 * 1024
"""Bytes of a document, with its key, from which on its value is a view of the log: it is copied only on request."""


class Item(NamedTuple):
    """A document.

    Attributes:
        cas: the document's cas.
        flags: the document's flags.
        datatype: the Datatype bits.
        value: a copy; of a large document a view, which keeps its segment of the log in memory.
        expiry: epoch seconds, 0 for never.
        rev_seqno: how often the key has changed.
        seqno: the document's place in the vbucket's history.
    """

    cas: int
    flags: int
    datatype: int
    value: Buffer
    expiry: int
    rev_seqno: int
    seqno: int


class Stored(NamedTuple):
    """The result of a change: the document's new cas, and its place in the vbucket's history."""

    cas: int
    seqno: int


class Counted(NamedTuple):
    """The result of a counter: as Stored, with the new number."""

    cas: int
    seqno: int
    number: int


read_document = make_head_struct(
    Mutation, "key_length", "datatype", "body", "cas", "by_seqno", "rev_seqno", "flags", "expiry"
).unpack_from
"""Reads the fields of an Item, and no others: this runs for every GET."""

_read_meta = make_head_struct(Mutation, "datatype", "cas", "rev_seqno", "flags", "expiry").unpack_from
_read_tombstone = make_head_struct(DeletionV2, "datatype", "cas", "by_seqno", "rev_seqno", "delete_time").unpack_from


def is_document(newest: Newest | None) -> bool:
    """Return whether a key's newest change is a document, not a tombstone."""
    return newest is not None and newest[2][OPCODE] == _MUTATION


def read_value(newest: Newest) -> Buffer:
    """Return the value of a document or a tombstone, as it is stored; a large value as that of an Item."""
    rows, row, head = newest
    at = rows.offsets_at[row] + HEADER_BYTES
    view = rows.buffer[at + head[EXTRAS_LENGTH] + head[KEY_LENGTH] : at + head[BODY]]
    return view.tobytes() if head[BODY] < VIEWED_FROM else view


def read_tombstone(newest: Newest) -> Item:
    """Return a tombstone as an Item. expiry: when the document was deleted. flags: 0."""
    rows, row, _ = newest
    datatype, cas, seqno, rev_seqno, delete_time = _read_tombstone(rows.buffer, rows.offsets_at[row])
    return Item(cas, 0, datatype, read_value(newest), delete_time, rev_seqno, seqno)


def read_meta(newest: Newest) -> Meta:
    """Return the metadata of a change in the log."""
    rows, row, head = newest
    buffer, at = rows.buffer, rows.offsets_at[row]
    if head[OPCODE] == _MUTATION:
        datatype, cas, rev_seqno, flags, expiry = _read_meta(buffer, at)
        return Meta(cas, rev_seqno, flags, expiry, datatype)
    datatype, cas, _, rev_seqno, delete_time = _read_tombstone(buffer, at)
    return Meta(cas, rev_seqno, expiry=delete_time, datatype=datatype, deleted=True)


def make_tombstone_value(newest: Newest) -> bytes:
    """Return the value of a document's tombstone: its system attributes, if it has any.

    Source: kv_engine VBucket::pruneXattrDocument.
    """
    datatype = newest[2][DATATYPE]
    if not datatype & _XATTR:
        return b""
    value = read_value(newest)
    try:
        section, _ = split_xattrs(inflate(value) if datatype & _SNAPPY else value)
        attributes = unpack_xattrs(bytes(section)).xattrs
    except RemoteProtocolError:  # another node wrote it, and it cannot be parsed
        return b""
    kept = {name: attribute for name, attribute in attributes.items() if name.startswith("_")}
    return pack_xattrs(kept) if kept else b""
