"""The commands of the UPR draft. Its answers have no status: what they are stands in byte 5, as in its requests.

Source: UPR protocol draft, "Request and Response Messages". What it has no answer for is malformed.
"""

from __future__ import annotations

import logging

from penstock.errors import KeyExists, NotMyVbucket, RemoteProtocolError, StatusError
from penstock.node.answers import Answer
from penstock.node.session.session import Handler, Session
from penstock.node.streams.upr_commands import position_of, producer_of
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.layout import Code, decode
from penstock.wire.codec.opcodes import DraftCode, Opcode
from penstock.wire.messages.kv import Set, pack_failover_log
from penstock.wire.messages.upr_draft import DraftFailoverLog, DraftMalformed, DraftOk, DraftRollback, DraftStreamReq

__all__ = ["FIRST", "HANDLERS", "claims", "refuse"]

logger = logging.getLogger("penstock.node")

_SET_EXTRAS = frozenset(layout.extras.size for layout in Set.layouts.values())


def _answering(handler: Handler) -> Handler:
    """Let a handler's refusals be said in the draft's words."""

    def answer(session: Session, frame: Frame) -> Answer:
        try:
            return handler(session, frame)
        except NotMyVbucket:
            return DraftFailoverLog(vbucket=frame.specific, opaque=frame.opaque).encode()
        except (StatusError, RemoteProtocolError) as error:
            logger.debug("%s", error)
            return refuse(session, frame)

    return answer


def _stream_req(session: Session, frame: Frame) -> bytes:
    request = decode(frame, Dialect.UPR_DRAFT)
    assert isinstance(request, DraftStreamReq)
    producer = producer_of(session, Dialect.UPR_DRAFT)
    vbucket = producer.bucket.store.existing(request.vbucket)
    asked = position_of(request)
    # A stream is known by its request: one vbucket may have several.
    point = producer.open_stream(vbucket, request.opaque, request.opaque, asked, group=request.key)
    if point is None:
        return DraftOk(vbucket=vbucket.id, opaque=request.opaque).encode()
    return DraftRollback(vbucket=vbucket.id, opaque=request.opaque, rollback_seqno=point).encode()


def _failover_log(session: Session, frame: Frame) -> bytes:
    producer = producer_of(session, Dialect.UPR_DRAFT)
    if frame.opaque in producer.streams:
        raise KeyExists(f"request id {frame.opaque} is that of a stream")
    vbucket = producer.bucket.store.existing(frame.specific)
    log = pack_failover_log(vbucket.failover_log)
    return DraftFailoverLog(vbucket=vbucket.id, opaque=frame.opaque, value=log).encode()


HANDLERS: dict[Code, Handler] = {
    DraftCode.DRAFT_STREAM_REQ: _answering(_stream_req),
    DraftCode.DRAFT_GET_FAILOVER_LOG: _answering(_failover_log),
}

FIRST = frozenset(HANDLERS)
"""The requests that may be a connection's first."""


def claims(frame: Frame, dialect: Dialect | None) -> bool:
    """Tell whether a request that no table lists is one of the draft, and not a SET. dialect: the connection's.

    Before a connection has a dialect, byte 5 has to say so: a SET without its extras is more likely just that.
    """
    if frame.opcode != Opcode.SET or len(frame.extras) in _SET_EXTRAS:
        return False
    return dialect is Dialect.UPR_DRAFT or (dialect is None and frame.datatype != 0)


def refuse(session: Session, frame: Frame) -> bytes:
    """Answer what cannot be understood, or must not be here."""
    return DraftMalformed(vbucket=frame.specific, opaque=frame.opaque).encode()
