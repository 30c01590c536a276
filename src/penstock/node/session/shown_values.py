"""Values as they stand in the bucket and as a connection is to see them."""

from __future__ import annotations

from penstock.errors import InvalidArguments
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer
from penstock.wire.messages.dcp_values import split_xattrs
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import plain_bytes
from penstock.wire.values.snappy import inflate, most_inflated

__all__ = ["client_datatype", "document_datatype", "plain_value", "shown", "with_attributes"]

_SPECIAL = Datatype.SNAPPY | Datatype.XATTR


def shown(understood: int, datatype: int, value: Buffer) -> tuple[int, Buffer]:
    """Return the datatype and value of a document for who reads it: without its extended attributes.

    understood: the Datatype bits that the reader knows; without SNAPPY it gets the value inflated.
    """
    if datatype & Datatype.SNAPPY and (datatype & Datatype.XATTR or not understood & Datatype.SNAPPY):
        datatype, value = datatype & ~Datatype.SNAPPY, inflate(value)
    if datatype & Datatype.XATTR:
        datatype, value = datatype & ~Datatype.XATTR, split_xattrs(value)[1]
    return datatype & understood, value


def with_attributes(understood: int, datatype: int, value: Buffer) -> tuple[int, Buffer]:
    """Return what `shown` does for a reader that understands extended attributes and wants them."""
    if datatype & Datatype.SNAPPY and not understood & Datatype.SNAPPY:
        datatype, value = datatype & ~Datatype.SNAPPY, inflate(value)
    return datatype, value


def plain_value(datatype: int, value: Buffer) -> bytes:
    """Return the value that a client sent, inflated.

    Args:
        datatype: as the client sent it, with bits that the connection has agreed on.

    Raises:
        InvalidArguments: the value has extended attributes.
        RemoteProtocolError: the value is not compressed although its datatype has SNAPPY, or is too long inflated.
    """
    if datatype & Datatype.XATTR:
        raise InvalidArguments("extended attributes in a value: expected the document alone")
    if datatype & Datatype.SNAPPY:
        return inflate(value, MAX_VALUE)
    return plain_bytes(value)


def client_datatype(datatype: int, value: Buffer) -> int:
    """Return the datatype to store a client's document with. Arguments and errors are those of `plain_value`."""
    return datatype & ~Datatype.JSON | detect_json(plain_value(datatype, value))


def document_datatype(datatype: int, value: Buffer) -> int:
    """Return the datatype of a value: SNAPPY and XATTR as it was sent with, JSON as it is detected in the body.

    Raises:
        RemoteProtocolError: the value cannot be inflated, or its extended attributes cannot be read.
    """
    body = inflate(value, most_inflated(datatype)) if datatype & Datatype.SNAPPY else value
    if datatype & Datatype.XATTR:
        body = split_xattrs(body)[1]
    return datatype & ~Datatype.JSON | detect_json(plain_bytes(body))
