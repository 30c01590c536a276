"""Extended attributes (xattrs): their names, virtual attributes, and macros.

The virtual attributes `$document`, `$vbucket` and `$XTOC` are computed when they are read and cannot be changed. With
EXPAND_MACROS, a value is a *macro*: the store replaces it by another value. The other value is the cas, the seqno or
the checksum that the document gets with the change. Or it is a field that `$document` shows before the change.
"""

from __future__ import annotations

import json
import re
import string
from base64 import b64decode, b64encode
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import NamedTuple

from crc32c import crc32c

from penstock.errors import StatusError, make_status_error
from penstock.store.subdoc.path import KeyComponent, parse_path
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.statuses import Status


class EditedDocument(NamedTuple):
    """A document, or a deleted document with the attributes that remain.

    Attributes:
        body: the value without extended attributes, not compressed.
        xattrs: name of an extended attribute -> its JSON text.
        datatype: the Datatype bits with which the document is stored.
        deleted: whether the document is deleted.
        cas: the cas of the newest change.
        seqno: the seqno of the newest change.
        rev_seqno: how often the document was changed.
        flags: the flags that the client stored with the document.
        expiry: epoch seconds, 0 for never; the time of the deletion if the document is deleted.
    """

    body: bytes = b""
    xattrs: Mapping[str, bytes] = {}
    datatype: int = 0
    deleted: bool = False
    cas: int = 0
    seqno: int = 0
    rev_seqno: int = 0
    flags: int = 0
    expiry: int = 0


class CommandContext(NamedTuple):
    """Values that operations need in addition to the document.

    Attributes:
        vbuuid: the vbucket's uuid, which `$document` shows.
        now: the present time in nanoseconds, which `$vbucket` shows.
        system_xattrs: whether lookups may read, or changes may write, attributes of the system.
    """

    vbuuid: int = 0
    now: int = 0
    system_xattrs: bool = True


_NANOSECONDS = 10**9
_DOT_OR_BRACKET = re.compile(rb"[.\[]")
_MAX_NAME = 15
_NO_NAME = set((string.punctuation + "".join(map(chr, range(32))) + "\x7f").encode()) - set(b"_$")


# Names


def parse_xattr_name(path: bytes) -> KeyComponent:
    """Return the attribute that a path leads into: its first component.

    A name has 1 to 15 bytes. It does not begin with punctuation or a control character, except for the `_` of the
    system's attributes and the `$` of virtual attributes. `_` and `$` alone are not names.

    Args:
        path: the path of an operation with the flag XATTR.

    Raises:
        StatusError: with XATTR_EINVAL; the first component is not a name.
    """
    first = _DOT_OR_BRACKET.split(path, maxsplit=1)[0]
    if not 1 <= len(first) <= _MAX_NAME or first[0] in _NO_NAME or first in (b"_", b"$") or b"`" in first:
        raise _make_name_error(path)
    try:
        (name,) = parse_path(first)
    except StatusError:
        raise _make_name_error(path) from None
    assert isinstance(name, KeyComponent), "there is no bracket in it"
    return name


def is_virtual(name: str) -> bool:
    """Return whether an attribute is computed when it is read."""
    return name.startswith("$")


def is_system(name: str | bytes) -> bool:
    """Return whether an attribute belongs to the system: it stays when the document is deleted.

    Args:
        name: the name of an attribute, or a path that begins with it.
    """
    return name[:1] in ("_", b"_")


def _make_name_error(path: bytes) -> StatusError:
    return make_status_error(
        Status.XATTR_EINVAL,
        f"extended attribute {path[:40]!r}: expected it to begin with a name of 1 to {_MAX_NAME} bytes",
    )


# Virtual attributes


