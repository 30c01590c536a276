"""Rules about the numbers of a change, each usable for one message and for the columns of many.

Where a rule takes and returns `Any`, it is a number or a truth of one message, or a column of them.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import RemoteProtocolError
from penstock.wire.codec.flags import TapFlag
from penstock.wire.messages.dcp_values import unpack_xattrs

_NO_VALUE, _NETWORK_BYTE_ORDER = int(TapFlag.NO_VALUE), int(TapFlag.NETWORK_BYTE_ORDER)
_REV_SEQNO_BYTES = 8


def breaks_layout(key_length: Any, value_at: Any, end: Any, seqno: Any, ends_at_key: Any) -> Any:
    """Return whether a message contradicts its header.

    Args:
        key_length: bytes of the key.
        value_at: where the value begins, after the key.
        end: where the value ends.
        seqno: None where the dialect has none.
        ends_at_key: nothing may follow the key.
    """
    return (key_length == 0) | (value_at > end) | (seqno == 0) | (ends_at_key & (value_at < end))


def has_rev_seqno(engine_length: Any) -> Any:
    """Return whether TAP's engine-private data is long enough to begin with a rev_seqno."""
    return engine_length >= _REV_SEQNO_BYTES


def is_value_omitted(tap_flags: Any) -> Any:
    """Return whether a TAP message was sent without its document's value."""
    return (tap_flags & _NO_VALUE) != 0


def has_reversed_flags(tap_flags: Any) -> Any:
    """Return whether a TAP message has the document's flags in the byte order of a little-endian server."""
    return (tap_flags & _NETWORK_BYTE_ORDER) == 0


def read_xattrs(view: memoryview, at: int, end: int) -> tuple[dict[str, bytes], int]:
    """Return the extended attributes that precede a value, and the offset of the value's body.

    Raises:
        RemoteProtocolError: the attributes are not well formed.
    """
    body_at = min(at + 4 + int.from_bytes(view[at : min(at + 4, end)], "big"), end)
    try:
        return unpack_xattrs(view[at:body_at].tobytes()).xattrs, body_at
    except RemoteProtocolError as error:
        raise RemoteProtocolError(str(error), status=error.status) from None
