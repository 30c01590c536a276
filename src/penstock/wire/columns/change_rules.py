"""Rules of a change's numbers, each for one message and for the columns of many.

Where a rule takes and returns `Any`, it is a number or a truth of one message, or a column of them.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import TapFlag
from penstock.wire.messages.dcp_values import unpack_xattrs

__all__ = ["breaks_layout", "has_rev_seqno", "has_reversed_flags", "is_text", "leaves_value_out", "xattrs_at"]

_NO_VALUE, _NETWORK_BYTE_ORDER = int(TapFlag.NO_VALUE), int(TapFlag.NETWORK_BYTE_ORDER)
_REV_SEQNO_BYTES = 8


def breaks_layout(key_length: Any, value_at: Any, end: Any, seqno: Any, bare: Any) -> Any:
    """Whether a message cannot be what its header says.

    Args:
        value_at: where the value begins, behind the key.
        end: where the value ends.
        seqno: None where the dialect has none.
        bare: whether nothing may follow the key.
    """
    return (key_length == 0) | (value_at > end) | (seqno == 0) | (bare & (value_at < end))


def has_rev_seqno(engine_length: Any) -> Any:
    """Whether TAP's engine-private data is long enough to begin with a rev_seqno."""
    return engine_length >= _REV_SEQNO_BYTES


def leaves_value_out(tap_flags: Any) -> Any:
    """Whether a TAP message comes without the value that its document has."""
    return (tap_flags & _NO_VALUE) != 0


def has_reversed_flags(tap_flags: Any) -> Any:
    """Whether a TAP message has the document's flags in the byte order of a little-endian server."""
    return (tap_flags & _NETWORK_BYTE_ORDER) == 0


def xattrs_at(view: memoryview, at: int, end: int) -> tuple[dict[str, bytes], int]:
    """Return the extended attributes in front of a value, and where its body begins. Raises RemoteProtocolError."""
    body_at = min(at + 4 + int.from_bytes(view[at : min(at + 4, end)], "big"), end)
    try:
        return unpack_xattrs(view[at:body_at].tobytes()).xattrs, body_at
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), status=error.status) from None


def is_text(name: bytes) -> bool:
    """Whether bytes are UTF-8, as the name of a collection must be."""
    try:
        name.decode()
    except UnicodeDecodeError:
        return False
    return True
