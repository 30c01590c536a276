"""Encodes replies to served and to refused requests."""

from __future__ import annotations

import json
from collections.abc import Sequence
from struct import Struct

from penstock.errors import RemoteProtocolError, StatusError, TooBig
from penstock.node.answers import Answer, ReplyPieces
from penstock.node.session.session import Session
from penstock.wire.codec.constants import MAX_FRAME
from penstock.wire.codec.flags import Datatype
from penstock.wire.codec.frame import HEADER, Buffer, Frame
from penstock.wire.codec.layout import Message
from penstock.wire.codec.opcodes import DCP_OPCODES, Magic
from penstock.wire.codec.statuses import Status
from penstock.wire.values.large_bytes import to_bytes

_SEQNO = Struct(">Q")
_RESPONSE = int(Magic.RESPONSE)
_JSON = int(Datatype.JSON)

_COPIED = 128 * 1024
"""Bytes up to which the parts of a reply are joined."""


def get_opcode(request: Frame | Message) -> int:
    """Return the opcode in the header of a received request."""
    return request.opcode if isinstance(request, Frame) else request.received_as


def encode_reply(
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
    # Packed without a Frame in between: every reply of a hot command comes from here.
    opcode, extras_length, key_length = get_opcode(request), len(extras), len(key)
    body = extras_length + key_length + len(value)
    head = HEADER.pack(_RESPONSE, opcode, key_length, extras_length, datatype, status, body, request.opaque, cas)
    return b"".join((head, extras, key, to_bytes(value))) if body else head  # most changes have an empty reply


def replace_token_seqno(reply: bytes, seqno: int) -> bytes:
    """Return the reply to a change with another seqno in its mutation token, which is its vbuuid and its seqno."""
    at = HEADER.size + _SEQNO.size
    return reply[:at] + _SEQNO.pack(seqno) + reply[at + _SEQNO.size :]


def encode_reply_in_parts(
    request: Frame | Message,
    status: int,
    parts: Sequence[Buffer],
    *,
    extras: bytes = b"",
    key: bytes = b"",
    cas: int = 0,
    datatype: int = 0,
) -> Answer:
    """Return the reply to a request whose value has several parts. Long parts are not copied.

    Args:
        request: the request.
        status: the status.
        parts: the parts of the value, in order.
        extras: the extras of the reply.
        key: the key of the reply.
        cas: the cas of the reply.
        datatype: the datatype of the value.

    Raises:
        TooBig: the reply is longer than the longest frame.
    """
    nbytes = sum(map(len, parts))
    if nbytes <= _COPIED:
        return encode_reply(request, status, extras=extras, key=key, value=b"".join(parts), cas=cas, datatype=datatype)
    body = len(extras) + len(key) + nbytes
    if HEADER.size + body > MAX_FRAME:
        raise TooBig(f"reply of {HEADER.size + body} bytes, limit {MAX_FRAME}: request less at once")
    opcode = get_opcode(request)
    header = HEADER.pack(_RESPONSE, opcode, len(key), len(extras), datatype, status, body, request.opaque, cas)
    return ReplyPieces(header + extras + key, *parts)


def get_classic_status(status: int, *, retried_lock: bool) -> int:
    """Return the status for a client without XERROR, which knows only the older statuses.

    Source: kv_engine connection.cc, remapErrorCode; vbucket.cc, the commands that return locked_tmpfail.

    Args:
        status: the status.
        retried_lock: whether the command replies ETMPFAIL for a locked document.
    """
    if status == Status.LOCKED:
        return Status.ETMPFAIL if retried_lock else Status.KEY_EEXISTS
    return Status.ETMPFAIL if status == Status.NOT_LOCKED else status


def encode_refusal(session: Session, request: Frame, status: int, error: StatusError | RemoteProtocolError) -> bytes:
    """Return the reply to a refused request.

    Its value is the body of the error, or the cluster map for a vbucket of another node. A client that understands JSON
    also gets the reason. Replies to change-stream requests have only the body that belongs to the status, as in
    kv_engine. Source: BinaryProtocol.md, "Error message".
    """
    body = error.body if isinstance(error, StatusError) else b""
    if request.opcode in DCP_OPCODES:
        return encode_reply(request, status, value=body)
    if status == Status.NOT_MY_VBUCKET:
        return encode_reply(request, status, value=session.map.read_for_refusal())
    if not session.datatypes & _JSON:
        return encode_reply(request, status, value=body)
    fields = json.loads(body) if body else {}
    if not isinstance(error, StatusError) or error.explained:
        fields["error"] = {"context": str(error)}
    body = json.dumps(fields, separators=(",", ":")).encode() if fields else b""
    return encode_reply(request, status, value=body, datatype=_JSON if body else 0)
