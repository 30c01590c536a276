"""Parts of keys, values and framing extras of DCP messages. System events: see `system_event`.

Every `unpack_` function reads bytes of a peer. It raises RemoteProtocolError, not fatal, for bytes that are not well
formed, and allocates no more memory than it was given. Every `pack_` function raises LocalProtocolError for numbers and
texts that do not fit into the form.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from struct import error as StructError
from typing import Final, NamedTuple

from penstock.errors import LocalProtocolError, RemoteProtocolError
from penstock.wire.codec.frame import Buffer
from penstock.wire.codec.statuses import Status

_U16 = Struct(">H")
_U32 = Struct(">I")


def _make_error(text: str, status: int = Status.EINVAL) -> RemoteProtocolError:
    return RemoteProtocolError(text, status=status, fatal=False)


def _make_xattr_error(text: str) -> RemoteProtocolError:
    return _make_error(text, Status.XATTR_EINVAL)


# Extended attributes. Source: kv_engine docs/BinaryProtocol.md, "XATTR"


class XattrValue(NamedTuple):
    """A value with the datatype XATTR, divided. Names that begin with `_` are the system's.

    Attributes:
        xattrs: name -> value of each extended attribute.
        body: the document.
    """

    xattrs: dict[str, bytes]
    body: bytes


def pack_xattrs(xattrs: Mapping[str, bytes], body: bytes = b"") -> bytes:
    """Return the value of a document with these attributes.

    Raises:
        LocalProtocolError: a name is empty or has a NUL.
    """
    pairs = []
    for name, value in xattrs.items():
        key = name.encode()
        if not key or b"\0" in key:
            raise LocalProtocolError(f"extended attribute {name!r}: a name is not empty and has no NUL")
        pairs.append(_U32.pack(len(key) + len(value) + 2) + key + b"\0" + value + b"\0")
    section = b"".join(pairs)
    return _U32.pack(len(section)) + section + body


def unpack_xattrs(value: bytes) -> XattrValue:
    """Return the attributes and the body of a value with the datatype XATTR. The value must not be compressed.

    Raises:
        RemoteProtocolError: the attributes are not well formed (XATTR_EINVAL, not fatal).
    """
    end = _find_end(value, 0, len(value), "extended attributes")
    xattrs: dict[str, bytes] = {}
    at = _U32.size
    while at < end:
        next_at = _find_end(value, at, end, "extended attribute")
        pair = value[at + _U32.size : next_at]
        key, separator, rest = pair.partition(b"\0")
        if not key or not separator or rest[-1:] != b"\0":
            raise _make_xattr_error(f"extended attribute {pair[:40]!r}: expected a name, NUL, a value, NUL")
        try:
            name = key.decode()
        except UnicodeDecodeError:
            raise _make_xattr_error(f"extended attribute: name {key[:40]!r} is not UTF-8") from None
        if name in xattrs:
            raise _make_xattr_error(f"extended attribute {name!r} twice")
        xattrs[name] = rest[:-1]
        at = next_at
    return XattrValue(xattrs, value[end:])


def split_xattrs(value: Buffer) -> tuple[Buffer, Buffer]:
    """Return the section of the attributes and the body. The section is not checked.

    Raises:
        RemoteProtocolError: the section is longer than the value.
    """
    end = _find_end(value, 0, len(value), "extended attributes")
    return value[:end], value[end:]


def _find_end(value: Buffer, at: int, end: int, name: str) -> int:
    """Return where a part ends that begins at `at` with its length, u32.

    Raises:
        RemoteProtocolError: the part does not end before `end`. The error names it as `name`.
    """
    if at + _U32.size > end:
        raise _make_xattr_error(f"{name}: length in {end - at} bytes, expected {_U32.size}")
    length: int = _U32.unpack_from(value, at)[0]
    if length > end - at - _U32.size:
        raise _make_xattr_error(f"{name} of {length} bytes in {end - at - _U32.size}")
    return at + _U32.size + length


# Extended meta data, of releases 4.0 to 6.6 that had agreed on enable_ext_metadata. Source: kv_engine ext_meta_parser.h


class ExtendedMeta(NamedTuple):
    """Extended meta data: the last `nmeta` bytes of a value.

    Attributes:
        adjusted_time: nanoseconds.
        conflict_mode: how conflicts are resolved.
        others: (type, data) of unknown types.
    """

    adjusted_time: int | None = None
    conflict_mode: int | None = None
    others: tuple[tuple[int, bytes], ...] = ()


_META_VERSION = 1
_META_HEAD = Struct(">BH")
_META_FIELDS = {1: ("adjusted_time", Struct(">q")), 2: ("conflict_mode", Struct(">B"))}


def split_extended_meta(value: bytes, nmeta: int) -> tuple[bytes, bytes]:
    """Return a message's value and the section after it.

    Raises:
        RemoteProtocolError: the value is shorter than the section.
    """
    if nmeta > len(value):
        raise _make_error(f"extended meta data of {nmeta} bytes in a value of {len(value)}")
    end = len(value) - nmeta
    return value[:end], value[end:]


def pack_extended_meta(meta: ExtendedMeta) -> bytes:
    """Return the section of extended meta data.

    Raises:
        LocalProtocolError: a type of `others` has a field of its own, or a number does not fit.
    """
    if taken := [code for code, _ in meta.others if code in _META_FIELDS]:
        raise LocalProtocolError(f"extended meta data: types {taken} have fields of their own")
    try:
        known = [
            (code, form.pack(number))
            for code, (name, form) in _META_FIELDS.items()
            if (number := getattr(meta, name)) is not None
        ]
        parts = [_META_HEAD.pack(code, len(data)) + data for code, data in (*known, *meta.others)]
    except StructError as error:
        raise LocalProtocolError(f"extended meta data: {error}") from error
    return bytes([_META_VERSION]) + b"".join(parts)


def unpack_extended_meta(section: bytes) -> ExtendedMeta:
    """Return the extended meta data of a section.

    Raises:
        RemoteProtocolError: the section is not well formed.
    """
    if not section or section[0] != _META_VERSION:
        raise _make_error(f"extended meta data {section[:1].hex() or 'of no bytes'}, expected version {_META_VERSION}")
    known: dict[str, int] = {}
    others = []
    at = 1
    while at < len(section):
        if at + _META_HEAD.size > len(section):
            raise _make_error(
                f"extended meta data: {len(section) - at} bytes at {at}, expected {_META_HEAD.size} or more"
            )
        code, length = _META_HEAD.unpack_from(section, at)
        at += _META_HEAD.size
        data = section[at : at + length]
        at += length
        name, form = _META_FIELDS.get(code, ("", None))
        if len(data) < length or (form is not None and length != form.size) or name in known:
            raise _make_error(
                f"extended meta data: type {code} of {length} bytes, {len(data)} there, or the type twice"
            )
        if form is None:
            others.append((code, data))
        else:
            (known[name],) = form.unpack(data)
    return ExtendedMeta(**known, others=tuple(others))


# CACHE_TRANSFER. Source: kv_engine docs/dcp, commands/cache_transfer.md


class CachedDocument(NamedTuple):
    """A document of a CACHE_TRANSFER.

    Attributes:
        key: with the collection's id, 2 to 251 bytes.
        value: empty if the consumer asked for no values.
        cas, by_seqno, rev_seqno, flags, expiry: as of Mutation.
        datatype: the stored document's, also if the value was left out.
        cache_hint: how hot the document is.
    """

    key: bytes
    value: bytes = b""
    cas: int = 0
    by_seqno: int = 0
    rev_seqno: int = 0
    flags: int = 0
    expiry: int = 0
    datatype: int = 0
    cache_hint: int = 0


_CACHED = Struct(">QQQIIIHBB")
_CACHED_KEY = range(2, 252)

CACHED_HEAD_BYTES: Final = _CACHED.size
"""Bytes of a cached document before its key."""

LEAST_CACHED_BYTES: Final = CACHED_HEAD_BYTES + _CACHED_KEY[0]
"""Bytes of the shortest cached document."""


def pack_cached_documents(documents: Iterable[CachedDocument]) -> bytes:
    """Return the value of a CACHE_TRANSFER.

    Raises:
        LocalProtocolError: a key has a wrong length, or a number does not fit.
    """
    parts: list[bytes] = []
    for key, value, cas, by_seqno, rev_seqno, flags, expiry, datatype, hint in documents:
        if len(key) not in _CACHED_KEY:
            raise LocalProtocolError(f"cached document with a key of {len(key)} bytes, expected 2 to 251")
        try:
            head = _CACHED.pack(cas, by_seqno, rev_seqno, len(value), flags, expiry, len(key), datatype, hint)
        except StructError as error:
            raise LocalProtocolError(f"cached document {key!r}: {error}") from error
        parts += (head, key, value)
    return b"".join(parts)


def unpack_cached_documents(value: bytes) -> list[CachedDocument]:
    """Return the documents of a CACHE_TRANSFER, in the order of the bytes.

    Raises:
        RemoteProtocolError: the value is not well formed.
    """
    documents = []
    at = 0
    while at < len(value):
        key_at = at + _CACHED.size
        if key_at > len(value):
            raise _make_error(f"cached document: {len(value) - at} bytes, expected {_CACHED.size} or more")
        head = _CACHED.unpack_from(value, at)
        cas, by_seqno, rev_seqno, value_length, flags, expiry, key_length, datatype, hint = head
        value_at = key_at + key_length
        at = value_at + value_length
        if key_length not in _CACHED_KEY or at > len(value):
            raise _make_error(
                f"cached document: key of {key_length} and value of {value_length} bytes in {len(value) - key_at}, "
                "a key has 2 to 251"
            )
        key, body = value[key_at:value_at], value[value_at:at]
        documents.append(CachedDocument(key, body, cas, by_seqno, rev_seqno, flags, expiry, datatype, hint))
    return documents


# Framing extras. Source: kv_engine docs/BinaryProtocol.md, "FrameInfo"


class FrameInfo(NamedTuple):
    """One element of the framing extras.

    Attributes:
        id: 0 to 270.
        data: 0 to 270 bytes.
    """

    id: int
    data: bytes = b""


_STREAM_ID = 2
_ESCAPE = 15
_HIGHEST = _ESCAPE + 0xFF


def pack_framing(elements: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the framing extras with these elements, each (id, data).

    Raises:
        LocalProtocolError: an id or the length of its data is above 270.
    """
    parts = []
    for number, data in elements:
        if not (0 <= number <= _HIGHEST and len(data) <= _HIGHEST):
            raise LocalProtocolError(f"frame info {number} of {len(data)} bytes, both at most {_HIGHEST}")
        escaped = [each - _ESCAPE for each in (number, len(data)) if each >= _ESCAPE]
        parts.append(bytes([min(number, _ESCAPE) << 4 | min(len(data), _ESCAPE), *escaped]) + data)
    return b"".join(parts)


