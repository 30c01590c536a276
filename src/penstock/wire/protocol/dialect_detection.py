"""Detects the dialect of a connection from its requests.

One port serves all four dialects beside key-value commands, and the first change-stream request decides. Opcodes
overlap, but the lengths of their extras do not. UPR's stream request has DCP OPEN's opcode. The draft's requests have
SET's opcode, but SET has 8 bytes of extras.
"""

from __future__ import annotations

from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import DraftCode, Magic, Opcode, UprOpcode

FIRST_REQUESTS: dict[tuple[int, int], Dialect] = {
    (Opcode.DCP_OPEN, 8): Dialect.DCP,
    (UprOpcode.UPR_STREAM_REQ, 40): Dialect.UPR,
    (UprOpcode.UPR_GET_FAILOVER_LOG, 0): Dialect.UPR,
}
"""(opcode, length of the extras) -> dialect."""

FIRST_DRAFT_REQUESTS = frozenset(
    (
        (DraftCode.DRAFT_STREAM_REQ, 32),
        (DraftCode.DRAFT_STREAM_REQ, 40),
        (DraftCode.DRAFT_GET_FAILOVER_LOG, 0),
    )
)
"""Pairs of (opcode with the kind in byte 5, length of the extras)."""


def detect_dialect(frame: Frame) -> Dialect | None:
    """Return the dialect that begins with this request; None for any other frame, which decides nothing."""
    if frame.magic != Magic.REQUEST:
        return None
    if frame.opcode == Opcode.TAP_CONNECT:
        return Dialect.TAP
    extras = len(frame.extras)
    kind = frame.opcode << 8 | frame.datatype
    # A SET with datatype SNAPPY that lacks its extras looks like the draft's failover log request, but has a key.
    if (kind, extras) in FIRST_DRAFT_REQUESTS and not (kind == DraftCode.DRAFT_GET_FAILOVER_LOG and frame.key):
        return Dialect.UPR_DRAFT
    return FIRST_REQUESTS.get((frame.opcode, extras))