def make_virtual_object(name: str, document: EditedDocument, context: CommandContext) -> str:
    """Return a JSON object whose only key is a virtual attribute.

    Args:
        name: the name of the attribute.
        document: the document before the change.
        context: the vbuuid and the time to show.

    Raises:
        StatusError: with SUBDOC_XATTR_UNKNOWN_VATTR; there is no such attribute.
    """
    value: object
    if name == "$document":
        value = _make_document_fields(document, context)
    elif name == "$vbucket":
        value = {"HLC": {"mode": "real", "now": str(context.now // _NANOSECONDS)}}
    elif name == "$XTOC":
        value = [each for each in document.xattrs if context.system_xattrs or not is_system(each)]
    else:
        raise make_status_error(
            Status.SUBDOC_XATTR_UNKNOWN_VATTR, f"virtual attribute {name!r}, expected $document, $vbucket or $XTOC"
        )
    return _pack_json({name: value})


def _make_document_fields(document: EditedDocument, context: CommandContext) -> dict[str, object]:
    names = [flag.name.lower() for flag in _SHOWN_DATATYPES if document.datatype & flag and flag.name]
    return {
        "CAS": _format_hex(document.cas, 16),
        "datatype": names or ["raw"],
        "deleted": document.deleted,
        "exptime": document.expiry,
        "flags": document.flags,
        "last_modified": str(document.cas // _NANOSECONDS),
        "revid": str(document.rev_seqno),
        "seqno": _format_hex(document.seqno, 16),
        "value_bytes": len(document.body),
        "value_crc32c": _format_hex(crc32c(document.body), 8),
        "vbucket_uuid": _format_hex(context.vbuuid, 16),
    }


_SHOWN_DATATYPES = (Datatype.SNAPPY, Datatype.JSON, Datatype.XATTR)


# Macros


def _format_cas(cas: int, seqno: int, body: bytes) -> bytes:
    """Return a cas with its bytes in reverse order. The first servers printed the memory of a little-endian machine."""
    return b'"0x%s"' % cas.to_bytes(8, "little").hex().encode()


def _format_seqno(cas: int, seqno: int, body: bytes) -> bytes:
    return b'"0x%016x"' % seqno


def _format_checksum(cas: int, seqno: int, body: bytes) -> bytes:
    return b'"0x%08x"' % crc32c(body)


MUTATION_MACROS = {
    b'"${Mutation.CAS}"': _format_cas,
    b'"${Mutation.seqno}"': _format_seqno,
    b'"${Mutation.value_crc32c}"': _format_checksum,
}
"""Macro -> function of the change's cas, its seqno and the new body that returns the text. Its length is constant."""

_DOCUMENT_MACRO = re.compile(rb'"\$\{\$document(?:\.([^"}]*))?\}"')


def check_macro(value: bytes) -> None:
    """Check that a value is a macro.

    Raises:
        StatusError: with SUBDOC_XATTR_UNKNOWN_MACRO; the value is not a macro.
    """
    if value not in MUTATION_MACROS and _DOCUMENT_MACRO.fullmatch(value) is None:
        raise make_status_error(Status.SUBDOC_XATTR_UNKNOWN_MACRO, f"{value[:40]!r} is not a macro")


def expand_document_macro(value: bytes, document: EditedDocument, context: CommandContext) -> bytes:
    """Return the JSON text that replaces a checked `$document` macro.

    Args:
        value: the macro.
        document: the document before the change.
        context: the vbuuid to show.

    Raises:
        StatusError: with SUBDOC_XATTR_UNKNOWN_VATTR_MACRO; `$document` has no such field.
    """
    found = _DOCUMENT_MACRO.fullmatch(value)
    assert found is not None, "it was checked"
    shown = _make_document_fields(document, context)
    if found[1] is None:
        return _pack_json(shown).encode()
    field = found[1].decode("ascii", "replace")
    if field not in shown:
        raise make_status_error(
            Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO, f"$document has no field {field!r}, expected {', '.join(shown)}"
        )
    return _pack_json(shown[field]).encode()


# Binary values

_BINARY = b'"cb-content-base64-encoded:'


def encode_binary(value: bytes) -> bytes:
    """Return the JSON string that an attribute stores for bytes that are not JSON."""
    return _BINARY + b64encode(value) + b'"'


def decode_binary(value: bytes) -> bytes:
    """Return the bytes that a string of `encode_binary` stands for.

    Args:
        value: the JSON text of an attribute, or of a part of it.

    Raises:
        StatusError: with SUBDOC_NOT_BINARY; the value is not such a string.
    """
    if value.startswith(_BINARY):
        try:
            return b64decode(value[len(_BINARY) : -1], validate=True)
        except NotBase64:
            pass
    raise make_status_error(Status.SUBDOC_NOT_BINARY, f"{value[:40]!r}, expected a string that was stored as binary")


def _format_hex(number: int, digits: int) -> str:
    return f"0x{number:0{digits}x}"


def _pack_json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
