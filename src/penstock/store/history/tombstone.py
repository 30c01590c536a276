"""The frame of a tombstone, made in one place, in the form that says most: a deletion is told from an expiration, and
when either was."""

from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DeletionV2, Expiration, head_struct

__all__ = ["TOMBSTONE_BYTES", "tombstone_head"]

_DELETION, _EXPIRATION = head_struct(DeletionV2), head_struct(Expiration)

TOMBSTONE_BYTES = max(_DELETION.size, _EXPIRATION.size)
"""Bytes of a tombstone without key and value, at most."""


def tombstone_head(
    event: Event,
    *,
    vbucket: int,
    key_length: int,
    value_length: int = 0,
    datatype: int = 0,
    cas: int,
    seqno: int,
    rev_seqno: int,
    delete_time: int,
) -> bytes:
    """Return the header and extras of a tombstone. event: deletion or expiration. delete_time: epoch seconds."""
    expired = event is Event.EXPIRATION
    head = _EXPIRATION if expired else _DELETION
    opcode = Opcode.DCP_EXPIRATION if expired else Opcode.DCP_DELETION
    extras = head.size - HEADER_BYTES
    unused = () if expired else (0,)
    return head.pack(
        *(Magic.REQUEST, opcode, key_length, extras, datatype, vbucket, extras + key_length + value_length, 0, cas),
        *(seqno, rev_seqno, delete_time, *unused),
    )
