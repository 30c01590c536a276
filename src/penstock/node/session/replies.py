"""Replies as bytes: to a request that was served, and to one that is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence

from penstock.errors import RemoteProtocolError, StatusError, TooBig
from penstock.node.answers import Answer, Pieces
from penstock.node.session.session import Session
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER, Buffer, Frame, join_frame
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import DCP_OPCODES, Magic, Opcode
from penstock.wire.codec.statuses import Status
from penstock.wire.values.large_bytes import plain_bytes

__all__ = ["classic_status", "opcode_of", "refusal", "reply", "reply_parts"]


_COPIED = 128 * 1024
"""Bytes of a reply up to which its parts are put together."""


def opcode_of(request: Frame | Message) -> int:
    """Return the opcode of a received request, as it stood in its header."""
    return request.opcode if isinstance(request, Frame) else request.received_as


def reply(
    request: Frame | Message,
    status: int = 0,
    *,
    extras: bytes = b"",
    key: bytes = b"",
    value: Buffer = b"",
    cas: int = 0,
    datatype: int = 0,
) -> bytes:
    """Return the reply to a received request, with its opcode and opaque."""
    opcode = opcode_of(request)
    return join_frame(
        Frame(Magic.RESPONSE, opcode, status, datatype, request.opaque, cas, extras, key, plain_bytes(value))
    )


def reply_parts(
    request: Frame | Message,
    status: int,
    parts: Sequence[Buffer],
    *,
    extras: bytes = b"",
    key: bytes = b"",
    cas: int = 0,
    datatype: int = 0,
) -> Answer:
    """Return the reply to a request, with a value of several parts, which are not copied if they are long.

    Raises TooBig for a reply that is longer than any frame which this node would take.
    """
    nbytes = sum(map(len, parts))
    if nbytes <= _COPIED:
        return reply(request, status, extras=extras, key=key, value=b"".join(parts), cas=cas, datatype=datatype)
    body = len(extras) + len(key) + nbytes
    if HEADER.size + body > MAX_FRAME:
        raise TooBig(f"reply of {HEADER.size + body} bytes, limit {MAX_FRAME}: ask for less at once")
    opcode = opcode_of(request)
    header = HEADER.pack(Magic.RESPONSE, opcode, len(key), len(extras), datatype, status, body, request.opaque, cas)
    return Pieces(header + extras + key, *parts)


_RETRIED_LOCKS = frozenset(
    (Opcode.GET_LOCKED, Opcode.UNLOCK, Opcode.DEL_WITH_META, Opcode.DELQ_WITH_META),
)
"""Commands that answer ETMPFAIL to a locked document, not KEY_EEXISTS, without XERROR."""


def classic_status(opcode: int, status: int) -> int:
    """Return the status for a client that has not agreed on XERROR and knows only the older statuses.

    Source: kv_engine connection.cc, remapErrorCode; vbucket.cc, which commands return locked_tmpfail.
    """
    if status == Status.LOCKED:
        return Status.ETMPFAIL if opcode in _RETRIED_LOCKS else Status.KEY_EEXISTS
    return Status.ETMPFAIL if status == Status.NOT_LOCKED else status


def refusal(session: Session, request: Frame, status: int, error: StatusError | RemoteProtocolError) -> bytes:
    """Return the reply to a request that is refused.

    Its value is what the error says beside its status; the cluster map where somebody else has the vbucket; and for
    who understands JSON, why. Those of change streams say nothing, as on the servers that first had them, but for what
    belongs to the status. Source: BinaryProtocol.md, "Error message".
    """
    body = error.body if isinstance(error, StatusError) else b""
    if request.opcode in DCP_OPCODES:
        return reply(request, status, value=body)
    if status == Status.NOT_MY_VBUCKET:
        return reply(request, status, value=session.map.for_refusal())
    if not session.datatypes & Datatype.JSON:
        return reply(request, status, value=body)
    said = json.loads(body) if body else {}
    if not isinstance(error, StatusError) or error.explained:
        said["error"] = {"context": str(error)}
    body = json.dumps(said, separators=(",", ":")).encode() if said else b""
    return reply(request, status, value=body, datatype=Datatype.JSON if body else 0)
