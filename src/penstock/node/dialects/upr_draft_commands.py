"""The commands of the UPR draft. Its replies have no status: byte 5 shows their kind, as in its requests.

Source: UPR protocol draft, "Request and Response Messages". Errors without a reply in the draft are sent as
"malformed".
"""

from __future__ import annotations

import logging

from penstock.errors import KeyExists, NotMyVbucket, RemoteProtocolError, StatusError
from penstock.node.answers import Answer
from penstock.node.dialects.upr_commands import get_producer, make_stream_request
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.session import Handler, Session
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

logger = logging.getLogger("penstock.node")

_SET_EXTRAS = frozenset(layout.extras.size for layout in Set.layouts.values())


def _encode_errors(handler: Handler) -> Handler:
    """Return a handler that replies to errors in the draft's form."""

    def answer(session: Session, frame: Frame) -> Answer:
        try:
            return handler(session, frame)
        except NotMyVbucket:
            return DraftFailoverLog(vbucket=frame.specific, opaque=frame.opaque).encode()
        except (StatusError, RemoteProtocolError) as error:
            logger.debug("%s", error)
            return refuse_request(session, frame)

    return answer


COMMANDS = CommandTable(_encode_errors)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: DraftStreamReq) -> bytes:
    """Return the reply to a stream request: success, or the seqno to roll back to."""
    producer = get_producer(session, Dialect.UPR_DRAFT)
    vbucket = producer.bucket.store.find_existing(request.vbucket)
    position = make_stream_request(request)
    # The key is the opaque, since one vbucket may have several streams.
    point = producer.open_stream(vbucket, request.opaque, request.opaque, position, group=request.key)
    if point is None:
        return DraftOk(vbucket=vbucket.id, opaque=request.opaque).encode()
    return DraftRollback(vbucket=vbucket.id, opaque=request.opaque, rollback_seqno=point).encode()


@COMMANDS.serve(needs=STREAM)
def get_failover_log(session: Session, request: DraftGetFailoverLog) -> bytes:
    """Return a vbucket's failover log."""
    producer = get_producer(session, Dialect.UPR_DRAFT)
    if request.opaque in producer.streams:
        raise KeyExists(f"request id {request.opaque} is that of a stream")
    vbucket = producer.bucket.store.find_existing(request.vbucket)
    log = pack_failover_log(vbucket.history.failover_log)
    return DraftFailoverLog(vbucket=vbucket.id, opaque=request.opaque, value=log).encode()


def is_draft_request(frame: Frame, dialect: Dialect | None) -> bool:
    """Return whether a request of an unlisted shape is one of the draft, not a SET.

    Before a connection has a dialect, byte 5 must be set: without it, a SET without extras is more likely.

    Args:
        frame: the request.
        dialect: the dialect of the connection.
    """
    if frame.opcode != Opcode.SET or len(frame.extras) in _SET_EXTRAS:
        return False
    return dialect is Dialect.UPR_DRAFT or (dialect is None and frame.datatype != 0)


def refuse_request(session: Session, frame: Frame) -> bytes:
    """Return the draft's reply to a malformed or misplaced request."""
    return DraftMalformed(vbucket=frame.specific, opaque=frame.opaque).encode()
