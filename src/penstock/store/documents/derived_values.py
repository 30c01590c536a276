"""Values that are made of the one that is there: numbers counted on, and what is put in front or behind."""

from __future__ import annotations

import re

from penstock.errors import DeltaBadValue
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer
from penstock.wire.messages.dcp_values import split_xattrs
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import join_large
from penstock.wire.values.snappy import inflate

__all__ = ["beside_attributes", "counted", "extended"]

_NUMBERS = 2**64
_MOST_DIGITS = 20
_COUNTER = re.compile(rb"\s*+\+?([0-9]++)(?:\s|\Z)").match
"""A number, white space before it, and after it anything that begins with white space. Source: kv_engine util.cc."""


def counted(value: Buffer, datatype: int, delta: int) -> tuple[int, bytes]:
    """Return the number that a value is, plus `delta`, and the value with it. Extended attributes stay.

    From 2^64 on it begins at 0 again; below 0 it stays there. White space around the number is dropped.
    Raises DeltaBadValue for a value that is no decimal u64.
    A compressed value comes back inflated.
    """
    xattrs, body = _apart(value, datatype)
    found = _COUNTER(body)
    digits = b"" if found is None else found[1].lstrip(b"0") or b"0"
    if not 0 < len(digits) <= _MOST_DIGITS or (number := int(digits)) >= _NUMBERS:
        raise DeltaBadValue(f"{bytes(body[:40])!r} of {len(body)} bytes: expected a decimal number below 2^64")
    number = max(number + delta, 0) % _NUMBERS
    return number, xattrs + b"%d" % number


def extended(value: Buffer, datatype: int, more: bytes, *, in_front: bool) -> tuple[Buffer, int]:
    """Return a value with more behind it, or in front of it but behind its extended attributes, and its datatype.

    The datatype has JSON if the new body is JSON text. A compressed value comes back inflated.
    """
    if not more:
        return value, datatype
    xattrs, body = _apart(value, datatype)
    body = join_large(more, body) if in_front else join_large(body, more)
    return join_large(xattrs, body) if xattrs else body, datatype & Datatype.XATTR | detect_json(body)


def beside_attributes(old: Buffer, old_datatype: int, value: Buffer, datatype: int) -> tuple[bytes, Buffer, int]:
    """Return the extended attributes of a document, the one that replaces it, inflated, and the datatype of both."""
    xattrs, _ = _apart(old, old_datatype)
    if datatype & Datatype.SNAPPY:
        value, datatype = inflate(value), datatype & ~Datatype.SNAPPY
    return xattrs, value, datatype | Datatype.XATTR


def _apart(value: Buffer, datatype: int) -> tuple[bytes, Buffer]:
    """Return the section with the extended attributes, as it is, and the document, inflated."""
    if datatype & Datatype.SNAPPY:
        value = inflate(value)
    if not datatype & Datatype.XATTR:
        return b"", value
    xattrs, body = split_xattrs(value)
    return bytes(xattrs), body
