"""Values with the datatype SNAPPY: the raw format, without frames and checksums.

Source: google/snappy, format_description.txt. A value begins with its inflated length, as a varint.
"""

from __future__ import annotations

from typing import Final

import cramjam

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer

_XATTR = int(Datatype.XATTR)

MAX_INFLATED: Final = MAX_VALUE + 1024 * 1024
"""Bytes of a document with its extended attributes."""


def get_inflated_limit(datatype: int) -> int:
    """Return how many bytes a document of this datatype may have inflated. Client and node use this one rule."""
    return MAX_INFLATED if datatype & _XATTR else MAX_VALUE


_MOST = 64
_FROM = 3
"""The densest element makes 64 bytes out of 3."""


def read_inflated_length(value: Buffer) -> int:
    """Return how many bytes a value has inflated, as it declares.

    Raises:
        RemoteProtocolError: the value declares no length, or is too short for it (EINVAL, not fatal).
    """
    try:
        length: int = cramjam.snappy.decompress_raw_len(value)
    except cramjam.DecompressionError as error:
        raise _make_error(value, str(error)) from error
    if not value or length * _FROM > len(value) * _MOST:
        raise _make_error(value, f"cannot become {length}")
    return length


def inflate(value: Buffer, limit: int = MAX_INFLATED) -> bytes:
    """Return the value without compression.

    Raises:
        RemoteProtocolError: the value is malformed, or longer than `limit` inflated (EINVAL, not fatal). It is not
            inflated then.
    """
    length = read_inflated_length(value)
    if length > limit:
        raise _make_error(value, f"{length} inflated, limit {limit}")
    try:
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError as error:
        raise _make_error(value, str(error)) from error


def deflate(value: Buffer) -> bytes:
    """Return the value compressed, which may make it longer."""
    return bytes(cramjam.snappy.compress_raw(value))


def _make_error(value: Buffer, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"compressed value of {len(value)} bytes: {why}", fatal=False)
