"""Which of the dialects a connection speaks, seen from what it sends.

One port serves all four beside key-value commands, and the first change-stream request decides. Opcodes overlap, the
lengths of the extras do not: UPR's stream request has DCP OPEN's opcode, and the draft's has SET's, which brings 8
bytes of extras.
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
"""By opcode and length of the extras."""

FIRST_DRAFT_REQUESTS = frozenset(
    (
        (DraftCode.DRAFT_STREAM_REQ, 32),
        (DraftCode.DRAFT_STREAM_REQ, 40),
        (DraftCode.DRAFT_GET_FAILOVER_LOG, 0),
    )
)
"""By opcode with the kind in byte 5, and length of the extras."""


def detect(frame: Frame) -> Dialect | None:
    """Return the dialect that begins with this request; None for any other frame, which decides nothing."""
    if frame.magic != Magic.REQUEST:
        return None
    if frame.opcode == Opcode.TAP_CONNECT:
        return Dialect.TAP
    extras = len(frame.extras)
    kind = frame.opcode << 8 | frame.datatype
    if (kind, extras) in FIRST_DRAFT_REQUESTS and not (kind == DraftCode.DRAFT_GET_FAILOVER_LOG and frame.key):
        return Dialect.UPR_DRAFT
    return FIRST_REQUESTS.get((frame.opcode, extras))
