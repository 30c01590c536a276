"""Extended attributes: their names, those that no document has stored, and values that stand for others.

`$document`, `$vbucket` and `$XTOC` are made when they are read and cannot be changed. With EXPAND_MACROS a value is not
put in itself but names what is: the cas, seqno or checksum that the document is about to have, or something of what
it was before, as `$document` shows that.
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

__all__ = [
    "MUTATION_MACROS",
    "CommandContext",
    "EditedDocument",
    "check_macro",
    "decode_binary",
    "encode_binary",
    "expand_document_macro",
    "is_system",
    "is_virtual",
    "make_virtual_object",
    "parse_xattr_name",
]


class EditedDocument(NamedTuple):
    """A document, or what is left of a deleted one. body: not compressed. datatype: as it is stored.

    expiry: epoch seconds, 0 for never; of a deleted one, when that was.
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
    """What operations on a document need beside it.

    Attributes:
        vbuuid: `$document` shows it.
        now: in nanoseconds; `$vbucket` shows it.
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
    """Return the attribute that a path leads into: its first component, as it is written.

    Raises StatusError with XATTR_EINVAL unless that has 1 to 15 bytes and does not begin with punctuation, but for the
    `_` of the system's and the `$` of virtual ones, with more behind it.
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
    return name.startswith("$")


def is_system(name: str | bytes) -> bool:
    """Tell whether an attribute, or one that a path leads into, is the system's: it stays in a deleted document."""
    return name[:1] in ("_", b"_")


def _make_name_error(path: bytes) -> StatusError:
    return make_status_error(
        Status.XATTR_EINVAL, f"extended attribute {path[:40]!r}: expected a name of 1 to {_MAX_NAME} bytes in front"
    )


# Virtual attributes


def make_virtual_object(name: str, document: EditedDocument, around: CommandContext) -> str:
    """Return an object with one key, a virtual attribute. Raises StatusError with SUBDOC_XATTR_UNKNOWN_VATTR."""
    value: object
    if name == "$document":
        value = _describe_document(document, around)
    elif name == "$vbucket":
        value = {"HLC": {"mode": "real", "now": str(around.now // _NANOSECONDS)}}
    elif name == "$XTOC":
        value = [each for each in document.xattrs if around.system_xattrs or not is_system(each)]
    else:
        raise make_status_error(
            Status.SUBDOC_XATTR_UNKNOWN_VATTR, f"virtual attribute {name!r}, there are $document, $vbucket and $XTOC"
        )
    return _pack_json({name: value})


def _describe_document(document: EditedDocument, around: CommandContext) -> dict[str, object]:
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
        "vbucket_uuid": _format_hex(around.vbuuid, 16),
    }


_SHOWN_DATATYPES = (Datatype.SNAPPY, Datatype.JSON, Datatype.XATTR)


# Values that stand for others


def _cas_text(cas: int, seqno: int, body: bytes) -> bytes:
    """The bytes of a cas from last to first: it was first shown as it lies in the memory of most machines."""
    return b'"0x%s"' % cas.to_bytes(8, "little").hex().encode()


def _seqno_text(cas: int, seqno: int, body: bytes) -> bytes:
    return b'"0x%016x"' % seqno


def _checksum_text(cas: int, seqno: int, body: bytes) -> bytes:
    return b'"0x%08x"' % crc32c(body)


MUTATION_MACROS = {
    b'"${Mutation.CAS}"': _cas_text,
    b'"${Mutation.seqno}"': _seqno_text,
    b'"${Mutation.value_crc32c}"': _checksum_text,
}
"""What gives the text of each, from the cas and seqno of the change and the new body. It is always as long."""

_DOCUMENT_MACRO = re.compile(rb'"\$\{\$document(?:\.([^"}]*))?\}"')


def check_macro(value: bytes) -> None:
    """Raise StatusError with SUBDOC_XATTR_UNKNOWN_MACRO for a value that stands for none other."""
    if value not in MUTATION_MACROS and _DOCUMENT_MACRO.fullmatch(value) is None:
        raise make_status_error(Status.SUBDOC_XATTR_UNKNOWN_MACRO, f"{value[:40]!r} stands for no other value")


def expand_document_macro(value: bytes, document: EditedDocument, around: CommandContext) -> bytes:
    """Return what a checked value stands for in the document as it was.

    Raises StatusError with SUBDOC_XATTR_UNKNOWN_VATTR_MACRO for what `$document` does not show.
    """
    found = _DOCUMENT_MACRO.fullmatch(value)
    assert found is not None, "it was checked"
    shown = _describe_document(document, around)
    if found[1] is None:
        return _pack_json(shown).encode()
    field = found[1].decode("ascii", "replace")
    if field not in shown:
        raise make_status_error(
            Status.SUBDOC_XATTR_UNKNOWN_VATTR_MACRO, f"{field!r} of $document, which has {', '.join(shown)}"
        )
    return _pack_json(shown[field]).encode()


# Values that are no JSON

_BINARY = b'"cb-content-base64-encoded:'


def encode_binary(value: bytes) -> bytes:
    """Return the JSON string as which bytes are kept in an attribute."""
    return _BINARY + b64encode(value) + b'"'


def decode_binary(value: bytes) -> bytes:
    """Return the bytes that were so kept. Raises StatusError with SUBDOC_NOT_BINARY for any other value."""
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
