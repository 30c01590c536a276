"""Values as they stand in the bucket and as a connection is to see them."""

from __future__ import annotations

from penstock.errors import InvalidArguments
from penstock.wire.constants import Datatype
from penstock.wire.dcp_values import split_xattrs
from penstock.wire.snappy import inflate

__all__ = ["check_stored", "shown"]

_SPECIAL = Datatype.SNAPPY | Datatype.XATTR


def shown(understood: int, datatype: int, value: bytes) -> tuple[int, bytes]:
    """Return the datatype and value of a document for who reads it: without its extended attributes.

    understood: the Datatype bits that the reader knows; without SNAPPY it gets the value inflated.
    """
    if datatype & Datatype.SNAPPY and (datatype & Datatype.XATTR or not understood & Datatype.SNAPPY):
        datatype, value = datatype & ~Datatype.SNAPPY, inflate(value)
    if datatype & Datatype.XATTR:
        datatype, value = datatype & ~Datatype.XATTR, split_xattrs(value)[1]
    return datatype & understood, value


def check_stored(datatype: int, value: bytes) -> None:
    """Raise InvalidArguments or RemoteProtocolError for a value that a client must not store as a document."""
    if datatype & Datatype.XATTR:
        raise InvalidArguments("extended attributes in a value: expected the document alone")
    if datatype & Datatype.SNAPPY:
        inflate(value)
