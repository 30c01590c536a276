"""Documents as a client reads and writes them: keys as bytes, requests in chunks, replies as documents."""

from __future__ import annotations

import itertools
import zlib
from collections.abc import Iterable, Iterator
from typing import NamedTuple, TypeVar

from penstock.errors import UsageError
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import decode
from penstock.wire.codec.statuses import Status
from penstock.wire.columns.inflated import inflate_value
from penstock.wire.messages.kv import GetReply

__all__ = ["Document", "chunks_of", "document_of", "encode_key", "vbucket_of"]

T = TypeVar("T")

_AT_ONCE = 512
"""Requests of one call that are under way together."""

_FLAGS = GetReply.layouts[1].extras


class Document(NamedTuple):
    """What is stored under a key."""

    value: bytes
    cas: int
    flags: int = 0
    datatype: int = 0


def vbucket_of(key: bytes, vbuckets: int) -> int:
    """Return the vbucket that a key belongs to. Source: the clients' common CRC-32 mapping."""
    return ((zlib.crc32(key) >> 16) & 0x7FFF) % vbuckets


def document_of(key: bytes, frame: Frame) -> Document | None:
    """Return the document in the reply to a GET, None for a refusal. Raises RemoteProtocolError for a malformed one."""
    if frame.specific != Status.SUCCESS:
        return None
    if len(frame.extras) != _FLAGS.size:
        decode(frame)  # raises what is wrong with it; decoding those that are right as well took a third of the time
    (flags,) = _FLAGS.unpack(frame.extras)
    value, datatype = inflate_value(frame.value, frame.datatype, f"GET {key!r}")
    return Document(value, frame.cas, flags, datatype)


def encode_key(key: str | bytes) -> bytes:
    """Return a key as bytes. Raises UsageError for text that UTF-8 cannot hold."""
    try:
        return key.encode() if isinstance(key, str) else key
    except UnicodeEncodeError as error:
        raise UsageError(f"key {key!r} is no text that UTF-8 can hold: {error.reason}") from None


def chunks_of(items: Iterable[T]) -> Iterator[list[T]]:
    """Cut items into lists of as many requests as are under way together."""
    source = iter(items)
    while chunk := list(itertools.islice(source, _AT_ONCE)):
        yield chunk
