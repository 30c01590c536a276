"""Conversions of document commands: keys to bytes and vbuckets, requests to chunks, replies to documents."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from penstock.errors import UsageError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode_frame
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.inflation import inflate_value
from penstock.wire.messages.kv import GetReply

__all__ = ["Document", "compute_vbucket", "decode_document", "encode_key", "split_chunks"]

T = TypeVar("T")

_MAX_REQUESTS = 512
"""Requests of one call that are in flight together."""

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
    """Return a key as bytes. Raises UsageError for text that UTF-8 cannot encode."""
    try:
        return key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key!r} cannot be encoded in UTF-8: {error.reason}") from None


def split_chunks(items: Iterable[T]) -> Iterator[list[T]]:
    """Yield items in lists of at most _MAX_REQUESTS."""
    source = iter(items)
    while chunk := list(itertools.islice(source, _MAX_REQUESTS)):
        yield chunk
