"""A document, or what is left of one, as it is read from its frame in the log."""

from __future__ import annotations

from typing import Final, NamedTuple

from penstock.errors import RemoteProtocolError
from penstock.store.documents.conflict import Meta
from penstock.store.history.vbucket_changes import BODY, DATATYPE, EXTRAS_LENGTH, KEY_LENGTH, OPCODE, Newest
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER_BYTES, Buffer
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.dcp import DeletionV2, Mutation, head_struct
from penstock.wire.messages.dcp_values import pack_xattrs, split_xattrs, unpack_xattrs
from penstock.wire.values.snappy import inflate

__all__ = [
    "VIEWED_FROM",
    "Counted",
    "Item",
    "Stored",
    "is_document",
    "meta_of",
    "read_document",
    "remains_of",
    "tombstone_of",
    "value_of",
]

_MUTATION = int(Opcode.DCP_MUTATION)


VIEWED_FROM: Final = 256 * 1024
"""Bytes of a document, with its key, from which on its value is a view of the log: nobody copies it unasked."""


class Item(NamedTuple):
    """A document.

    Attributes:
        value: a copy; of a large document a view, which keeps its segment of the log in memory.
        expiry: epoch seconds, 0 for never.
        rev_seqno: how often the key has changed.
    """

    cas: int
    flags: int
    datatype: int
    value: Buffer
    expiry: int
    rev_seqno: int
    seqno: int


class Stored(NamedTuple):
    """What a change was given: the document's new cas, and its place in the vbucket's history."""

    cas: int
    seqno: int


class Counted(NamedTuple):
    """As Stored, with the number that the document is now."""

    cas: int
    seqno: int
    number: int


read_document = head_struct(
    Mutation, "key_length", "datatype", "body", "cas", "by_seqno", "rev_seqno", "flags", "expiry"
).unpack_from
"""Reads what an Item is made of, and no more: this runs for every GET."""

_read_meta = head_struct(Mutation, "datatype", "cas", "rev_seqno", "flags", "expiry").unpack_from
_read_tombstone = head_struct(DeletionV2, "datatype", "cas", "by_seqno", "rev_seqno", "delete_time").unpack_from


def is_document(newest: Newest | None) -> bool:
    return newest is not None and newest[2][OPCODE] == _MUTATION


def value_of(newest: Newest) -> Buffer:
    """Return the value of a document or a tombstone, as it is stored; a large one as that of an Item."""
    rows, row, head = newest
    at = rows.offsets_at[row] + HEADER_BYTES
    view = rows.buffer[at + head[EXTRAS_LENGTH] + head[KEY_LENGTH] : at + head[BODY]]
    return view.tobytes() if head[BODY] < VIEWED_FROM else view


def tombstone_of(newest: Newest) -> Item:
    """Return what is left of a deleted document. expiry: when it was deleted. flags: 0."""
    rows, row, _ = newest
    datatype, cas, seqno, rev_seqno, delete_time = _read_tombstone(rows.buffer, rows.offsets_at[row])
    return Item(cas, 0, datatype, value_of(newest), delete_time, rev_seqno, seqno)


def meta_of(newest: Newest) -> Meta:
    """Return the meta data that the log has of a change."""
    rows, row, head = newest
    buffer, at = rows.buffer, rows.offsets_at[row]
    if head[OPCODE] == _MUTATION:
        datatype, cas, rev_seqno, flags, expiry = _read_meta(buffer, at)
        return Meta(cas, rev_seqno, flags, expiry, datatype)
    datatype, cas, _, rev_seqno, delete_time = _read_tombstone(buffer, at)
    return Meta(cas, rev_seqno, expiry=delete_time, datatype=datatype, deleted=True)


def remains_of(newest: Newest) -> bytes:
    """Return the value of the tombstone that a document leaves: the system's extended attributes, if it has any.

    Source: kv_engine VBucket::pruneXattrDocument.
    """
    datatype = newest[2][DATATYPE]
    if not datatype & Datatype.XATTR:
        return b""
    value = value_of(newest)
    try:
        section, _ = split_xattrs(inflate(value) if datatype & Datatype.SNAPPY else value)
        attributes = unpack_xattrs(bytes(section)).xattrs
    except RemoteProtocolError:  # it came from elsewhere, and nobody can read it
        return b""
    kept = {name: attribute for name, attribute in attributes.items() if name.startswith("_")}
    return pack_xattrs(kept) if kept else b""
