"""The parts of a received change in the form of the store."""

from __future__ import annotations

from functools import partial

from penstock.errors import InvalidArguments
from penstock.node.session.client_values import check_stored_value
from penstock.node.session.large_values import LARGE_VALUE_BYTES, run_in_worker
from penstock.node.session.session import Session
from penstock.wire.codec.constants import MAX_KEY, MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer
from penstock.wire.values.collection_key import (
    DEFAULT_PREFIX,
    PREPARED_COLLECTION,
    SYSTEM_COLLECTION,
    split_collection_key,
)
from penstock.wire.values.snappy import read_inflated_length

_OWN_COLLECTIONS = (SYSTEM_COLLECTION, PREPARED_COLLECTION)
_SNAPPY, _XATTR = int(Datatype.SNAPPY), int(Datatype.XATTR)


def read_seqno(seqno: int) -> int:
    """Return a seqno. Raises InvalidArguments for 0."""
    if not seqno:
        raise InvalidArguments("seqno 0, expected 1 or more")
    return seqno


def read_key(session: Session, key: bytes) -> bytes:
    """Return the store's key of a document.

    Raises:
        InvalidArguments: the key is empty, too long, or in a collection of the store's own.
        RemoteProtocolError: the key does not begin with a collection id.
    """
    collection_id, own_key = split_collection_key(key) if session.collections else (0, key)
    if not 0 < len(own_key) <= MAX_KEY or collection_id in _OWN_COLLECTIONS:
        raise InvalidArguments(f"key of {len(own_key)} bytes in collection {collection_id:#x}, limit {MAX_KEY}")
    return key if session.collections else DEFAULT_PREFIX + key


def remove_nmeta(value: Buffer, nmeta: int) -> Buffer:
    """Return the value without the extended metadata behind it."""
    if nmeta > len(value):
        raise InvalidArguments(f"{nmeta} bytes of extended meta data in a value of {len(value)}")
    return value[: len(value) - nmeta]


def check_value(session: Session, datatype: int, value: Buffer) -> None:
    """Check a value before it is stored: that it can be inflated, and that its extended attributes are well-formed.

    Raises:
        InvalidArguments: the value is too long.
        RemoteProtocolError: the value contradicts its datatype.
        Parked: a thread checks a large value.
    """
    if len(value) > MAX_VALUE:
        raise InvalidArguments(f"value of {len(value)} bytes, limit {MAX_VALUE}")
    if not datatype & (_SNAPPY | _XATTR):
        return
    nbytes = read_inflated_length(value) if datatype & _SNAPPY else len(value)
    check = partial(check_stored_value, datatype, value)
    if nbytes <= LARGE_VALUE_BYTES:
        check()
    else:
        run_in_worker(session, None, nbytes, check)
