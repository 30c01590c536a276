"""The frame of a tombstone, made in one place."""

from penstock.wire.constants import Magic, Opcode
from penstock.wire.dcp import DELETION_HEAD
from penstock.wire.frame import HEADER_BYTES
from penstock.wire.schema import Event

__all__ = ["TOMBSTONE_BYTES", "tombstone_head"]

TOMBSTONE_BYTES = DELETION_HEAD.size
"""Bytes of a tombstone without key and value, at most."""

_EXTRAS = DELETION_HEAD.size - HEADER_BYTES


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
    """Return the header and extras of a tombstone. event: deletion or expiration. delete_time: epoch seconds.

    Form V1, which says neither of them.
    """
    body = _EXTRAS + key_length + value_length
    return DELETION_HEAD.pack(
        *(Magic.REQUEST, Opcode.DCP_DELETION, key_length, _EXTRAS, datatype, vbucket, body, 0, cas),
        *(seqno, rev_seqno, 0),
    )
