"""The commands of the UPR draft. Its answers have no status: what they are stands in byte 5, as in its requests.

Source: UPR protocol draft, "Request and Response Messages". What it has no answer for is malformed.
"""

from __future__ import annotations

import logging

from penstock.errors import KeyExists, NotMyVbucket, RemoteProtocolError, StatusError
from penstock.node.answers import Answer
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.session import Handler, Session
from penstock.node.streams.upr_commands import position_of, producer_of
from penstock.wire.codec.constants import Dialect
from penstock.wire.codec.frame import Frame
from penstock.wire.codec.opcodes import Opcode
from penstock.wire.messages.kv import Set, pack_failover_log
from penstock.wire.messages.upr_draft import (
    DraftFailoverLog,
    DraftGetFailoverLog,
    DraftMalformed,
    DraftOk,
    DraftRollback,
    DraftStreamReq,
)

__all__ = ["COMMANDS", "FIRST", "claims", "refuse"]

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


COMMANDS = CommandTable(_answering)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: DraftStreamReq) -> bytes:
    producer = producer_of(session, Dialect.UPR_DRAFT)
    vbucket = producer.bucket.store.existing(request.vbucket)
    asked = position_of(request)
    # A stream is known by its request: one vbucket may have several.
    point = producer.open_stream(vbucket, request.opaque, request.opaque, asked, group=request.key)
    if point is None:
        return DraftOk(vbucket=vbucket.id, opaque=request.opaque).encode()
    return DraftRollback(vbucket=vbucket.id, opaque=request.opaque, rollback_seqno=point).encode()


@COMMANDS.serve(needs=STREAM)
def get_failover_log(session: Session, request: DraftGetFailoverLog) -> bytes:
    producer = producer_of(session, Dialect.UPR_DRAFT)
    if request.opaque in producer.streams:
        raise KeyExists(f"request id {request.opaque} is that of a stream")
    vbucket = producer.bucket.store.existing(request.vbucket)
    log = pack_failover_log(vbucket.history.failover_log)
    return DraftFailoverLog(vbucket=vbucket.id, opaque=request.opaque, value=log).encode()


FIRST = frozenset(COMMANDS.commands)
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