def unpack_framing(framing: bytes) -> tuple[FrameInfo, ...]:
    """Return the elements of framing extras.

    Raises:
        RemoteProtocolError: the framing extras are not well formed.
    """
    elements = []
    at = 0
    while at < len(framing):
        sizes = [framing[at] >> 4, framing[at] & 0x0F]
        at += 1
        for index, size in enumerate(sizes):
            if size == _ESCAPE:
                if at == len(framing):
                    raise _make_error("frame info: it ends where an id or length goes on")
                sizes[index] += framing[at]
                at += 1
        number, length = sizes
        if length > len(framing) - at:
            raise _make_error(f"frame info {number} of {length} bytes in {len(framing) - at}")
        elements.append(FrameInfo(number, framing[at : at + length]))
        at += length
    return tuple(elements)


def pack_stream_id(stream_id: int) -> bytes:
    """Return the framing extras with a stream id.

    Raises:
        LocalProtocolError: the id is not 1 to 65535.
    """
    if not 1 <= stream_id <= 0xFFFF:
        raise LocalProtocolError(f"stream id {stream_id}, expected 1 to 65535")
    return bytes([_STREAM_ID << 4 | _U16.size]) + _U16.pack(stream_id)


def unpack_stream_id(framing: bytes) -> int | None:
    """Return the stream id in framing extras, None if they have none; other elements are ignored.

    Raises:
        RemoteProtocolError: the id is 0, has another length, or stands twice (DCP_STREAMID_INVALID).
    """
    if not framing:
        return None
    named = [data for number, data in unpack_framing(framing) if number == _STREAM_ID]
    if not named:
        return None
    found = int.from_bytes(named[0], "big")
    if len(named) > 1 or len(named[0]) != _U16.size or found == 0:
        raise _make_error(
            f"framing extras {framing.hex()}: expected one stream id of 1 to 65535", Status.DCP_STREAMID_INVALID
        )
    return found
