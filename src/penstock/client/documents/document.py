"""Conversions of document commands: keys to bytes and vbuckets, expiries, requests to chunks, replies to documents."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import NamedTuple, TypeAlias, TypeVar

from penstock.errors import UsageError
from penstock.wire.codec.constants import LONGEST_RELATIVE
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.inflation import inflate_value
from penstock.wire.messages.kv import GetReply

T = TypeVar("T")

_MAX_REQUESTS = 512
"""Requests of one call that are in flight together."""

Expiry: TypeAlias = int | timedelta | datetime
"""Seconds from now, or the moment of the expiry; 0: never. A number above LONGEST_DURATION is Unix time."""

LONGEST_DURATION = 50 * 365 * 24 * 60 * 60
"""Seconds from now at most: 50 years. As Unix time, such a number is a date before 2020, which has passed."""

BYTES = (bytes, bytearray, memoryview)
"""Types of keys and values. A tuple: it is checked for each document, and a union takes three times as long."""

_MOST_EXPIRY = 2**32 - 1

_FLAGS = GetReply.layouts[1].extras


class Document(NamedTuple):
    """A document without its key.

    Attributes:
        value: the value, without extended attributes and not compressed.
        cas: the version.
        flags: the client's flags, 32 bits.
        datatype: the datatype bits of the value.
    """

    value: bytes
    cas: int
    flags: int = 0
    datatype: int = 0


def compute_vbucket(key: bytes, vbuckets: int) -> int:
    """Return the vbucket of a key. Source: the CRC-32 mapping that all Couchbase clients use."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def decode_document(key: bytes, frame: Frame) -> Document | None:
    """Return the document in the reply to GET; None for an error. Raises RemoteProtocolError if it is malformed."""
    if frame.specific != Status.SUCCESS:
        return None
    if len(frame.extras) != _FLAGS.size:
        decode_frame(frame)  # raises the error; decoding every reply would take a third of the time
    (flags,) = _FLAGS.unpack(frame.extras)
    value, datatype = inflate_value(frame.value, frame.datatype, f"GET {key!r}")
    return Document(value, frame.cas, flags, datatype)


def encode_key(key: str | bytes) -> bytes:
    """Return a key as bytes. Raises UsageError for other values, and for text that UTF-8 cannot encode."""
    try:
        if isinstance(key, str):
            return key.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key!r} cannot be encoded in UTF-8: {error.reason}") from None
    if type(key) is not bytes and not isinstance(key, BYTES):
        raise UsageError(f"key is {key!r:.80}, expected a string or bytes")
    return key


def encode_expiry(expiry: Expiry, now: float) -> int:
    """Return an expiry as requests carry it: seconds from now up to 30 days, or Unix time; 0: never.

    Seconds from now above 30 days become a Unix time. Otherwise the node would take them for a date in the 1970s.

    Args:
        expiry: the expiry.
        now: the current Unix time.

    Raises:
        UsageError: the expiry is negative or too large, or is a time without a zone.
    """
    if expiry == 0:
        return 0
    expected = f"seconds from now or Unix time, 0 to {_MOST_EXPIRY}"
    if isinstance(expiry, datetime):
        expected = "a time with a zone, from 1970 to 2106"
        # A Unix time of the first 30 days of 1970 would count from now.
        encoded = -1 if expiry.tzinfo is None else int(expiry.timestamp() // 1)
        encoded = max(encoded, LONGEST_RELATIVE + 1) if encoded >= 0 else -1
    elif isinstance(expiry, timedelta):
        seconds, expected = -(-expiry // timedelta(seconds=1)), f"0 to {LONGEST_DURATION} seconds"
        encoded = resolve_duration(seconds, now) if seconds <= LONGEST_DURATION else -1
    else:
        encoded = resolve_duration(expiry, now)
    if not 0 <= encoded <= _MOST_EXPIRY:
        raise UsageError(f"expiry is {expiry}, expected {expected}")
    return encoded


def resolve_duration(seconds: int, now: float) -> int:
    """Return a number of an expiry as requests carry it: one between 30 days and 50 years becomes a Unix time."""
    return int(now) + seconds if LONGEST_RELATIVE < seconds <= LONGEST_DURATION else seconds


def split_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield items in lists of at most _MAX_REQUESTS."""
    source = iter(items)
    while chunk := list(itertools.islice(source, _MAX_REQUESTS)):
        yield chunk
