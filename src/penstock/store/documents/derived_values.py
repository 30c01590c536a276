"""Values that are made from the present value: counters, and values with bytes added in front or behind."""

from __future__ import annotations

import re

from penstock.errors import DeltaBadValue
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import Buffer
from penstock.wire.messages.dcp_values import split_xattrs
from penstock.wire.values.json_value import detect_json
from penstock.wire.values.large_bytes import join_buffers
from penstock.wire.values.snappy import inflate

_NUMBERS = 2**64
_SNAPPY = int(Datatype.SNAPPY)  # operators of plain numbers: those of an IntFlag take a microsecond
_XATTR = int(Datatype.XATTR)
_MOST_DIGITS = 20
_COUNTER = re.compile(rb"\s*+\+?([0-9]++)(?:\s|\Z)").match
"""A number, white space before it, and after it anything that begins with white space. Source: kv_engine util.cc."""


def add_to_number(value: Buffer, datatype: int, delta: int) -> tuple[int, bytes]:
    """Return the sum of a decimal value and `delta`, and the new value. Extended attributes stay.

    A sum of 2^64 or more wraps around to 0; a sum below 0 is 0. White space around the number is dropped. A compressed
    value becomes uncompressed.

    Raises:
        DeltaBadValue: the value is not a decimal u64.
    """
    xattrs, body = _split_value(value, datatype)
    found = _COUNTER(body)
    digits = b"" if found is None else found[1].lstrip(b"0") or b"0"
    if not 0 < len(digits) <= _MOST_DIGITS or (number := int(digits)) >= _NUMBERS:
        raise DeltaBadValue(f"{bytes(body[:40])!r} of {len(body)} bytes: expected a decimal number below 2^64")
    number = max(number + delta, 0) % _NUMBERS
    return number, xattrs + b"%d" % number


def extend_value(value: Buffer, datatype: int, more: bytes, *, in_front: bool) -> tuple[Buffer, int]:
    """Return a value with bytes added, and its datatype.

    The bytes go behind it, or in front of its body but behind its extended attributes. The datatype has JSON if the new
    body is JSON text. A compressed value becomes uncompressed.
    """
    if not more:
        return value, datatype
    xattrs, body = _split_value(value, datatype)
    body = join_buffers(more, body) if in_front else join_buffers(body, more)
    return join_buffers(xattrs, body) if xattrs else body, datatype & _XATTR | detect_json(body)


def keep_attributes(old: Buffer, old_datatype: int, value: Buffer, datatype: int) -> tuple[bytes, Buffer, int]:
    """Return a document's extended attributes, the uncompressed value that replaces it, and the datatype of both."""
    xattrs, _ = _split_value(old, old_datatype)
    if datatype & _SNAPPY:
        value, datatype = inflate(value), datatype & ~_SNAPPY
    return xattrs, value, datatype | _XATTR


def _split_value(value: Buffer, datatype: int) -> tuple[bytes, Buffer]:
    """Return the section with the extended attributes, and the uncompressed body."""
    if datatype & _SNAPPY:
        value = inflate(value)
    if not datatype & _XATTR:
        return b"", value
    xattrs, body = split_xattrs(value)
    return bytes(xattrs), body
