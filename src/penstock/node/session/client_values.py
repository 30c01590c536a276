"""Values as clients send and see them, and as the bucket stores them."""

from __future__ import annotations

from penstock.errors import InvalidArguments
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer
from penstock.wire.messages.dcp_values import split_xattrs
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import to_bytes
from penstock.wire.values.snappy import get_inflated_limit, inflate

# Plain numbers, since some of these run for every GET: an operator of an IntFlag takes a microsecond.
_JSON = int(Datatype.JSON)
_SNAPPY = int(Datatype.SNAPPY)
_XATTR = int(Datatype.XATTR)


def to_client_value(understood: int, datatype: int, value: Buffer) -> tuple[int, Buffer]:
    """Return the datatype and the value that a client gets: without extended attributes.

    Args:
        understood: Datatype bits that the client understands. Without SNAPPY it gets the inflated value.
        datatype: the datatype of the stored document.
        value: the stored value.
    """
    if datatype & _SNAPPY and (datatype & _XATTR or not understood & _SNAPPY):
        datatype, value = datatype & ~_SNAPPY, inflate(value)
    if datatype & _XATTR:
        datatype, value = datatype & ~_XATTR, split_xattrs(value)[1]
    return datatype & understood, value


def to_client_value_with_xattrs(understood: int, datatype: int, value: Buffer) -> tuple[int, Buffer]:
    """Return the datatype and the value for a client that understands and requests extended attributes.

    Args:
        understood: Datatype bits that the client understands. Without SNAPPY it gets the inflated value.
        datatype: the datatype of the stored document.
        value: the stored value.
    """
    if datatype & _SNAPPY and not understood & _SNAPPY:
        datatype, value = datatype & ~_SNAPPY, inflate(value)
    return datatype, value


def read_plain_value(datatype: int, value: Buffer) -> bytes:
    """Return the inflated value that a client has sent.

    Args:
        datatype: the datatype in the request, with bits that the connection has agreed on.
        value: the value in the request.

    Raises:
        InvalidArguments: the value has extended attributes.
        RemoteProtocolError: the datatype has SNAPPY and the value is not compressed, or too long when inflated.
    """
    if datatype & _XATTR:
        raise InvalidArguments("extended attributes in a value: expected the document alone")
    if datatype & _SNAPPY:
        return inflate(value, MAX_VALUE)
    return to_bytes(value)


def detect_client_datatype(datatype: int, value: Buffer) -> int:
    """Return the datatype with which to store a client's document. Arguments and errors: see `read_plain_value`."""
    return datatype & ~_JSON | detect_json(read_plain_value(datatype, value))


def check_stored_value(datatype: int, value: Buffer) -> None:
    """Check that a value can be read with its datatype. The JSON bit is taken as sent.

    Args:
        datatype: the datatype in the message.
        value: the value in the message.

    Raises:
        RemoteProtocolError: the value cannot be inflated, or its extended attributes are malformed.
    """
    _read_body(datatype, value)


def _read_body(datatype: int, value: Buffer) -> Buffer:
    """Return the inflated value without its extended attributes."""
    body = inflate(value, get_inflated_limit(datatype)) if datatype & _SNAPPY else value
    return split_xattrs(body)[1] if datatype & _XATTR else body


def detect_document_datatype(datatype: int, value: Buffer) -> int:
    """Return the datatype of a value: SNAPPY and XATTR as sent, JSON as detected in the body.

    Args:
        datatype: the datatype in the message.
        value: the value in the message.

    Raises:
        RemoteProtocolError: the value cannot be inflated, or its extended attributes are malformed.
    """
    return datatype & ~_JSON | detect_json(to_bytes(_read_body(datatype, value)))
