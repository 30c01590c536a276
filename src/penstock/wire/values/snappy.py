"""Values with the datatype SNAPPY: the raw format, without frames and checksums.

Source: google/snappy, format_description.txt. A value begins with how long it is inflated, as a varint.
"""

from __future__ import annotations

from typing import Final

import cramjam

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.constants import MAX_VALUE
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer

__all__ = ["MAX_INFLATED", "deflate", "inflate", "inflated_length", "most_inflated"]

MAX_INFLATED: Final = MAX_VALUE + 1024 * 1024
"""Bytes of a document with its extended attributes."""


def most_inflated(datatype: int) -> int:
    """Return how many bytes a document of this datatype may have inflated: the one rule for whoever takes it in."""
    return MAX_INFLATED if datatype & Datatype.XATTR else MAX_VALUE


_MOST = 64
_FROM = 3
"""The densest element makes 64 bytes out of 3."""


def inflated_length(value: Buffer) -> int:
    """Return how many bytes a value says that it has inflated. Raises RemoteProtocolError (EINVAL, not fatal) for one
    that does not say it, or that is too short for it."""
    try:
        length: int = cramjam.snappy.decompress_raw_len(value)
    except cramjam.DecompressionError as error:
        raise _bad(value, str(error)) from error
    if not value or length * _FROM > len(value) * _MOST:
        raise _bad(value, f"cannot become {length}")
    return length


def inflate(value: Buffer, limit: int = MAX_INFLATED) -> bytes:
    """Return the value without the compression.

    Raises RemoteProtocolError (EINVAL, not fatal) for garbage, and for more than `limit` bytes, which are not made.
    """
    length = inflated_length(value)
    if length > limit:
        raise _bad(value, f"{length} inflated, limit {limit}")
    try:
        return bytes(cramjam.snappy.decompress_raw(value))
    except cramjam.DecompressionError as error:
        raise _bad(value, str(error)) from error


def deflate(value: Buffer) -> bytes:
    """Return the value compressed, which may make it longer."""
    return bytes(cramjam.snappy.compress_raw(value))


def _bad(value: Buffer, why: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"compressed value of {len(value)} bytes: {why}", fatal=False)
