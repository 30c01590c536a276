"""The commands of UPR, as it was first written down: a failover log, and streams without more ado.

Source: UPR transport specification; where it contradicts itself or is silent, what DCP became of it.
"""

from __future__ import annotations

from penstock.errors import InvalidArguments, KeyNotFound
from penstock.node.answers import Goodbye
from penstock.node.session.command_table import STREAM, CommandTable
from penstock.node.session.replies import reply
from penstock.node.session.session import Session
from penstock.node.streams.change_producer import streamable
from penstock.node.streams.stream_producer import StreamProducer
from penstock.store.documents.vbucket import Vbucket
from penstock.store.history.rollback import StreamRequest
from penstock.wire.codec.constants import MAX_KEY, Dialect
from penstock.wire.codec.frame import Frame, opcode_name
from penstock.wire.codec.layout import forms_of, layout_of
from penstock.wire.codec.opcodes import DCP_OPCODES, UprOpcode
from penstock.wire.codec.statuses import Status
from penstock.wire.messages.dcp import pack_rollback
from penstock.wire.messages.kv import pack_failover_log
from penstock.wire.messages.upr import UprGetFailoverLog, UprStreamReq
from penstock.wire.messages.upr_draft import DraftStreamReq

__all__ = ["COMMANDS", "FIRST", "has_branch", "position_of", "producer_of", "refuse"]

COMMANDS = CommandTable()


def producer_of(session: Session, dialect: Dialect) -> StreamProducer:
    """Return the connection's producer; without an OPEN, the first request makes it. Raises as `streamable` does."""
    if session.producer is None:
        session.producer = StreamProducer(session, streamable(session), dialect)
    assert isinstance(session.producer, StreamProducer)
    return session.producer


def position_of(request: UprStreamReq | DraftStreamReq) -> StreamRequest:
    """Return what the consumer says of itself. It knows nothing of where snapshots begin and end.

    The high seqno that it saw its branch begin behind is not compared with the failover log. Raises InvalidArguments.
    """
    if len(request.key) > MAX_KEY:
        raise InvalidArguments(f"group of {len(request.key)} bytes, limit {MAX_KEY}")
    start = request.start_seqno
    return StreamRequest(
        start_seqno=start, end_seqno=request.end_seqno, vbuuid=request.vbuuid, snap_start=start, snap_end=start
    )


def has_branch(vbucket: Vbucket, vbuuid: int) -> bool:
    return any(entry.vbuuid == vbuuid for entry in vbucket.history.failover_log)


@COMMANDS.serve(needs=STREAM)
def open_stream(session: Session, request: UprStreamReq) -> bytes:
    producer = producer_of(session, Dialect.UPR)
    if request.flags:
        raise InvalidArguments(f"flags 0x{request.flags:x}, of which none is defined")
    asked = position_of(request)
    vbucket = producer.bucket.store.existing(request.vbucket)
    point = producer.open_stream(vbucket, vbucket.id, request.opaque, asked, group=request.key)
    if point is None:
        return reply(request)
    if not has_branch(vbucket, asked.vbuuid):
        raise KeyNotFound(f"vbucket {vbucket.id} has never been on branch {asked.vbuuid}")
    return reply(request, Status.ROLLBACK, extras=pack_rollback(point))


@COMMANDS.serve(needs=STREAM)
def get_failover_log(session: Session, request: UprGetFailoverLog) -> bytes:
    vbucket = producer_of(session, Dialect.UPR).bucket.store.existing(request.vbucket)
    return reply(request, value=pack_failover_log(vbucket.history.failover_log))


FIRST = frozenset(COMMANDS.commands)
"""The requests that may be a connection's first."""


def refuse(session: Session, frame: Frame) -> bytes:
    """Refuse a change-stream request that no handler takes as it is.

    With a status where it is malformed or another dialect's; what only producers send ends the connection.
    """
    if frame.opcode in DCP_OPCODES and forms_of(frame, Dialect.UPR) is not None:
        layout_of(frame, Dialect.UPR).check(frame)
        raise Goodbye(f"{UprOpcode(frame.opcode).name} sent to a producer")
    raise InvalidArguments(f"{opcode_name(frame.opcode)} on a connection that speaks {Dialect.UPR}")
