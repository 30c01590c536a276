"""The frame of a tombstone, in its most detailed form.

It distinguishes a deletion from an expiration, and has the time of either.
"""

from penstock.wire.codec.frame import HEADER_BYTES
from penstock.wire.codec.opcodes import Magic, Opcode
from penstock.wire.columns.schema import Event
from penstock.wire.messages.dcp import DeletionV2, Expiration, make_head_struct

_DELETION, _EXPIRATION = make_head_struct(DeletionV2), make_head_struct(Expiration)

_DELETED, _EXPIRED = int(Opcode.DCP_DELETION), int(Opcode.DCP_EXPIRATION)
_REQUEST = int(Magic.REQUEST)
_IS_EXPIRATION = Event.EXPIRATION

TOMBSTONE_BYTES = max(_DELETION.size, _EXPIRATION.size)
"""Bytes of a tombstone without key and value, at most."""


def make_tombstone_head(
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
    """Return the header and extras of a tombstone.

    Args:
        event: deletion or expiration.
        vbucket: the vbucket's number.
        key_length: bytes of the key.
        value_length: bytes of the value.
        datatype: the Datatype bits of the value.
        cas: the cas of the change.
        seqno: the seqno of the change.
        rev_seqno: the rev_seqno of the key.
        delete_time: epoch seconds.
    """
    expired = event is _IS_EXPIRATION
    head = _EXPIRATION if expired else _DELETION
    opcode = _EXPIRED if expired else _DELETED
    extras = head.size - HEADER_BYTES
    unused = () if expired else (0,)
    return head.pack(
        *(_REQUEST, opcode, key_length, extras, datatype, vbucket, extras + key_length + value_length, 0, cas),
        *(seqno, rev_seqno, delete_time, *unused),
    )
