"""Frames written by hand from the protocol's layout tables: (description, message, the frame's bytes in hex).

The header is spaced as: magic opcode key-length, extras-length datatype vbucket/status, body length, opaque, cas.
Then come the framing extras, the extras field by field, engine-private data, key and value.
"""

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.layout import Message
from tests.golden import collections, dcp, kv, login, observe, session, subdoc, tap, upr, upr_draft

GOLDEN: list[tuple[str, Message, str]] = [
    *(*kv.ROWS, *subdoc.ROWS, *collections.ROWS, *login.ROWS, *session.ROWS, *observe.ROWS),
    *(*dcp.ROWS, *tap.ROWS),
]
"""Rows whose opcodes have one meaning in all dialects: key-value commands, DCP and TAP."""

GOLDEN_OF: dict[Dialect, list[tuple[str, Message, str]]] = {
    Dialect.DCP: GOLDEN,
    Dialect.UPR: upr.ROWS,
    Dialect.UPR_DRAFT: upr_draft.ROWS,
}
"""Dialect -> its rows."""


def frame_of(hexadecimal: str) -> bytes:
    """Return the bytes of a row."""
    return bytes.fromhex(hexadecimal)
